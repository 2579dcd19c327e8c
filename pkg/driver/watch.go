package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// prober asks the backend how it is: each question once at a time, however many want to know.
type prober struct {
	backend backend.Backend
	group   singleflight.Group
}

// probeLimit is how long an answer may take. A disk that hangs never answers, and is not ready.
const probeLimit = 5 * time.Second

// ask waits for the answer to a question, as long as it may take.
func (p *prober) ask(ctx context.Context, question string, f func(context.Context) (any, error)) (any, error) {
	answer := p.group.DoChan(question, func() (any, error) {
		return guard.Value(func() (any, error) { return f(context.WithoutCancel(ctx)) })
	})
	late := time.NewTimer(probeLimit)
	defer late.Stop()
	select {
	case a := <-answer:
		return a.Val, a.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-late.C:
		return nil, fmt.Errorf("%w: the storage has not answered for %s", backend.ErrNotReady, probeLimit)
	}
}

// probe reports whether the backend is ready. CSI spec v1.13, Probe.
func (p *prober) probe(ctx context.Context) (bool, error) {
	b, ok := p.backend.(backend.Prober)
	if !ok {
		return true, nil
	}
	answer, err := p.ask(ctx, "probe", func(ctx context.Context) (any, error) { return b.Probe(ctx) })
	ready, _ := answer.(bool)
	return ready, err
}

// storageHealth returns what is wrong with the storage. CSI spec v1.13, NodeGetStorageHealth.
func (p *prober) storageHealth(ctx context.Context) ([]backend.Condition, error) {
	b, ok := p.backend.(backend.HealthReporter)
	if !ok {
		return nil, nil
	}
	answer, err := p.ask(ctx, "storage", func(ctx context.Context) (any, error) { return b.StorageHealth(ctx) })
	conditions, _ := answer.([]backend.Condition)
	return conditions, err
}

const (
	watchUnready = 200 * time.Millisecond // how often watch looks while the backend isn't ready
	watchReady   = 10 * time.Second       // and while it is
	watchVolumes = 100                    // how many volumes it names at the most
)

// States in which watch finds the driver.
const (
	starting = "starting"
	notReady = "not ready"
	ready    = "ready"
	notWell  = "ready, but the storage is unhealthy"
)

// watch logs when the driver becomes ready or stops being so, and why, and what is wrong with the storage.
func (d *Driver) watch(ctx context.Context) {
	last, lastWhy := starting, ""
	for {
		now, why := d.state(ctx)
		if ctx.Err() != nil {
			return
		}
		next, serves := watchReady, now == ready || now == notWell
		if !serves {
			next = watchUnready
		}
		if now != last || why != lastWhy {
			d.logState(now, why)
			if serves && (last == starting || last == notReady) {
				d.logSick(ctx)
			}
			last, lastWhy = now, why
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// state returns in which state the driver is, and why.
func (d *Driver) state(ctx context.Context) (state, why string) {
	switch ready, err := d.prober.probe(ctx); {
	case err != nil:
		return notReady, err.Error()
	case !ready:
		return starting, ""
	}
	conditions, err := d.prober.storageHealth(ctx)
	if err != nil {
		return notWell, err.Error()
	}
	var messages []string
	for _, c := range conditions {
		messages = append(messages, c.Reason+": "+c.Message)
	}
	if len(messages) > 0 {
		return notWell, strings.Join(messages, "; ")
	}
	return ready, ""
}

// logPanics returns a function that logs the panic of a background task, with its stack.
func logPanics(log *slog.Logger) func(error) {
	return func(err error) {
		var p *guard.Panic
		if errors.As(err, &p) {
			log.Error("a background task ended with a panic", "error", err, "stack", string(p.Stack))
		}
	}
}

func (d *Driver) logState(state, why string) {
	if why == "" {
		d.cfg.Log.Info(state)
		return
	}
	d.cfg.Log.Error(state, "reason", why)
}

// logSick logs which volumes are unhealthy, and why.
func (d *Driver) logSick(ctx context.Context) {
	doctor, ok := d.cfg.Backend.(backend.HealthReporter)
	if !ok {
		return
	}
	var sick []backend.VolumeHealth
	var more bool
	err := guard.Do(func() (err error) {
		sick, more, err = doctor.ListHealth(ctx, "", watchVolumes)
		return err
	})
	if err != nil {
		d.cfg.Log.Error("cannot list the health of volumes", "error", err)
	}
	for _, s := range sick {
		for _, c := range s.Conditions {
			d.cfg.Log.Error("a volume is unhealthy", "volume", s.ID, "reason", c.Reason, "message", c.Message)
		}
	}
	if more {
		d.cfg.Log.Error("more volumes are unhealthy: ControllerListVolumeHealth lists all of them")
	}
}
