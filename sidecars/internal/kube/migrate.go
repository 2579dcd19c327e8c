package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// This file moves the work from upstream's sidecars, each with a lease of its own, to one process
// with one lease, and back. The rule of KEP-4958 (kubernetes/enhancements PR 5672): hold the new
// lease, take each old lease once, mark the new lease, release the old ones.
//
// A controller starts as soon as this process holds the old lease of its work; it does not wait for
// the leases of other controllers. An old lease that existed before is held for the handover time,
// because a rollout ends the second replica of an old sidecar later than the first. The mark counts
// only while no old lease has a holder, because old sidecars may come back (a rollback).

// The annotation marks the lease of a process that has held all old leases.
const (
	migrationKey  = "migration.csi.k8s.io/status"
	migrationDone = "completed"
)

// handover is the time for which old leases are held after the last one was taken.
func (e *election) handover() time.Duration { return 20 * e.lease }

// leadFunc runs controllers until its context is done.
type leadFunc func(ctx context.Context, parts []*sidecar.Part) error

// alone runs the parts of a lease, each while no other process does the same work under another
// lease.
func (e *election) alone(ctx context.Context, client kubernetes.Interface, l lease, lead leadFunc) error {
	if len(l.others) == 0 {
		return lead(ctx, l.parts)
	}
	done, err := e.mayStart(ctx, client, l)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case !done:
		return e.migrate(ctx, client, l, lead)
	}
	return together(ctx,
		func(ctx context.Context) error { return lead(ctx, l.parts) },
		func(ctx context.Context) error { return e.guard(ctx, client, l) })
}

// mayStart reports whether the parts of a lease may start, or else must migrate. mayStart asks
// until the API server answers: the lease limits how long that may take. Errors: that of stillFree.
func (e *election) mayStart(ctx context.Context, client kubernetes.Interface, l lease) (done bool, err error) {
	for {
		if e.mode == perController {
			done, err = true, e.stillFree(ctx, client, l)
		} else {
			done, err = e.migrated(ctx, client, l)
		}
		if err == nil || errors.Is(err, errTaken) {
			return done, err
		}
		klog.FromContext(ctx).Error(err, "The leases are not known yet", "lease", l.name)
		if !pause(ctx, e.retry) {
			return false, err
		}
	}
}

// errTaken: another process does the same work.
var errTaken = errors.New("the work is taken")

// together runs functions until all have returned. The first that returns ends the others.
func together(ctx context.Context, run ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group errgroup.Group
	for _, f := range run {
		group.Go(func() error {
			defer cancel()
			return f(ctx)
		})
	}
	return group.Wait()
}

// stillFree returns an error if one of the other leases was taken since it was free. To wait for it
// here would be a deadlock: its holder may wait for the lease that this process holds.
func (e *election) stillFree(ctx context.Context, client kubernetes.Interface, l lease) error {
	busy, err := e.held(ctx, client, l)
	if err == nil && busy != nil {
		err = fmt.Errorf("%w: %s has the lease %s. This process ends, and a new one waits until that one does",
			errTaken, *busy.Spec.HolderIdentity, busy.Name)
	}
	return err
}

// migrated reports whether the lease is marked, and no old lease has a holder.
func (e *election) migrated(ctx context.Context, client kubernetes.Interface, l lease) (bool, error) {
	own, err := e.get(ctx, client, l.name)
	if err != nil || own.Annotations[migrationKey] != migrationDone {
		return false, err
	}
	busy, err := e.held(ctx, client, l)
	return busy == nil, err
}

