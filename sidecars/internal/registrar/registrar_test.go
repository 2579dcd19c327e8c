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
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// endpoint is the driver's socket as the kubelet has it. Nothing here opens it.
const endpoint = "/var/lib/kubelet/plugins/csi.example.com/csi.sock"

// kubelet acts as the plugin manager of the real kubelet: it reads its directory, queries each
// socket there, reports whether it accepted the driver, and forgets drivers whose socket is
// removed.
type kubelet struct {
	Err      error // why it takes no driver
	dir      directory
	registry string
	list     func(registry string) map[string]any // the sockets in the registry, by path

	mu      sync.Mutex
	known   map[string]any // sockets by path
	drivers map[string]*registerapi.PluginInfo
	taken   int
	refused int
}

// kubelet returns the kubelet of a node.
func (n node) kubelet(refusal error) *kubelet {
	return &kubelet{Err: refusal, dir: n.dir, registry: n.registry, list: n.list, known: map[string]any{},
		drivers: map[string]*registerapi.PluginInfo{}}
}

// sockets returns the sockets in a directory of files. Two sockets at a path at different times
// are not equal: inode numbers come back, but not with the same time.
func sockets(registry string) map[string]any {
	all := map[string]any{}
	paths, _ := filepath.Glob(filepath.Join(registry, "*.sock"))
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil {
			all[path] = fmt.Sprint(info.ModTime().UnixNano())
		}
	}
	return all
}

func (k *kubelet) reconcile(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	present := k.list(k.registry)
	for path, was := range k.known {
		if present[path] != was {
			delete(k.known, path)
			delete(k.drivers, path)
		}
	}
	for path, socket := range present {
		if k.known[path] != nil {
			continue
		}
		if err := k.register(ctx, path); err == nil {
			k.known[path] = socket
		}
	}
}

func (k *kubelet) register(ctx context.Context, path string) error {
	conn, err := connect(k.dir, path)
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
	name  string
	hang  chan struct{} // calls wait until it is closed; nil: they do not wait
	calls atomic.Int32

	mu  sync.Mutex
	Err error
}

func (d *driver) say(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Err = err
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d.calls.Add(1)
	if d.hang != nil {
		<-d.hang
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetPluginInfoResponse{Name: d.name}, d.Err
}

// serve serves the driver's calls until the end of the test.
func (d *driver) serve(t *testing.T, n node) {
	t.Helper()
	l, err := n.listenCSI()
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	var done sync.WaitGroup
	done.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Stop(); done.Wait() })
}

// node has a directory for plugins and a driver's socket.
type node struct {
	registry  string
	dir       directory
	list      func(registry string) map[string]any // see kubelet
	listenCSI func() (net.Listener, error)
	dialCSI   func(context.Context) (net.Conn, error)
	csi       string // path of the driver's socket, or empty
}

// newNode returns a node with files.
func newNode(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg") // t.TempDir's paths are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	csi := filepath.Join(dir, "csi")
	return node{registry: dir, dir: files{}, list: sockets, csi: csi,
		listenCSI: func() (net.Listener, error) { return net.Listen("unix", csi) },
		dialCSI:   func(ctx context.Context) (net.Conn, error) { return files{}.dial(ctx, csi) }}
}

func (n node) socket() string { return filepath.Join(n.registry, "csi.example.com-reg.sock") }

// process is a registrar that runs.
type process struct {
	*runner
	stop  context.CancelFunc
	ended chan error
}

// controller returns a controller as the product has it, with a call limit that no machine exceeds.
func (n node) controller() *controller {
	c := New().(*controller)
	c.registry, c.endpoint, c.timeout = n.registry, endpoint, time.Hour
	return c
}

// start runs a registrar.
func (n node) start(t *testing.T) *process {
	t.Helper()
	return n.startAs(t, n.controller())
}

