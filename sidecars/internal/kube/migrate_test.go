package kube

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// paper is a lease with an optional holder.
func paper(name, holder string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder,
			LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)), RenewTime: &now, AcquireTime: &now}}
}

// noted is the single lease with its note.
func noted() *coordinationv1.Lease {
	l := paper("new", "me")
	l.Annotations = map[string]string{migrationKey: migrationDone}
	return l
}

func leaseOf(t *testing.T, c kubernetes.Interface, name string) *coordinationv1.Lease {
	t.Helper()
	l, err := c.CoordinationV1().Leases("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// write puts a lease in place of that of its name.
func write(t *testing.T, c kubernetes.Interface, l *coordinationv1.Lease) {
	t.Helper()
	if _, err := c.CoordinationV1().Leases("ns").Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

// compareVersions lets a fake API server give each change of a lease a resource version, and refuse
// a change of another version, as an API server does.
func compareVersions(c *fake.Clientset) {
	version := 0
	c.PrependReactor("update", "leases", func(a ktesting.Action) (bool, runtime.Object, error) {
		l := a.(ktesting.UpdateAction).GetObject().(*coordinationv1.Lease)
		stored, err := c.Tracker().Get(a.GetResource(), l.Namespace, l.Name)
		if err == nil && stored.(*coordinationv1.Lease).ResourceVersion != l.ResourceVersion {
			return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), l.Name, errors.New("changed"))
		}
		version++
		l.ResourceVersion = strconv.Itoa(version)
		return false, nil, nil
	})
}

// alive renews a lease until the returned function is called, and gives it up then.
func alive(t *testing.T, c kubernetes.Interface, name, holder string) (end func()) {
	var stopped sync.WaitGroup
	stop := make(chan struct{})
	stopped.Go(func() {
		for {
			select {
			case <-stop:
				write(t, c, paper(name, ""))
				return
			case <-time.After(retryPeriod):
				write(t, c, paper(name, holder))
			}
		}
	})
	return func() { close(stop); stopped.Wait() }
}

// within returns a context for a wait in a bubble. It is twice as long as the handover.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*standard(single).handover())
	t.Cleanup(cancel)
	return ctx
}

// writes are how often leases were changed.
func writes(c *fake.Clientset) (n int) {
	for _, a := range c.Actions() {
		if a.GetVerb() != "get" && a.GetResource().Resource == "leases" {
			n++
		}
	}
	return n
}

// one is the single lease of two controllers that upstream's sidecars have leases for, and of a
// third controller without such a lease.
var one = lease{name: "new", others: []string{"old-a", "old-b"}, old: map[string]string{"a": "old-a", "b": "old-b"},
	parts: []*sidecar.Part{{Controller: plain{name: "a"}}, {Controller: plain{name: "b"}},
		{Controller: plain{name: "c"}}}}

// run is a call of alone under way.
type run struct {
	t       *testing.T
	started chan string // names of controllers
	cancel  context.CancelFunc
	ended   chan error
}

