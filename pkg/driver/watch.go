package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// askBackend waits for the answer to a question, at most probeLimit.
func (p *prober) askBackend(ctx context.Context, question string, f func(context.Context) (any, error)) (any, error) {
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
	answer, err := p.askBackend(ctx, "probe", func(ctx context.Context) (any, error) { return b.Probe(ctx) })
	ready, _ := answer.(bool)
	return ready, err
}

// storageHealth returns the conditions of the storage. CSI spec v1.13, NodeGetStorageHealth.
func (p *prober) storageHealth(ctx context.Context) ([]backend.Condition, error) {
	b, ok := p.backend.(backend.HealthReporter)
	if !ok {
		return nil, nil
	}
	answer, err := p.askBackend(ctx, "storage", func(ctx context.Context) (any, error) { return b.StorageHealth(ctx) })
	conditions, _ := answer.([]backend.Condition)
	return conditions, err
}

const (
	watchUnready = 200 * time.Millisecond // interval of watch while the backend is not ready
	watchReady   = 10 * time.Second       // interval of watch while the backend is ready
	watchVolumes = 100                    // maximum number of unhealthy volumes in the log
)

// Names of states.
const (
	starting  = "starting"
	notReady  = "not ready"
	ready     = "ready"
	unhealthy = "ready, but the storage is unhealthy"
)

// state is a state of the driver.
type state struct {
	name       string
	err        error               // of the probe, or of the health of the storage
	conditions []backend.Condition // of the storage
}

// serves reports whether the driver is ready.
func (s state) serves() bool { return s.name == ready || s.name == unhealthy }

// why returns the reason of the state, or "".
func (s state) why() string {
	if s.err != nil {
		return s.err.Error()
	}
	var messages []string
	for _, c := range s.conditions {
		messages = append(messages, c.Reason+": "+c.Message)
	}
	return strings.Join(messages, "; ")
}

// noAnswer is the reason of a storage whose health could not be read.
const noAnswer = "NoAnswer"

// reasons returns the reasons of the conditions of the storage, each once.
func (s state) reasons() (all []string) {
	if s.name == unhealthy && s.err != nil {
		return []string{noAnswer}
	}
	for _, c := range s.conditions {
		all = append(all, c.Reason)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// watch logs when the driver becomes ready or unready, with the reason, and the conditions of the
// storage. It keeps the state for the metrics.
func (d *Driver) watch(ctx context.Context) {
	last := state{name: starting}
	for {
		now := d.state(ctx)
		if ctx.Err() != nil {
			return
		}
		d.last.Store(&now)
		if now.name != last.name || now.why() != last.why() {
			d.logState(now)
			if now.serves() && !last.serves() {
				d.logUnhealthy(ctx)
			}
			last = now
		}
		next := watchUnready
		if now.serves() {
			next = watchReady
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// state asks for the state of the driver.
func (d *Driver) state(ctx context.Context) state {
	switch isReady, err := d.prober.probe(ctx); {
	case err != nil:
		return state{name: notReady, err: err}
	case !isReady:
		return state{name: starting}
	}
	switch conditions, err := d.prober.storageHealth(ctx); {
	case err != nil:
		return state{name: unhealthy, err: err}
	case len(conditions) > 0:
		return state{name: unhealthy, conditions: conditions}
	}
	return state{name: ready}
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

func (d *Driver) logState(s state) {
	if why := s.why(); why != "" {
		d.cfg.Log.Error(s.name, "reason", why)
		return
	}
	d.cfg.Log.Info(s.name)
}

// logUnhealthy logs the unhealthy volumes with their conditions.
func (d *Driver) logUnhealthy(ctx context.Context) {
	reporter, ok := d.cfg.Backend.(backend.HealthReporter)
	if !ok {
		return
	}
	type list struct {
		volumes []backend.VolumeHealth
		more    bool
	}
	// The disk can stall meanwhile.
	answer, err := d.prober.askBackend(ctx, "volumes", func(ctx context.Context) (any, error) {
		volumes, more, err := reporter.ListHealth(ctx, "", watchVolumes)
		return list{volumes, more}, err
	})
	if err != nil {
		d.cfg.Log.Error("cannot list the health of volumes", "error", err)
	}
	found, _ := answer.(list)
	for _, v := range found.volumes {
		for _, c := range v.Conditions {
			d.cfg.Log.Error("a volume is unhealthy", "volume", v.ID, "reason", c.Reason, "message", c.Message)
		}
	}
	if found.more {
		d.cfg.Log.Error("more volumes are unhealthy: ControllerListVolumeHealth lists all of them")
	}
}
