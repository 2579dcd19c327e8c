package sidecar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/causeway-csi/causeway/internal/connlimit"
)

// Server is the HTTP port of the process: metrics, health, and handlers of controllers. It answers
// before any controller runs.
type Server struct {
	Mux *http.ServeMux

	mu        sync.Mutex
	gatherers prometheus.Gatherers
	own       *prometheus.Registry
	checks    map[string]Check        // by path below /healthz/
	required  map[string]func() error // for /readyz, by name
	notReady  string                  // reason; "" when ready
}

// newServer returns a server that is not ready.
func newServer(metricsPath string) *Server {
	s := &Server{Mux: http.NewServeMux(), own: prometheus.NewRegistry(), checks: map[string]Check{},
		required: map[string]func() error{}, notReady: "starting"}
	s.gatherers = prometheus.Gatherers{s.own}
	s.own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "csi_sidecars_ready",
		Help: "1 while /readyz answers 200, otherwise 0."}, func() float64 {
		if s.unready() != nil {
			return 0
		}
		return 1
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "csi_sidecars_build_info", Help: "1, with the release.",
		ConstLabels: prometheus.Labels{"version": Release()}}, func() float64 { return 1 }))
	s.Mux.Handle("GET "+metricsPath, http.HandlerFunc(s.metrics))
	s.Mux.Handle("GET /healthz", http.HandlerFunc(s.healthz))
	s.Mux.Handle("GET /healthz/{name...}", http.HandlerFunc(s.healthzOne))
	s.Mux.Handle("GET /readyz", http.HandlerFunc(s.readyz))
	return s
}

// Measure adds metrics to /metrics.
func (s *Server) Measure(g prometheus.Gatherer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gatherers = append(s.gatherers, g)
}

// Register adds collectors to /metrics.
func (s *Server) Register(c ...prometheus.Collector) { s.own.MustRegister(c...) }

// processMetrics adds the metrics of the Go runtime and of the process.
func (s *Server) processMetrics() {
	s.Register(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// Check returns a state, or an error if the check fails.
type Check func(context.Context) (string, error)

// Health adds a check at /healthz/<name>. It counts for /healthz unless it is optional.
func (s *Server) Health(name string, check Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks[name] = check
}

// Ready sets the reason why /readyz fails; "" means ready.
func (s *Server) Ready(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notReady = reason
}

// Require makes /readyz fail while ready returns an error.
func (s *Server) Require(name string, ready func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.required[name] = ready
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	all := append(prometheus.Gatherers{}, s.gatherers...)
	s.mu.Unlock()
	// A bad family must not hide the others.
	promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := s.unready(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// unready returns the reasons why the process is not ready, or nil.
func (s *Server) unready() (failed error) {
	s.mu.Lock()
	reason, required := s.notReady, maps.Clone(s.required)
	s.mu.Unlock()
	if reason != "" {
		failed = errors.New(reason)
	}
	for _, name := range sorted(required) {
		if err := required[name](); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return failed
}

// optional has the checks of other processes. /healthz leaves them out, as its failure ends this
// process.
var optional = map[string]bool{"livenessprobe": true}

func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	checks := maps.Clone(s.checks)
	s.mu.Unlock()
	var failed error
	for _, name := range sorted(checks) {
		if optional[name] {
			continue
		}
		if _, err := checks[name](r.Context()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	answer(w, "ok", failed)
}

func (s *Server) healthzOne(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	check := s.checks[r.PathValue("name")]
	s.mu.Unlock()
	if check == nil {
		http.NotFound(w, r)
		return
	}
	state, err := check(r.Context())
	answer(w, state, err)
}

func answer(w http.ResponseWriter, state string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, state)
}

// Serve answers on address, a "host:port", until ctx is done. It bounds connections, and the time
// of requests. Serve returns once it listens, and calls failed with a later error.
func Serve(ctx context.Context, address string, h http.Handler, failed func(error)) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := connlimit.ServerOf(h)
	context.AfterFunc(ctx, func() { server.Close() })
	go func() {
		if err := server.Serve(connlimit.HTTP(l)); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("the port %s: %w", address, err))
		}
	}()
	return nil
}
