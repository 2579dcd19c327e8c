package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// memory is a directory of sockets in this process.
type memory struct {
	mu      sync.Mutex
	sockets map[string]*pipe
	Err     error // of listen
}

// pipe is a socket of a memory. Its Close removes it from the memory, unless another socket has its
// path.
type pipe struct {
	*bufconn.Listener
	dir  *memory
	path string
}

func (m *memory) listen(path string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Err != nil {
		return nil, m.Err
	}
	p := &pipe{bufconn.Listen(1 << 16), m, path}
	m.sockets[path] = p
	return p, nil
}

// Accept returns the error of a closed listener as package net does.
func (p *pipe) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err != nil {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipe) Close() error {
	p.dir.mu.Lock()
	defer p.dir.mu.Unlock()
	if p.dir.sockets[p.path] == p {
		delete(p.dir.sockets, p.path)
	}
	return p.Listener.Close()
}

func (m *memory) dial(ctx context.Context, path string) (net.Conn, error) {
	m.mu.Lock()
	p := m.sockets[path]
	m.mu.Unlock()
	if p == nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: syscall.ENOENT}
	}
	return p.DialContext(ctx)
}

func (m *memory) stat(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sockets[path] == nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: fs.ErrNotExist}
	}
	return nil
}

// remove removes a socket, as another program does. Its listener stays open.
func (m *memory) remove(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sockets, path)
}

// simulated returns a node in a bubble.
func simulated() (node, *memory) {
	m, csi := &memory{sockets: map[string]*pipe{}}, &memory{sockets: map[string]*pipe{}}
	return node{registry: "/registration", dir: m,
		list: func(string) map[string]any {
			m.mu.Lock()
			defer m.mu.Unlock()
			all := map[string]any{}
			for path, p := range m.sockets {
				all[path] = p
			}
			return all
		},
		listenCSI: func() (net.Listener, error) { return csi.listen("csi") },
		dialCSI:   func(ctx context.Context) (net.Conn, error) { return csi.dial(ctx, "csi") },
	}, m
}

// watch runs a kubelet, which looks at its directory each second, until the end of the test.
func (k *kubelet) watch(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			k.reconcile(ctx)
		}
	})
	t.Cleanup(func() { stop(); done.Wait() })
}

// simulate runs a test in a bubble, with a registrar that has the product's durations.
func simulate(t *testing.T, test func(t *testing.T, n node, m *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, m := simulated()
		test(t, n, m)
	})
}

// product returns a controller with the product's durations.
func (n node) product() *controller {
	c := n.controller()
	c.timeout = upstreamTimeout
	return c
}

// twoChecks is the time in which a registrar checks its socket, and the kubelet looks, each at
// least twice.
var twoChecks = 2*New().(*controller).every + 2*time.Second

// registered fails unless the kubelet has registered the driver this many times.
func (k *kubelet) registered(t *testing.T, times int) {
	t.Helper()
	time.Sleep(twoChecks)
	synctest.Wait()
	got, n := k.knows()
	if n != times || !k.has() {
		t.Errorf("the kubelet has %v after %d registrations, want the driver after %d", got, n, times)
	}
}

// forgotten fails unless the kubelet has no driver.
func (k *kubelet) forgotten(t *testing.T) {
	t.Helper()
	time.Sleep(twoChecks)
	synctest.Wait()
	if got, _ := k.knows(); len(got) > 0 {
		t.Errorf("the kubelet has %v", got)
	}
}

func TestARegistrationLastsUntilTheEnd(t *testing.T) {
	simulate(t, func(t *testing.T, n node, m *memory) {
		k := n.kubelet(nil)
		k.watch(t)
		(&driver{name: "csi.example.com"}).serve(t, n)
		p := n.startAs(t, n.product())
		k.registered(t, 1)
		k.mu.Lock()
		info := k.drivers[n.socket()]
		k.mu.Unlock()
		if info.GetType() != "CSIPlugin" || fmt.Sprint(info.GetSupportedVersions()) != "[1.0.0]" {
			t.Errorf("the kubelet was told %v", info)
		}
		time.Sleep(24 * time.Hour)
		k.registered(t, 1)
		if _, err := p.Check(t.Context()); err != nil {
			t.Errorf("Check = %v", err)
		}
		p.end(t)
		if m.stat(n.socket()) == nil {
			t.Error("the socket is there after the end")
		}
		k.forgotten(t)
	})
}

// The process continues, since it also answers the driver's liveness probe.
func TestAKubeletThatRefuses(t *testing.T) {
	simulate(t, func(t *testing.T, n node, m *memory) {
		k := n.kubelet(errors.New("node id is empty"))
		k.watch(t)
		(&driver{name: "csi.example.com"}).serve(t, n)
		p := n.startAs(t, n.product())
		began := time.Now()
		time.Sleep(p.every)
		for time.Since(began) < 20*p.every {
			if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "node id is empty") {
				t.Errorf("Ready = %v before the kubelet took the driver", err)
			}
			if _, err := p.Check(t.Context()); err != nil {
				t.Errorf("Check = %v, but a new process would not help", err)
			}
			time.Sleep(time.Second)
		}
		if n := k.refusals(); n < 10 || n > 20 {
			t.Errorf("the kubelet was asked %d times in 20 intervals, want about once in each", n)
		}
		k.refuses(nil)
		k.registered(t, 1)
		if err := p.Ready(); err != nil {
			t.Errorf("Ready = %v of a driver that is registered", err)
		}
		p.end(t)
		if m.stat(n.socket()) == nil {
			t.Error("the socket is there after the end")
		}
	})
}

