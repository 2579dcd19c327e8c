// Command nodepart compares the node's part of a small copy, from the call of the agent to the
// Result, with an exec of tar by the container runtime. It runs on the node. containercopy/live
// starts it.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/internal/peertls"
)

func main() {
	var f parts
	agent := flag.String("agent", "", "`address` of the calls of the agent")
	name := flag.String("agent-name", "causeway-copy-agent", "name in the certificate of the agent")
	cri := flag.String("cri", "/run/containerd/containerd.sock", "`socket` of the container runtime")
	dir := flag.String("tls-dir", "", "`directory` with the certificate of the API server")
	flag.StringVar(&f.container, "container", "", "`ID` of the container")
	flag.StringVar(&f.path, "path", "", "`path` of a file in the container")
	pod := flag.String("pod", "", "`namespace/name/UID` of the pod")
	rounds := flag.Int("rounds", 50, "measurements of each")
	flag.Parse()
	p := strings.Split(*pod, "/")
	if len(p) != 3 {
		fmt.Fprintln(os.Stderr, "nodepart: --pod: must be namespace/name/UID")
		os.Exit(2)
	}
	f.pod = &v1alpha1.Pod{Namespace: p[0], Name: p[1], Uid: p[2]}
	if err := f.run(context.Background(), *agent, *name, *cri, *dir, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "nodepart:", err)
		os.Exit(1)
	}
}

// parts are the two sides of the comparison.
type parts struct {
	container, path string
	pod             *v1alpha1.Pod
	agent           v1alpha1.ContainerCopyClient
	runtime         runtime.RuntimeServiceClient
	security        *tls.Config
}

// run measures both sides in turn, and prints their medians.
func (f *parts) run(ctx context.Context, agent, name, cri, dir string, rounds int) error {
	identity, err := peertls.Open(dir, func(err error) { fmt.Fprintln(os.Stderr, "nodepart:", err) })
	if err != nil {
		return err
	}
	f.security = identity.ClientConfig(name, "http/1.1")
	calls, err := grpc.NewClient(agent, grpc.WithTransportCredentials(identity.Client(name)))
	if err != nil {
		return err
	}
	defer calls.Close()
	sandboxes, err := grpc.NewClient("unix://"+cri, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	defer sandboxes.Close()
	f.agent, f.runtime = v1alpha1.NewContainerCopyClient(calls), runtime.NewRuntimeServiceClient(sandboxes)
	var copies, execs []time.Duration
	for range rounds {
		for _, side := range []struct {
			run  func(context.Context) error
			into *[]time.Duration
		}{{f.copy, &copies}, {f.exec, &execs}} {
			start := time.Now()
			if err := side.run(ctx); err != nil {
				return err
			}
			*side.into = append(*side.into, time.Since(start))
		}
	}
	slices.Sort(copies)
	slices.Sort(execs)
	its, tar := copies[len(copies)/2], execs[len(execs)/2]
	fmt.Printf("| node's part of 1 KiB out | %s | %s | %.1f |\n", tar.Round(10*time.Microsecond),
		its.Round(10*time.Microsecond), float64(tar)/float64(its))
	return nil
}

// copy copies the file from the container.
func (f *parts) copy(ctx context.Context) error {
	resp, err := f.agent.CopyFromContainer(ctx, &v1alpha1.CopyFromContainerRequest{ContainerId: f.container,
		Path: f.path, Pod: f.pod})
	if err != nil {
		return err
	}
	d := websocket.Dialer{Subprotocols: []string{wire.Subprotocol}, TLSClientConfig: f.security}
	conn, _, err := d.DialContext(ctx, strings.Replace(resp.Url, "https", "wss", 1), nil)
	if err != nil {
		return err
	}
	socket := stream.NewSocket(conn)
	defer socket.Close()
	s := wire.NewStream(socket)
	body := s.Body(nil)
	n, err := io.Copy(io.Discard, body)
	if err != nil {
		return err
	}
	if err := s.Send(wire.Message{Type: wire.Ack}); err != nil {
		return err
	}
	m, err := s.Await(wire.Result, nil)
	if err == nil && (n < 1<<10 || m.Size != n) {
		text, _ := json.Marshal(m)
		err = fmt.Errorf("%d bytes, and the result %s", n, text)
	}
	return err
}

// exec runs tar in the container.
func (f *parts) exec(ctx context.Context) error {
	resp, err := f.runtime.ExecSync(ctx, &runtime.ExecSyncRequest{ContainerId: f.container,
		Cmd: []string{"tar", "cf", "-", f.path}, Timeout: 30})
	if err == nil && (resp.ExitCode != 0 || len(resp.Stdout) < 1<<10) {
		err = errors.New("tar: " + string(resp.Stderr))
	}
	return err
}
