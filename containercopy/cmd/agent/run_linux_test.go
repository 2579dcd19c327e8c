package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/container"
	"github.com/causeway-csi/causeway/containercopy/internal/pod"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/internal/peertls"
)

var workers string

func TestMain(m *testing.M) {
	pod.Main(func(dir string) int {
		workers = dir
		node = container.Node{Proc: "/proc", Init: os.Getpid()}
		return m.Run()
	})
}

// fakeRuntime is a container runtime with the container ":/".
type fakeRuntime struct {
	runtime.UnimplementedRuntimeServiceServer
	pid int
}

func (f fakeRuntime) ContainerStatus(context.Context, *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	return &runtime.ContainerStatusResponse{
		Status: &runtime.ContainerStatus{Id: ":/", State: runtime.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{
			"io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.name": "p", "io.kubernetes.pod.uid": "u"}},
		Info: map[string]string{"info": fmt.Sprintf(`{"pid":%d,"runtimeType":"io.containerd.runc.v2"}`, f.pid)},
	}, nil
}

func (fakeRuntime) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{}, nil
}

// serveRuntime serves a container runtime, and returns the path of its socket.
func serveRuntime(t *testing.T, pid int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtime.RegisterRuntimeServiceServer(s, fakeRuntime{pid: pid})
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return path
}

// logBuffer keeps a log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestTheProgram copies a file from a container, with certificates, a container runtime, calls and
// streams as on a node, and reads the metrics.
func TestTheProgram(t *testing.T) {
	running := pod.Start(t, pod.Pod{UID: 1000})
	certificates := t.TempDir()
	if _, err := peertls.Make(certificates, peertls.MakeOptions{Client: "causeway-copy", Nodes: []string{"node-1"}}); err != nil {
		t.Fatal(err)
	}
	listen, streams, metrics := freeport.Must(t), freeport.Must(t), freeport.Must(t)
	ctx, stop := context.WithCancel(t.Context())
	log, code := new(logBuffer), make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--cri-endpoint=" + serveRuntime(t, running.PID), "--listen=" + listen, "--stream-listen=" + streams,
			"--stream-address=" + streams, "--metrics-address=" + metrics, "--worker-dir=" + workers,
			"--tls-dir=" + filepath.Join(certificates, "nodes", "node-1")}, log)
	}()
	defer func() {
		stop()
		if c := <-code; c != 0 {
			t.Errorf("the agent ends with %d: %s", c, log)
		}
	}()
	identity, err := peertls.Open(filepath.Join(certificates, "router"), func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(listen, grpc.WithTransportCredentials(identity.Client("node-1")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := v1alpha1.NewContainerCopyClient(conn).CopyFromContainer(await.Context(t), &v1alpha1.CopyFromContainerRequest{
		ContainerId: ":/", Path: "/etc/hostname", Pod: &v1alpha1.Pod{Namespace: "ns", Name: "p", Uid: "u"}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err, log)
	}
	if got := contentOf(t, resp.Url, filepath.Join(certificates, "router")); got != "of the container" {
		t.Errorf("got %q", got)
	}
	text := get(t, "http://"+metrics+"/metrics")
	for _, line := range []string{`container_copy_operations_total{direction="from",result="ok"} 1`, "container_copy_in_flight 0",
		`container_copy_rejected_total{reason="node"} 0`, "container_copy_stuck_workers 0", `container_copy_bytes_total{direction="from"} 2048`} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the metrics have no %s:\n%s", line, text)
		}
	}
	own, err := peertls.Open(filepath.Join(certificates, "nodes", "node-1"), func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	if want := "container_copy_certificate_expiry_timestamp_seconds " + strconv.FormatFloat(float64(own.Until().Unix()), 'g', -1, 64); !strings.Contains(text, want+"\n") {
		t.Errorf("the metrics have no %s:\n%s", want, text)
	}
	for _, probe := range []string{"/healthz", "/readyz"} {
		if got := get(t, "http://"+metrics+probe); got != "ok\n" {
			t.Errorf("%s: %q", probe, got)
		}
	}
	stranger := t.TempDir()
	if _, err := peertls.Make(stranger, peertls.MakeOptions{Client: "causeway-copy"}); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, resp.Url, filepath.Join(stranger, "router")); err == nil {
		t.Error("a client of another CA has a stream")
	}
}

// get returns the body of a response, once the metrics have the copy.
func get(t *testing.T, url string) (page string) {
	t.Helper()
	await.NoError(t, url+" has the copy", func() error {
		resp, err := http.Get(url)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		page = string(body)
		if err != nil || resp.StatusCode != http.StatusOK {
			return errors.Join(fmt.Errorf("%s: %s", resp.Status, page), err)
		}
		if strings.Contains(page, "container_copy_in_flight 1") ||
			strings.HasSuffix(url, "metrics") && !strings.Contains(page, "operations_total{") {
			return errors.New("it does not")
		}
		return nil
	})
	return page
}

