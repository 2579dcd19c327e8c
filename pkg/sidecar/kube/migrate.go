package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// The way from upstream's binaries, each with a lease of its own, to one process with one lease, and back. KEP-4958's rule
// (kubernetes/enhancements PR 5672) is: hold the new lease, take all old ones once, note that on the new one, give the old
// ones up. Three things are added, as old sidecars may come back (a rollback), or have second replicas: a noted lease is only
// believed while no old one has a holder, one that was given up must stay free for a while, and a leader looks again as often
// as a lease lasts.

// The annotation says that the old leases were all held once.
const (
	migrationKey  = "migration.csi.k8s.io/status"
	migrationDone = "completed"
)

// alone runs lead when nobody else can be at the same work under another lease, and ends it when somebody comes.
func (e *election) alone(ctx context.Context, client kubernetes.Interface, l lease, lead func(context.Context) error) error {
	if len(l.others) == 0 {
		return lead(ctx)
	}
	if err := e.settle(ctx, client, l); err != nil || ctx.Err() != nil {
		return ignoreEnd(ctx, err)
	}
	var group errgroup.Group
	leading, cancel := context.WithCancelCause(ctx)
	group.Go(func() error {
		defer cancel(nil)
		return lead(leading)
	})
	group.Go(func() error {
		err := e.guard(leading, client, l)
		cancel(err)
		return err
	})
	return group.Wait()
}

// ignoreEnd turns the error of something that was told to end into none.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// settle returns when the work under the other leases has ended.
func (e *election) settle(ctx context.Context, client kubernetes.Interface, l lease) error {
	if e.mode == perController {
		return e.stillFree(ctx, client, l)
	}
	for {
		done, err := e.migrated(ctx, client, l)
		if err != nil || done {
			return err
		}
		were, err := e.exist(ctx, client, l)
		if err != nil {
			return err
		}
		if err := e.takeOver(ctx, client, l); err != nil || !were || ctx.Err() != nil {
			return err
		}
		if e.stayFree(ctx, client, l) || ctx.Err() != nil {
			return nil
		}
	}
}

// exist reports whether there are any of the old leases. Where there are none, nobody has ever waited for one.
func (e *election) exist(ctx context.Context, client kubernetes.Interface, l lease) (bool, error) {
	for _, name := range l.others {
		if old, err := e.get(ctx, client, name); err != nil || old.Name != "" {
			return true, err
		}
	}
	return false, nil
}

// stayFree reports whether nobody takes an old lease for as long as one lasts: an old sidecar's second replica may have waited
// for it all the time, and looks every few seconds.
func (e *election) stayFree(ctx context.Context, client kubernetes.Interface, l lease) bool {
	look := time.NewTicker(e.retry)
	defer look.Stop()
	for end := time.After(e.lease); ; {
		busy, err := e.held(ctx, client, l)
		if err == nil && busy != nil {
			klog.FromContext(ctx).Info("Another replica of an old sidecar has taken its lease", "lease", busy.Name, "holder", *busy.Spec.HolderIdentity)
			return false
		}
		select {
		case <-ctx.Done():
			return true
		case <-end:
			if err == nil {
				return true
			}
			return false // nobody knows: all over again
		case <-look.C:
		}
	}
}

// stillFree returns an error if one of the other leases was taken since they were free. To wait for it here, with a lease in
// hand that its holder may wait for, would be for ever.
func (e *election) stillFree(ctx context.Context, client kubernetes.Interface, l lease) error {
	busy, err := e.held(ctx, client, l)
	if err == nil && busy != nil {
		err = fmt.Errorf("%s has the lease %s. This process ends, and a new one waits until that one does", *busy.Spec.HolderIdentity, busy.Name)
	}
	return err
}

// migrated reports whether the lease is noted, and no old one has a holder since.
func (e *election) migrated(ctx context.Context, client kubernetes.Interface, l lease) (bool, error) {
	own, err := e.get(ctx, client, l.name)
	if err != nil || own.Annotations[migrationKey] != migrationDone {
		return false, err
	}
	busy, err := e.held(ctx, client, l)
	return busy == nil, err
}

// takeOver takes all old leases, notes it, and gives them up. It waits for as long as somebody has one: to end instead would
// never let a Deployment's new pod become ready beside the old one.
func (e *election) takeOver(ctx context.Context, client kubernetes.Interface, l lease) error {
	log := klog.FromContext(ctx)
	// To have some of them while one is waited for would keep everybody from their work.
	if e.awaitFree(ctx, client, l.others); ctx.Err() != nil {
		return nil
	}
	until, giveUp := context.WithCancel(ctx)
	defer giveUp()
	holders, holding := errgroup.WithContext(until)
	taken := make(chan struct{}, len(l.others))
	for _, name := range l.others {
		log.Info("Taking the lease that upstream's sidecar has, or had", "lease", name)
		holders.Go(func() error { return e.hold(holding, client, name, taken) })
	}
	say := time.NewTicker(e.lease)
	defer say.Stop()
	for n := 0; n < len(l.others); {
		select {
		case <-taken:
			n++
		case <-say.C:
			if busy, err := e.held(ctx, client, l); err == nil && busy != nil {
				log.Info(e.waitingFor(), "lease", busy.Name, "holder", *busy.Spec.HolderIdentity)
			}
		case <-holding.Done(): // told to end, or one of them was lost
			return holders.Wait()
		}
	}
	err := e.note(ctx, client, l.name)
	giveUp()
	if released := holders.Wait(); err == nil {
		err = released
	}
	if err == nil {
		log.Info("All old leases were taken and given up: migrated", "lease", l.name)
	}
	return err
}