// migrate takes the old leases, runs each part once its old lease is taken, and watches for old
// sidecars that come back. It releases the old leases that it still holds when all parts have
// ended.
func (e *election) migrate(ctx context.Context, client kubernetes.Interface, l lease, lead leadFunc) error {
	taken := make(chan *hold, len(l.parts))
	holds := make([]*hold, len(l.parts))
	run := []func(context.Context) error{
		func(ctx context.Context) error { return e.complete(ctx, client, l, taken) },
	}
	for i, p := range l.parts {
		run = append(run, func(ctx context.Context) error {
			var err error
			if holds[i], err = e.takeLease(ctx, client, l.old[p.Name()], p.Name()); err != nil || ctx.Err() != nil {
				return err
			}
			taken <- holds[i]
			return lead(ctx, []*sidecar.Part{p})
		})
	}
	err := together(ctx, run...)
	releaseAll(holds)
	return err
}

// complete marks the lease when all old leases are taken, and releases them: those that did not
// exist before at once, the others after the handover. It guards the leases until ctx is done.
func (e *election) complete(ctx context.Context, client kubernetes.Interface, l lease, taken <-chan *hold) error {
	log := klog.FromContext(ctx)
	var fresh, old []*hold
	for range l.parts {
		select {
		case <-ctx.Done():
			return nil
		case h := <-taken:
			if h != nil && h.existed {
				old = append(old, h)
			} else {
				fresh = append(fresh, h)
			}
		}
	}
	for err := e.note(ctx, client, l.name); err != nil; err = e.note(ctx, client, l.name) {
		log.Error(err, "The lease is not marked yet", "lease", l.name)
		if !pause(ctx, e.retry) {
			return nil
		}
	}
	giveUp(fresh) // no process waits for a lease that did not exist
	return together(ctx,
		func(ctx context.Context) error { return e.guard(ctx, client, l) },
		func(ctx context.Context) error {
			if len(old) > 0 {
				log.Info("All old leases are taken", "lease", l.name, "heldFor", e.handover())
				if !pause(ctx, e.handover()) {
					return nil
				}
				giveUp(old)
			}
			log.Info("Migrated: the old leases are released", "lease", l.name)
			<-ctx.Done()
			return nil
		})
}

// note marks the lease as the successor of the old leases.
func (e *election) note(ctx context.Context, client kubernetes.Interface, name string) error {
	patch,
		err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{migrationKey: migrationDone}},
	})
	if err != nil {
		return err
	}
	_, err = client.CoordinationV1().Leases(e.ownNamespace()).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

// guard returns an error when another process takes one of the other leases, and nil when ctx is
// done.
func (e *election) guard(ctx context.Context, client kubernetes.Interface, l lease) error {
	for pause(ctx, e.lease) {
		busy, err := e.held(ctx, client, l)
		if err != nil {
			continue // the election itself limits how long the API server may be away
		}
		if busy != nil {
			return fmt.Errorf("%s has taken the lease %s, which is for the same work: an old sidecar that came back, "+
				"or one with another --leader-election-mode. This process ends, and the next one waits until that "+
				"one does", *busy.Spec.HolderIdentity, busy.Name)
		}
	}
	return nil
}

// held returns the first of the other leases that has a living holder other than this process, or
// nil.
func (e *election) held(ctx context.Context, client kubernetes.Interface, l lease) (*coordinationv1.Lease, error) {
	for _, name := range l.others {
		other, err := e.get(ctx, client, name)
		if err != nil {
			return nil, err
		}
		last, dead := l.dead[name]
		renewed := ptr.Deref(other.Spec.RenewTime, metav1.MicroTime{})
		if holder := holderOf(other); holder != "" && holder != e.identity && (!dead || !last.Equal(&renewed)) {
			return other, nil
		}
	}
	return nil, nil
}

// giveUp releases leases while their work continues under the own lease. An entry may be nil.
func giveUp(holds []*hold) {
	for _, h := range holds {
		if h != nil {
			h.forget()
		}
	}
	releaseAll(holds)
}

// releaseAll releases leases, all at the same time. An entry may be nil. Work that still runs may
// neither call nor write when the term of such a lease is over.
func releaseAll(holds []*hold) {
	var released sync.WaitGroup
	for _, h := range holds {
		if h != nil {
			released.Go(h.release)
		}
	}
	released.Wait()
}

// pause waits, and reports false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