// TestReadiness shows a node on which no copy can begin: the agent is not ready, and lives. Any
// number of clients cost one check in a second.
func TestReadiness(t *testing.T) { synctest.Test(t, testReadiness) }

func testReadiness(t *testing.T) {
	var down, refused error
	started, asked := 0, 0
	h := observed(prometheus.NewRegistry(), &readiness{runtime: func(context.Context) error { asked++; return down },
		worker: func() error { started++; return refused }})
	for _, step := range []struct {
		what          string
		down, refused error
		want, started int
	}{
		{"no user namespaces", nil, errors.New("no space left on device"), http.StatusServiceUnavailable, 1},
		{"no runtime", errors.New("connection refused"), nil, http.StatusServiceUnavailable, 1},
		{"all", nil, nil, http.StatusOK, 2},
		{"the runtime has gone", errors.New("connection refused"), nil, http.StatusServiceUnavailable, 2},
		{"the runtime is back", nil, nil, http.StatusOK, 2},
	} {
		down, refused = step.down, step.refused
		time.Sleep(fresh)
		before := asked
		for range 100 {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/readyz", nil))
		}
		if asked != before+1 {
			t.Errorf("%s: the runtime was asked %d times for 100 requests, want 1", step.what, asked-before)
		}
		for path, want := range map[string]int{"/readyz": step.want, "/healthz": http.StatusOK} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != want {
				t.Errorf("%s: %s = %d %s, want %d", step.what, path, w.Code, w.Body, want)
			}
		}
		if started != step.started {
			t.Errorf("%s: %d workers were started, want %d", step.what, started, step.started)
		}
	}
}

// dial opens a stream with the certificate in a directory.
func dial(t *testing.T, url, dir string) (*websocket.Conn, error) {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	d := websocket.Dialer{Subprotocols: []string{wire.Subprotocol}, TLSClientConfig: &tls.Config{RootCAs: roots,
		Certificates: []tls.Certificate{certificate}, ServerName: "node-1"}}
	conn, resp, err := d.Dial(strings.Replace(url, "https", "wss", 1), nil)
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	} else if resp != nil {
		resp.Body.Close()
		err = fmt.Errorf("%w: %s", err, resp.Status)
	}
	return conn, err
}

// contentOf reads the stream of a copy, and returns the content of its single file.
func contentOf(t *testing.T, url, dir string) string {
	t.Helper()
	conn, err := dial(t, url, dir)
	if err != nil {
		t.Fatal(err)
	}
	s := wire.NewStream(stream.NewSocket(conn))
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := archive.Unpack(t.Context(), s.Body(nil), root, archive.UnpackOptions{Limits: archive.DefaultLimits()}); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(wire.Message{Type: wire.Ack}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Await(wire.Result, nil); err != nil {
		t.Fatal(err)
	}
	content, err := root.ReadFile("hostname")
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestEachCopyHasAConnection: the listener of streams does not refuse one below --max-copies.
func TestEachCopyHasAConnection(t *testing.T) {
	for _, perNode := range []int{100, 0} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		limited := flags{perNode: perNode}.limit(l)
		t.Cleanup(func() { limited.Close() })
		for i := range 150 {
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			c, err := limited.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if err := connlimit.Admit(c); err != nil {
				t.Fatalf("--max-copies=%d, connection %d: %v", perNode, i, err)
			}
		}
	}
}

func TestInvalidFlags(t *testing.T) {
	const ok = "--stream-address=10.0.0.1:9841"
	for _, args := range [][]string{
		{}, {"--stream-address=10.0.0.1"}, {ok, "extra"}, {ok, "--container-copy-size-limit=1X"},
		{ok, "--container-copy-size-limit=-1"}, {ok, "--container-copies-per-pod=-1"}, {ok, "--max-entries=0"},
		{ok, "--max-duration=0s"}, {ok, "--client-name="}, {ok, "--native-runtimes=a,,b"}, {ok, "--nonsense"},
	} {
		log := new(logBuffer)
		if code := run(t.Context(), args, log); code != 2 || log.String() == "" {
			t.Errorf("%q: exit code %d, %q", args, code, log)
		}
	}
	if code := run(t.Context(), []string{"--help"}, new(logBuffer)); code != 0 {
		t.Errorf("--help: exit code %d", code)
	}
	log := new(logBuffer)
	if code := run(t.Context(), []string{ok, "--tls-dir=" + t.TempDir()}, log); code != 1 || !strings.Contains(log.String(), "certificates in") {
		t.Errorf("without certificates: exit code %d, %q", code, log)
	}
	f, err := parse([]string{ok, "--container-copy-size-limit=2Gi"}, io.Discard)
	if err != nil || f.limits.Bytes != 2<<30 || f.limits.Entries != 100_000 {
		t.Errorf("parse = %+v, %v", f.limits, err)
	}
	if f, err = parse([]string{ok, "--container-copy-size-limit=0"}, io.Discard); err != nil || f.limits.Bytes != 0 {
		t.Errorf("parse = %+v, %v", f.limits, err)
	}
}
