package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// electing is the name of the client of elections.
const electing = "leader-election"

// Values of --leader-election-mode.
const (
	single        = "single"
	perController = "per-controller"
)

// The defaults of upstream's sidecars.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 5 * time.Second
)

// election elects the leader among the replicas.
type election struct {
	on        bool
	mode      string
	namespace string
	labels    map[string]string
	lease     time.Duration
	renew     time.Duration
	retry     time.Duration

	identity string
	dogs     sync.Map    // *leaderelection.HealthzAdaptor, for each lease that is held or waited for
	terms    sync.Map    // *term, for each lease under which parts run
	fail     func(error) // ends the process: ErrLost
}

// flags declares upstream's flags and the mode.
func (e *election) flags(f *sidecar.Flags) {
	f.Bool(&e.on, "leader-election", false, "elect one replica; the others wait")
	f.String(&e.mode, "leader-election-mode", single,
		"single: one lease for all controllers, csi-sidecars-<driver>. per-controller: the leases of "+
			"upstream's binaries, for a cluster in which some of these still run")
	f.String(&e.namespace, "leader-election-namespace", "",
		"namespace of the leases (default: $POD_NAMESPACE, else the pod's own namespace, else default)")
	f.Declare(func(s *flag.FlagSet) {
		s.Var(cliflag.NewMapStringString(&e.labels), "leader-election-labels", "labels of leases, as `key=value,…`")
	})
	f.Duration(&e.lease, "leader-election-lease-duration", leaseDuration,
		"time for which other replicas wait for a silent leader before one of them takes over")
	f.Duration(&e.renew, "leader-election-renew-deadline", renewDeadline,
		"time for which a leader tries to renew its lease before the process ends")
	f.Duration(&e.retry, "leader-election-retry-period", retryPeriod, "interval at which a leader renews "+
		"its lease, and other replicas check it")
}

// validate returns an error for durations that client-go rejects, and for elections without
// controllers.
func (e *election) validate(on []sidecar.Controller) error {
	if !slices.Contains([]string{single, perController}, e.mode) {
		return fmt.Errorf("--leader-election-mode=%s: it is %s or %s", e.mode, single, perController)
	}
	if !e.on {
		if e.mode == perController {
			return errors.New("--leader-election-mode is set without --leader-election: add --leader-election, or " +
				"remove it")
		}
		return nil
	}
	if !slices.ContainsFunc(on, func(k sidecar.Controller) bool { return k.Needs().Cluster }) {
		return errors.New("--leader-election is set, but no controller that is on is ever elected: take it away")
	}
	if e.lease%time.Second != 0 {
		return fmt.Errorf("--leader-election-lease-duration=%v: leases last whole seconds", e.lease)
	}
	const jitter = leaderelection.JitterFactor
	if e.lease <= e.renew || float64(e.renew) <= jitter*float64(e.retry) || e.retry <= 0 {
		return fmt.Errorf("--leader-election-lease-duration=%v must be longer than "+
			"--leader-election-renew-deadline=%v, and that longer than %v times "+
			"--leader-election-retry-period=%v", e.lease, e.renew, jitter, e.retry)
	}
	return nil
}

// Elected reports whether a leader is elected.
func (c *Cluster) Elected() bool { return c.election.on }

// ownNamespace returns the namespace of the leases.
func (e *election) ownNamespace() string {
	if e.namespace != "" {
		return e.namespace
	}
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	if data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err == nil &&
		len(strings.TrimSpace(string(data))) > 0 {
		return strings.TrimSpace(string(data))
	}
	return metav1.NamespaceDefault
}

// who returns the identity of this process. Upstream uses the host name, which processes on the
// network of a host share.
func (e *election) who() (string, error) {
	if e.identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", err
		}
		e.identity = host + "_" + uuid.NewString()
	}
	return e.identity, nil
}

// lockName returns the name of a lease as csi-lib-utils builds it, so that the lease is the same:
// characters other than letters, digits and - become -, and X is added after a last -.
func lockName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, name)
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}

// lease is an election: its controllers, and the leases of upstream's binaries for the same work.
type lease struct {
	name  string
	parts []*sidecar.Part
	// others are the leases under which another process may do this work: in single mode those of
	// upstream's sidecars, else the single one.
	others []string
	// old is, in single mode, the lease of upstream's sidecar, by controller.
	old map[string]string
	// dead are those of others whose holder went away without giving them up: when they were
	// renewed last.
	dead map[string]metav1.MicroTime
}

