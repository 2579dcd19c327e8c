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

// run starts everything, and ends everything when ctx is done or something fails. It returns the exit code.
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
	log.Info("Ended as told")
	return 0
}

// release is what giving a lease up may take beyond patience.
const release = time.Second

// bounded returns when f does, and after the work has ended waits for it no longer than patience goes: some of upstream's workers
// never end, and its constructors end a process by calls that never return here (see kube's catchExits).
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

// supervisor is one run of a command. Whatever fails first ends all of it: to start one upstream controller again within the
// process isn't safe, as constructors write to package-level tables and leave handlers behind.
type supervisor struct {
	*Command
	work    context.Context // done when the process is told to end, or something failed
	stop    context.CancelFunc
	server  *Server
	up      *prometheus.GaugeVec
	failed  *prometheus.CounterVec
	atOnce  context.Context // done when nothing may be finished in peace
	abandon context.CancelFunc

	mu    sync.Mutex
	first error
}

func newSupervisor(ctx context.Context, c *Command) *supervisor {
	s := &supervisor{Command: c, server: newServer(c.metricsPath),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "csi_sidecars_controller_up",
			Help: "1 while a controller runs; 0 where it waits for leadership or was skipped."}, []string{"controller"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "csi_sidecars_controller_failures_total",
			Help: "How often a controller returned or panicked. The process ends after the first."}, []string{"controller", "kind"})}
	s.work, s.stop = context.WithCancel(ctx)
	s.atOnce, s.abandon = context.WithCancel(context.WithoutCancel(ctx))
	s.server.Register(s.up, s.failed)
	return s
}

// Fail ends the process, with what controllers do finished as far as patience goes. What comes after the process was told to
// end, or after another failure, is a consequence.
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

// terminationLog is where Kubernetes looks for a container's last words. It exists in containers only.
const terminationLog = "/dev/termination-log"

// report names what failed: in the log with its stack, in the metrics, and as the container's last words.
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
	klog.FromContext(s.work).Error(f.Err, "Can't go on", more...)
	if w, err := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		fmt.Fprintln(w, f.Error())
		w.Close()
	}
}

// all is the process from its first port to its last.
func (s *supervisor) all(on []Controller) error {
	parts := s.parts(on)
	// The port outlives the work: while that ends, somebody may still ask how it is.
	port, closePort := context.WithCancel(context.WithoutCancel(s.work))
	defer closePort()
	if s.httpEndpoint != "" {
		if err := Serve(port, s.httpEndpoint, s.server.Mux, s.Fail); err != nil {
			return fmt.Errorf("--http-endpoint: %w", err)
		}
	}
	if !slices.ContainsFunc(on, func(k Controller) bool { return k.Needs().Cluster }) {
		s.server.processMetrics() // else Cluster's libraries have them
	}
	env, err := s.environment(on)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	if err := s.build(env, parts, &running); err != nil {
		s.Fail(err)
	}
	<-s.work.Done() // all may be skipped: that is no reason to end
	running.Wait()
	return nil
}

// parts makes a part of each controller, and adds it to /healthz and /readyz.
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
	s.server.Require("csi-address", env.Socket.Denied)
	exact := slices.ContainsFunc(on, func(k Controller) bool { return k.Needs().Capabilities })
	// What is called at the very end, to finish something, needs the connection still.
	env.Conn, err = dial(context.WithoutCancel(s.work), env.Socket, counted, func() { s.lostDriver(exact) })
	return env, err
}

// lostDriver is upstream's rule: the driver that comes back may be another release, with other capabilities, so what was
// built from them is built anew, by a new process.
func (s *supervisor) lostDriver(exact bool) {
	klog.FromContext(s.work).Info("Lost the connection to the driver")
	if s.work.Err() != nil {
		return // a lease that is just being given up breaks it, too, and must be waited for
	}
	if s.Cluster != nil && s.Cluster.Leads() != nil {
		s.Fail(s.Cluster.Leads()) // and broke the connection itself
		return
	}
	if exact {
		s.Fail(errors.New("the connection to the driver was lost; a new process has to ask what the driver can do now"))
	}
}

// build builds and starts all parts: first those that work without knowing the driver, as they may have to say that it isn't
// there.
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
	} else { // Cluster.Run says when
		running.Go(func() {
			if err := s.Cluster.Run(s.work, env.Driver, elected, s.patience, s.start); err != nil {
				s.Fail(err)
			}
		})
	}
	return nil
}

// know finds out what late parts are built from.
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

// buildOne builds a part, or notes that the driver has no use for it.
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
