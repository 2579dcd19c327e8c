package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

// A gRPC channel of its own for each node would have a resolver, a balancer and three goroutines for it: a fifth of the
// memory that a node costs. So all nodes share one, and a balancer puts each call on the line that the call names.

// lines are the connections to all nodes.
type lines struct {
	channel *grpc.ClientConn
	opened  chan struct{} // closed when maker is there
	maker   balancer.ClientConn

	mu   sync.Mutex
	made int
	raw  map[string]net.Conn // by name, until gRPC takes them
}

// line is a connection to one node. When it is lost, no other is made in its place.
type line struct {
	*lines
	name string
	sub  balancer.SubConn

	ready chan struct{} // closed when calls can be made
	lost  chan struct{} // closed when it is
	why   error         // it was lost
}

var errLost = errors.New("the connection was lost")

// newLines returns a channel that has no lines yet.
func newLines(options ...grpc.DialOption) (*lines, error) {
	l := &lines{opened: make(chan struct{}), raw: map[string]net.Conn{}}
	r := manual.NewBuilderWithScheme("nodes")
	r.InitialState(resolver.State{
		Endpoints:  []resolver.Endpoint{{Addresses: []resolver.Address{{Addr: "all"}}}}, // gRPC wants one
		Attributes: attributes.New(linesKey{}, l),
	})
	options = append(options, grpc.WithResolvers(r), grpc.WithContextDialer(l.dial), grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig": [{%q: {}}]}`, chooserName)))
	var err error
	if l.channel, err = grpc.NewClient("nodes:///all", options...); err != nil {
		return nil, err
	}
	l.channel.Connect()
	return l, nil
}

// over makes a line over a connection that is there. They are closed together.
func (l *lines) over(ctx context.Context, raw net.Conn) (*line, error) {
	select {
	case <-l.opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n := &line{lines: l, ready: make(chan struct{}), lost: make(chan struct{})}
	l.mu.Lock()
	l.made++
	n.name = fmt.Sprint(raw.RemoteAddr(), " ", l.made)
	l.raw[n.name] = raw
	l.mu.Unlock()
	address := resolver.Address{Addr: n.name, ServerName: raw.RemoteAddr().String()}
	var err error
	//lint:ignore SA1019 that of several addresses is deprecated, and this is one
	n.sub, err = l.maker.NewSubConn([]resolver.Address{address}, balancer.NewSubConnOptions{StateListener: n.changed})
	if err != nil {
		l.take(n.name)
		return nil, err
	}
	n.sub.Connect()
	return n, nil
}

// take returns the connection of that name the first time that it is asked for, and then nil.
func (l *lines) take(name string) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	raw := l.raw[name]
	delete(l.raw, name)
	return raw
}

func (l *lines) dial(_ context.Context, name string) (net.Conn, error) {
	if raw := l.take(name); raw != nil {
		return raw, nil
	}
	return nil, errLost
}

// changed is called for one change after the other. What follows on Ready is always the end.
func (n *line) changed(s balancer.SubConnState) {
	switch {
	case s.ConnectivityState == connectivity.Connecting, isClosed(n.lost):
		return
	case s.ConnectivityState == connectivity.Ready:
		close(n.ready)
	default:
		if n.why = s.ConnectionError; n.why == nil {
			n.why = errLost
		}
		close(n.lost)
	}
	n.maker.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: chooser{}}) // calls that wait look again
}

// close ends the calls on the line.
func (n *line) close() {
	n.sub.Shutdown()
	if raw := n.take(n.name); raw != nil {
		raw.Close()
	}
}

// lineKey is that of a call's line, linesKey that of all, in what gRPC hands on.
type (
	lineKey  struct{}
	linesKey struct{}
)

// Invoke and NewStream make a line what clients are made of.
func (n *line) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return n.channel.Invoke(context.WithValue(ctx, lineKey{}, n), method, args, reply, opts...)
}

func (n *line) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return n.channel.NewStream(context.WithValue(ctx, lineKey{}, n), desc, method, opts...)
}

// chooser is the balancer: it makes nothing but what over asks for.
type chooser struct{ balancer.ClientConn }

// chooserName is made known when the program starts, as gRPC demands.
var chooserName = register(chooserBuilder{})

func register(b balancer.Builder) string {
	balancer.Register(b)
	return b.Name()
}

type chooserBuilder struct{}

func (chooserBuilder) Name() string { return "causeway_line" }

func (chooserBuilder) Build(maker balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return chooser{maker}
}

// UpdateClientConnState is called once, with what the resolver began with.
func (c chooser) UpdateClientConnState(s balancer.ClientConnState) error {
	l, ok := s.ResolverState.Attributes.Value(linesKey{}).(*lines)
	if !ok || isClosed(l.opened) {
		return nil
	}
	l.maker = c.ClientConn
	c.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: chooser{}})
	close(l.opened)
	return nil
}

func (chooser) ResolverError(error)                                        {}
func (chooser) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
func (chooser) ExitIdle()                                                  {}
func (chooser) Close()                                                     {}

// Pick is called for each call.
func (chooser) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	n, ok := info.Ctx.Value(lineKey{}).(*line)
	switch {
	case !ok:
		return balancer.PickResult{}, status.Error(codes.Internal, "a call for no node")
	case isClosed(n.lost):
		return balancer.PickResult{}, status.Error(codes.Unavailable, n.why.Error())
	case !isClosed(n.ready):
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	return balancer.PickResult{SubConn: n.sub}, nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
