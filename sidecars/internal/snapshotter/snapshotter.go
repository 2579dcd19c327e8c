// Package snapshotter runs csi-snapshotter of kubernetes-csi/external-snapshotter: it creates and
// deletes snapshots for VolumeSnapshotContent and VolumeGroupSnapshotContent objects.
package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	groups "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions/volumegroupsnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/features"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/group_snapshotter"
	upstream "github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/snapshotter"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

type controller struct {
	cluster        *kube.Cluster
	work           kube.Work
	resync         time.Duration
	prefix         string
	uuidLength     int
	groupPrefix    string
	groupLength    int
	metadata       bool
	nodeDeployment bool
}

// New returns the snapshotter.
func New(c *kube.Cluster) sidecar.Controller { return &controller{cluster: c} }

func (c *controller) Name() string { return "snapshotter" }

func (c *controller) About() string {
	return "Takes and deletes snapshots, and snapshots of groups, as VolumeSnapshotContent objects say."
}

func (c *controller) Flags(f *sidecar.Flags) {
	c.work.Flags(f, kube.WorkFlags{
		Timeout: time.Minute, TimeoutUsage: "time limit of a call to the driver",
		Workers: 10, WorkersFlag: "worker-threads",
		WorkersUsage: "maximum number of snapshots, and of groups, that are processed at the same time",
	})
	f.Duration(&c.resync, "resync-period", 15*time.Minute, "interval at which all objects are processed again")
	f.String(&c.prefix, "snapshot-name-prefix", "snapshot", "prefix of snapshot names")
	f.Int(&c.uuidLength, "snapshot-name-uuid-length", -1,
		"`length` of the UID in a snapshot name; -1: the whole UID")
	f.String(&c.groupPrefix, "groupsnapshot-name-prefix", "groupsnapshot", "prefix of group snapshot names")
	f.Int(&c.groupLength, "groupsnapshot-name-uuid-length", -1,
		"`length` of the UID in a group snapshot name; -1: the whole UID")
	f.Bool(&c.metadata, "extra-create-metadata", false, "send the driver the names of the objects of a snapshot")
	f.Bool(&c.nodeDeployment, "node-deployment", false,
		"a snapshotter runs on each node ($NODE_NAME), and makes snapshots of that node's volumes only")
}

func (c *controller) Validate() error {
	switch {
	case c.prefix == "":
		return errors.New("--snapshot-name-prefix is empty: a name must begin with something")
	case c.groupPrefix == "":
		return errors.New("--groupsnapshot-name-prefix is empty: a name must begin with something")
	case c.nodeDeployment && c.cluster.Elected():
		return errors.New("--node-deployment with --leader-election: one on each node, or one for all? Take one away")
	}
	return c.work.Validate()
}

func (c *controller) Needs() sidecar.Needs {
	return sidecar.Needs{Driver: true, Capabilities: true, Cluster: true,
		Lock: func(driver string) string {
			return "external-snapshotter-leader-" + strings.ReplaceAll(driver, "/", "-")
		}}
}

// Rules implements kube.Ruled.
func (c *controller) Rules(d kube.Rights) kube.Rules {
	return kube.SnapshotterRules(d.Secrets, d.Groups && c.cluster.Gate(features.VolumeGroupSnapshot))
}

// Build makes upstream's controller, with group snapshots if the gate, the driver and the CRDs
// permit them.
func (c *controller) Build(ctx context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	if !env.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
		return nil, fmt.Errorf("%w: it takes no snapshots", sidecar.ErrNotSupported)
	}
	if kinds := []string{"VolumeSnapshotContent", "VolumeSnapshotClass"}; !c.cluster.Serves(ctx, api, kinds...) {
		c.cluster.Await(ctx, api, kinds...)
		return nil, fmt.Errorf("%w: CRDs for %s: install those in charts/causeway/crds", sidecar.ErrNotInstalled, api)
	}
	if c.nodeDeployment && os.Getenv("NODE_NAME") == "" {
		return nil, errors.New("--node-deployment needs the node's name in the environment: NODE_NAME")
	}
	clients := c.cluster.Client(c.Name(), c.work.Limits)
	contents := c.contents(clients)
	withGroups := c.groups(ctx, env)
	var takesGroups group_snapshotter.GroupSnapshotter
	var groupContents groups.VolumeGroupSnapshotContentInformer
	var groupClasses groups.VolumeGroupSnapshotClassInformer
	if withGroups {
		takesGroups = group_snapshotter.NewGroupSnapshotter(env.Conn)
		groupContents = contents.Groupsnapshot().V1().VolumeGroupSnapshotContents()
		groupClasses = c.cluster.SnapshotInformers().Groupsnapshot().V1().VolumeGroupSnapshotClasses()
	}
	take := upstream.NewCSISnapshotSideCarController(clients.Snapshots, clients.Kube, env.Driver,
		contents.Snapshot().V1().VolumeSnapshotContents(),
		c.cluster.SnapshotInformers().Snapshot().V1().VolumeSnapshotClasses(),
		snapshotter.NewSnapshotter(env.Conn), takesGroups,
		c.work.Timeout, c.resync, c.prefix, c.uuidLength, c.groupPrefix, c.groupLength, c.metadata,
		c.work.Limiter(), withGroups, groupContents, groupClasses, c.work.Limiter())
	return sidecar.RunnerFunc(func(ctx context.Context) error {
		var workers sync.WaitGroup
		take.Run(c.work.Workers, ctx.Done(), &workers)
		workers.Wait() // with group snapshots it never returns in v8.7.0: the caller waits for a bounded time
		return nil
	}), nil
}

const api = "snapshot.storage.k8s.io/v1"

// contents returns the shared informers or, on a node, informers of the contents of that node.
func (c *controller) contents(clients kube.Clients) snapinformers.SharedInformerFactory {
	if !c.nodeDeployment {
		return c.cluster.SnapshotInformers()
	}
	mine := labels.Set{utils.VolumeSnapshotContentManagedByLabel: os.Getenv("NODE_NAME")}.String()
	own := snapinformers.NewSharedInformerFactoryWithOptions(clients.Snapshots, c.resync,
		snapinformers.WithTransform(c.cluster.Transform()),
		snapinformers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = mine }))
	c.cluster.Own(own)
	return own
}

// groups reports whether group snapshots are enabled. Upstream watches them also for drivers
// without them, which costs two watches.
func (c *controller) groups(ctx context.Context, env *sidecar.Env) bool {
	switch {
	case !c.cluster.Gate(features.VolumeGroupSnapshot):
		return false
	case !env.Group[csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT]:
		klog.InfoS("The driver takes no snapshots of groups", "driver", env.Driver)
		return false
	case !c.cluster.Serves(ctx, "groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshotContent",
		"VolumeGroupSnapshotClass"):
		klog.InfoS("The cluster lacks the CRDs for snapshots of groups: install them and start again to have those")
		return false
	}
	return true
}