// combined returns the name of the shared lease.
func combined(driver string) string { return lockName("csi-sidecars-" + driver) }

// leases returns the elections of the parts.
func (e *election) leases(driver string, parts []*sidecar.Part) []lease {
	var all []lease
	one := lease{name: combined(driver), old: map[string]string{}}
	for _, p := range parts {
		n := p.Needs()
		switch {
		case n.OnePerCluster: // the process of another driver may wait for it, too
			all = append(all, lease{name: lockName(n.Lock(driver)), parts: []*sidecar.Part{p}})
		case e.mode == perController && n.Lock != nil:
			all = append(all, lease{name: lockName(n.Lock(driver)), parts: []*sidecar.Part{p},
				others: []string{combined(driver)}})
		case e.mode == perController: // a controller that upstream does not have
			all = append(all, lease{name: lockName("csi-sidecars-" + p.Name() + "-" + driver),
				parts: []*sidecar.Part{p}, others: []string{combined(driver)}})
		default:
			one.parts = append(one.parts, p)
			if n.Lock != nil {
				one.old[p.Name()] = lockName(n.Lock(driver))
				one.others = append(one.others, lockName(n.Lock(driver)))
			}
		}
	}
	if len(one.parts) > 0 {
		all = append(all, one)
	}
	return all
}

// Run starts informers and parts, each when its lease is held, until ctx is done. See
// sidecar.Cluster.
func (c *Cluster) Run(ctx context.Context, driver string, parts []*sidecar.Part, patience time.Duration,
	start func(context.Context, *sidecar.Part) error) error {
	// Informers run while controllers finish.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var tidied sync.Once
	lead := func(ctx context.Context, parts []*sidecar.Part) error {
		c.start(watching.Done())
		if !c.full(ctx) {
			return nil
		}
		tidied.Do(func() { go tidy(ctx) })
		return all(ctx, parts, patience, start)
	}
	if !c.election.on {
		return lead(ctx, parts)
	}
	client := c.Client(electing, unlimited).Kube
	if _, err := c.election.who(); err != nil { // once, before the elections ask for it
		return err
	}
	leases := c.election.leases(driver, parts)
	if !c.mayElect(ctx, client, leases) {
		return nil
	}
	return c.elect(ctx, client, leases, lead)
}

// elect runs all elections until ctx is done, or until an election ends, which ends the others. No
// lease is released before the work under all leases has ended: without the lease the process may
// neither call nor write, and the fence is that of the whole process.
func (c *Cluster) elect(ctx context.Context, client kubernetes.Interface, leases []lease, lead leadFunc) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group errgroup.Group
	var working sync.WaitGroup
	working.Add(len(leases))
	for _, l := range leases {
		done := sync.OnceFunc(working.Done)
		group.Go(func() error {
			defer cancel()
			defer done()
			err := c.election.under(ctx, client, l, lead, func() { done(); cancel(); working.Wait() })
			if errors.Is(err, sidecar.ErrLost) {
				c.fail(err) // before the other elections end
			}
			return err
		})
	}
	return group.Wait()
}

// mayElect waits until the leases can be read, and reports false if ctx is done before. A process
// that is not allowed to read them never becomes ready, so that a rollout does not replace a
// process that is.
func (c *Cluster) mayElect(ctx context.Context, client kubernetes.Interface, leases []lease) bool {
	var said time.Time
	for {
		var err error
		for _, l := range leases {
			if _, asked := c.election.get(ctx, client, l.name); asked != nil {
				err = asked
			}
		}
		if err == nil {
			c.server.Ready("")
			return true
		}
		c.server.Ready("waiting for the lease: " + err.Error())
		if time.Since(said) > stillWaiting {
			said = time.Now()
			klog.FromContext(ctx).Error(err,
				"Still waiting for the lease: csi-sidecars rbac prints the rights that it takes", "namespace",
				c.election.ownNamespace())
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(c.election.retry):
		}
	}
}

// settled is the time in which controllers sync all objects once.
const settled = 10 * time.Second

// tidy returns the memory of the first lists to the system: informers keep a small part of the
// decoded objects. The runtime returns a part of it within minutes and keeps the rest, though no
// list of that size follows.
func tidy(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settled):
		debug.FreeOSMemory()
	}
}

