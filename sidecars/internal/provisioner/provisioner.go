// Package provisioner runs kubernetes-csi/external-provisioner: it creates volumes for claims,
// deletes released volumes, and publishes capacity.
package provisioner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	upstream "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/features"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	lib "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
	libmetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

type controller struct {
	cluster           *kube.Cluster
	work              kube.Work
	prefix            string
	uuidLength        int
	cloningThreads    int
	sweep             time.Duration
	strictTopology    bool
	immediateTopology bool
	metadata          bool
	defaultFSType     string
	publishReadOnly   bool
	keepMode          bool
	pprof             bool
	capacity          capacityFlags
	nodes             nodeFlags
}

// New returns the provisioner.
func New(c *kube.Cluster) sidecar.Controller { return &controller{cluster: c} }

func (c *controller) Name() string { return "provisioner" }

func (c *controller) About() string {
	return "Makes volumes for claims, deletes them again, and publishes how much room there is where."
}

func (c *controller) Flags(f *sidecar.Flags) {
	c.work.Flags(f, kube.WorkFlags{
		Timeout: 10 * time.Second, TimeoutUsage: "time limit of a call to the driver",
		Workers: 100, WorkersFlag: "worker-threads",
		WorkersUsage: "maximum number of volumes that are created, and that are deleted, at the same time",
	})
	f.String(&c.prefix, "volume-name-prefix", "pvc", "prefix of volume names")
	f.Int(&c.uuidLength, "volume-name-uuid-length", -1,
		"`length` of the claim's UID in a volume name; -1: the whole UID")
	f.Bool(&c.strictTopology, "strict-topology", false, "with late binding, send the driver the topology of "+
		"the selected node only")
	f.Bool(&c.immediateTopology, "immediate-topology", true,
		"with immediate binding, send the driver the topology of all nodes; false: none")
	f.Bool(&c.metadata, "extra-create-metadata", false, "send the driver the names of claim and volume")
	f.String(&c.defaultFSType, "default-fstype", "", "`filesystem` of volumes whose class names none")
	f.Bool(&c.publishReadOnly, "controller-publish-readonly", false,
		"mark volumes of read-only claims so that they are attached read-only")
	f.Bool(&c.keepMode, "prevent-volume-mode-conversion", true,
		"reject a claim that restores a snapshot of a filesystem as a block device, or the reverse, without "+
			"the annotation that permits it")
	f.Int(&c.cloningThreads, "cloning-protection-threads", 1, "maximum number of clone sources that are "+
		"released at the same time")
	f.Duration(&c.sweep, "snapshot-orphan-sweep-interval", 5*time.Minute,
		"interval at which unneeded finalizers are removed from snapshots; 0: never")
	f.Bool(&c.pprof, "enable-pprof", false,
		"serve Go's profiles at /debug/pprof/ on --http-endpoint, for the whole process")
	c.capacity.flags(f)
	c.nodes.flags(f)
}

func (c *controller) Validate() error {
	for name, n := range map[string]int{"cloning-protection-threads": c.cloningThreads,
		"capacity-threads": c.capacity.threads} {
		if err := kube.Positive(name, n); err != nil {
			return err
		}
	}
	if c.prefix == "" {
		return errors.New("--volume-name-prefix is empty: a name must begin with something")
	}
	if err := c.capacity.validate(); err != nil {
		return err
	}
	if err := c.nodes.validate(c.cluster.Elected()); err != nil {
		return err
	}
	return c.work.Validate()
}

func (c *controller) Needs() sidecar.Needs {
	return sidecar.Needs{Driver: true, Capabilities: true, Cluster: true,
		Lock: func(driver string) string { return strings.ReplaceAll(driver, "/", "-") }}
}

// Rules implements kube.Ruled.
func (c *controller) Rules(d kube.Rights) kube.Rules {
	return kube.ProvisionerRules(kube.ProvisionerRuleOptions{
		Secrets: d.Secrets, Topology: d.Topology, Publish: d.Attach, Snapshots: d.Snapshots,
		SnapshotSweeper: d.Snapshots && c.sweep > 0,
		Attributes:      c.cluster.Gate(features.VolumeAttributesClass),
		CrossNamespace:  c.cluster.Gate(features.CrossNamespaceVolumeDataSource),
		NodeDeployment:  c.nodes.on, Capacity: c.capacity.on, CapacityOwner: c.capacity.level,
	})
}

// runs are upstream's controllers, which start and end together.
type runs []func(ctx context.Context, workers *sync.WaitGroup)

// Build makes upstream's four controllers: for claims and volumes, for sources of clones, for
// finalizers of snapshots, and for capacity.
func (c *controller) Build(ctx context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	if !env.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] {
		return nil, fmt.Errorf("%w: it makes no volumes", sidecar.ErrNotSupported)
	}
	clients := c.cluster.Client(c.Name(), c.work.Limits)
	place, err := c.place(env, clients)
	if err != nil {
		return nil, err
	}
	var together runs
	making := c.making(env, clients, place)
	if c.capacity.on {
		if making, err = c.publishCapacity(env, place, making, &together); err != nil {
			return nil, err
		}
	}
	c.claims(ctx, env, clients, making, &together)
	c.finalizers(ctx, env, clients, &together)
	if c.pprof {
		profile(env.HTTP.Mux)
	}
	return together, nil
}

