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

// prober asks the backend for its state. Callers that ask the same question at the same time share
// a call.
type prober struct {
	backend backend.Backend
	group   singleflight.Group
}

// probeLimit is the maximum time for an answer. A stalled disk never answers, and is not ready.
const probeLimit = 5 * time.Second

// ask waits for the answer to a question, at most probeLimit.
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

// storageHealth returns the conditions of the storage. CSI spec v1.13, NodeGetStorageHealth.
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
	watchUnready = 200 * time.Millisecond // interval of watch while the backend is not ready
	watchReady   = 10 * time.Second       // interval of watch while the backend is ready
	watchVolumes = 100                    // maximum number of unhealthy volumes in the log
)

// States of the driver.
const (
	starting  = "starting"
	notReady  = "not ready"
	ready     = "ready"
	unhealthy = "ready, but the storage is unhealthy"
)

// watch logs when the driver becomes ready or unready, with the reason, and the conditions of the
// storage.
func (d *Driver) watch(ctx context.Context) {
	last, lastWhy := starting, ""
	for {
		now, why := d.state(ctx)
		if ctx.Err() != nil {
			return
		}
		next, serves := watchReady, now == ready || now == unhealthy
		if !serves {
			next = watchUnready
		}
		if now != last || why != lastWhy {
			d.logState(now, why)
			if serves && (last == starting || last == notReady) {
				d.logUnhealthy(ctx)
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

// state returns the state of the driver, and the reason.
func (d *Driver) state(ctx context.Context) (state, why string) {
	switch ready, err := d.prober.probe(ctx); {
	case err != nil:
		return notReady, err.Error()
	case !ready:
		return starting, ""
	}
	conditions, err := d.prober.storageHealth(ctx)
	if err != nil {
		return unhealthy, err.Error()
	}
	var messages []string
	for _, c := range conditions {
		messages = append(messages, c.Reason+": "+c.Message)
	}
	if len(messages) > 0 {
		return unhealthy, strings.Join(messages, "; ")
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

// logUnhealthy logs the unhealthy volumes with their conditions.
func (d *Driver) logUnhealthy(ctx context.Context) {
	reporter, ok := d.cfg.Backend.(backend.HealthReporter)
	if !ok {
		return
	}
	var volumes []backend.VolumeHealth
	var more bool
	err := guard.Do(func() (err error) {
		volumes, more, err = reporter.ListHealth(ctx, "", watchVolumes)
		return err
	})
	if err != nil {
		d.cfg.Log.Error("cannot list the health of volumes", "error", err)
	}
	for _, v := range volumes {
		for _, c := range v.Conditions {
			d.cfg.Log.Error("a volume is unhealthy", "volume", v.ID, "reason", c.Reason, "message", c.Message)
		}
	}
	if more {
		d.cfg.Log.Error("more volumes are unhealthy: ControllerListVolumeHealth lists all of them")
	}
}
