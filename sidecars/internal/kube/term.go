package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// term is a lease's lock that knows by this process's own clock whether the lease still runs. client-go's elector only learns
// that when it next renews, and then tries for a whole renew deadline: a process that was stopped, or starved, longer than its
// lease would work on beside its successor meanwhile.
type term struct {
	resourcelock.Interface
	lasts   time.Duration
	renewed atomic.Pointer[time.Time] // when that was asked for; nil before the lease was ever held
	theirs  atomic.Bool               // somebody else had it when it was read last
	lost    func()                    // called when somebody else is seen to have it, or may have acted as if we were dead
}

// over is when a lease that was given up was renewed.
var over time.Time

// Create is resourcelock.Interface's.
func (t *term) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	asked := time.Now()
	err := t.Interface.Create(ctx, r)
	if err == nil {
		t.renewed.Store(&asked)
	}
	return err
}

// Update is resourcelock.Interface's. One without a holder gives the lease up, unless it is somebody else's by now: client-go's
// elector reads it before it gives it up, but doesn't look whose it is. A lease that has run out isn't renewed, though it may
// still have our name: whoever works under another lease takes its holder for dead by then, and doesn't write into it.
func (t *term) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	asked := time.Now()
	switch {
	case r.HolderIdentity == "":
		t.renewed.Store(&over) // before somebody else can have it
		if t.theirs.Load() {
			return fmt.Errorf("%w: %s", sidecar.ErrLost, t.Describe())
		}
	case t.check() != nil:
		t.lost()
		return t.check()
	}
	err := t.Interface.Update(ctx, r)
	if err == nil && r.HolderIdentity != "" {
		t.renewed.Store(&asked)
		t.theirs.Store(false)
	}
	return err
}

// Get is resourcelock.Interface's.
func (t *term) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := t.Interface.Get(ctx)
	if err != nil {
		return r, raw, err
	}
	theirs := r.HolderIdentity != t.Identity()
	t.theirs.Store(theirs)
	if theirs && t.renewed.Load() != nil {
		t.lost()
	}
	return r, raw, err
}

// check returns ErrLost when the lease was held and doesn't run any more.
func (t *term) check() error {
	switch at := t.renewed.Load(); {
	case at == nil || time.Since(*at) <= t.lasts:
		return nil
	case at == &over:
		return fmt.Errorf("the lease was given up, as the process ends: %s", t.Describe())
	default:
		return fmt.Errorf("%w: %s", sidecar.ErrLost, t.Describe())
	}
}

// Leads is sidecar.Cluster's.
func (c *Cluster) Leads() (err error) {
	c.election.terms.Range(func(_, t any) bool {
		err = errors.Join(err, t.(*term).check())
		return true
	})
	return err
}

// fenced is a way to the API server on which nobody writes who doesn't lead any more.
type fenced struct {
	http.RoundTripper
	leads func() error
}

// RoundTrip is http.RoundTripper's.
func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return f.RoundTripper.RoundTrip(r)
	}
	if err := f.leads(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	return f.RoundTripper.RoundTrip(r)
}
