package livenessprobe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// driver is a driver whose health a test sets.
type driver struct {
	csi.UnimplementedIdentityServer
	ready  *wrapperspb.BoolValue
	Err    error
	hang   chan struct{} // answers wait until it is closed, even after their caller's deadline. nil: they do not wait
	probes atomic.Int32
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	d.probes.Add(1)
	if d.hang != nil {
		<-d.hang
	}
	return &csi.ProbeResponse{Ready: d.ready}, d.Err
}

// serve makes the driver answer at path. It returns a function that ends the server.
func (d *driver) serve(t *testing.T, path string) func() {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return d.serveOn(l)
}

// serveOn makes the driver answer on a listener. It returns a function that ends the server.
func (d *driver) serveOn(l net.Listener) func() {
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	var done sync.WaitGroup
	done.Go(func() { server.Serve(l) })
	return sync.OnceFunc(func() { server.Stop(); done.Wait() })
}

// socketPath is a path short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "live")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "csi.sock")
}

// unlimited returns a controller whose probes have no limit that a slow machine could reach.
func unlimited() *controller { return &controller{timeout: time.Hour} }

// probing is a controller that is built, for the driver at path.
func probing(t *testing.T, path string, c *controller) *runner {
	t.Helper()
	socket := sidecar.NewSocket(path)
	return build(t, c, socket, socket.Dial)
}

// simulated is a controller with upstream's timeout, for a driver in the bubble of the test.
func simulated(t *testing.T, d *driver) *runner {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	t.Cleanup(d.serveOn(l))
	return build(t, &controller{timeout: upstreamTimeout}, sidecar.NewSocket(""), l.DialContext)
}

func build(t *testing.T, c *controller, socket *sidecar.Socket,
	dial func(context.Context) (net.Conn, error)) *runner {
	t.Helper()
	connect := func() (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	}
	built, err := c.Build(t.Context(), &sidecar.Env{Connect: connect, Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	return built.(*runner)
}

// failure is the error of a check.
func failure(_ string, err error) error { return err }

// get asks /healthz as the kubelet does.
func get(r *runner) (int, string) {
	answer := httptest.NewRecorder()
	r.healthz(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	return answer.Code, answer.Body.String()
}

func TestHealthzReportsTheAnswerOfTheDriver(t *testing.T) {
	for _, c := range []struct {
		name   string
		driver *driver
		code   int
		body   string
	}{
		{"a driver that is ready is healthy", &driver{ready: wrapperspb.Bool(true)}, 200, "ok"},
		{"a driver that does not say is ready, by the spec", &driver{}, 200, "ok"},
		{"a driver that is not ready fails", &driver{ready: wrapperspb.Bool(false)}, 500, "is not ready"},
		{"a driver with an error fails, and the error is told",
			&driver{Err: status.Error(codes.FailedPrecondition, "no mount.cifs")}, 500, "no mount.cifs"},
		{"a driver whose error has the code of a failed dial fails",
			&driver{Err: status.Error(codes.Unavailable, "no storage")}, 500, "no storage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				code, body := get(simulated(t, c.driver))
				if code != c.code || !strings.Contains(body, c.body) {
					t.Errorf("/healthz answers %d %q, want %d %q", code, body, c.code, c.body)
				}
			})
		})
	}
}

func TestADriverThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{hang: make(chan struct{})}
		r := simulated(t, d)
		first, leave := context.WithCancel(t.Context())
		answers := make(chan error, 2)
		for range 2 {
			go func() { answers <- failure(r.Check(first)) }()
		}
		synctest.Wait()
		leave()
		for range 2 {
			if err := <-answers; !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that hangs up gets %v, want %v", err, context.Canceled)
			}
		}
		for range 100 {
			r.Check(first) // each joins the running probe, and leaves
		}
		synctest.Wait()
		if got := d.probes.Load(); got != 1 {
			t.Errorf("the driver that hangs was asked %d times, want 1", got)
		}
		close(d.hang)
		if _, err := r.Check(t.Context()); err != nil {
			t.Errorf("the driver answers again, but the probe says %v", err)
		}
	})
}

