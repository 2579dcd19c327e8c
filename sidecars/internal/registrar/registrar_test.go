package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// guard is the limit for an expected event, after which a test reports a hang.
const guard = 20 * time.Second

// endpoint is the driver's socket as the kubelet has it. Nothing here opens it.
const endpoint = "/var/lib/kubelet/plugins/csi.example.com/csi.sock"

// kubelet acts as the plugin manager of the real kubelet: it reads its directory, queries each
// socket there, reports whether it accepted the driver, and forgets drivers whose socket is
// removed.
type kubelet struct {
	Err error // why it takes no driver

	mu      sync.Mutex
	files   map[string]fs.FileInfo // by path
	drivers map[string]*registerapi.PluginInfo
	taken   int
	refused int
}

// watch starts a kubelet.
func watch(t *testing.T, dir string, refusal error) *kubelet {
	t.Helper()
	k := &kubelet{Err: refusal, files: map[string]fs.FileInfo{}, drivers: map[string]*registerapi.PluginInfo{}}
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			k.reconcile(ctx, dir)
		}
	})
	t.Cleanup(func() { stop(); done.Wait() })
	return k
}

func (k *kubelet) reconcile(ctx context.Context, dir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for path, was := range k.files {
		// inode numbers come back
		if now, err := os.Lstat(path); err != nil || !os.SameFile(was, now) || was.ModTime() != now.ModTime() {
			delete(k.files, path)
			delete(k.drivers, path)
		}
	}
	sockets, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
	for _, path := range sockets {
		info, err := os.Lstat(path)
		if err != nil || k.files[path] != nil {
			continue
		}
		if err := k.register(ctx, path); err == nil {
			k.files[path] = info
		}
	}
}

func (k *kubelet) register(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, guard)
	defer cancel()
	conn, err := connect(path)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return err
	}
	answer := &registerapi.RegistrationStatus{PluginRegistered: k.Err == nil}
	if k.Err != nil {
		answer.Error = k.Err.Error()
		k.refused++
	} else {
		k.drivers[path] = info
		k.taken++
	}
	_, err = client.NotifyRegistrationStatus(ctx, answer)
	return err
}

// refuses sets why the kubelet takes no driver.
func (k *kubelet) refuses(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Err = err
}

// refusals returns how often the kubelet has refused a driver.
func (k *kubelet) refusals() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused
}

// knows returns the drivers of the kubelet, by name, with their endpoints, and the number of
// registrations.
func (k *kubelet) knows() (map[string]string, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string]string{}
	for _, info := range k.drivers {
		all[info.GetName()] = info.GetEndpoint()
	}
	return all, k.taken
}

// driver is a driver whose name a test sets.
type driver struct {
	csi.UnimplementedIdentityServer
	name string

	mu  sync.Mutex
	Err error
}

func (d *driver) say(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Err = err
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetPluginInfoResponse{Name: d.name}, d.Err
}

func (d *driver) serve(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	var done sync.WaitGroup
	done.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Stop(); done.Wait() })
}

// node is a directory for plugins and a driver's socket.
type node struct{ registry, csi string }

func newNode(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg") // t.TempDir's paths are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return node{registry: dir, csi: filepath.Join(dir, "csi")}
}

func (n node) socket() string { return filepath.Join(n.registry, "csi.example.com-reg.sock") }

// process is a registrar that runs.
type process struct {
	*runner
	stop  context.CancelFunc
	ended chan error
}

// start runs a registrar. Its socket is looked after if watchful.
func (n node) start(t *testing.T, watchful bool) *process {
	t.Helper()
	c := &controller{registry: n.registry, endpoint: endpoint, timeout: guard, every: time.Hour}
	if watchful {
		c.every = time.Millisecond
	}
	return n.startAs(t, c)
}

func (n node) startAs(t *testing.T, c *controller) *process {
	t.Helper()
	fast := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}
	conn, err := grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: fast, MinConnectTimeout: guard}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.csi)
		}))
	if err != nil {
		t.Fatal(err)
	}
	built, err := c.Build(t.Context(), &sidecar.Env{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &process{runner: built.(*runner), stop: stop, ended: make(chan error, 1)}
	go func() { p.ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		conn.Close()
	})
	return p
}

// wait returns the result of Run.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(guard):
		t.Fatal("Run does not return")
		return nil
	}
}

