package sidecar

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// toy is a controller with an outcome that a test sets.
type toy struct {
	name     string
	needs    Needs
	timeout  time.Duration
	workers  int
	loud     bool
	old      []string // spellings of workers
	invalid  error
	build    error
	building func()
	run      func(ctx context.Context) error // nil: until it is told to end
	diary    *diary
}

func (t *toy) Name() string  { return t.name }
func (t *toy) About() string { return "Plays <" + t.name + "> | with * and more." }
func (t *toy) Flags(f *Flags) {
	f.Duration(&t.timeout, "timeout", 10*time.Second, "how long a `call` may take")
	f.Bool(&t.loud, "loud", false, "be loud")
	if t.workers > 0 {
		f.Int(&t.workers, "workers", t.workers, "how many | at once")
		f.Old("workers", t.old...)
	}
}
func (t *toy) Validate() error { return t.invalid }
func (t *toy) Needs() Needs    { return t.needs }
func (t *toy) Build(context.Context, *Env) (Runner, error) {
	t.diary.note("build " + t.name)
	if t.building != nil {
		t.building()
	}
	if t.build != nil {
		return nil, t.build
	}
	return RunnerFunc(func(ctx context.Context) error {
		t.diary.note("run " + t.name)
		defer t.diary.note("end " + t.name)
		if t.run != nil {
			return t.run(ctx)
		}
		<-ctx.Done()
		return nil
	}), nil
}

// diary has the events, in order.
type diary struct {
	mu    sync.Mutex
	pages []string
}

func (d *diary) note(what string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages = append(d.pages, what)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.pages, ", ")
}

// alone is a cluster of a single replica, which leads at once.
type alone struct {
	diary   *diary
	connect error
	run     error        // ends the election while all run
	leads   func() error // nil: it does
}

func (a *alone) Flags(*Flags)                {}
func (a *alone) Validate([]Controller) error { return nil }
func (a *alone) Connect(_ context.Context, _ *Server, driver string, _ func(error)) error {
	a.diary.note("connect " + driver)
	return a.connect
}
func (a *alone) Run(ctx context.Context, _ string, parts []*Part, patience time.Duration,
	start func(context.Context, *Part) error) error {
	if a.run != nil {
		return a.run
	}
	var all sync.WaitGroup
	for _, p := range parts {
		all.Go(func() { start(ctx, p) })
	}
	<-ctx.Done()
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(patience):
	}
	a.diary.note("release")
	return nil
}
func (a *alone) Migrated(context.Context) string { return "" }
func (a *alone) Leads() error {
	if a.leads == nil {
		return nil
	}
	return a.leads()
}

// command is a binary with toys.
func command(cluster Cluster, toys ...*toy) *Command {
	c := &Command{Name: "toys", Cluster: cluster}
	for _, t := range toys {
		c.Controllers = append(c.Controllers, t)
	}
	return c
}

// said is the list of toys' names.
func said(on []Controller) string { return fmt.Sprint(names(on)) }
