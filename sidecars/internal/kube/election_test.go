package kube

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// standard returns an election with the product's durations.
func standard(mode string) *election {
	return &election{on: true, mode: mode, namespace: "ns", identity: "me", lease: leaseDuration,
		renew: renewDeadline, retry: retryPeriod}
}

// plain is a controller that is only elected.
type plain struct {
	sidecar.Controller
	name  string
	needs sidecar.Needs
}

func (p plain) Name() string         { return p.name }
func (p plain) Needs() sidecar.Needs { return p.needs }

func TestElectionsThatCannotWorkAreRefused(t *testing.T) {
	cluster, none := plain{needs: sidecar.Needs{Cluster: true}}, plain{}
	for _, c := range []struct {
		name   string
		change func(*election)
		on     sidecar.Controller
		want   string // empty: it works
	}{
		{name: "upstream's defaults", on: cluster},
		{name: "each of its own", change: func(e *election) { e.mode = perController }, on: cluster},
		{name: "nobody is elected", change: func(e *election) { e.on = false }, on: none},
		{name: "a mode without election", change: func(e *election) { e.on, e.mode = false, perController },
			on: cluster, want: "add --leader-election"},
		{name: "a mode that is not there", change: func(e *election) { e.mode = "double" }, on: cluster,
			want: "--leader-election-mode=double"},
		{name: "nobody to elect", on: none, want: "no controller that is on is ever elected"},
		{name: "a lease as short as a renewal", change: func(e *election) { e.lease = e.renew }, on: cluster,
			want: "must be longer than"},
		{name: "a renewal as short as a retry", change: func(e *election) { e.retry = e.renew }, on: cluster,
			want: "must be longer than"},
		{name: "within the jitter of a retry", change: func(e *election) { e.retry = e.renew * 9 / 10 }, on: cluster,
			want: "must be longer than"},
		{name: "no retry", change: func(e *election) { e.retry = 0 }, on: cluster, want: "must be longer than"},
		{name: "a lease of half seconds", change: func(e *election) { e.lease = 31 * time.Second / 2 }, on: cluster,
			want: "whole seconds"},
	} {
		e := standard(single)
		if c.change != nil {
			c.change(e)
		}
		err := e.validate([]sidecar.Controller{c.on})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
}

// As csi-lib-utils' sanitizeName has them.
func TestLocksAreNamedAsUpstreamNamesThem(t *testing.T) {
	for name, want := range map[string]string{
		"hostpath.csi.k8s.io":                       "hostpath-csi-k8s-io",
		"external-attacher-leader-ebs.csi.aws.com":  "external-attacher-leader-ebs-csi-aws-com",
		"external-resizer-disk-csi-azure-com":       "external-resizer-disk-csi-azure-com",
		"external-snapshotter-leader-Some_Driver.X": "external-snapshotter-leader-Some-Driver-X",
		"kubernetes.io/aws-ebs":                     "kubernetes-io-aws-ebs",
		"ends.with.a.dot.":                          "ends-with-a-dot-X",
		"ends-":                                     "ends-X",
		"snapshot-controller-leader":                "snapshot-controller-leader",
	} {
		if got := lockName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestTheLeasesOfTheControllers(t *testing.T) {
	of := func(prefix string) func(string) string { return func(driver string) string { return prefix + driver } }
	parts := []*sidecar.Part{
		{Controller: plain{name: "attacher", needs: sidecar.Needs{Lock: of("attacher-")}}},
		{Controller: plain{name: "ours"}},
		{Controller: plain{name: "cluster",
			needs: sidecar.Needs{Lock: func(string) string { return "the-cluster" }, OnePerCluster: true}}},
	}
	for _, c := range []struct {
		mode string
		want map[string][]string // names of parts, then others, by lease
	}{
		{single, map[string][]string{"csi-sidecars-d-x": {"attacher", "ours", "|", "attacher-d-x"},
			"the-cluster": {"cluster", "|"}}},
		{perController, map[string][]string{
			"attacher-d-x": {"attacher", "|", "csi-sidecars-d-x"}, "csi-sidecars-ours-d-x": {"ours", "|",
				"csi-sidecars-d-x"}, "the-cluster": {"cluster", "|"}}},
	} {
		got := map[string][]string{}
		for _, l := range standard(c.mode).leases("d.x", parts) {
			for _, p := range l.parts {
				got[l.name] = append(got[l.name], p.Name())
			}
			got[l.name] = append(append(got[l.name], "|"), l.others...)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.mode, got, c.want)
		}
	}
}

// book is a lock that remembers its record.
type book struct {
	resourcelock.Interface
	record  resourcelock.LeaderElectionRecord
	latency time.Duration // of answers to writes
	err     error
}

func (b *book) Identity() string { return "me" }
func (b *book) Describe() string { return "ns/book" }
func (b *book) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return b.Update(ctx, r)
}
func (b *book) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	if b.err == nil {
		b.record = r
	}
	time.Sleep(b.latency)
	return b.err
}
func (b *book) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &b.record, nil, b.err
}

func TestATermEndsByOurOwnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
		b, lost := &book{}, 0
		one := &term{Interface: b, lasts: leaseDuration, lost: func() { lost++ }}
		is := func(state string, leads bool, losses int) {
			t.Helper()
			if err := one.check(); (err == nil) != leads || err != nil && !errors.Is(err, sidecar.ErrLost) ||
				lost != losses {
				t.Errorf("%s: %v, lost %d times", state, err, lost)
			}
		}
		is("before it is held nothing runs under it", true, 0)
		b.record.HolderIdentity = "somebody"
		one.Get(t.Context())
		is("somebody else has it meanwhile", true, 0)
		one.Create(t.Context(), mine)
		time.Sleep(leaseDuration - time.Second)
		is("held", true, 0)
		one.Update(t.Context(), mine)
		time.Sleep(leaseDuration)
		is("renewed in time, at its last moment", true, 0)
		time.Sleep(time.Nanosecond)
		is("asleep for too long", false, 0)
		b.err = errors.New("away")
		one.Update(t.Context(), mine)
		is("it is not renewed", false, 1)
		b.err = nil
		one.Get(t.Context())
		is("it still has our name", false, 1)
	})
}

func TestATermEndsWhenAnotherProcessHasTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, lost := &book{}, 0
		one := &term{Interface: b, lasts: leaseDuration, lost: func() { lost++ }}
		one.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
		b.record.HolderIdentity = "somebody"
		one.Get(t.Context())
		if lost != 1 {
			t.Errorf("lost %d times, want once", lost)
		}
		one.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		if err := one.check(); err == nil || errors.Is(err, sidecar.ErrLost) || lost != 1 {
			t.Errorf("given up: %v, lost %d times", err, lost)
		}
	})
}

// The term of a renewal begins when the request is sent, not when the answer arrives.
func TestALateAnswerDoesNotLengthenTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		one := &term{Interface: b, lasts: leaseDuration, lost: func() {}}
		b.latency = renewDeadline - time.Second
		one.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
		time.Sleep(leaseDuration - b.latency)
		if err := one.check(); err != nil {
			t.Errorf("at the last moment of the lease: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := one.check(); !errors.Is(err, sidecar.ErrLost) {
			t.Errorf("after the lease: %v", err)
		}
	})
}

// An elector under the leases of the other mode takes an expired lease for a dead process's, and
// does not change it.
func TestALeaseThatRanOutIsNotRenewedThoughItStillHasOurName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, lost := &book{}, 0
		one := &term{Interface: b, lasts: leaseDuration, lost: func() { lost++ }}
		one.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaderTransitions: 1})
		time.Sleep(2 * leaseDuration)
		if _, _, err := one.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := one.Update(t.Context(),
			resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaderTransitions: 2})
		if !errors.Is(err, sidecar.ErrLost) || lost != 1 || one.check() == nil || b.record.LeaderTransitions != 1 {
			t.Errorf("renewed: %v, lost %d times, check %v, %+v", err, lost, one.check(), b.record)
		}
	})
}