func TestADriverThatComesLate(t *testing.T) {
	simulate(t, func(t *testing.T, n node, _ *memory) {
		k := n.kubelet(nil)
		k.watch(t)
		p := n.startAs(t, n.product())
		time.Sleep(time.Hour)
		if _, err := p.Check(t.Context()); err != nil {
			t.Errorf("Check = %v while there is no driver, but to start this process again would not help", err)
		}
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "name is not known yet") {
			t.Errorf("Ready = %v without a driver", err)
		}
		d := &driver{name: "csi.example.com", Err: status.Error(codes.Internal, "not yet")}
		d.serve(t, n)
		k.forgotten(t)
		d.say(nil)
		time.Sleep(longestPause)
		k.registered(t, 1)
		p.end(t)
	})
}

// A driver that hangs is asked again, with a limit for each call.
func TestASilentDriver(t *testing.T) {
	simulate(t, func(t *testing.T, n node, _ *memory) {
		k := n.kubelet(nil)
		k.watch(t)
		d := &driver{name: "csi.example.com", hang: make(chan struct{})}
		d.serve(t, n)
		p := n.startAs(t, n.product())
		time.Sleep(time.Minute)
		if calls := d.calls.Load(); calls < 10 {
			t.Errorf("the driver was asked %d times in a minute", calls)
		}
		k.forgotten(t)
		close(d.hang)
		time.Sleep(longestPause)
		k.registered(t, 1)
		p.end(t)
	})
}

func TestTheEndWhileThereIsNoDriver(t *testing.T) {
	simulate(t, func(t *testing.T, n node, m *memory) {
		p := n.startAs(t, n.product())
		time.Sleep(time.Minute)
		p.end(t)
		if len(m.sockets) > 0 {
			t.Errorf("%v is left", m.sockets)
		}
	})
}

func TestAClientDelaysTheEndByTheCourtesyAtMost(t *testing.T) {
	for name, greeting := range map[string]string{
		"a silent client": "",
		// the preface of HTTP/2 and a frame of settings
		"a client that ignores the end": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, n node, m *memory) {
				k := n.kubelet(nil)
				k.watch(t)
				(&driver{name: "csi.example.com"}).serve(t, n)
				p := n.startAs(t, n.product())
				k.registered(t, 1)
				conn, err := m.dial(t.Context(), n.socket())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := conn.Write([]byte(greeting)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				began := time.Now()
				p.end(t)
				if took := time.Since(began); took > courtesy {
					t.Errorf("the end took %v, want at most %v", took, courtesy)
				}
			})
		})
	}
}

func TestASocketThatAnotherProgramRemoves(t *testing.T) {
	simulate(t, func(t *testing.T, n node, m *memory) {
		k := n.kubelet(nil)
		k.watch(t)
		(&driver{name: "csi.example.com"}).serve(t, n)
		p := n.startAs(t, n.product())
		k.registered(t, 1)
		for times := range 3 {
			m.remove(n.socket())
			if _, err := p.Check(t.Context()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Check = %v of a socket that is gone", err)
			}
			k.registered(t, 2+times)
		}
		if _, err := p.Check(t.Context()); err != nil {
			t.Errorf("Check = %v of a socket that came back", err)
		}
		p.end(t)
		if m.stat(n.socket()) == nil {
			t.Error("the socket is there after the end")
		}
	})
}

// As in a rolling update with maxSurge, and when a DaemonSet has two pods on a node for a while.
func TestTwoRegistrarsOfOneDriver(t *testing.T) {
	simulate(t, func(t *testing.T, n node, m *memory) {
		k := n.kubelet(nil)
		k.watch(t)
		(&driver{name: "csi.example.com"}).serve(t, n)
		first := n.startAs(t, n.product())
		k.registered(t, 1)
		second := n.startAs(t, n.product())
		k.registered(t, 2)
		time.Sleep(time.Hour)
		k.registered(t, 2) // they do not compete
		if _, err := first.Check(t.Context()); err != nil {
			t.Errorf("Check of the first = %v, though the second serves the driver", err)
		}
		first.end(t)
		k.registered(t, 2)
		if _, err := second.Check(t.Context()); err != nil {
			t.Errorf("Check of the second = %v", err)
		}
		second.end(t)
		if m.stat(n.socket()) == nil {
			t.Error("the socket is there after the end")
		}
	})
}

// A rollout must not continue over nodes whose driver is not registered.
func TestOnlyARegisteredDriverIsReady(t *testing.T) {
	simulate(t, func(t *testing.T, n node, m *memory) {
		m.Err = syscall.ENOSPC
		(&driver{name: "csi.example.com"}).serve(t, n)
		p := n.startAs(t, n.product())
		time.Sleep(twoChecks)
		if err := p.Ready(); err == nil || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Ready = %v without a socket", err)
		}
		m.mu.Lock()
		m.Err = nil
		m.mu.Unlock()
		time.Sleep(twoChecks)
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "--root-dir") {
			t.Errorf("Ready = %v without a kubelet", err)
		}
		k := n.kubelet(nil)
		k.watch(t)
		k.registered(t, 1)
		if err := p.Ready(); err != nil {
			t.Errorf("Ready = %v of a driver that is registered", err)
		}
		p.end(t)
	})
}
