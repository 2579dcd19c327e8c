package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/container"
	"github.com/causeway-csi/causeway/containercopy/cri"
	"github.com/causeway-csi/causeway/containercopy/internal/pod"
	"github.com/causeway-csi/causeway/containercopy/quota"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/internal/await"
)

var workers string

func TestMain(m *testing.M) {
	pod.Main(func(dir string) int {
		workers = dir
		return m.Run()
	})
}

// fakeRuntime is a container runtime with the container ":/", which is in every control group.
type fakeRuntime struct {
	runtime.RuntimeServiceClient
	mu    sync.Mutex
	pid   int
	state runtime.ContainerState
}

const containerID = ":/"

func (f *fakeRuntime) ContainerStatus(_ context.Context, req *runtime.ContainerStatusRequest, _ ...grpc.CallOption) (*runtime.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.ContainerId != containerID {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &runtime.ContainerStatusResponse{
		Status: &runtime.ContainerStatus{Id: containerID, State: f.state, Labels: map[string]string{
			"io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.name": "p", "io.kubernetes.pod.uid": "u"}},
		Info: map[string]string{"info": fmt.Sprintf(`{"pid":%d,"runtimeType":"runc"}`, f.pid)},
	}, nil
}

// world is an agent with one container, and its caller.
type world struct {
	*testing.T
	*Agent
	runtime *fakeRuntime
	slots   *quota.Slots
	pod     pod.Running
	server  *httptest.Server
	caller  tls.Certificate
	peer    string // the fingerprint of it
	reports chan Report
	log     *bytes.Buffer
}

func newWorld(t *testing.T, change ...func(c *Config)) *world {
	t.Helper()
	w := &world{T: t, pod: pod.Start(t, pod.Pod{}), reports: make(chan Report, 100), log: new(bytes.Buffer)}
	w.runtime = &fakeRuntime{pid: w.pod.PID, state: runtime.ContainerState_CONTAINER_RUNNING}
	w.slots = quota.New(2, 16)
	w.server = httptest.NewUnstartedServer(nil)
	c := Config{
		Runtime: cri.NewFinder(w.runtime, []string{"runc"}), Slots: w.slots, Archive: archive.DefaultLimits(),
		URL: "https://" + w.server.Listener.Addr().String(), Total: time.Hour, Idle: time.Hour,
		Starter: Native{container.Node{Proc: "/proc", Init: os.Getpid()},
			container.Program{Root: workers, Name: "worker", Stderr: os.Stderr}},
		Peer: func(context.Context) string { return w.peer },
		Log:  slog.New(slog.NewTextHandler(w.log, nil)), Finished: func(r Report) { w.reports <- r },
	}
	for _, f := range change {
		f(&c)
	}
	w.Agent = New(c)
	w.server.Config.Handler = w.Handler()
	w.server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	w.server.StartTLS()
	t.Cleanup(func() {
		w.Agent.Close()
		w.server.Close()
		await.NoError(t, "no copy is left", func() error {
			if left := w.slots.State(); left.Copies+left.Stuck > 0 {
				return fmt.Errorf("left: %+v", left)
			}
			return nil
		})
	})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	w.caller, w.peer = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, stream.Fingerprint(leaf)
	return w
}

var podOf = &v1alpha1.Pod{Namespace: "ns", Name: "p", Uid: "u"}

// open opens the stream of a URL.
func (w *world) open(url string) *wire.Stream {
	w.Helper()
	roots := w.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	d := websocket.Dialer{Subprotocols: []string{wire.Subprotocol},
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{w.caller}}}
	conn, resp, err := d.Dial(strings.Replace(url, "https", "wss", 1), nil)
	if err != nil {
		if resp != nil {
			resp.Body.Close()
		}
		w.Fatalf("%v, %v", resp, err)
	}
	s := stream.NewSocket(conn)
	w.Cleanup(func() { s.Close() })
	return wire.NewStream(s)
}

func (w *world) from(path string, change ...func(r *v1alpha1.CopyFromContainerRequest)) (*v1alpha1.CopyFromContainerResponse, error) {
	req := &v1alpha1.CopyFromContainerRequest{ContainerId: containerID, Path: path, Pod: podOf,
		Caller: &v1alpha1.Caller{Name: "jane", AuditId: "audit-1"}}
	for _, f := range change {
		f(req)
	}
	return w.CopyFromContainer(w.Context(), req)
}

