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

// Part is a controller in a running process: built, skipped, running or at its end.
type Part struct {
	Controller
	runner Runner
	up     prometheus.Gauge

	mu    sync.Mutex
	state string
	why   string // it was skipped
	err   error
}

// say sets what /healthz/<controller> answers.
func (p *Part) say(state string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.err = state, err
}

// State is a word for what the part does: waiting, running, skipped or ended.
func (p *Part) State() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// built gives the part what runs. Somebody may ask for its health meanwhile.
func (p *Part) built(r Runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runner = r
}

// skip notes why a part is left out.
func (p *Part) skip(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.why = skipped, why.Error()
}

// check answers /healthz/<controller>: the runner's own check while it runs, else the part's state.
func (p *Part) check(ctx context.Context) (string, error) {
	p.mu.Lock()
	state, note, err, runner := p.state, p.why, p.err, p.runner
	p.mu.Unlock()
	if c, ok := runner.(Checker); ok && state == running {
		note, err = c.Check(ctx)
	}
	if note != "" {
		state += ": " + note
	}
	return state, err
}

// ready returns why the part is not ready, if it runs and can tell.
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

// Run works until ctx is done. An error names the controller, and has the stack of a panic.
func (p *Part) Run(ctx context.Context) (err error) {
	p.say(running, nil)
	p.up.Set(1)
	klog.FromContext(ctx).Info("Controller starts", "name", p.Name())
	defer func() {
		p.up.Set(0)
		if r := recover(); r != nil {
			err = panicked(p.Name(), r)
		}
		p.say(ended, err)
	}()
	err = p.runner.Run(ctx)
	switch {
	case ctx.Err() != nil:
		return nil // it was told to end; what it says of that is no failure
	case err == nil:
		err = errors.New("it returned, though nobody told it to end")
	}
	return &Failure{Controller: p.Name(), Err: err}
}

// Failure is why a process ends that wasn't told to.
type Failure struct {
	Controller string // empty if it is none in particular
	Err        error
	Stack      string // of a panic, else empty
}

func (f *Failure) Error() string {
	if f.Controller == "" {
		return f.Err.Error()
	}
	return f.Controller + ": " + f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// Panicked makes a failure of a panic that somebody else caught, with the caller's stack, and says whose it is.
func Panicked(reason any) *Failure {
	f := panicked("", reason)
	f.Controller = ofTrace(f.Stack)
	return f
}

func panicked(controller string, reason any) *Failure {
	return &Failure{Controller: controller, Err: fmt.Errorf("panic: %v", reason), Stack: string(debug.Stack())}
}

// Running reports whether the part is at work.
func (p *Part) Running() bool { return p.State() == running }