// hold takes a lease and keeps it until ctx is done.
func (e *election) hold(ctx context.Context, client kubernetes.Interface, name string, taken chan<- struct{}) error {
	lock, quiet, err := e.lock(ctx, client, name)
	if err != nil {
		return err
	}
	defer quiet()
	var lost atomic.Bool
	t := &term{Interface: lock, lasts: e.lease, lost: func() { lost.Store(true) }}
	elector, err := e.elector(name, t, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { taken <- struct{}{} },
		OnStoppedLeading: func() {},
	})
	if err != nil {
		return err
	}
	defer e.dogs.Delete(name)
	elector.Run(ctx)
	if ctx.Err() == nil || lost.Load() {
		return fmt.Errorf("the old lease %s was lost before all were taken", name)
	}
	return nil
}

// note writes on the lease that it replaces the old ones.
func (e *election) note(ctx context.Context, client kubernetes.Interface, name string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{migrationKey: migrationDone}}})
	if err != nil {
		return err
	}
	_, err = client.CoordinationV1().Leases(e.ownNamespace()).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// guard returns an error when somebody takes one of the leases, and nil when ctx is done.
func (e *election) guard(ctx context.Context, client kubernetes.Interface, l lease) error {
	tick := time.NewTicker(e.lease)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		busy, err := e.held(ctx, client, l)
		if err != nil {
			continue // the API server is away; the election itself watches for how long
		}
		if busy != nil {
			return fmt.Errorf("%s has taken the lease %s, which is for the same work: an old sidecar that came back, or one with another --leader-election-mode. This process ends, and the next one waits until that one does", *busy.Spec.HolderIdentity, busy.Name)
		}
	}
}

// held returns the first of the other leases that somebody else has who lives, or nil.
func (e *election) held(ctx context.Context, client kubernetes.Interface, l lease) (*coordinationv1.Lease, error) {
	for _, name := range l.others {
		other, err := e.get(ctx, client, name)
		if err != nil {
			return nil, err
		}
		last, dead := l.dead[name]
		renewed := ptr.Deref(other.Spec.RenewTime, metav1.MicroTime{})
		switch holder := ptr.Deref(other.Spec.HolderIdentity, ""); {
		case holder == "" || holder == e.identity:
		case dead && last.Equal(&renewed):
		default:
			return other, nil
		}
	}
	return nil, nil
}

// get returns a lease, or an empty one if there is none.
func (e *election) get(ctx context.Context, client kubernetes.Interface, name string) (*coordinationv1.Lease, error) {
	l, err := client.CoordinationV1().Leases(e.ownNamespace()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{}, nil
	}
	return l, err
}

// waitingFor is what the log says while somebody else does the work.
func (e *election) waitingFor() string {
	if e.mode == perController {
		return "Waiting for the process with the one lease to end: two must not do the same work"
	}
	return "Waiting for an old sidecar to end: two must not do the same work"
}

// awaitFree returns when none of the leases has a holder that renews it, or ctx is done. It returns those that have a dead one.
func (e *election) awaitFree(ctx context.Context, client kubernetes.Interface, names []string) map[string]metav1.MicroTime {
	type sight struct {
		renewed metav1.MicroTime
		at      time.Time
	}
	seen, dead := map[string]sight{}, map[string]metav1.MicroTime{}
	for {
		busy, err := e.held(ctx, client, lease{others: names, dead: dead})
		if err == nil {
			if busy == nil {
				return dead
			}
			now, was := ptr.Deref(busy.Spec.RenewTime, metav1.MicroTime{}), seen[busy.Name]
			// By our own clock since we saw it change: clocks of hosts differ.
			switch {
			case was.at.IsZero() || !was.renewed.Equal(&now):
				seen[busy.Name] = sight{now, time.Now()}
				if was.at.IsZero() {
					klog.FromContext(ctx).Info(e.waitingFor(), "lease", busy.Name, "holder", *busy.Spec.HolderIdentity)
				}
			case time.Since(was.at) > time.Duration(ptr.Deref(busy.Spec.LeaseDurationSeconds, 0))*time.Second:
				dead[busy.Name] = now
				continue
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(e.retry):
		}
	}
}
