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

// unknownDriver is the label of the driver until its name is known, as in upstream's metrics.
const unknownDriver = "unknown-driver"

// socketPath returns the path in --csi-address: a path, unix:///path, or unix:path as in the KEP's
// manifests.
func socketPath(address string) (string, error) {
	path := address
	if rest, ok := strings.CutPrefix(address, "unix:"); ok {
		path = strings.TrimPrefix(rest, "//")
	}
	switch {
	case path == "":
		return "", errors.New("--csi-address is empty: say where the driver's socket is")
	case strings.Contains(path, "://"):
		return "", fmt.Errorf("--csi-address=%s: only sockets in the file system are supported: a path, or "+
			"unix:///path", address)
	}
	return path, nil
}

// calls counts and logs the CSI calls.
type calls struct {
	seconds *prometheus.HistogramVec
	driver  atomic.Pointer[string]
	label   func(ctx context.Context) string // label "migrated"
	leads   func() error                     // its error fails the calls that only a leader makes
	maxLog  int                              // bytes of a response in the log; all if not positive
	// answered reports whether the driver has answered on the present connection of the process.
	answered atomic.Bool
}

// newCalls makes upstream's histogram of CSI calls with the controller as a further label. migrated
// may be nil.
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

// intercept logs a call at level 5 without secrets, as upstream does, and counts it. intercept
// reads the name of the driver from any response that has it.
func (c *calls) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
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
		loud.Info("GRPC response", "method", method, "response", c.cut(protosanitizer.StripSecrets(reply).String()),
			"err", err)
	}
	if info, ok := reply.(*csi.GetPluginInfoResponse); ok && err == nil {
		c.name(info.GetName())
	}
	c.seconds.WithLabelValues(*c.driver.Load(), method, status.Code(err).String(), c.label(ctx),
		ofMethod(method)).Observe(took.Seconds())
	return err
}

// interceptMain is intercept for the channel of the process.
func (c *calls) interceptMain(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := c.intercept(ctx, method, req, reply, cc, invoke, opts...)
	if err == nil {
		c.answered.Store(true)
	}
	return err
}

// refused returns UNAVAILABLE for a call that only a leader makes, if this process does not lead.
// After UNAVAILABLE upstream's controllers keep their state.
func (c *calls) refused(method string) error {
	if ofMethod(method) == "" {
		return nil
	}
	if err := c.leads(); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// cut shortens a response for the log.
func (c *calls) cut(answer string) string {
	if c.maxLog <= 0 || len(answer) <= c.maxLog {
		return answer
	}
	return fmt.Sprintf("%s… (%d letters)", strings.ToValidUTF8(answer[:c.maxLog], ""), len(answer))
}

// dial returns a channel to the driver's socket, which need not exist. Until ctx is done the
// channel reconnects, and lost is called after the end of each connection on which the driver has
// answered. Without a connection, calls fail at once with UNAVAILABLE.
func dial(ctx context.Context, socket *Socket, c *calls, lost func()) (*grpc.ClientConn, error) {
	conn, err := channel(
		grpc.WithUnaryInterceptor(c.interceptMain),
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

// channel returns a channel to a driver. It connects with the first call.
func channel(options ...grpc.DialOption) (*grpc.ClientConn, error) {
	retry := backoff.DefaultConfig
	retry.MaxDelay = time.Second
	return grpc.NewClient("passthrough:///csi", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the directory of the socket belongs to the pod
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		grpc.WithIdleTimeout(0),
		// a page of 100,000 volumes is more than 4 MiB
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}, options...)...)
}

// connector returns a function that returns a new channel to the driver's socket. Only its caller
// uses that channel: its first call shows whether the driver accepts connections.
func (c *calls) connector(socket *Socket) func() (*grpc.ClientConn, error) {
	return func() (*grpc.ClientConn, error) {
		return channel(grpc.WithUnaryInterceptor(c.intercept),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return socket.Dial(ctx) }))
	}
}

// leading is a connection that rejects writes after leadership is lost, also those of earlier
// calls.
type leading struct {
	net.Conn
	leads func() error
}

// Write implements net.Conn.
func (l leading) Write(b []byte) (int, error) {
	if err := l.leads(); err != nil {
		l.Conn.Close() // gRPC ignores errors of Write
		return 0, err
	}
	return l.Conn.Write(b)
}

// keep reconnects until ctx is done.
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

// breaks is a stats.Handler that calls ended at the end of each connection. The states of a channel
// do not show a short connection.
type breaks struct{ ended func() }

func (b breaks) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (b breaks) HandleRPC(context.Context, stats.RPCStats)                         {}
func (b breaks) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (b breaks) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, over := s.(*stats.ConnEnd); over {
		b.ended()
	}
}

// stillWaiting is the time after which the log repeats a lasting failure.
const stillWaiting = 15 * time.Second

// awaitConnection waits until the channel is connected.
func awaitConnection(ctx context.Context, conn *grpc.ClientConn, socket *Socket) error {
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

// identify waits without a limit until the driver is ready, and then reads its name and
// capabilities.
func identify(ctx context.Context, env *Env, timeout time.Duration) error {
	if err := awaitConnection(ctx, env.Conn, env.Socket); err != nil {
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
