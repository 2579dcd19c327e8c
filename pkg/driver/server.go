package driver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/guard"
)

// window is the flow control window of a connection, in bytes. With a fixed window, gRPC sends no
// ping with each request to estimate the best window. The ping takes a tenth of the time of a small
// call.
const window = 1 << 20

// streamWorkers is the number of permanent goroutines that run calls. They save each call the
// growth of the stack of a new goroutine. Further calls get goroutines of their own.
const streamWorkers = 4

// MaxMessage is the maximum size of a message in both directions, in bytes. For a larger message
// gRPC returns RESOURCE_EXHAUSTED, which external-provisioner takes for a full disk. So the maximum
// is far above the largest message: a page has at most maxPage volumes.
const MaxMessage = 16 << 20

// maxCalls is the maximum number of calls in progress on a connection. A sidecar has fewer workers.
// A gRPC client delays further calls. A finished call counts until the client has read the reply.
const maxCalls = 256

// handshakeLimit is the maximum time that a new connection takes until its first call is possible.
const handshakeLimit = 10 * time.Second

// Interceptors are the interceptors of all calls of a process, for all of its servers. They count
// and log each call, give its error a status code, and recover from its panic.
type Interceptors struct {
	calls   []grpc.UnaryServerInterceptor // the outermost first
	streams *streams
	options []grpc.ServerOption
}

// NewInterceptors returns new Interceptors. options apply to all servers, for example a stats
// handler for traces. The metrics of calls are registered in registry, so a registry serves for a
// single call of NewInterceptors.
func NewInterceptors(log *slog.Logger, registry *prometheus.Registry,
	options ...grpc.ServerOption) (*Interceptors, error) {
	count, err := countCalls(registry)
	if err != nil {
		return nil, err
	}
	calls := []grpc.UnaryServerInterceptor{count, logCalls(log), mapErrors, recoverPanics}
	return &Interceptors{calls: calls, streams: newStreams(), options: options}, nil
}

// Server returns a server without services.
func (i *Interceptors) Server(options ...grpc.ServerOption) *grpc.Server {
	all := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.StaticConnWindowSize(window),
		grpc.StaticStreamWindowSize(window),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.ChainUnaryInterceptor(i.calls...),
		grpc.ChainStreamInterceptor(interceptStreams(i.calls, i.streams)),
	}
	return grpc.NewServer(append(append(all, i.options...), options...)...)
}

// Endpoint is a server and its listener.
type Endpoint struct {
	Server   *grpc.Server
	Listener net.Listener
}

// Serve serves all endpoints until ctx is done or an endpoint fails. Then it accepts no new calls,
// waits at most drain for the calls in progress, abandons the rest, and closes all listeners. The
// result is nil, or the error of an endpoint that failed.
func Serve(ctx context.Context, log *slog.Logger, drain time.Duration, endpoints ...Endpoint) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	failed := make(chan error, len(endpoints))
	for _, e := range endpoints {
		serving.Go(func() {
			// Serve returns ErrServerStopped if the server was stopped before Serve began. That is
			// a normal end.
			err := guard.Do(func() error { return e.Server.Serve(e.Listener) })
			if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				logPanics(log)(err)
				failed <- err
				cancel()
			}
		})
	}
	<-ctx.Done()
	log.Info("draining", "timeout", drain)
	var draining sync.WaitGroup
	for _, e := range endpoints {
		draining.Go(func() { end(log, e.Server, drain) })
	}
	draining.Wait()
	serving.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// end stops a server when its last call has ended, or after limit: a call can wait for a stalled
// disk forever.
func end(log *slog.Logger, server *grpc.Server, limit time.Duration) {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		logPanics(log)(guard.Do(func() error { server.GracefulStop(); return nil }))
	}()
	select {
	case <-drained:
	case <-time.After(limit):
		log.Warn("calls are still in progress and are abandoned")
		server.Stop()
	}
}