// The kubelet asks every few seconds. A driver that hangs has one probe at a time, and fails each.
func TestAProbeEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{hang: make(chan struct{})}
		r := simulated(t, d)
		for round := range int32(3) {
			began := time.Now()
			if code, body := get(r); code != 500 || !strings.Contains(body, "DeadlineExceeded") {
				t.Errorf("/healthz of a driver that hangs answers %d %q", code, body)
			}
			if took := time.Since(began); took != upstreamTimeout {
				t.Errorf("the probe took %v, want %v", took, upstreamTimeout)
			}
			if got := d.probes.Load(); got != round+1 {
				t.Errorf("%d probes in round %d", got, round)
			}
			time.Sleep(10 * time.Second)
		}
		close(d.hang)
		if code, _ := get(r); code != 200 {
			t.Errorf("/healthz of a driver that answers again answers %d", code)
		}
	})
}

// Each probe has a connection of its own, and closes it.
func TestAProbeLeavesNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := 0
		d := &driver{}
		l := bufconn.Listen(1 << 16)
		t.Cleanup(d.serveOn(l))
		r := build(t, unlimited(), sidecar.NewSocket(""), func(ctx context.Context) (net.Conn, error) {
			conn, err := l.DialContext(ctx)
			open++
			return &counted{Conn: conn, open: &open}, err
		})
		for range 3 {
			if code, body := get(r); code != 200 {
				t.Errorf("/healthz answers %d %q", code, body)
			}
			synctest.Wait()
			if open != 0 {
				t.Errorf("%d connections are open after a probe", open)
			}
		}
		if got := d.probes.Load(); got != 3 {
			t.Errorf("the driver was asked %d times, want 3", got)
		}
	})
}

// counted is a connection that is counted while it is open.
type counted struct {
	net.Conn
	once sync.Once
	open *int
}

func (c *counted) Close() error {
	c.once.Do(func() { *c.open-- })
	return c.Conn.Close()
}

// A driver that answers just in time is healthy.
func TestASlowDriverIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{hang: make(chan struct{})}
		r := simulated(t, d)
		time.AfterFunc(upstreamTimeout-time.Second, func() { close(d.hang) })
		if code, body := get(r); code != 200 {
			t.Errorf("/healthz of a slow driver answers %d %q", code, body)
		}
	})
}

// onPort returns a controller with a health port.
func onPort(port sidecar.Address) *controller {
	c := unlimited()
	c.port = port
	return c
}

func TestTheHealthPortAnswersBeforeThereIsADriver(t *testing.T) {
	t.Parallel()
	path, port := socketPath(t), sidecar.Address(freeport.Must(t))
	r := probing(t, path, onPort(port))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	answer := func(want int) func() bool {
		return func() bool {
			response, err := http.Get("http://" + string(port) + "/healthz")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			io.Copy(io.Discard, response.Body)
			return response.StatusCode == want
		}
	}
	await.True(t, "/healthz fails without a driver", answer(500))
	defer (&driver{}).serve(t, path)()
	await.True(t, "/healthz passes with a driver", answer(200))
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	await.True(t, "the health port is closed", func() bool {
		conn, err := net.Dial("tcp", string(port))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

// TestAHealthPortOfTheHostAlone: on the network of a node, only processes of the node reach
// 127.0.0.1:PORT, and another driver can have the same port of another address.
func TestAHealthPortOfTheHostAlone(t *testing.T) {
	t.Parallel()
	path, port := socketPath(t), sidecar.Address(freeport.Must(t))
	defer (&driver{}).serve(t, path)()
	r := probing(t, path, onPort(port))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() { stop(); <-ended }()
	await.True(t, "the health port is open", func() bool {
		conn, err := net.Dial("tcp", string(port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	_, number, err := net.SplitHostPort(string(port))
	if err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", number))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("this machine has one loopback address")
	}
	if err != nil {
		t.Fatalf("livenessprobe has the port of another address: %v", err)
	}
	other.Close()
}

func TestAHealthPortThatIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := probing(t, socketPath(t), onPort(sidecar.Address(l.Addr().String())))
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "a port of its own") {
		t.Errorf("Run = %v, want an error that says what to do", err)
	}
}

func TestAProbeNeedsTime(t *testing.T) {
	if err := (&controller{}).Validate(); err == nil {
		t.Error("a probe-timeout of nothing is accepted")
	}
}
