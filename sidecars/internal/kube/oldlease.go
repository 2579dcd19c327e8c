package kube

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// hold is an old lease that this process holds and renews.
type hold struct {
	existed bool // before this process took it
	release func()
	forget  func() // makes the work independent of the lease, before release
}

// takeLease waits until an old lease has no living holder, takes it, and renews it until it is
// released. A controller whose work has no old lease (name is empty) waits for nothing: the hold is
// nil, as it is when ctx is done.
func (e *election) takeLease(ctx context.Context, client kubernetes.Interface, name, controller string) (*hold, error) {
	if name == "" {
		return nil, nil
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("controller", controller))
	for {
		l := e.awaitDead(ctx, client, name)
		if l == nil {
			return nil, nil
		}
		holder := holderOf(l)
		if holder != "" && holder != e.identity {
			if err := e.seize(ctx, client, l); err != nil { // most likely its holder lives
				klog.FromContext(ctx).Info("The lease of an old sidecar could not be taken", "lease", name, "err", err)
				pause(ctx, e.retry)
				continue
			}
		}
		klog.FromContext(ctx).Info("Taking the lease of an old sidecar", "lease", name, "lastHolder", holder)
		release, err := e.renewing(ctx, client, name)
		if err != nil {
			return nil, err
		}
		return &hold{existed: l.Name != "", release: release, forget: func() { e.terms.Delete(name) }}, nil
	}
}

// seize makes this process the holder of a lease that has not changed since it was read.
func (e *election) seize(ctx context.Context, client kubernetes.Interface, l *coordinationv1.Lease) error {
	now := metav1.Now()
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec)
	record.HolderIdentity, record.AcquireTime, record.RenewTime = e.identity, now, now
	record.LeaseDurationSeconds = int(e.lease / time.Second)
	record.LeaderTransitions++
	l = l.DeepCopy()
	l.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(record)
	_, err := client.CoordinationV1().Leases(e.ownNamespace()).Update(ctx, l, metav1.UpdateOptions{})
	return err
}

// renewing acquires a lease that is free, or is held by this process, and renews it until release
// is called. renewing returns once the lease is acquired, or ctx is done. A loss of the lease ends
// the process.
func (e *election) renewing(ctx context.Context, client kubernetes.Interface, name string) (release func(), err error) {
	lock, quiet, err := e.lock(ctx, client, name)
	if err != nil {
		return nil, err
	}
	until, end := context.WithCancel(context.WithoutCancel(ctx)) // controllers finish under it
	ended := make(chan struct{})
	lost := func() {
		if until.Err() == nil {
			e.fail(fmt.Errorf("%w: %s", sidecar.ErrLost, name))
		}
	}
	t := &term{Interface: lock, lasts: e.lease, lost: lost}
	acquired := make(chan struct{})
	elector, err := e.elector(name, t, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { close(acquired) },
		OnStoppedLeading: lost,
	})
	if err != nil {
		end()
		quiet()
		return nil, err
	}
	e.terms.Store(name, t)
	go func() {
		defer close(ended)
		defer quiet()
		elector.Run(until)
	}()
	release = func() {
		e.dogs.Delete(name)
		end()
		<-ended
	}
	select {
	case <-acquired:
	case <-ctx.Done():
	}
	return release, nil
}

// awaitDead returns a lease once it has no living holder, and nil when ctx is done. A holder is
// dead when it has not renewed the lease for as long as the lease lasts, by this process's clock:
// the clocks of hosts differ.
func (e *election) awaitDead(ctx context.Context, client kubernetes.Interface, name string) *coordinationv1.Lease {
	var seen sighting
	var logged time.Time
	for {
		l, err := e.get(ctx, client, name)
		holder, wait := seen.holder, e.retry/2
		if err == nil {
			left := seen.left(l, e.identity)
			if left <= 0 {
				return l
			}
			wait = min(wait, left)
		}
		if holder != seen.holder || time.Since(logged) > stillWaiting {
			logged = time.Now()
			about := []any{"lease", name, "holder", seen.holder, "age", seen.age(), "duration", seen.lasts}
			if err != nil {
				about = append(about, "err", err)
			}
			klog.FromContext(ctx).Info(e.waitingFor(), about...)
		}
		if !pause(ctx, wait) {
			return nil
		}
	}
}

// waitingFor returns the log message of a process that waits.
func (e *election) waitingFor() string {
	if e.mode == perController {
		return "Waiting for the lease of a process that runs all controllers"
	}
	return "Waiting for the lease of an old sidecar"
}

// awaitFree waits until none of the leases has a living holder, or ctx is done. awaitFree returns
// the last renewal of each lease that has a dead holder.
func (e *election) awaitFree(ctx context.Context, client kubernetes.Interface,
	names []string) map[string]metav1.MicroTime {
	dead := map[string]metav1.MicroTime{}
	for _, name := range names {
		l := e.awaitDead(ctx, client, name)
		if l == nil {
			return nil
		}
		if holderOf(l) != "" {
			dead[name] = ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{})
		}
	}
	return dead
}

// sighting is the content of a lease when it was last seen to change.
type sighting struct {
	holder  string
	renewed metav1.MicroTime
	lasts   time.Duration
	at      time.Time // by this process's clock
}

// left returns the time for which a lease still runs if its holder does not renew it. It is not
// positive where the lease has no holder, or self holds it.
func (s *sighting) left(l *coordinationv1.Lease, self string) time.Duration {
	holder, renewed := holderOf(l), ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{})
	if holder == "" || holder == self {
		return 0
	}
	if s.holder != holder || !s.renewed.Equal(&renewed) {
		lasts := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
		*s = sighting{holder, renewed, lasts, time.Now()}
	}
	return s.lasts - time.Since(s.at)
}

// age returns the time since the lease was seen to change, in whole seconds.
func (s *sighting) age() time.Duration {
	if s.at.IsZero() {
		return 0
	}
	return time.Since(s.at).Truncate(time.Second)
}

// holderOf returns the holder of a lease, or "".
func holderOf(l *coordinationv1.Lease) string { return ptr.Deref(l.Spec.HolderIdentity, "") }

// get returns a lease, or an empty one if missing.
func (e *election) get(ctx context.Context, client kubernetes.Interface, name string) (*coordinationv1.Lease, error) {
	l, err := client.CoordinationV1().Leases(e.ownNamespace()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{}, nil
	}
	return l, err
}
