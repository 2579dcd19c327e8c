package sidecar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// unknownDriver is what metrics say before the driver has told its name, as upstream's do.
const unknownDriver = "unknown-driver"

// socketPath takes what --csi-address may be: a path, unix:///path, and unix:path, as the KEP's manifests write it.
func socketPath(address string) (string, error) {
	path := address
	if rest, ok := strings.CutPrefix(address, "unix:"); ok {
		path = strings.TrimPrefix(rest, "//")
	}
	switch {
	case path == "":
		return "", errors.New("--csi-address is empty: say where the driver's socket is")
	case strings.Contains(path, "://"):
		return "", fmt.Errorf("--csi-address=%s: only sockets in the file system are supported: a path, or unix:///path", address)
	}
	return path, nil
}

// calls counts the driver's answers.
type calls struct {
	seconds *prometheus.HistogramVec
	driver  atomic.Pointer[string]
	label   func(ctx context.Context) string // of migration
	leads   func() error                     // an error is the answer to all calls that only a leader makes
	maxLog  int                              // letters of an answer in the log; none if not positive
	// answered says that the driver has, since a connection broke last.
	answered atomic.Bool
}

// newCalls makes upstream's histogram of CSI calls, with the controller as one more label. migrated may be nil.
func newCalls(migrated func(context.Context) string, maxLog int) *calls {
	c := &calls{label: migrated, leads: func() error { return nil }, maxLog: maxLog}
	if migrated == nil {
		c.label = func(context.Context) string { return "" }
	}
	c.name(unknownDriver)
	c.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Subsystem: "csi_sidecar", Name: "operations_seconds",
		Help:    "Duration of CSI calls, by their gRPC code.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, // upstream's, so that dashboards fit
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated", "controller"})
	return c
}

func (c *calls) name(driver string) { c.driver.Store(&driver) }

// intercept logs a call as upstream does, at level 5 and without secrets, and counts it. The driver's name is read from its
// own answer, whoever asked for it.
func (c *calls) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	log := klog.FromContext(ctx)
	loud := log.V(5)
	if loud.Enabled() {
		loud.Info("GRPC call", "method", method, "request", protosanitizer.StripSecrets(req))
	}
	start := time.Now()
	err := c.refused(method)
	if err == nil {
		err = invoke(ctx, method, req, reply, cc, opts...)
	}
	took := time.Since(start)
	if loud.Enabled() {
		loud.Info("GRPC response", "method", method, "response", c.cut(protosanitizer.StripSecrets(reply).String()), "err", err)
	}
	if err == nil {
		c.answered.Store(true)
	}
	if info, ok := reply.(*csi.GetPluginInfoResponse); ok && err == nil {
		c.name(info.GetName())
	}
	c.seconds.WithLabelValues(*c.driver.Load(), method, status.Code(err).String(), c.label(ctx), ofMethod(method)).Observe(took.Seconds())
	return err
}

// refused returns an error where a call is one that only a leader makes, and this process isn't that any more. The code is one
// of those after which upstream holds on to what it knew.
func (c *calls) refused(method string) error {
	if ofMethod(method) == "" {
		return nil
	}
	if err := c.leads(); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// cut shortens what is logged of an answer.
func (c *calls) cut(answer string) string {
	if c.maxLog <= 0 || len(answer) <= c.maxLog {
		return answer
	}
	return fmt.Sprintf("%s… (%d letters)", strings.ToValidUTF8(answer[:c.maxLog], ""), len(answer))
}

// dial returns a connection to the driver's socket, which need not exist yet. Until ctx is done, dial keeps the connection up,
// and calls lost each time a connection breaks on which the driver has answered. Calls fail at once with UNAVAILABLE while
// there is no connection.
func dial(ctx context.Context, socket *Socket, c *calls, lost func()) (*grpc.ClientConn, error) {
	retry := backoff.DefaultConfig
	retry.MaxDelay = time.Second
	conn, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket in a directory that is the pod's own
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)), // a page of 100,000 volumes is more than 4 MiB
		grpc.WithUnaryInterceptor(c.intercept),
		grpc.WithStatsHandler(breaks{ended: func() {
			if c.answered.Swap(false) && ctx.Err() == nil {
				lost()
			}
		}}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			to, err := socket.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return leading{to, c.leads}, nil
		}))
	if err != nil {
		return nil, err
	}
	go keep(ctx, conn)
	return conn, nil
}

// leading is a connection on which nothing is sent by who doesn't lead any more, however long before it was called.
type leading struct {
	net.Conn
	leads func() error
}

// Write is net.Conn's.
func (l leading) Write(b []byte) (int, error) {
	if err := l.leads(); err != nil {
		l.Conn.Close() // gRPC looks for errors of reading only
		return 0, err
	}
	return l.Conn.Write(b)
}

// keep connects, and connects again, until ctx is done.
func keep(ctx context.Context, conn *grpc.ClientConn) {
	defer conn.Close()
	for ctx.Err() == nil {
		state := conn.GetState()
		if state == connectivity.Idle {
			conn.Connect()
		}
		conn.WaitForStateChange(ctx, state)
	}
}

// breaks is told of the end of each connection. Whoever only looks at states can miss a short one.
type breaks struct{ ended func() }

func (b breaks) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (b breaks) HandleRPC(context.Context, stats.RPCStats)                         {}
func (b breaks) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (b breaks) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, over := s.(*stats.ConnEnd); over {
		b.ended()
	}
}

// stillWaiting is how often the log repeats that the driver cannot be reached.
const stillWaiting = 15 * time.Second

// await returns when the connection is up.
func await(ctx context.Context, conn *grpc.ClientConn, socket *Socket) error {
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		pause, cancel := context.WithTimeout(ctx, stillWaiting)
		changed := conn.WaitForStateChange(pause, state)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !changed && socket.Denied() == nil: // the socket logs that itself
			klog.FromContext(ctx).Info("Still waiting for the driver", "socket", socket.path, "err", socket.err())
		}
	}
}

// identify waits until the driver is ready, without a limit, and then asks for its name and capabilities.
func identify(ctx context.Context, env *Env, timeout time.Duration) error {
	if err := await(ctx, env.Conn, env.Socket); err != nil {
		return err
	}
	if err := rpc.ProbeForever(ctx, env.Conn, timeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	if env.Driver, err = rpc.GetDriverName(ctx, env.Conn); err != nil {
		return fmt.Errorf("the driver's name: %w", err)
	}
	if env.Plugin, err = rpc.GetPluginCapabilities(ctx, env.Conn); err != nil {
		return fmt.Errorf("the driver's services: %w", err)
	}
	if env.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		if env.Controller, err = rpc.GetControllerCapabilities(ctx, env.Conn); err != nil {
			return fmt.Errorf("the driver's controller capabilities: %w", err)
		}
	}
	if env.Plugin[csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		if env.Group, err = rpc.GetGroupControllerCapabilities(ctx, env.Conn); err != nil {
			return fmt.Errorf("the driver's group controller capabilities: %w", err)
		}
	}
	return nil
}