// An elector that could not renew in time gives up its lease. Another process may have it since.
func TestALeaseOfAnotherHolderIsNotReleased(t *testing.T) {
	b := &book{}
	one := &term{Interface: b, lasts: leaseDuration, lost: func() {}}
	one.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
	b.record.HolderIdentity = "somebody"
	if _, _, err := one.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := one.Update(t.Context(), resourcelock.LeaderElectionRecord{}); !errors.Is(err, sidecar.ErrLost) ||
		b.record.HolderIdentity != "somebody" {
		t.Errorf("given up: %v, the holder is %q now", err, b.record.HolderIdentity)
	}
}

// way is where requests go that are not held back.
type way []string

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	*w = append(*w, r.Method)
	return &http.Response{}, nil
}

func TestAFollowerOnlyReads(t *testing.T) {
	for _, c := range []struct {
		leads error
		want  way
	}{{nil, way{"GET", "POST", "PUT", "PATCH", "DELETE"}}, {sidecar.ErrLost, way{"GET"}}} {
		var went way
		f := fenced{&went, func() error { return c.leads }}
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			r, err := http.NewRequest(method, "http://x", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.RoundTrip(r); !errors.Is(err, c.leads) && method != "GET" { //nolint:bodyclose // there is no response
				t.Errorf("%s: %v", method, err)
			}
		}
		if !reflect.DeepEqual(went, c.want) {
			t.Errorf("%v: these went: %v", c.leads, went)
		}
	}
}

func TestAClusterLeadsWhileAllOfItsTermsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		if err := c.Leads(); err != nil {
			t.Errorf("without elections: %v", err)
		}
		mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
		terms := map[string]*term{}
		for _, name := range []string{"a", "b", "c"} {
			terms[name] = &term{Interface: &book{}, lasts: leaseDuration}
			terms[name].Create(t.Context(), mine)
			c.election.terms.Store(name, terms[name])
		}
		if err := c.Leads(); err != nil {
			t.Errorf("with three: %v", err)
		}
		terms["b"].Update(t.Context(), resourcelock.LeaderElectionRecord{})
		if err := c.Leads(); err == nil || errors.Is(err, sidecar.ErrLost) {
			t.Errorf("with one that was given up: %v", err)
		}
		c.election.terms.Delete("b")
		time.Sleep(leaseDuration)
		terms["a"].Update(t.Context(), mine)
		time.Sleep(time.Second)
		if err := c.Leads(); !errors.Is(err, sidecar.ErrLost) {
			t.Errorf("with one that is over: %v", err)
		}
	})
}

// At the end a controller may be done at once while another still has to write the result of a
// call: if the first gave up the lease, all would lose the right to write.
func TestNoLeaseIsGivenUpBeforeAllWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset()
		c := New()
		s := standard(single)
		c.election.mode, c.election.namespace, c.election.identity = s.mode, s.namespace, s.identity
		c.election.lease, c.election.renew, c.election.retry = s.lease, s.renew, s.retry
		c.fail = func(err error) { t.Error(err) }
		part := func(name string) []*sidecar.Part { return []*sidecar.Part{{Controller: plain{name: name}}} }
		ctx, cancel := context.WithCancel(t.Context())
		var started sync.WaitGroup
		started.Add(2)
		go func() { started.Wait(); cancel() }()
		last := make(chan error, 1)
		err := c.elect(ctx, api, []lease{{name: "quick", parts: part("quick")}, {name: "slow", parts: part("slow")}},
			func(ctx context.Context, parts []*sidecar.Part) error {
				started.Done()
				<-ctx.Done()
				if parts[0].Name() == "slow" {
					time.Sleep(3 * leaseDuration) // the leases are renewed meanwhile
					last <- c.Leads()
				}
				return nil
			})
		if err := errors.Join(err, <-last); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"quick", "slow"} {
			if l := leaseOf(t, api, name); ptr.Deref(l.Spec.HolderIdentity, "") != "" {
				t.Errorf("%s is still held", name)
			}
		}
		if c.Leads() == nil {
			t.Error("it leads still")
		}
	})
}
