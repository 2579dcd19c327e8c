// Package snapshotcontroller runs snapshot-controller of kubernetes-csi/external-snapshotter: it
// binds VolumeSnapshot objects to contents. A cluster has a single snapshot controller for all
// drivers.
package snapshotcontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	groups "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions/volumegroupsnapshot/v1"
	upstream "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/features"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

type controller struct {
	cluster     *kube.Cluster
	limits      kube.Limits
	retry       kube.Retry
	resync      time.Duration
	workers     int
	waitCRDs    time.Duration
	distributed bool
	keepMode    bool
}

// New returns the snapshot controller.
func New(c *kube.Cluster) sidecar.Controller { return &controller{cluster: c} }

func (c *controller) Name() string { return "snapshot-controller" }

func (c *controller) About() string {
	return "Binds VolumeSnapshot and VolumeGroupSnapshot objects to their contents. One for the whole cluster."
}

func (c *controller) Flags(f *sidecar.Flags) {
	f.Int(&c.workers, "worker-threads", 10, "maximum number of objects of each kind that are processed at "+
		"the same time")
	c.retry.Flags(f)
	c.limits.Flags(f)
	f.Duration(&c.resync, "resync-period", 15*time.Minute, "interval at which all objects are processed again")
	f.Bool(&c.distributed, "enable-distributed-snapshotting", false,
		"assign each snapshot to the snapshotter on the node of its volume")
	f.Bool(&c.keepMode, "prevent-volume-mode-conversion", true,
		"reject a claim that restores a snapshot of a filesystem as a block device, or the reverse, without "+
			"the annotation that permits it")
	f.Duration(&c.waitCRDs, "retry-crd-interval-max", 30*time.Second, "maximum time to wait for the CRDs at "+
		"the start")
}

func (c *controller) Validate() error {
	if err := kube.Positive("worker-threads", c.workers); err != nil {
		return err
	}
	if err := c.retry.Validate(); err != nil {
		return err
	}
	return c.limits.Validate()
}

func (c *controller) Needs() sidecar.Needs {
	return sidecar.Needs{Cluster: true, ByName: true, OnePerCluster: true,
		Lock: func(string) string { return "snapshot-controller-leader" }}
}

// Rules implements kube.Ruled. Rules ignores the features of the driver, as other drivers may have
// group snapshots.
func (c *controller) Rules(kube.Rights) kube.Rules {
	return kube.SnapshotControllerRules(c.cluster.Gate(features.VolumeGroupSnapshot), c.distributed)
}

// Build makes upstream's controller if the CRDs exist.
func (c *controller) Build(ctx context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	clients := c.cluster.Client(c.Name(), c.limits)
	snapshots, core := c.cluster.SnapshotInformers(), c.cluster.Informers().Core().V1()
	var nodes coreinformers.NodeInformer
	if c.distributed {
		nodes = core.Nodes()
	}
	withGroups := c.groups(ctx)
	var group groups.VolumeGroupSnapshotInformer
	var groupContent groups.VolumeGroupSnapshotContentInformer
	var groupClasses groups.VolumeGroupSnapshotClassInformer
	if withGroups {
		v1 := snapshots.Groupsnapshot().V1()
		group, groupContent, groupClasses = v1.VolumeGroupSnapshots(),
			groupContents{v1.VolumeGroupSnapshotContents()}, v1.VolumeGroupSnapshotClasses()
	}
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](c.retry.Start, c.retry.Max)
	}
	measured := metrics.NewMetricsManager()
	env.HTTP.Measure(kube.Always(measured.GetRegistry(), c.Name()))
	bind := upstream.NewCSISnapshotCommonController(clients.Snapshots, clients.Kube,
		snapshots.Snapshot().V1().VolumeSnapshots(), contents{snapshots.Snapshot().V1().VolumeSnapshotContents()},
		snapshots.Snapshot().V1().VolumeSnapshotClasses(),
		group, groupContent, groupClasses, core.PersistentVolumeClaims(), core.PersistentVolumes(), nodes,
		measured, c.resync, limiter(), limiter(), limiter(), limiter(), c.distributed, c.keepMode, withGroups)
	return sidecar.RunnerFunc(func(ctx context.Context) error {
		var workers sync.WaitGroup
		bind.Run(c.workers, ctx.Done(), &workers)
		workers.Wait()
		return nil
	}), nil
}

const api = "snapshot.storage.k8s.io/v1"

// kinds are the required kinds.
var kinds = []string{"VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotClass"}

// await waits for the CRDs, which may be installed at the same time as this process. Without them
// the other controllers run; when the CRDs are installed later, a new process starts.
func (c *controller) await(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, max(c.waitCRDs, time.Second))
	defer cancel()
	if !c.cluster.Serves(soon, api, kinds...) {
		klog.InfoS("Waiting for the CRDs of snapshots", "atMost", c.waitCRDs)
	}
	for !c.cluster.Serves(soon, api, kinds...) {
		select {
		case <-soon.Done():
			c.cluster.Await(ctx, api, kinds...)
			return fmt.Errorf("%w: CRDs for %s: install those in charts/causeway/crds", sidecar.ErrNotInstalled, api)
		case <-time.After(time.Second):
		}
	}
	return nil
}

func (c *controller) groups(ctx context.Context) bool {
	if !c.cluster.Gate(features.VolumeGroupSnapshot) {
		return false
	}
	if !c.cluster.Serves(ctx, "groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshot", "VolumeGroupSnapshotContent",
		"VolumeGroupSnapshotClass") {
		klog.InfoS("The cluster lacks the CRDs for snapshots of groups: install them and start again to have those")
		return false
	}
	return true
}
