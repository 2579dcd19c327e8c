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

// term is the lock of a lease that tracks, by the clock of this process, whether the lease still
// runs. The elector of client-go learns that at the next renewal, and then retries for a whole
// renew deadline: a process that was stopped for longer than its lease would work beside its
// successor meanwhile.
type term struct {
	resourcelock.Interface
	lasts   time.Duration
	renewed atomic.Pointer[time.Time] // time of the last successful request; nil before the lease was held
	theirs  atomic.Bool               // another process held the lease when it was last read
	// called when another process holds the lease, or may have taken this process for dead
	lost func()
}

// over is the renewal time of a released lease.
var over time.Time

// Create implements resourcelock.Interface.
func (t *term) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	asked := time.Now()
	err := t.Interface.Create(ctx, r)
	if err == nil {
		t.renewed.Store(&asked)
	}
	return err
}

// Update implements resourcelock.Interface. An update without a holder releases the lease, unless
// another process holds it: client-go's elector reads the lease before the release and does not
// compare the holder. An expired lease is not renewed, even if it still names this process: a
// process under another lease takes its holder for dead, and does not write into it.
func (t *term) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	asked := time.Now()
	switch {
	case r.HolderIdentity == "":
		t.renewed.Store(&over) // before another process can take it
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

// Get implements resourcelock.Interface.
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

// check returns ErrLost if the lease was held and has ended.
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

// Leads implements sidecar.Cluster.
func (c *Cluster) Leads() (err error) {
	c.election.terms.Range(func(_, t any) bool {
		err = errors.Join(err, t.(*term).check())
		return true
	})
	return err
}

// fenced is an http.RoundTripper that rejects writes after leadership is lost.
type fenced struct {
	http.RoundTripper
	leads func() error
}

// RoundTrip implements http.RoundTripper.
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
