// Package kube is the part of Kubernetes that the controllers of csi-sidecars share: a transport
// under the clients of all controllers, a set of informers, an election, and the rules of the
// roles.
package kube

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	snapinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	cliflag "k8s.io/component-base/cli/flag"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// Cluster is the API server with the shared clients and informers. The flags are parsed first, then
// Connect is called, then controllers are built, and then Run starts informers and elections.
type Cluster struct {
	kubeconfig, master string
	gates              map[string]bool
	election           election
	resync             time.Duration // of shared informers

	config    *rest.Config // without limits: see Client
	transport http.RoundTripper
	informers informers.SharedInformerFactory
	snapshots snapinformers.SharedInformerFactory
	fail      func(error)
	server    *sidecar.Server
	migrated  atomic.Bool // the driver replaces an in-tree driver
	own       []factory   // factories of a single controller
	await     []cache.InformerSynced
}

// factory is the common interface of informer factories.
type factory interface{ Start(stop <-chan struct{}) }

// New returns a cluster without flags.
func New() *Cluster { return &Cluster{resync: time.Hour} }

// Flags declares the flags of the process.
func (c *Cluster) Flags(f *sidecar.Flags) {
	f.String(&c.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` with the address of the API server and the credentials (default: $KUBECONFIG, "+
			"else the pod's service account)")
	f.String(&c.master, "master", "", "the API server's `address`, instead of the one in --kubeconfig")
	f.Declare(func(s *flag.FlagSet) {
		s.Var(cliflag.NewMapStringBool(&c.gates), "feature-gates",
			"upstream's gates, as `name=true,…`, for all controllers: "+strings.Join(knownGates(), "; "))
	})
	c.election.flags(f)
}

// Validate returns an error for invalid gates and elections.
func (c *Cluster) Validate(on []sidecar.Controller) error {
	if err := c.checkGates(); err != nil {
		return err
	}
	return c.election.validate(on)
}

// Resync sets the largest resync interval of shared informers. It is called before Connect.
func (c *Cluster) Resync(every time.Duration) {
	if every > 0 {
		c.resync = min(c.resync, every)
	}
}

// Connect makes the clients and empty informers. Connect does not wait for the API server.
func (c *Cluster) Connect(ctx context.Context, s *sidecar.Server, driver string, fail func(error)) error {
	var err error
	if c.config, err = c.restConfig(); err != nil {
		return fmt.Errorf("where the API server is: %w", err)
	}
	if c.transport, err = rest.TransportFor(c.config); err != nil {
		return fmt.Errorf("the way to the API server: %w", err)
	}
	// Upstream's mains add these types, too, so that events can name snapshots. The table has no
	// lock, so it must be changed before any controller runs.
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	shared := c.Client("informers", unlimited)
	c.informers = informers.NewSharedInformerFactoryWithOptions(shared.Kube, c.resync, informers.WithTransform(slim))
	c.snapshots = snapinformers.NewSharedInformerFactoryWithOptions(shared.Snapshots, c.resync,
		snapinformers.WithTransform(slim))
	if err := c.applyGates(ctx, shared); err != nil {
		return err
	}
	c.fail, c.server, c.election.fail = fail, s, fail
	c.migrated.Store(csitrans.New().IsMigratedCSIDriverByName(driver))
	catchExits(fail)
	measure(s)
	if c.election.on {
		s.Health("leader-election", c.election.check)
	}
	return nil
}

func (c *Cluster) restConfig() (*rest.Config, error) {
	path := cmp.Or(c.kubeconfig, os.Getenv("KUBECONFIG"))
	if path == "" && c.master == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("%w: say --kubeconfig where this is not a pod", err)
		}
		return config, err
	}
	return clientcmd.BuildConfigFromFlags(c.master, path)
}

// Informers returns the shared informers. Those that a controller requests before Run are started.
// Their objects are slimmed (see slim) and must not be changed.
func (c *Cluster) Informers() informers.SharedInformerFactory { return c.informers }

// SnapshotInformers returns the shared informers of the snapshot API.
func (c *Cluster) SnapshotInformers() snapinformers.SharedInformerFactory { return c.snapshots }

// Own adds a factory of a single controller. It is started and stopped with the shared factories.
// The named informers are synced before any controller runs.
func (c *Cluster) Own(f factory, await ...cache.InformerSynced) {
	c.own, c.await = append(c.own, f), append(c.await, await...)
}

// Transform returns the cache.TransformFunc of the shared informers, for factories of Own.
func (c *Cluster) Transform() cache.TransformFunc { return slim }

// start starts all requested informers. It may be called again.
func (c *Cluster) start(stop <-chan struct{}) {
	c.informers.Start(stop)
	c.snapshots.Start(stop)
	for _, f := range c.own {
		f.Start(stop)
	}
}

// full waits until all informers of Kubernetes' own kinds are synced, or ctx is done. Upstream's
// controllers wait for some of their informers alone: with a cache that is not synced, an attached
// volume looks detached and is deleted. The controllers of snapshots wait for their informers
// themselves, as the CRDs may be missing.
func (c *Cluster) full(ctx context.Context) bool {
	said := time.Now()
	for {
		pause, cancel := context.WithTimeout(ctx, time.Second)
		var missing []string
		for kind, ok := range c.informers.WaitForCacheSync(pause.Done()) {
			if !ok {
				missing = append(missing, kind.Elem().Name())
			}
		}
		if !cache.WaitForCacheSync(pause.Done(), c.await...) {
			missing = append(missing, "those of one controller")
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case len(missing) == 0:
			c.server.Ready("")
			return true
		}
		slices.Sort(missing)
		c.server.Ready("reading objects: " + strings.Join(missing, ", "))
		if time.Since(said) > stillWaiting {
			said = time.Now()
			klog.InfoS("Still reading objects, without which no controller runs. The lines above have the reason, "+
				"if the API server refuses", "kinds", missing)
		}
	}
}

// stillWaiting is the interval at which the log names the missing caches.
const stillWaiting = 30 * time.Second

// Limits are the client limits of a controller. Each controller has its own, so that none starves
// another.
type Limits struct {
	QPS   float64 // requests a second, on average
	Burst int
}

// unlimited is for informers, which make few requests, and for elections, which must not wait.
var unlimited = Limits{QPS: -1}

// Flags declares the two flags of upstream.
func (l *Limits) Flags(f *sidecar.Flags) {
	f.Float(&l.QPS, "kube-api-qps", 5, "average `requests` per second of this controller to the API server")
	f.Int(&l.Burst, "kube-api-burst", 10, "maximum burst of `requests` to the API server")
}

// Validate returns an error for limits that permit no request.
func (l *Limits) Validate() error {
	if l.QPS > 0 && l.Burst < 1 {
		return fmt.Errorf("--kube-api-burst=%d: at least 1 is needed to send anything", l.Burst)
	}
	return nil
}

// Clients are the clients of a controller.
type Clients struct {
	Kube      kubernetes.Interface
	Snapshots snapshots.Interface
	// with the same limits, for clients of upstream code; for reads alone, as writes are not fenced
	Config *rest.Config
}

// Client returns the clients of a controller, each with limits of its own, as in upstream's mains,
// over the shared transport. name follows csi-sidecars/ in the user agent, which the audit log
// shows.
func (c *Cluster) Client(name string, l Limits) Clients {
	config := rest.CopyConfig(c.config)
	config.QPS, config.Burst = float32(l.QPS), l.Burst
	config.UserAgent = "csi-sidecars/" + name
	way := transport.NewUserAgentRoundTripper(config.UserAgent, c.transport)
	if name != electing {
		way = fenced{way, c.Leads}
	}
	over := &http.Client{Transport: way}
	core := rest.CopyConfig(config)
	core.ContentType = runtime.ContentTypeProtobuf
	// Neither fails: they parse the address, which rest.TransportFor and BuildConfigFromFlags have
	// parsed.
	return Clients{
		Kube:      must(kubernetes.NewForConfigAndClient(core, over)),
		Snapshots: must(snapshots.NewForConfigAndClient(config, over)),
		Config:    config,
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Retry is the range of the interval before a retry.
type Retry struct{ Start, Max time.Duration }

// Flags declares the two flags of upstream.
func (r *Retry) Flags(f *sidecar.Flags) {
	f.Duration(&r.Start, "retry-interval-start", time.Second,
		"delay before the first retry. It doubles with each retry, up to retry-interval-max")
	f.Duration(&r.Max, "retry-interval-max", 5*time.Minute, "maximum delay before a retry")
}

// Validate returns an error for intervals without a pause.
func (r *Retry) Validate() error {
	if r.Start <= 0 || r.Max < r.Start {
		return fmt.Errorf("--retry-interval-start=%v, --retry-interval-max=%v: the first must be above zero and not "+
			"above the second", r.Start, r.Max)
	}
	return nil
}

// Positive returns an error for numbers below 1.
func Positive[T int | float64 | time.Duration](name string, v T) error {
	if v <= 0 {
		return fmt.Errorf("--%s=%v: it must be above zero", name, v)
	}
	return nil
}
