package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/causeway-csi/causeway/containercopy/agent"
	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/containercopy/container"
	"github.com/causeway-csi/causeway/containercopy/cri"
	"github.com/causeway-csi/causeway/containercopy/quota"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/peertls"
)

// node is the node of the agent: its pod has the PID namespace of the node.
var node = container.Node{Proc: "/proc", Init: 1}

const (
	handshakeLimit = 10 * time.Second       // of a connection, before its first request
	endLimit       = 5 * time.Second        // of calls and streams when the agent ends
	checkLimit     = 800 * time.Millisecond // of a probe of the runtime: the kubelet waits for a second
)

// run runs an agent until ctx ends, and returns its exit code: 2 for an invalid command line.
func run(ctx context.Context, args []string, log io.Writer) int {
	f, err := parse(args, log)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(log, "agent:", err)
		return 2
	}
	if err := serve(ctx, f, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		fmt.Fprintln(log, "agent:", err)
		return 1
	}
	return 0
}

// serve serves the calls and streams until ctx ends.
func serve(ctx context.Context, f flags, log *slog.Logger) error {
	identity, err := peertls.Open(f.tlsDir, func(err error) { log.Warn("certificates", "error", err) })
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+f.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return fmt.Errorf("the container runtime at %s: %w", f.endpoint, err)
	}
	defer conn.Close()
	program := container.Program{Root: f.workers, Name: "worker", Stderr: os.Stderr}
	finder := cri.NewFinder(runtime.NewRuntimeServiceClient(conn), strings.Split(f.native, ","))
	registry := prometheus.NewRegistry()
	slots := quota.New(f.perPod, f.perNode)
	metrics := agent.NewMetrics(registry, slots)
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "container_copy_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the certificate of the agent, in seconds since 1970.",
	}, func() float64 { return float64(identity.Until().Unix()) }))
	a := agent.New(agent.Config{
		Runtime: finder, Starter: agent.Native{Node: node, Program: program},
		Slots: slots, URL: "https://" + f.streamAddress, Archive: f.limits, Idle: f.idle, Total: f.total, Log: log,
		Peer: peerOf, Finished: metrics.Finished,
	})
	defer a.Close()
	r := &readiness{runtime: finder.Check, worker: program.Check}
	return listen(ctx, f, a, identity, observed(registry, r))
}

// peerOf identifies the caller of a call by its certificate. Without one its stream is refused.
func peerOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	c := peertls.Certificate(p.AuthInfo)
	if c == nil {
		return ""
	}
	return stream.Fingerprint(c)
}

// listen serves an agent on its addresses.
func listen(ctx context.Context, f flags, a *agent.Agent, identity *peertls.Identity, metrics http.Handler) error {
	calls := grpc.NewServer(grpc.Creds(identity.Server(f.client)), grpc.ConnectionTimeout(handshakeLimit))
	v1alpha1.RegisterContainerCopyServer(calls, a)
	streams := &http.Server{Handler: admitted(a.Handler()), ConnContext: withConn,
		ReadHeaderTimeout: handshakeLimit, IdleTimeout: handshakeLimit,
		ErrorLog: nolog} // any pod can cause its errors, such as those of handshakes
	observed := connlimit.ServerOf(metrics) // all pods may reach it
	ended := make(chan error, 3)
	for _, s := range []struct {
		address string
		serve   func(l net.Listener) error
		stop    func()
	}{
		{f.listen, func(l net.Listener) error { return calls.Serve(peertls.Limit(l)) }, calls.Stop},
		{f.streamListen, func(l net.Listener) error {
			return streams.Serve(tls.NewListener(stream.WideListener(f.limit(l)),
				identity.ServerConfig(f.client, "http/1.1")))
		}, func() { streams.Close() }},
		{f.metrics, func(l net.Listener) error { return observed.Serve(connlimit.HTTP(l)) },
			func() { observed.Close() }},
	} {
		if s.address == "" {
			continue
		}
		l, err := net.Listen("tcp", s.address)
		if err != nil {
			return err
		}
		go func() { ended <- s.serve(l) }()
		defer s.stop()
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	a.Close() // the clients get the reason
	limited, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	streams.Shutdown(limited) // of connections without a stream
	if a.Wait(limited) != nil {
		return errors.New("copies in progress are interrupted")
	}
	return nil
}

// limit bounds the connections of streams: each copy has one.
func (f flags) limit(l net.Listener) *connlimit.Listener {
	const others = 64 // handshakes, and streams that are refused
	copies := f.perNode
	if copies == 0 {
		copies = math.MaxInt - others
	}
	return connlimit.New(l, connlimit.Limits{Waiting: 2 * others, Known: others, Admitted: copies + others})
}

// connKey is the key of the connection of a request in its context.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// netConn is a connection above another: of TLS, and stream.Wide.
type netConn interface{ NetConn() net.Conn }

// admitted keeps the connections of authenticated clients apart from those of all others, as gRPC
// does with the credentials of package peertls.
func admitted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(net.Conn)
		for above, ok := c.(netConn); ok; above, ok = c.(netConn) {
			c = above.NetConn()
		}
		if err := connlimit.Admit(c); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// nolog drops the messages of a log.
var nolog = stdlog.New(io.Discard, "", 0)

// readiness is the state of the parts of the node that each copy needs.
type readiness struct {
	runtime func(ctx context.Context) error
	worker  func() error

	mu      sync.Mutex
	started bool // worker has succeeded once, so its programs and namespaces are there
	last    error
	until   time.Time // the time at which last is too old
}

// fresh is the time for which all clients get the same answer: any pod can ask, and each answer
// takes a call of the container runtime.
const fresh = time.Second

// check returns the reason for which no copy can begin. One caller at a time looks.
func (r *readiness) check(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return r.last
	}
	r.last = r.look(context.WithoutCancel(ctx)) // the next callers get the answer, too
	r.until = time.Now().Add(fresh)
	return r.last
}

func (r *readiness) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if err := r.runtime(ctx); err != nil {
		return err
	}
	if r.started {
		return nil
	}
	err := r.worker()
	r.started = err == nil
	return err
}

// observed serves the metrics, and the probes of the kubelet: a restart of the agent would not
// repair its node, so only readiness depends on it.
func observed(registry *prometheus.Registry, r *readiness) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		if err := r.check(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ok\n")
	})
	return mux
}