func (n node) startAs(t *testing.T, c *controller) *process {
	t.Helper()
	retry := backoff.DefaultConfig // as in package sidecar
	retry.MaxDelay = time.Second
	conn, err := grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Minute}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.dialCSI(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	built, err := c.Build(t.Context(), &sidecar.Env{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &process{runner: built.(*runner), stop: stop, ended: make(chan error, 1)}
	p.dir = n.dir
	if n.csi != "" {
		p.driver = sidecar.NewSocket(n.csi)
	}
	go func() { p.ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		conn.Close()
	})
	return p
}

// end tells the registrar to end, and waits until it has.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.stop()
	if err := <-p.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, though it was told to end", err)
	}
}

// has reports whether the kubelet has the driver.
func (k *kubelet) has() bool {
	got, _ := k.knows()
	return maps.Equal(got, map[string]string{"csi.example.com": endpoint})
}

// awaitDriver waits until the kubelet has registered the driver once more than before.
func (k *kubelet) awaitDriver(t *testing.T, before int) {
	t.Helper()
	await.True(t, "the kubelet registers the driver", func() bool {
		k.reconcile(t.Context())
		_, n := k.knows()
		return n > before && k.has()
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
	t.Parallel()
	n := newNode(t)
	k := n.kubelet(nil)
	(&driver{name: "csi.example.com"}).serve(t, n)
	p := n.start(t)
	k.awaitDriver(t, 0)
	if _, err := p.Check(t.Context()); err != nil {
		t.Errorf("Check = %v", err)
	}
	p.end(t)
	if exists(n.socket()) {
		t.Error("the socket is there after the end")
	}
	if k.reconcile(t.Context()); !k.isEmpty() {
		t.Error("the kubelet has the driver after the end")
	}
}

func TestASocketThatAProcessLeftWhenItWasKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	(&driver{name: "csi.example.com"}).serve(t, n)
	p := n.start(t)
	n.kubelet(nil).awaitDriver(t, 0)
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
			t.Parallel()
			n := newNode(t)
			(&driver{name: c.driver}).serve(t, n)
			n.registry = filepath.Join(n.registry, c.registry)
			if c.file {
				if err := os.WriteFile(n.socket(), []byte("precious"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := n.start(t)
			await.True(t, "Ready returns an error with "+c.want,
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

func TestARegistryThatComesLate(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	(&driver{name: "csi.example.com"}).serve(t, n)
	n.registry = filepath.Join(n.registry, "late")
	p := n.start(t)
	await.True(t, "the registrar is not ready", func() bool {
		err := p.Ready()
		return err != nil && strings.Contains(err.Error(), "must be a directory")
	})
	if err := os.Mkdir(n.registry, 0o755); err != nil {
		t.Fatal(err)
	}
	n.kubelet(nil).awaitDriver(t, 0)
	if err := p.Ready(); err != nil {
		t.Errorf("Ready = %v of a driver that is registered", err)
	}
	p.end(t)
}

// TestADriverWhoseSocketWasRemoved: the kubelet has the driver, but cannot connect to it.
func TestADriverWhoseSocketWasRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	(&driver{name: "csi.example.com"}).serve(t, n)
	p := n.start(t)
	n.kubelet(nil).awaitDriver(t, 0)
	if err := p.Ready(); err != nil {
		t.Errorf("Ready = %v of a driver that is registered", err)
	}
	if err := os.Rename(n.csi, n.csi+".away"); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the registrar is not ready without the driver's socket", func() bool {
		err := p.Ready()
		return errors.Is(err, fs.ErrNotExist) && strings.Contains(err.Error(), "accepts no connection")
	})
	if err := os.Rename(n.csi+".away", n.csi); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, "the registrar is ready when the socket is back", p.Ready)
	p.end(t)
}

func TestTheHealthPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", freeport.Must(t)) // no other process takes the address when it is free again
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	c := n.controller()
	c.port, c.every = sidecar.Address(l.Addr().String()), time.Hour // the socket is not made again
	if err := <-n.startAs(t, c).ended; err == nil || !strings.Contains(err.Error(), "a port of its own") {
		t.Errorf("Run = %v with a port that is taken, want an error that says what to do", err)
	}
	l.Close()
	(&driver{name: "csi.example.com"}).serve(t, n)
	p := n.startAs(t, c)
	n.kubelet(nil).awaitDriver(t, 0)
	code := func() int {
		response, err := http.Get("http://" + string(c.port) + "/healthz")
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