func (w *world) to(path string, change ...func(r *v1alpha1.CopyToContainerRequest)) (*v1alpha1.CopyToContainerResponse, error) {
	req := &v1alpha1.CopyToContainerRequest{ContainerId: containerID, Path: path, Pod: podOf}
	for _, f := range change {
		f(req)
	}
	return w.CopyToContainer(w.Context(), req)
}

// must fails the test after an error of a call.
func must[T any](w *world) func(resp T, err error) T {
	return func(resp T, err error) T {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
		return resp
	}
}

// wantCode wants an error of a call.
func (w *world) wantCode(err error, want codes.Code, words string) {
	w.Helper()
	if status.Code(err) != want || !strings.Contains(fmt.Sprint(err), words) {
		w.Errorf("got %v, want %s, %q", err, want, words)
	}
}

// read reads a stream to its end, and returns its single file.
func read(t *testing.T, s *wire.Stream) (string, archive.Sum, error) {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	body, digest := s.Body(nil), archive.NewDigest(false)
	if _, err := archive.Unpack(t.Context(), io.TeeReader(body, digest), root, archive.UnpackOptions{Limits: archive.DefaultLimits()}); err != nil {
		return "", archive.Sum{}, err
	}
	if err := s.Send(wire.Message{Type: wire.Ack}); err != nil {
		return "", archive.Sum{}, err
	}
	if _, err := s.Await(wire.Result, nil); err != nil {
		return "", archive.Sum{}, err
	}
	names, err := os.ReadDir(root.Name())
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	content, err := root.ReadFile(names[0].Name())
	return string(content), digest.Sum(), err
}

// packed returns the stream of a file.
func packed(t *testing.T, content string) ([]byte, archive.Sum) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	e, err := archive.OpenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var b bytes.Buffer
	digest := archive.NewDigest(true)
	if _, err := archive.Pack(t.Context(), io.MultiWriter(&b, digest), "f", e, archive.PackOptions{Limits: archive.DefaultLimits()}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), digest.Sum()
}

func TestACopyInAndOut(t *testing.T) {
	w := newWorld(t)
	content := strings.Repeat("content ", 200_000)
	data, sum := packed(t, content)
	to := must[*v1alpha1.CopyToContainerResponse](w)(w.to("/tmp/new", func(r *v1alpha1.CopyToContainerRequest) {
		r.Declared, r.Size, r.Checksum, r.Sha256 = true, uint64(sum.Size), sum.CRC32C, sum.SHA256
	}))
	s := w.open(to.Url)
	s.Write(data)
	s.Send(wire.EndOf(sum, archive.Counts{}))
	m, err := s.Await(wire.Result, nil)
	if err != nil || m.Path != "/tmp/new" || m.Size != sum.Size {
		t.Fatalf("Await = %+v, %v", m, err)
	}
	if r := <-w.reports; r.Err != nil || r.From || r.Bytes != sum.Size {
		t.Errorf("the report: %+v", r)
	}
	from := must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/tmp/new"))
	got, _, err := read(t, w.open(from.Url))
	if err != nil || got != content {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(content))
	}
	if r := <-w.reports; r.Err != nil || !r.From || r.Bytes == 0 {
		t.Errorf("the report: %+v", r)
	}
	for _, words := range []string{"auditID=audit-1", "user=jane", "path=/tmp/new", "podUID=u"} {
		if !strings.Contains(w.log.String(), words) {
			t.Errorf("the log has no %s: %s", words, w.log)
		}
	}
}