// all runs parts until ctx is done, and then waits for them for patience at most.
func all(ctx context.Context, parts []*sidecar.Part, patience time.Duration,
	start func(context.Context, *sidecar.Part) error) error {
	var group errgroup.Group
	for _, p := range parts {
		group.Go(func() error { return start(ctx, p) })
	}
	over := make(chan error, 1)
	go func() { over <- group.Wait() }()
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-over:
		return err
	case <-time.After(patience):
		// external-snapshotter v8.7.0 never shuts down its queue of group snapshots, so its workers
		// never end.
		klog.FromContext(ctx).Info("Controllers still run at the end of their time", "shutdownTimeout", patience,
			"controllers", stillRunning(parts))
		return nil
	}
}

func stillRunning(parts []*sidecar.Part) []string {
	var names []string
	for _, p := range parts {
		if p.Running() {
			names = append(names, p.Name())
		}
	}
	return names
}

// under waits for a lease, runs lead while the lease is held, then together, and releases the
// lease. Errors: ErrLost.
func (e *election) under(ctx context.Context, client kubernetes.Interface, l lease, lead leadFunc,
	together func()) error {
	if e.mode == perController {
		if l.dead = e.awaitFree(ctx, client, l.others); ctx.Err() != nil {
			return nil
		}
	}
	lock, quiet, err := e.lock(ctx, client, l.name)
	if err != nil {
		return err
	}
	defer quiet()
	holding, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	giveUp := func() { end(nil) }
	t := &term{Interface: lock, lasts: e.lease, lost: func() { end(sidecar.ErrLost) }}
	e.terms.Store(l.name, t)
	var once sync.Once
	led := make(chan error, 1)
	elector, err := e.elector(l.name, t, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(held context.Context) {
			begun := false
			once.Do(func() { begun = true })
			if !begun {
				return // ctx ended at the same moment
			}
			leading, cancel := both(ctx, held)
			defer cancel()
			klog.FromContext(ctx).Info("Leading", "lease", l.name, "namespace", e.ownNamespace())
			err := e.alone(leading, client, l, lead)
			led <- err
			together()
			giveUp()
		},
		OnStoppedLeading: func() {},
		OnNewLeader: func(identity string) {
			klog.FromContext(ctx).Info("There is a leader", "lease", l.name, "identity", identity)
		},
	})
	if err != nil {
		return err
	}
	// Without the lease nothing may be finished.
	defer context.AfterFunc(ctx, func() { once.Do(func() { led <- nil; giveUp() }) })()
	elector.Run(holding)
	if holding.Err() == nil || errors.Is(context.Cause(holding), sidecar.ErrLost) {
		return fmt.Errorf("%w: %s", sidecar.ErrLost, l.name)
	}
	return <-led
}

// both returns a context that is done when either context is.
func both(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a)
	stop := context.AfterFunc(b, cancel)
	return ctx, func() { stop(); cancel() }
}

// lock returns the lock of a lease, which records events for the lease, and a function that ends
// the recorder.
func (e *election) lock(ctx context.Context, client kubernetes.Interface,
	name string) (*resourcelock.LeaseLock, func(), error) {
	who, err := e.who()
	if err != nil {
		return nil, nil, err
	}
	events := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx))) // the last event is the release
	events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events(e.ownNamespace())})
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: e.ownNamespace(), Name: name},
		Client:    client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: who,
			EventRecorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: name})},
		Labels: e.labels,
	}, events.Shutdown, nil
}

// beyond is the time after the end of a lease in which the leader still counts as healthy.
const beyond = 20 * time.Second

func (e *election) elector(name string, lock resourcelock.Interface,
	then leaderelection.LeaderCallbacks) (*leaderelection.LeaderElector, error) {
	dog := leaderelection.NewLeaderHealthzAdaptor(beyond)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: name, Lock: lock, Callbacks: then, WatchDog: dog, ReleaseOnCancel: true,
		LeaseDuration: e.lease, RenewDeadline: e.renew, RetryPeriod: e.retry,
	})
	if err == nil {
		dog.SetLeaderElection(elector) // as RunOrDie of client-go does
		e.dogs.Store(name, dog)
	}
	return elector, err
}

// check is /healthz/leader-election. check fails if a lease has ended and the process has not.
func (e *election) check(context.Context) (state string, err error) {
	e.dogs.Range(func(name, dog any) bool {
		if bad := dog.(*leaderelection.HealthzAdaptor).Check(&http.Request{}); bad != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, bad))
		}
		return true
	})
	return "ok", err
}
