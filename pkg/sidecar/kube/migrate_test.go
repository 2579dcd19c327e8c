package kube

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"
)

// paper is a lease that somebody may have.
func paper(name, holder string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](1), RenewTime: &now, AcquireTime: &now}}
}

// noted is the one lease with its note.
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

// alive renews a lease until what it returns is called, and gives it up then.
func alive(t *testing.T, c kubernetes.Interface, name, holder string) (end func()) {
	var stopped sync.WaitGroup
	stop := make(chan struct{})
	stopped.Go(func() {
		for {
			select {
			case <-stop:
				write(t, c, paper(name, ""))
				return
			case <-time.After(100 * time.Millisecond):
				write(t, c, paper(name, holder))
			}
		}
	})
	return func() { close(stop); stopped.Wait() }
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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

var one = lease{name: "new", others: []string{"old-a", "old-b"}}

func TestANotedLeaseIsBelievedWhileTheOldOnesAreFree(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(noted(), paper("old-a", ""))
	if err := quick(single).settle(within(t), c, one); err != nil {
		t.Fatal(err)
	}
	if n := writes(c); n != 0 {
		t.Errorf("%d leases were changed", n)
	}
}

func TestOldLeasesAreTakenOnceAndGivenUp(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]*coordinationv1.Lease{"nothing is noted": paper("new", "me"), "it is noted, but an old one has come back and died": noted()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake.NewClientset(first, paper("old-a", "the dead"))
			if err := quick(single).settle(within(t), c, one); err != nil {
				t.Fatal(err)
			}
			for _, name := range one.others {
				l := leaseOf(t, c, name)
				if holder := ptr.Deref(l.Spec.HolderIdentity, "?"); holder != "" || ptr.Deref(l.Spec.LeaseTransitions, 0) < 0 {
					t.Errorf("%s is held by %q", name, holder)
				}
			}
			if l := leaseOf(t, c, "new"); l.Annotations[migrationKey] != migrationDone || *l.Spec.HolderIdentity != "me" {
				t.Errorf("the one lease: %v, held by %s", l.Annotations, *l.Spec.HolderIdentity)
			}
		})
	}
}

func TestALivingOldSidecarIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(paper("new", "me"), paper("old-a", "old"))
	end := alive(t, c, "old-a", "old")
	settled := make(chan error, 1)
	go func() { settled <- quick(single).settle(within(t), c, one) }()
	select {
	case err := <-settled:
		t.Errorf("it didn't wait: %v", err)
	case <-time.After(2 * time.Second): // twice as long as the lease
	}
	if l := leaseOf(t, c, "new"); l.Annotations[migrationKey] != "" {
		t.Error("it was noted before")
	}
	end()
	if err := <-settled; err != nil {
		t.Error(err)
	}
}

// Old sidecars have replicas, too: when the leader has gone, the one that waited may come after us.
func TestAnOldReplicaThatTakesItsLeaseAfterUsIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(paper("new", "me"), paper("old-a", "the dead"))
	standby := make(chan time.Time, 1)
	go func() {
		for ptr.Deref(leaseOf(t, c, "old-a").Spec.HolderIdentity, "") != "" { // the dead has it, then we, which may be for a moment
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond)
		write(t, c, paper("old-a", "standby"))
		end := alive(t, c, "old-a", "standby")
		time.Sleep(2 * time.Second)
		end()
		standby <- time.Now()
	}()
	if err := quick(single).settle(within(t), c, one); err != nil {
		t.Fatal(err)
	}
	settled := time.Now()
	if ended := <-standby; settled.Before(ended) {
		t.Errorf("it began %v before the old replica ended", ended.Sub(settled).Round(time.Millisecond))
	}
}

func TestWaitingForOldLeasesEndsWhenTold(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(paper("new", "me"), paper("old-a", "old"))
	defer alive(t, c, "old-a", "old")()
	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(300*time.Millisecond, cancel)
	if err := quick(single).settle(ctx, c, one); ctx.Err() == nil {
		t.Errorf("it ended by itself: %v", err)
	}
	if l := leaseOf(t, c, "new"); l.Annotations[migrationKey] != "" {
		t.Error("it was noted")
	}
	// To have one while another is waited for would keep everybody from that one's work.
	if l, err := c.CoordinationV1().Leases(quick(single).ownNamespace()).Get(t.Context(), "old-b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("old-b was taken: %v, %v", l, err)
	}
}

func TestGuardSeesWhoComes(t *testing.T) {
	t.Parallel()
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
		{name: "a dead one who is known", l: lease{name: "new", others: one.others, dead: map[string]metav1.MicroTime{"old-b": *dead.Spec.RenewTime}}, then: dead},
		{name: "a dead one who isn't dead", l: lease{name: "new", others: one.others, dead: map[string]metav1.MicroTime{"old-b": {}}}, then: dead, want: "the dead has taken the lease old-b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset(c.then)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if c.want == "" {
				time.AfterFunc(1500*time.Millisecond, cancel) // it looks once meanwhile
			}
			err := quick(single).guard(ctx, client, c.l)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestLeadingEndsWhenAnOldSidecarComesBack(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(noted(), paper("old-a", ""))
	led := false
	err := quick(single).alone(within(t), c, one, func(ctx context.Context) error {
		led = true
		write(t, c, paper("old-a", "old"))
		<-ctx.Done()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "old has taken the lease old-a") || !led {
		t.Errorf("led %t, then %v", led, err)
	}
}

func TestTheOneLeaseIsFreeWhenItsHolderGivesItUpOrDies(t *testing.T) {
	t.Parallel()
	others := []string{"one"}
	t.Run("there is none", func(t *testing.T) {
		t.Parallel()
		if dead := quick(perController).awaitFree(within(t), fake.NewClientset(), others); dead == nil || len(dead) > 0 {
			t.Errorf("got %v", dead)
		}
	})
	t.Run("it is given up", func(t *testing.T) {
		t.Parallel()
		c := fake.NewClientset(paper("one", "him"))
		start := time.Now()
		time.AfterFunc(2*time.Second, alive(t, c, "one", "him")) // it isn't dead before
		if dead := quick(perController).awaitFree(within(t), c, others); dead == nil || len(dead) > 0 || time.Since(start) < 2*time.Second {
			t.Errorf("got %v after %v", dead, time.Since(start))
		}
	})
	t.Run("its holder is dead", func(t *testing.T) {
		t.Parallel()
		l := paper("one", "him")
		dead := quick(perController).awaitFree(within(t), fake.NewClientset(l), others)
		if got, ok := dead["one"]; !ok || !got.Equal(l.Spec.RenewTime) {
			t.Errorf("got %v", dead)
		}
	})
	t.Run("told to end", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if dead := quick(perController).awaitFree(ctx, fake.NewClientset(paper("one", "him")), others); dead != nil {
			t.Errorf("got %v", dead)
		}
	})
}

// Who has what somebody waits for must not wait for him.
func TestOneOfTheModesGivesWay(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset(paper("one", "him"))
	err := quick(perController).settle(within(t), c, lease{name: "attacher", others: []string{"one"}})
	if err == nil || !strings.Contains(err.Error(), "him has the lease one") {
		t.Errorf("got %v", err)
	}
}

func TestHealthIsThatOfTheElection(t *testing.T) {
	t.Parallel()
	e := quick(single)
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
		t.Error("the watch dog isn't told of its election, and would bark at nobody")
	}
}

var nothing = leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}}
