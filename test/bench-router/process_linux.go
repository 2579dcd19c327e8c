package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/peertls"
)

const (
	driverName  = "hostpath.csi.causeway.dev"
	topologyKey = driverName + "/node"
	routerName  = "causeway-router"
)

// process is a driver of our own, as a node, as a router or as both.
type process struct {
	csi.IdentityClient
	csi.ControllerClient // over its socket
	conn                 *grpc.ClientConn
	cmd                  *exec.Cmd
	dir                  string
}

// start starts a driver whose files are in dir, and returns when it answers.
func start(ctx context.Context, bin, dir string, args ...string) (*process, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	socket := filepath.Join(dir, "csi.sock")
	endpoint := "unix://" + socket
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	p := &process{IdentityClient: csi.NewIdentityClient(conn), ControllerClient: csi.NewControllerClient(conn),
		conn: conn, dir: dir}
	p.cmd = exec.Command(bin, append([]string{"--endpoint=" + endpoint}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	err = await(ctx, func(ctx context.Context) error {
		if _, err := os.Stat(socket); err != nil { // gRPC would wait for a second before it retries
			return err
		}
		_, err := p.Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		return err
	})
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", dir, err, said), p.stop())
	}
	return p, nil
}

func (p *process) stop() error {
	return errors.Join(p.conn.Close(), p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Wait())
}

// await repeats a call until it works.
func await(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// address returns at which address the process said that it serves something.
func (p *process) address(what string) (string, error) {
	log, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`msg="serving ` + what + `" endpoint=(\S+)`).FindSubmatch(log)
	if m == nil {
		return "", fmt.Errorf("%s does not say where it serves %s: %s", p.dir, what, log)
	}
	return string(m[1]), nil
}

// startNode starts a driver that has storage, with all it needs in dir/name, and returns when it is
// ready.
func startNode(ctx context.Context, bin, dir, name string, args ...string) (p *process, err error) {
	dir = filepath.Join(dir, name)
	for _, d := range []string{"root", "kubelet", "state"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	args = append([]string{
		"--node-id=" + name, "--root=" + filepath.Join(dir, "root"), "--init-root",
		"--kubelet-dir=" + filepath.Join(dir, "kubelet"), "--state-dir=" + filepath.Join(dir, "state"),
	}, args...)
	if p, err = start(ctx, bin, dir, args...); err != nil {
		return nil, err
	}
	err = await(ctx, func(ctx context.Context) error {
		resp, err := p.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !resp.GetReady().GetValue() {
			err = errors.New("it is not ready")
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// startRouter starts a router to nodes at addresses, and returns when all of them answer, and how
// long that took.
func startRouter(ctx context.Context, bin, dir, certs string, addresses []string) (*process, time.Duration, error) {
	begin := time.Now()
	p, err := start(ctx, bin, dir, "--mode=controller", "--node-id=router", "--http-endpoint=127.0.0.1:0",
		"--peers="+strings.Join(addresses, ","), "--peer-certs="+filepath.Join(certs, "router"))
	if err != nil {
		return nil, 0, err
	}
	err = await(ctx, func(ctx context.Context) error {
		_, err := p.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 1})
		return err
	})
	if err != nil {
		return nil, 0, errors.Join(err, p.stop())
	}
	return p, time.Since(begin), nil
}

// dialNode connects to a node as the router does.
func dialNode(address, certs string) (*grpc.ClientConn, error) {
	creds, err := credsOf(filepath.Join(certs, "router"))
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds.Client("")))
}

func credsOf(dir string) (*peertls.Identity, error) {
	return peertls.Open(dir, func(err error) { fmt.Fprintln(os.Stderr, "bench-router:", err) })
}