// begin calls alone. The leader runs until the end.
func begin(t *testing.T, e *election, c kubernetes.Interface) *run {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	r := &run{t, make(chan string, 10), cancel, make(chan error, 1)}
	go func() {
		r.ended <- e.alone(ctx, c, one, func(ctx context.Context, parts []*sidecar.Part) error {
			for _, p := range parts {
				r.started <- p.Name()
			}
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() { cancel() })
	return r
}

// starts waits until these controllers have started, and no others since the last call.
func (r *run) starts(want ...string) {
	r.t.Helper()
	var got []string
	for len(got) < len(want) {
		select {
		case name := <-r.started:
			got = append(got, name)
		case err := <-r.ended:
			r.t.Fatalf("it ended: %v; started: %v", err, got)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || len(r.started) > 0 {
		r.t.Fatalf("started: %v and %d more, want %v", got, len(r.started), want)
	}
}

// end ends the call, and returns its result.
func (r *run) end() error {
	r.cancel()
	return <-r.ended
}

// until waits until a lease is as it should be.
func until(t *testing.T, c kubernetes.Interface, name, what string, is func(*coordinationv1.Lease) bool) {
	t.Helper()
	for ctx := within(t); !is(leaseOf(t, c, name)); {
		if !pause(ctx, time.Second) {
			t.Fatalf("%s is never %s: %v", name, what, leaseOf(t, c, name))
		}
	}
}

func marked(l *coordinationv1.Lease) bool { return l.Annotations[migrationKey] == migrationDone }
func free(l *coordinationv1.Lease) bool   { return holderOf(l) == "" }
func mine(l *coordinationv1.Lease) bool   { return holderOf(l) == "me" }

func TestAMarkedLeaseIsBelievedWhileTheOldOnesAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(noted(), paper("old-a", ""))
		r := begin(t, standard(single), c)
		r.starts("a", "b", "c")
		if err := r.end(); err != nil {
			t.Error(err)
		}
		if n := writes(c); n != 0 {
			t.Errorf("%d leases were changed", n)
		}
	})
}

func TestOldLeasesAreTakenAndReleased(t *testing.T) {
	for name, leases := range map[string][]runtime.Object{
		"there are none":                          {paper("new", "me")},
		"one is free, one has a dead holder":      {paper("new", "me"), paper("old-a", ""), paper("old-b", "the dead")},
		"marked, but one had a holder since then": {noted(), paper("old-a", "the dead")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := fake.NewClientset(leases...)
				r := begin(t, standard(single), c)
				r.starts("a", "b", "c")
				until(t, c, "new", "marked", marked)
				for _, old := range one.others {
					until(t, c, old, "released", free)
				}
				if err := r.end(); err != nil {
					t.Error(err)
				}
				if !mine(leaseOf(t, c, "new")) {
					t.Error("the single lease has another holder")
				}
			})
		})
	}
}

// An old sidecar keeps only its own work from this process.
func TestAControllerStartsWhenItsOwnOldLeaseIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(paper("new", "me"), paper("old-a", "old"), paper("old-b", "the dead"))
		end := alive(t, c, "old-a", "old")
		r := begin(t, standard(single), c)
		r.starts("b", "c")
		if l := leaseOf(t, c, "old-b"); !mine(l) {
			t.Errorf("b runs while %q has its lease", holderOf(l))
		}
		time.Sleep(2 * leaseDuration)
		r.starts()
		if marked(leaseOf(t, c, "new")) {
			t.Error("the lease is marked before all old ones were taken")
		}
		end()
		r.starts("a")
		until(t, c, "new", "marked", marked)
		if err := r.end(); err != nil {
			t.Error(err)
		}
	})
}

// The second replica of an old sidecar, which waits for the lease as client-go does, gets it
// neither from the dead first replica nor from this process.
func TestAnOldReplicaDoesNotGetALeaseDuringTheHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(paper("new", "me"), paper("old-a", ""), paper("old-b", ""))
		r := begin(t, standard(single), c)
		r.starts("a", "b", "c")
		standby := standard(single)
		standby.identity, standby.fail = "standby", func(error) {}
		ctx, cancel := context.WithTimeout(t.Context(), 3*leaseDuration)
		defer cancel()
		if l := standby.awaitDead(ctx, c, "old-a"); l != nil {
			t.Errorf("it could take the lease: %v", l.Spec)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
		if !free(leaseOf(t, c, "old-a")) {
			t.Error("the lease is held beyond the end")
		}
	})
}

// An old sidecar that comes back during the handover gets a lease that did not exist before, and
// this process ends at once, not after the handover.
func TestAnOldSidecarThatReturnsDuringTheHandoverEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(paper("new", "me"), paper("old-a", ""))
		r := begin(t, standard(single), c)
		r.starts("a", "b", "c")
		until(t, c, "new", "marked", marked)
		until(t, c, "old-b", "released", free)
		began := time.Now()
		write(t, c, paper("old-b", "old"))
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "old has taken the lease old-b") {
			t.Errorf("the end is %v", err)
		}
		if took := time.Since(began); took > 2*leaseDuration {
			t.Errorf("it took %v", took)
		}
	})
}

