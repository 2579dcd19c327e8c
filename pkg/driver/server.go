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

// window is the flow control window of a connection, in bytes. A fixed one spares a ping for each request, by which
// gRPC would find out the best: a tenth of the time of a small call.
const window = 1 << 20

// streamWorkers are goroutines that stay, and spare each call the growing of a new one's stack. Calls beyond their
// number get goroutines of their own.
const streamWorkers = 4

// MaxMessage is the largest message taken and sent, in bytes. Over the limit gRPC says RESOURCE_EXHAUSTED, which the
// provisioner takes for a full disk, so it is far from anything that is sent: pages are cut at maxPage volumes.
const MaxMessage = 16 << 20

// maxCalls is how many calls a connection may have under way: more than a sidecar has workers. A client of gRPC makes
// further calls wait. An answer that has ended counts until the client has read it, and takes up to 0.1 MB.
const maxCalls = 256

// handshakeLimit is how long a connection may take until the first call on it is possible.
const handshakeLimit = 10 * time.Second

// Around is what every call of a process needs, whichever server takes it: it is counted, logged, given a status code
// and kept from ending the others with a panic.
type Around struct {
	calls   []grpc.UnaryServerInterceptor // the outermost first
	streams *streams
	options []grpc.ServerOption
}

// NewAround returns what goes around all calls. options are for all servers, such as a stats handler that traces.
// The registry gets the metrics of calls, and so takes one Around only.
func NewAround(log *slog.Logger, registry *prometheus.Registry, options ...grpc.ServerOption) (*Around, error) {
	count, err := countCalls(registry)
	if err != nil {
		return nil, err
	}
	calls := []grpc.UnaryServerInterceptor{count, logCalls(log), mapErrors, recoverPanics}
	return &Around{calls: calls, streams: newStreams(), options: options}, nil
}

// Server returns a server without services.
func (a *Around) Server(options ...grpc.ServerOption) *grpc.Server {
	all := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.StaticConnWindowSize(window),
		grpc.StaticStreamWindowSize(window),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.ChainUnaryInterceptor(a.calls...),
		grpc.ChainStreamInterceptor(aroundStreams(a.calls, a.streams)),
	}
	return grpc.NewServer(append(append(all, a.options...), options...)...)
}

// Endpoint is a server and where it answers.
type Endpoint struct {
	Server   *grpc.Server
	Listener net.Listener
}

// Serve answers calls at all endpoints until ctx is done, or one of them fails. Then it takes no new ones, waits for the
// running ones as long as drain, leaves behind what runs still, and returns nil or why one failed. It closes all listeners.
func Serve(ctx context.Context, log *slog.Logger, drain time.Duration, endpoints ...Endpoint) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	failed := make(chan error, len(endpoints))
	for _, e := range endpoints {
		serving.Go(func() {
			// It says that it was stopped if that was before it began, which is an end like any other.
			err := guard.Do(func() error { return e.Server.Serve(e.Listener) })
			if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				logPanics(log)(err)
				failed <- err
				cancel()
			}
		})
	}
	<-ctx.Done()
	log.Info("draining", "for at most", drain)
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

// end ends a server when no call runs any more, or after limit: a call may hang in a disk for ever.
func end(log *slog.Logger, server *grpc.Server, limit time.Duration) {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		logPanics(log)(guard.Do(func() error { server.GracefulStop(); return nil }))
	}()
	select {
	case <-drained:
	case <-time.After(limit):
		log.Warn("calls are running still and are left behind")
		server.Stop()
	}
}