// TestTheSHA256OfAStream that was not known before is verified, and is in the result.
func TestTheSHA256OfAStream(t *testing.T) {
	w := newWorld(t)
	data, sum := packed(t, "content")
	wrong := sum
	wrong.SHA256 = make([]byte, 32)
	for name, tc := range map[string]struct {
		end  archive.Sum
		code wire.Code
	}{"right": {sum, ""}, "wrong": {wrong, wire.DataLoss}} {
		to := must[*v1alpha1.CopyToContainerResponse](w)(w.to("/tmp/"+name, func(r *v1alpha1.CopyToContainerRequest) { r.Sha256AtEnd = true }))
		s := w.open(to.Url)
		s.Write(data)
		s.Send(wire.EndOf(tc.end, archive.Counts{}))
		m, err := s.Await(wire.Result, nil)
		var f *wire.Failure
		if errors.As(err, &f) != (tc.code != "") || f != nil && f.Code != tc.code {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
		if got, err := m.Sum(); tc.code == "" && (err != nil || !bytes.Equal(got.SHA256, sum.SHA256)) {
			t.Errorf("%s: the result has %x, %v", name, got.SHA256, err)
		}
		<-w.reports
	}
}

// TestPrecompute: the response has the sum of the stream. If the file changes until then, the copy
// fails.
func TestPrecompute(t *testing.T) {
	w := newWorld(t)
	precompute := func(r *v1alpha1.CopyFromContainerRequest) { r.Precompute = true }
	resp := must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/etc/hostname", precompute))
	got, sum, err := read(t, w.open(resp.Url))
	if err != nil || got != "of the container" || uint64(sum.Size) != resp.Size || sum.CRC32C != resp.Checksum || resp.Size == 0 {
		t.Errorf("got %q, %+v, %v, want the sum %+v", got, sum, err, resp)
	}
	<-w.reports
	resp = must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/etc/hostname", precompute))
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/etc/hostname", w.pod.PID), []byte("something else.."), 0o644); err != nil {
		t.Fatal(err)
	}
	var f *wire.Failure
	if got, _, err := read(t, w.open(resp.Url)); !errors.As(err, &f) || f.Code != wire.Aborted {
		t.Errorf("after a change: %q, %v, want ABORTED", got, err)
	}
	_, err = w.from("/none", precompute)
	w.wantCode(err, codes.NotFound, "/none")
	resp = must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/etc/hostname", precompute))
	w.mu.Lock()
	worker := w.copies[resp.CopyId].worker
	w.mu.Unlock()
	w.pod.End()
	<-worker.Ended()
	if m, err := w.open(resp.Url).Await(wire.Result, nil); !errors.As(err, &f) || f.Code != wire.FailedPrecondition {
		t.Errorf("after the end of the container: %+v, %v, want FAILED_PRECONDITION", m, err)
	}
}

// TestTheThirdCopy of a pod is rejected at once, and a copy that ends makes room.
func TestTheThirdCopy(t *testing.T) {
	w := newWorld(t)
	first := must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/etc/hostname"))
	second := must[*v1alpha1.CopyToContainerResponse](w)(w.to("/tmp/x"))
	_, err := w.from("/etc/hostname")
	w.wantCode(err, codes.ResourceExhausted, "too many copies in pod ns/p (2), try again later")
	_, err = w.CopyFromContainer(w.Context(), &v1alpha1.CopyFromContainerRequest{ContainerId: containerID, Path: "/etc/hostname",
		Pod: &v1alpha1.Pod{Namespace: "ns", Name: "other", Uid: "u"}})
	w.wantCode(err, codes.NotFound, "no such container in the pod") // the UID of a pod is not enough to meet its slots
	list := must[*v1alpha1.ListCopiesResponse](w)(w.ListCopies(w.Context(), nil))
	if len(list.Copies) != 2 || list.Copies[0].CopyId != first.CopyId || !list.Copies[0].From || list.Copies[0].Begun ||
		list.Copies[1].CopyId != second.CopyId || list.Copies[1].Path != "/tmp/x" {
		t.Errorf("ListCopies = %v", list)
	}
	for range 2 {
		must[*v1alpha1.CancelCopyResponse](w)(w.CancelCopy(w.Context(), &v1alpha1.CancelCopyRequest{CopyId: second.CopyId}))
	}
	if r := <-w.reports; !errors.Is(r.Err, context.Canceled) {
		t.Errorf("the report: %+v", r)
	}
	if _, err := w.open(second.Url).Await(wire.Result, nil); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the stream of a canceled copy: %v", err)
	}
	must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/etc/hostname"))
}

// TestTheResultFreesTheSlot: a client that has a Result begins its next copy at once.
func TestTheResultFreesTheSlot(t *testing.T) {
	w := newWorld(t)
	w.to("/tmp/x") // the other slot of the pod
	for range 20 {
		resp := must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/nothing"))
		if _, err := w.open(resp.Url).Await(wire.Ack, nil); err == nil {
			t.Error("a copy of nothing has succeeded")
		}
	}
}