// The API server may be away for a moment just after the lease was won.
func TestALookAtOldLeasesIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(noted())
		failures := 3
		c.PrependReactor("get", "leases", func(ktesting.Action) (bool, runtime.Object, error) {
			if failures--; failures >= 0 {
				return true, nil, apierrors.NewInternalError(errors.New("leader changed"))
			}
			return false, nil, nil
		})
		r := begin(t, standard(single), c)
		r.starts("a", "b", "c")
		if err := r.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheWaitForOldLeasesEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(paper("new", "me"), paper("old-a", "old"))
		defer alive(t, c, "old-a", "old")()
		r := begin(t, standard(single), c)
		r.starts("b", "c")
		if err := r.end(); err != nil {
			t.Errorf("it ended with %v", err)
		}
		if marked(leaseOf(t, c, "new")) || !free(leaseOf(t, c, "old-b")) || holderOf(leaseOf(t, c, "old-a")) != "old" {
			t.Error("the leases are not as they were, or not released")
		}
	})
}

// While a controller runs under an old lease, its loss is that of the single lease: the process
// ends at once, and writes nothing any more.
func TestTheLossOfAnOldLeaseEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(paper("new", "me"), paper("old-a", ""))
		e := New()
		s := standard(single)
		e.election.on, e.election.mode, e.election.namespace, e.election.identity = true, s.mode, s.namespace, s.identity
		e.election.lease, e.election.renew, e.election.retry = s.lease, s.renew, s.retry
		lost := make(chan error, 1)
		e.election.fail = func(err error) {
			select {
			case lost <- err:
			default: // it is said again at each look
			}
		}
		compareVersions(c)
		r := begin(t, &e.election, c)
		r.starts("a", "b", "c")
		theirs := paper("old-a", "somebody")
		theirs.ResourceVersion = leaseOf(t, c, "old-a").ResourceVersion
		write(t, c, theirs)
		if err := <-lost; !errors.Is(err, sidecar.ErrLost) || !strings.Contains(err.Error(), "old-a") {
			t.Errorf("got %v", err)
		}
		for ctx := within(t); e.Leads() == nil; {
			if !pause(ctx, time.Second) {
				t.Fatal("it still leads")
			}
		}
		r.end()
		if l := leaseOf(t, c, "old-a"); holderOf(l) != "somebody" {
			t.Errorf("the lease of somebody was given to %q", holderOf(l))
		}
	})
}

// A lease is dead when it has not changed for its duration since it was first seen, and each
// renewal, or another holder, begins that time anew.
func TestALeaseIsObservedByOurOwnClock(t *testing.T) {
	synctest.Test(t, observeALease)
}

func observeALease(t *testing.T) {
	l := paper("old", "him")
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-time.Hour)} // by his clock
	var s sighting
	if left := s.left(l, "me"); left != leaseDuration {
		t.Errorf("seen for the first time, it runs for %v", left)
	}
	time.Sleep(leaseDuration)
	if left := s.left(l, "me"); left > 0 {
		t.Errorf("unchanged for its duration, it runs for %v", left)
	}
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if left := s.left(l, "me"); left <= 0 {
		t.Error("it was renewed, and is dead")
	}
	time.Sleep(leaseDuration)
	l.Spec.HolderIdentity = ptr.To("her")
	if left := s.left(l, "me"); left <= 0 {
		t.Error("it has another holder, and is dead")
	}
	for _, holder := range []string{"", "me"} {
		l.Spec.HolderIdentity = &holder
		if left := s.left(l, "me"); left > 0 {
			t.Errorf("held by %q, it runs for %v", holder, left)
		}
	}
}

// A holder that renews its lease while it is being taken keeps it.
func TestALeaseThatWasRenewedMeanwhileIsNotTaken(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(paper("old-a", "him"))
	stale := leaseOf(t, c, "old-a")
	c.PrependReactor("update", "leases", func(a ktesting.Action) (bool, runtime.Object, error) {
		if a.(ktesting.UpdateAction).GetObject().(*coordinationv1.Lease).ResourceVersion == stale.ResourceVersion {
			return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "old-a", errors.New("changed"))
		}
		return false, nil, nil
	})
	if err := standard(single).seize(t.Context(), c, stale); !apierrors.IsConflict(err) {
		t.Errorf("got %v", err)
	}
}