// making is upstream's provisioner, which translates claims into CSI calls.
func (c *controller) making(env *sidecar.Env, clients kube.Clients, p place) lib.Provisioner {
	informers := c.cluster.Informers()
	var remembered *upstream.InMemoryStore
	if p.topology {
		remembered = upstream.NewInMemoryStore()
	}
	identity := strconv.FormatInt(time.Now().UnixMilli(), 10) + "-" + strconv.Itoa(rand.IntN(10000)) + "-" + env.Driver
	if c.nodes.on {
		identity += "-" + p.node.NodeName
	}
	translator := csitrans.New()
	return upstream.NewCSIProvisioner(
		clients.Kube, c.work.Timeout, identity, c.prefix, c.uuidLength, env.Conn, clients.Snapshots,
		env.Driver, env.Plugin, env.Controller, inTree(translator, env.Driver),
		c.strictTopology, c.immediateTopology, translator,
		informers.Storage().V1().StorageClasses().Lister(), p.csiNodes, p.nodes,
		informers.Core().V1().PersistentVolumeClaims().Lister(), p.attachments, c.grants(clients),
		c.metadata, c.defaultFSType, p.node, c.publishReadOnly, c.keepMode, remembered)
}

// inTree is the name of the in-tree driver that the driver replaces, or "".
func inTree(t csitrans.CSITranslator, driver string) string {
	if !t.IsMigratedCSIDriverByName(driver) {
		return ""
	}
	name, err := t.GetInTreeNameFromCSIName(driver)
	if err != nil {
		klog.ErrorS(err, "The name of the in-tree driver is unknown, so its volumes are left alone", "driver", driver)
		return ""
	}
	return name
}

// claims adds the controller for claims and volumes. claims uses the shared informers; upstream's
// main lets the library make two of its own.
func (c *controller) claims(ctx context.Context, env *sidecar.Env, clients kube.Clients, making lib.Provisioner,
	together *runs) {
	informers := c.cluster.Informers()
	claims := informers.Core().V1().PersistentVolumeClaims()
	counted := libmetrics.New("controller")
	registry := prometheus.NewRegistry()
	registry.MustRegister(counted.PersistentVolumeClaimProvisionTotal,
		counted.PersistentVolumeClaimProvisionFailedTotal,
		counted.PersistentVolumeClaimProvisionDurationSeconds, counted.PersistentVolumeDeleteTotal,
		counted.PersistentVolumeDeleteFailedTotal, counted.PersistentVolumeDeleteDurationSeconds)
	env.HTTP.Measure(kube.Always(registry, c.Name()))
	options := []func(*lib.ProvisionController) error{
		lib.LeaderElection(false), // the process has the lease
		lib.FailedProvisionThreshold(0),
		lib.FailedDeleteThreshold(0),
		lib.RateLimiter(c.work.Limiter()),
		lib.Threadiness(c.work.Workers),
		lib.CreateProvisionedPVLimiter(workqueue.DefaultTypedControllerRateLimiter[string]()),
		lib.ClaimsInformer(claims.Informer()),
		lib.VolumesInformer(informers.Core().V1().PersistentVolumes().Informer()),
		lib.ClassesInformer(informers.Storage().V1().StorageClasses().Informer()),
		lib.RetryIntervalMax(c.work.Retry.Max),
		lib.AddFinalizer(true),
		lib.MetricsInstance(counted),
	}
	if name := inTree(csitrans.New(), env.Driver); name != "" {
		options = append(options, lib.AdditionalProvisionerNames([]string{name}))
	}
	// The context of events outlives ctx, as in upstream: controllers that finish after the end of
	// ctx make events, too.
	provision := lib.NewProvisionController(context.WithoutCancel(ctx), clients.Kube, env.Driver, making, options...)
	*together = append(*together, func(ctx context.Context, workers *sync.WaitGroup) {
		provision.ControllerWaitGroup(workers)
		provision.Run(ctx)
	})
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(c.work.Limiter(),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "claims"})
	if clones := upstream.NewCloningProtectionController(clients.Kube, claims.Lister(), claims.Informer(), queue,
		env.Controller); clones != nil {
		*together = append(*together, func(ctx context.Context, workers *sync.WaitGroup) {
			clones.Run(ctx, c.cloningThreads, workers)
		})
	}
}

// finalizers adds the controller for the finalizers of snapshots, if the cluster has the API. Its
// informer is not shared: upstream does not permit that.
func (c *controller) finalizers(ctx context.Context, env *sidecar.Env, clients kube.Clients, together *runs) {
	if c.sweep <= 0 || !c.cluster.Serves(ctx, "snapshot.storage.k8s.io/v1", "VolumeSnapshot") {
		return
	}
	claims := c.cluster.Informers().Core().V1().PersistentVolumeClaims().Lister()
	if sweeps := upstream.NewSnapshotFinalizerController(clients.Snapshots, claims, env.Controller,
		c.sweep); sweeps != nil {
		*together = append(*together, optional(sweeps.Run))
	}
}

// optional returns a run that waits for ctx if f returns early, as upstream's sweeper does without
// the permission to list snapshots.
func optional(run func(context.Context, *sync.WaitGroup)) func(context.Context, *sync.WaitGroup) {
	return func(ctx context.Context, workers *sync.WaitGroup) {
		run(ctx, workers)
		<-ctx.Done()
	}
}

// Run implements sidecar.Runner. Run returns when all controllers have ended. A controller that
// returns early ends the others.
func (r runs) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all, workers sync.WaitGroup
	for _, run := range r {
		all.Go(func() {
			defer cancel()
			run(ctx, &workers)
		})
	}
	all.Wait()
	workers.Wait()
	return nil
}

func profile(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}
