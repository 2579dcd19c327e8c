package sidecar

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// Part is a controller in a running process.
type Part struct {
	Controller
	runner Runner
	up     prometheus.Gauge

	mu    sync.Mutex
	state string
	note  string // reason why the controller was skipped
	err   error
}

// setState sets the state that /healthz/<controller> returns.
func (p *Part) setState(state string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.err = state, err
}

// State returns waiting, running, skipped or ended.
func (p *Part) State() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// built sets the runner. Health checks may run at the same time.
func (p *Part) built(r Runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runner = r
}

// skip records that the controller is skipped.
func (p *Part) skip(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.note = skipped, reason.Error()
}

// check is the check at /healthz/<controller>: that of the runner while it runs, else the state.
func (p *Part) check(ctx context.Context) (string, error) {
	p.mu.Lock()
	state, note, err, runner := p.state, p.note, p.err, p.runner
	p.mu.Unlock()
	if c, ok := runner.(Checker); ok && state == running {
		note, err = c.Check(ctx)
	}
	if note != "" {
		state += ": " + note
	}
	return state, err
}

// ready returns the error of a Readier that runs.
func (p *Part) ready() error {
	p.mu.Lock()
	state, runner := p.state, p.runner
	p.mu.Unlock()
	if r, ok := runner.(Readier); ok && state == running {
		return r.Ready()
	}
	return nil
}

const (
	waiting = "waiting"
	running = "running"
	skipped = "skipped"
	ended   = "ended"
)

// Run runs the controller until ctx is done. Its error is a Failure.
func (p *Part) Run(ctx context.Context) (err error) {
	p.setState(running, nil)
	p.up.Set(1)
	klog.FromContext(ctx).Info("Controller starts", "name", p.Name())
	defer func() {
		p.up.Set(0)
		if r := recover(); r != nil {
			err = panicked(p.Name(), r)
		}
		p.setState(ended, err)
	}()
	err = p.runner.Run(ctx)
	switch {
	case ctx.Err() != nil:
		return nil // an error after the end of ctx is no failure
	case err == nil:
		err = errors.New("it returned before the process ended")
	}
	return &Failure{Controller: p.Name(), Err: err}
}

// Failure is the reason why a process ends by itself.
type Failure struct {
	Controller string // "" if the failure belongs to no controller
	Err        error
	Stack      string // of a panic, or ""
}

func (f *Failure) Error() string {
	if f.Controller == "" {
		return f.Err.Error()
	}
	return f.Controller + ": " + f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// Panicked returns the Failure for a recovered panic, with the stack of the caller and the
// controller on it.
func Panicked(reason any) *Failure {
	f := panicked("", reason)
	f.Controller = ofTrace(f.Stack)
	return f
}

func panicked(controller string, reason any) *Failure {
	return &Failure{Controller: controller, Err: fmt.Errorf("panic: %v", reason), Stack: string(debug.Stack())}
}

// Running reports whether the controller runs.
func (p *Part) Running() bool { return p.State() == running }