// end tells the registrar to end, and waits until it has.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.stop()
	if err := p.wait(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, though it was told to end", err)
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(guard); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// takes waits until the kubelet, once something is done, takes the driver.
func (k *kubelet) takes(t *testing.T, done func()) {
	t.Helper()
	_, before := k.knows()
	done()
	eventually(t, "the kubelet takes the driver", func() bool {
		got, n := k.knows()
		return n > before && maps.Equal(got, map[string]string{"csi.example.com": endpoint})
	})
}

func (k *kubelet) isEmpty() bool {
	got, _ := k.knows()
	return len(got) == 0
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestADriverIsRegisteredUntilTheEnd(t *testing.T) {
	n := newNode(t)
	k := watch(t, n.registry, nil)
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	var p *process
	k.takes(t, func() { p = n.start(t, false) })
	k.mu.Lock()
	info := k.drivers[n.socket()]
	k.mu.Unlock()
	if info.GetType() != "CSIPlugin" || fmt.Sprint(info.GetSupportedVersions()) != "[1.0.0]" {
		t.Errorf("the kubelet was told %v", info)
	}
	if _, err := p.Check(t.Context()); err != nil {
		t.Errorf("Check = %v", err)
	}
	p.end(t)
	if exists(n.socket()) {
		t.Error("the socket is there after the end")
	}
	eventually(t, "the kubelet forgets the driver", k.isEmpty)
}

// The process goes on, since it also answers the driver's liveness probe.
func TestAKubeletThatRefuses(t *testing.T) {
	n := newNode(t)
	k := watch(t, n.registry, errors.New("node id is empty"))
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	p := n.startAs(t, &controller{registry: n.registry, endpoint: endpoint, timeout: guard,
		every: 20 * time.Millisecond})
	refused := func() bool { err := p.Ready(); return err != nil && strings.Contains(err.Error(), "node id is empty") }
	eventually(t, "the registrar is not ready, with the kubelet's reason", refused)
	eventually(t, "the kubelet is asked again", func() bool {
		if !refused() {
			t.Errorf("Ready = %v before the kubelet took the driver", p.Ready())
		}
		return k.refusals() > 10
	})
	if _, err := p.Check(t.Context()); err != nil {
		t.Errorf("Check = %v, but a new process would not help", err)
	}
	k.takes(t, func() { k.refuses(nil) })
	eventually(t, "the registrar is ready", func() bool { return p.Ready() == nil })
	p.end(t)
	if exists(n.socket()) {
		t.Error("the socket is there after the end")
	}
}

func TestADriverThatComesLate(t *testing.T) {
	n := newNode(t)
	k := watch(t, n.registry, nil)
	p := n.start(t, false)
	if _, err := p.Check(t.Context()); err != nil {
		t.Errorf("Check = %v while there is no driver, but to start this process again would not help", err)
	}
	d := &driver{name: "csi.example.com", Err: status.Error(codes.Internal, "not yet")}
	d.serve(t, n.csi)
	k.takes(t, func() { d.say(nil) })
	p.end(t)
}

func TestTheEndWhileThereIsNoDriver(t *testing.T) {
	n := newNode(t)
	n.start(t, false).end(t)
	if left, err := os.ReadDir(n.registry); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestASilentClientDoesNotDelayTheEnd(t *testing.T) {
	n := newNode(t)
	k := watch(t, n.registry, nil)
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	var p *process
	k.takes(t, func() { p = n.start(t, false) })
	conn, err := net.Dial("unix", n.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p.end(t)
}

func TestASocketThatAnotherProgramRemoves(t *testing.T) {
	n := newNode(t)
	k := watch(t, n.registry, nil)
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	var careless *process
	k.takes(t, func() { careless = n.start(t, false) })
	os.Remove(n.socket())
	if _, err := careless.Check(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check = %v of a socket that is gone", err)
	}
	careless.end(t)
	eventually(t, "the kubelet forgets the driver", k.isEmpty)

	var p *process
	k.takes(t, func() { p = n.start(t, true) })
	for range 3 {
		k.takes(t, func() { os.Remove(n.socket()) })
	}
	if _, err := p.Check(t.Context()); err != nil {
		t.Errorf("Check = %v of a socket that came back", err)
	}
	p.end(t)
	if exists(n.socket()) {
		t.Error("the socket is there after the end")
	}
}

// As in a rolling update with maxSurge, and when a DaemonSet has two pods on a node for a while.
func TestTwoRegistrarsOfOneDriver(t *testing.T) {
	n := newNode(t)
	k := watch(t, n.registry, nil)
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	var first, second *process
	k.takes(t, func() { first = n.start(t, false) })
	k.takes(t, func() { second = n.start(t, false) })
	if _, err := first.Check(t.Context()); err != nil {
		t.Errorf("Check of the first = %v, though the second serves the driver", err)
	}
	first.end(t)
	if !exists(n.socket()) {
		t.Fatal("the first one's end took the second one's socket away")
	}
	if _, err := second.Check(t.Context()); err != nil {
		t.Errorf("Check of the second = %v", err)
	}
	second.end(t)
	if exists(n.socket()) {
		t.Error("the socket is there after the end")
	}
}

func TestASocketThatAProcessLeftWhenItWasKilled(t *testing.T) {
	n := newNode(t)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	k := watch(t, n.registry, nil)
	var p *process
	k.takes(t, func() { p = n.start(t, false) })
	p.end(t)
}

func TestAddressesThatCannotBeServed(t *testing.T) {
	long := strings.Repeat("long", 20)
	for _, c := range []struct {
		name, driver, registry, want string
		file                         bool // where the socket would be
	}{
		{name: "a path that is too long", driver: "csi.example.com", registry: long,
			want: "--plugin-registration-path"},
		{name: "a file that is no socket is left alone", driver: "csi.example.com", file: true, want: "no socket"},
		{name: "a name that leads elsewhere", driver: "../../../etc/cron.d/x", want: "CSI allows"},
		{name: "a name with more than 63 letters", driver: strings.Repeat("x", 64), want: "CSI allows"},
		{name: "a registry that is not mounted", driver: "csi.example.com", registry: "missing",
			want: "mount the kubelet's plugins_registry there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			(&driver{name: c.driver}).serve(t, n.csi)
			n.registry = filepath.Join(n.registry, c.registry)
			if c.file {
				if err := os.WriteFile(n.socket(), []byte("precious"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := n.start(t, false)
			eventually(t, "Ready returns an error with "+c.want,
				func() bool { err := p.Ready(); return err != nil && strings.Contains(err.Error(), c.want) })
			if _, err := p.Check(t.Context()); err != nil {
				t.Errorf("Check = %v, but a new process would not help", err)
			}
			p.end(t)
			if data, err := os.ReadFile(n.socket()); c.file && string(data) != "precious" {
				t.Errorf("the file holds %q, %v", data, err)
			}
		})
	}
}

// A rollout must not go on over nodes whose driver is not registered.
func TestOnlyARegisteredDriverIsReady(t *testing.T) {
	n := newNode(t)
	p := n.start(t, true)
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "has not told its name") {
		t.Errorf("Ready = %v without a driver", err)
	}
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	eventually(t, "the socket is there", func() bool { return p.served.Load() != nil })
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "--root-dir") {
		t.Errorf("Ready = %v without a kubelet", err)
	}
	p.end(t)
}

func TestARegistryThatComesLate(t *testing.T) {
	n := newNode(t)
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	n.registry = filepath.Join(n.registry, "late")
	k := watch(t, n.registry, nil)
	p := n.start(t, true)
	eventually(t, "the registrar is not ready", func() bool {
		err := p.Ready()
		return err != nil && strings.Contains(err.Error(), "must be a directory")
	})
	k.takes(t, func() {
		if err := os.Mkdir(n.registry, 0o755); err != nil {
			t.Fatal(err)
		}
	})
	if err := p.Ready(); err != nil {
		t.Errorf("Ready = %v of a driver that is registered", err)
	}
	p.end(t)
}

func TestTheHealthPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := sidecar.Address(l.Addr().String())
	n := newNode(t)
	c := &controller{registry: n.registry, endpoint: endpoint, timeout: guard, every: time.Hour, port: port}
	if err := n.startAs(t, c).wait(t); err == nil || !strings.Contains(err.Error(), "a port of its own") {
		t.Errorf("Run = %v with a port that is taken, want an error that says what to do", err)
	}
	l.Close()
	(&driver{name: "csi.example.com"}).serve(t, n.csi)
	k := watch(t, n.registry, nil)
	var p *process
	k.takes(t, func() { p = n.startAs(t, c) })
	code := func() int {
		response, err := http.Get("http://" + string(port) + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if got := code(); got != http.StatusOK {
		t.Errorf("/healthz of a driver that is registered answers %d", got)
	}
	os.Remove(n.socket())
	if got := code(); got != http.StatusInternalServerError {
		t.Errorf("/healthz without a socket answers %d", got)
	}
	p.end(t)
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*controller)
		want   string // empty: it is fine
	}{
		{"a path is all it takes", func(*controller) {}, ""},
		{"a Windows path is one", func(c *controller) { c.endpoint = `C:\var\lib\kubelet\plugins\csi.example.com\csi.sock` }, ""},
		{"the kubelet's path is required", func(c *controller) { c.endpoint = "" }, "required"},
		{"the kubelet takes no URL", func(c *controller) { c.endpoint = "unix://" + endpoint }, "plain path"},
		{"the kubelet could not open a path that is too long",
			func(c *controller) { c.endpoint = "/" + strings.Repeat("x", maxSocketPath) }, "shorter"},
		{"a registry is required", func(c *controller) { c.registry = "" }, "plugin-registration-path"},
		{"a driver needs time", func(c *controller) { c.timeout = 0 }, "timeout"},
		{"upstream's other mode is its default", func(c *controller) { c.mode = "registration" }, ""},
		{"upstream's exec probe has nothing to do", func(c *controller) { c.mode = probeMode },
			sidecar.ErrDone.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := &controller{registry: "/registration", endpoint: endpoint, timeout: time.Second}
			c.change(flags)
			err := flags.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate() = %v, want %q", err, c.want)
			}
		})
	}
}