// stalled begins a copy to the container, and sends a part of it. The error is the reason for which
// the copy has ended before its worker, which is a new process, has received anything.
func (w *world) stalled() (s *wire.Stream, id string, err error) {
	w.Helper()
	resp := must[*v1alpha1.CopyToContainerResponse](w)(w.to("/tmp/new"))
	data, _ := packed(w.T, strings.Repeat("x", 1<<20))
	s = w.open(resp.Url)
	s.Write(data[:512<<10])
	_, err = s.Await(wire.Progress, nil)
	return s, resp.CopyId, err
}

// tmp returns the names in /tmp of the container.
func (w *world) tmp() string {
	w.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/tmp/*", w.pod.PID))
	hidden, more := filepath.Glob(fmt.Sprintf("/proc/%d/root/tmp/.*", w.pod.PID))
	if err := errors.Join(err, more); err != nil {
		w.Fatal(err)
	}
	return strings.Join(append(names, hidden...), " ")
}

// TestTheEndOfACopyInTheMiddle: the client gets the reason, nothing is left, and the slot is free.
func TestTheEndOfACopyInTheMiddle(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c *Config)
		end    func(w *world, s *wire.Stream, id string)
		code   wire.Code
	}{
		"canceled": {end: func(w *world, _ *wire.Stream, id string) {
			w.CancelCopy(w.Context(), &v1alpha1.CancelCopyRequest{CopyId: id})
		}, code: wire.Aborted},
		"the agent ends": {end: func(w *world, _ *wire.Stream, _ string) { w.Agent.Close() }, code: wire.Unavailable},
		"over the limit": {change: func(c *Config) { c.Archive.Bytes = 1<<20 + 10 },
			end: func(_ *world, s *wire.Stream, _ string) { s.Write(make([]byte, 600<<10)) }, code: wire.OutOfRange},
		"it stalls": {change: func(c *Config) { c.Idle = time.Second }, end: func(*world, *wire.Stream, string) {},
			code: wire.DeadlineExceeded},
		"it takes too long": {change: func(c *Config) { c.Total = 2 * time.Second }, end: func(*world, *wire.Stream, string) {},
			code: wire.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*Config)
			if tc.change != nil {
				changes = append(changes, tc.change)
			}
			w := newWorld(t, changes...)
			s, id, err := w.stalled()
			var f *wire.Failure
			limited := tc.code == wire.DeadlineExceeded // the limit may have passed before
			if err != nil && !(limited && errors.As(err, &f)) {
				t.Fatal(err)
			}
			tc.end(w, s, id)
			for f == nil {
				r, err := s.Receive()
				if err != nil {
					t.Fatal(err)
				}
				errors.As(r.Message.Err(), &f)
			}
			if f.Code != tc.code {
				t.Errorf("the client gets %s, %s, want %s", f.Code, f.Text, tc.code)
			}
			if r := <-w.reports; r.Err == nil {
				t.Errorf("the report: %+v", r)
			}
			// The agent does not wait for a worker that takes long to end.
			await.NoError(t, "nothing is left", func() error {
				if got, left := w.tmp(), w.slots.State(); got != "" || left.Copies != 0 || left.Stuck != 0 {
					return fmt.Errorf("left: %s, slots: %+v", got, left)
				}
				return nil
			})
		})
	}
}

// TestTheEndOfTheContainerInTheMiddle: the client gets an error, and the slot is free.
func TestTheEndOfTheContainerInTheMiddle(t *testing.T) {
	w := newWorld(t)
	s, _, err := w.stalled()
	if err != nil {
		t.Fatal(err)
	}
	w.pod.End()
	var f *wire.Failure
	if m, err := s.Await(wire.Result, nil); !errors.As(err, &f) || f.Code != wire.Unavailable {
		t.Errorf("Await = %+v, %v, want UNAVAILABLE", m, err)
	}
	if r := <-w.reports; r.Err == nil {
		t.Errorf("the report: %+v", r)
	}
}

// TestAContainerThatRestarts between the call and the stream, or ends: the runtime has the reason.
func TestAContainerThatRestarts(t *testing.T) {
	const none = 1 << 22 // no process has this number
	for name, tc := range map[string]struct {
		pids  [2]int // at the call and at the stream, after the first process
		state runtime.ContainerState
		want  string
	}{
		"restarted":                {[2]int{0, 1}, runtime.ContainerState_CONTAINER_RUNNING, "it has restarted"},
		"ended":                    {[2]int{0, 0}, runtime.ContainerState_CONTAINER_EXITED, "CONTAINER_EXITED"},
		"its process has ended":    {[2]int{none, none}, runtime.ContainerState_CONTAINER_EXITED, "CONTAINER_EXITED"},
		"the runtime lags":         {[2]int{none, none}, runtime.ContainerState_CONTAINER_RUNNING, "pidfd_open"},
		"restarted, ended process": {[2]int{none, 0}, runtime.ContainerState_CONTAINER_RUNNING, "it has restarted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.runtime.pid = w.pod.PID + tc.pids[0]
			resp := must[*v1alpha1.CopyFromContainerResponse](w)(w.from("/etc/hostname"))
			w.runtime.mu.Lock()
			w.runtime.pid, w.runtime.state = w.pod.PID+tc.pids[1], tc.state
			w.runtime.mu.Unlock()
			var f *wire.Failure
			m, err := w.open(resp.Url).Await(wire.Result, nil)
			if !errors.As(err, &f) || f.Code != wire.FailedPrecondition || !strings.Contains(f.Text, tc.want) {
				t.Errorf("Await = %+v, %v, want FAILED_PRECONDITION, %q", m, err, tc.want)
			}
			if tc.state == runtime.ContainerState_CONTAINER_RUNNING {
				return
			}
			_, err = w.from("/etc/hostname")
			w.wantCode(err, codes.FailedPrecondition, "not running")
		})
	}
}

func TestInvalidCalls(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Archive.Bytes = 1000 })
	type from = v1alpha1.CopyFromContainerRequest
	type to = v1alpha1.CopyToContainerRequest
	for name, tc := range map[string]struct {
		from func(r *from)
		to   func(r *to)
		want codes.Code
	}{
		"relative path":     {from: func(r *from) { r.Path = "etc" }, want: codes.InvalidArgument},
		"no path":           {to: func(r *to) { r.Path = "" }, want: codes.InvalidArgument},
		"NUL":               {to: func(r *to) { r.Path = "/a\x00" }, want: codes.InvalidArgument},
		"long path":         {to: func(r *to) { r.Path = "/" + strings.Repeat("x", 5000) }, want: codes.InvalidArgument},
		"no container":      {from: func(r *from) { r.ContainerId = "" }, want: codes.InvalidArgument},
		"no pod":            {from: func(r *from) { r.Pod = nil }, want: codes.InvalidArgument},
		"another pod":       {from: func(r *from) { r.Pod = &v1alpha1.Pod{Namespace: "ns", Name: "p", Uid: "v"} }, want: codes.NotFound},
		"unknown container": {to: func(r *to) { r.ContainerId = "x" }, want: codes.NotFound},
		"short sha256":      {to: func(r *to) { r.Declared, r.Sha256 = true, []byte("x") }, want: codes.InvalidArgument},
		"sha256 alone":      {to: func(r *to) { r.Sha256 = make([]byte, 32) }, want: codes.InvalidArgument},
		"overwrite":         {to: func(r *to) { r.Overwrite = 9 }, want: codes.InvalidArgument},
		"too large":         {to: func(r *to) { r.Declared, r.Size = true, 1001 }, want: codes.OutOfRange},
		"huge":              {to: func(r *to) { r.Declared, r.Size = true, 1<<63 }, want: codes.OutOfRange},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if tc.from != nil {
				_, err = w.from("/etc/hostname", tc.from)
			} else {
				_, err = w.to("/tmp/x", tc.to)
			}
			w.wantCode(err, tc.want, "")
		})
	}
	_, err := w.CancelCopy(w.Context(), &v1alpha1.CancelCopyRequest{})
	w.wantCode(err, codes.InvalidArgument, "ID")
	if got := w.slots.State(); got.Copies != 0 {
		t.Errorf("slots: %+v", got)
	}
}