func TestAGuardFindsOldSidecars(t *testing.T) {
	dead := paper("old-b", "the dead")
	for _, c := range []struct {
		name string
		l    lease
		then *coordinationv1.Lease
		want string // empty: it goes on
	}{
		{name: "nobody", l: one, then: paper("old-a", "")},
		{name: "ourselves", l: one, then: paper("old-a", "me")},
		{name: "somebody", l: one, then: paper("old-a", "somebody"), want: "somebody has taken the lease old-a"},
		{name: "a dead one who is known",
			l: lease{name: "new", others: one.others,
				dead: map[string]metav1.MicroTime{"old-b": *dead.Spec.RenewTime}}, then: dead},
		{name: "a dead one who is not dead", l: lease{name: "new", others: one.others, dead: map[string]metav1.MicroTime{"old-b": {}}}, then: dead, want: "the dead has taken the lease old-b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(c.then)
				ctx, cancel := context.WithTimeout(t.Context(), 3*leaseDuration)
				defer cancel()
				if c.want == "" {
					time.AfterFunc(leaseDuration*3/2, cancel) // the guard reads the leases once
				}
				err := standard(single).guard(ctx, client, c.l)
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q in it", err, c.want)
				}
			})
		})
	}
}

func TestLeadershipEndsWhenAnOldSidecarReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(noted(), paper("old-a", ""))
		r := begin(t, standard(single), c)
		r.starts("a", "b", "c")
		write(t, c, paper("old-a", "old"))
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "old has taken the lease old-a") {
			t.Errorf("got %v", err)
		}
	})
}

func TestTheOneLeaseIsFreeWhenItsHolderGivesItUpOrDies(t *testing.T) {
	others := []string{"one"}
	t.Run("there is none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			if dead := standard(perController).awaitFree(within(t), fake.NewClientset(), others); dead == nil ||
				len(dead) > 0 {
				t.Errorf("got %v", dead)
			}
		})
	})
	t.Run("it is given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := fake.NewClientset(paper("one", "him"))
			start := time.Now()
			time.AfterFunc(2*leaseDuration, alive(t, c, "one", "him")) // it is not dead before
			if dead := standard(perController).awaitFree(within(t), c, others); dead == nil || len(dead) > 0 ||
				time.Since(start) < 2*leaseDuration {
				t.Errorf("got %v after %v", dead, time.Since(start))
			}
		})
	})
	t.Run("its holder is dead", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := paper("one", "him")
			dead := standard(perController).awaitFree(within(t), fake.NewClientset(l), others)
			if got, ok := dead["one"]; !ok || !got.Equal(l.Spec.RenewTime) {
				t.Errorf("got %v", dead)
			}
		})
	})
	t.Run("told to end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if dead := standard(perController).awaitFree(ctx, fake.NewClientset(paper("one", "him")),
				others); dead != nil {
				t.Errorf("got %v", dead)
			}
		})
	})
}

// The holder of a lease must not wait for a process that waits for this lease.
func TestOneOfTheModesGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(paper("one", "him"))
		err := standard(perController).alone(within(t), c, lease{name: "attacher", others: []string{"one"}}, nil)
		if err == nil || !strings.Contains(err.Error(), "him has the lease one") {
			t.Errorf("got %v", err)
		}
	})
}

func TestHealthIsThatOfTheElection(t *testing.T) {
	t.Parallel()
	e := standard(single)
	lock, quiet, err := e.lock(t.Context(), fake.NewClientset(), "new")
	if err != nil {
		t.Fatal(err)
	}
	defer quiet()
	elector, err := e.elector("new", lock, nothing)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.check(t.Context()); err != nil {
		t.Errorf("before it leads: %v", err)
	}
	dog, _ := e.dogs.Load("new")
	if reflect.ValueOf(dog).Elem().FieldByName("le").UnsafePointer() != reflect.ValueOf(elector).UnsafePointer() {
		t.Error("the watch dog is not told of its election, and would bark at nobody")
	}
}

var nothing = leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}}
