package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// run runs the controllers until ctx is done or a controller fails. run returns the exit code.
func (c *Command) run(ctx context.Context, on []Controller) int {
	log := klog.FromContext(ctx)
	log.Info("Starting", "binary", c.Name, "version", Version(), "controllers", names(on))
	s := newSupervisor(ctx, c)
	s.bounded(func() {
		if err := s.all(on); err != nil {
			s.Fail(err)
		}
	})
	if s.failure() != nil {
		return 1
	}
	log.Info("Stopped by signal")
	return 0
}

// release is the time for the release of leases, beyond patience.
const release = time.Second

// bounded calls f, and after the end of work waits for f for patience at most: some workers of
// upstream never end, and some of its constructors call an exit function that does not return here
// (catchExits in package kube).
func (s *supervisor) bounded(f func()) {
	over := make(chan struct{})
	go func() { defer close(over); f() }()
	select {
	case <-over:
		return
	case <-s.work.Done():
	}
	select {
	case <-over:
	case <-s.atOnce.Done():
	case <-time.After(s.patience + release):
		klog.FromContext(s.work).Info("Not all has ended in time", "shutdownTimeout", s.patience)
	}
}

// supervisor is a run of a command. The first failure ends the process: a restart of a single
// controller is not safe, as upstream's constructors write to package-level tables and leave
// handlers behind.
type supervisor struct {
	*Command
	work    context.Context // done at SIGTERM or after a failure
	stop    context.CancelFunc
	server  *Server
	up      *prometheus.GaugeVec
	failed  *prometheus.CounterVec
	atOnce  context.Context // done when controllers must stop without finishing: ErrLost
	abandon context.CancelFunc

	mu    sync.Mutex
	first error
}

func newSupervisor(ctx context.Context, c *Command) *supervisor {
	s := &supervisor{Command: c, server: newServer(c.metricsPath),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "csi_sidecars_controller_up",
			Help: "1 while a controller runs, 0 while it waits for leadership or if it was skipped."},
			[]string{"controller"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "csi_sidecars_controller_failures_total",
			Help: "Number of controllers that returned or panicked. The process ends after the first."},
			[]string{"controller", "kind"})}
	s.work, s.stop = context.WithCancel(ctx)
	s.atOnce, s.abandon = context.WithCancel(context.WithoutCancel(ctx))
	s.server.Register(s.up, s.failed)
	return s
}

// Fail ends the process. Controllers have patience to finish. Errors after the end of work or after
// another failure are consequences and are not reported.
func (s *supervisor) Fail(err error) {
	s.mu.Lock()
	fresh := s.first == nil && s.work.Err() == nil
	if fresh {
		s.first = err
	}
	s.mu.Unlock()
	if fresh {
		s.report(err)
	}
	if errors.Is(err, ErrLost) {
		s.abandon()
	}
	s.stop()
}

func (s *supervisor) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first
}

// terminationLog is the file of a container's termination message. It exists in containers only.
const terminationLog = "/dev/termination-log"

// report writes a failure to the log, to the metrics and to the termination message.
func (s *supervisor) report(err error) {
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Err: err}
	}
	kind := "returned"
	if f.Stack != "" {
		kind = "panicked"
	}
	s.failed.WithLabelValues(f.Controller, kind).Inc()
	var more []any
	if f.Controller != "" {
		more = append(more, "failed", f.Controller)
	}
	if f.Stack != "" {
		more = append(more, "stack", f.Stack)
	}
	klog.FromContext(s.work).Error(f.Err, "Cannot go on", more...)
	if w, err := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		fmt.Fprintln(w, f.Error())
		w.Close()
	}
}

// all opens the port, runs the controllers, and closes the port.
func (s *supervisor) all(on []Controller) error {
	parts := s.parts(on)
	// The port outlives work: health is still asked for while controllers end.
	port, closePort := context.WithCancel(context.WithoutCancel(s.work))
	defer closePort()
	if s.httpEndpoint != "" {
		if err := Serve(port, s.httpEndpoint, s.server.Mux, s.Fail); err != nil {
			return fmt.Errorf("--http-endpoint: %w", err)
		}
	}
	if !slices.ContainsFunc(on, func(k Controller) bool { return k.Needs().Cluster }) {
		s.server.processMetrics() // the libraries of Cluster register them, too
	}
	env, err := s.environment(on)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	if err := s.build(env, parts, &running); err != nil {
		s.Fail(err)
	}
	<-s.work.Done() // also if all controllers are skipped
	running.Wait()
	return nil
}

// parts returns a Part for each controller, with its checks in /healthz and /readyz.
func (s *supervisor) parts(on []Controller) []*Part {
	var parts []*Part
	for _, k := range on {
		p := &Part{Controller: k, up: s.up.WithLabelValues(k.Name()), state: waiting}
		s.server.Health(k.Name(), p.check)
		s.server.Require(k.Name(), p.ready)
		parts = append(parts, p)
	}
	return parts
}

// environment dials the driver if a controller needs it.
func (s *supervisor) environment(on []Controller) (*Env, error) {
	env := &Env{HTTP: s.server}
	if !slices.ContainsFunc(on, func(k Controller) bool { return k.Needs().Driver }) {
		return env, nil
	}
	var migrated func(context.Context) string
	if s.Cluster != nil {
		migrated = s.Cluster.Migrated
	}
	counted := newCalls(migrated, s.maxLog)
	if s.Cluster != nil {
		counted.leads = s.Cluster.Leads
	}
	s.server.Register(counted.seconds)
	path, err := socketPath(s.csiAddress)
	if err != nil {
		return nil, err
	}
	env.Socket = NewSocket(path)
	env.Connect = counted.connector(env.Socket)
	s.server.Require("csi-address", env.Socket.Denied)
	exact := slices.ContainsFunc(on, func(k Controller) bool { return k.Needs().Capabilities })
	// Calls that finish after the end of work need the connection.
	env.Conn, err = dial(context.WithoutCancel(s.work), env.Socket, counted, func() { s.lostDriver(exact) })
	return env, err
}

// lostDriver ends the process if controllers were built from the capabilities of the driver, as
// upstream does: the driver may return with other capabilities.
func (s *supervisor) lostDriver(exact bool) {
	klog.FromContext(s.work).Info("Lost the connection to the driver")
	if s.work.Err() != nil {
		return // the release of a lease breaks the connection, too, and must finish
	}
	if s.Cluster != nil && s.Cluster.Leads() != nil {
		s.Fail(s.Cluster.Leads()) // the lost lease broke the connection
		return
	}
	if exact {
		s.Fail(errors.New("the connection to the driver was lost: a new process must read its capabilities"))
	}
}

// build builds and starts all parts. Parts that do not need the driver's capabilities come first,
// such as the livenessprobe, which reports that the driver is missing.
func (s *supervisor) build(env *Env, parts []*Part, running *sync.WaitGroup) error {
	var late, elected []*Part
	for _, p := range parts {
		if n := p.Needs(); n.Capabilities || n.Cluster {
			late = append(late, p)
		} else if err := s.buildOne(env, p); err != nil {
			return err
		} else if p.State() != skipped {
			running.Go(func() { s.start(s.work, p) })
		}
	}
	if len(late) > 0 {
		if err := s.know(env, late); err != nil {
			return err
		}
	}
	for _, p := range late {
		if err := s.buildOne(env, p); err != nil {
			return err
		}
		if p.State() != skipped {
			elected = append(elected, p)
		}
	}
	if len(elected) == 0 {
		s.server.Ready("")
	} else { // Cluster.Run reports readiness
		running.Go(func() {
			if err := s.Cluster.Run(s.work, env.Driver, elected, s.patience, s.start); err != nil {
				s.Fail(err)
			}
		})
	}
	return nil
}

// know reads the capabilities of the driver and connects to the cluster.
func (s *supervisor) know(env *Env, parts []*Part) error {
	if slices.ContainsFunc(parts, func(p *Part) bool { return p.Needs().Capabilities }) {
		s.server.Ready("waiting for the driver at " + env.Socket.path)
		if err := identify(s.work, env, 10*time.Second); err != nil {
			return err
		}
		klog.FromContext(s.work).Info("Found the driver", "driver", env.Driver)
	}
	s.server.Ready("waiting for the API server")
	return s.Cluster.Connect(s.work, s.server, env.Driver, s.Fail)
}

// buildOne builds a part, or skips it.
func (s *supervisor) buildOne(env *Env, p *Part) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked(p.Name(), r)
		}
	}()
	runner, err := p.Build(s.work, env)
	p.built(runner)
	switch {
	case errors.Is(err, ErrNotSupported), errors.Is(err, ErrNotInstalled):
		klog.FromContext(s.work).Info("Controller is skipped", "name", p.Name(), "reason", err.Error())
		p.skip(err)
		return nil
	case err != nil:
		return &Failure{Controller: p.Name(), Err: err}
	}
	return nil
}

// start runs a part. Its failure ends the process.
func (s *supervisor) start(ctx context.Context, p *Part) error {
	err := p.Run(ctx)
	if err != nil {
		s.Fail(err)
	}
	return err
}
