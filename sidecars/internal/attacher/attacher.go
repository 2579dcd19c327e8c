// Package attacher runs kubernetes-csi/external-attacher: it attaches and detaches volumes for
// VolumeAttachment objects.
package attacher

import (
	"context"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/attacher"
	upstream "github.com/kubernetes-csi/external-attacher/v4/pkg/controller"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

type controller struct {
	cluster       *kube.Cluster
	work          kube.Work
	resync        time.Duration
	reconcile     time.Duration
	maxEntries    int
	defaultFSType string
}

// New returns the attacher.
func New(c *kube.Cluster) sidecar.Controller { return &controller{cluster: c} }

func (c *controller) Name() string { return "attacher" }

func (c *controller) About() string {
	return "Attaches volumes to nodes and detaches them, as VolumeAttachment objects say."
}

func (c *controller) Flags(f *sidecar.Flags) {
	c.work.Flags(f, kube.WorkFlags{
		Timeout: 15 * time.Second, TimeoutUsage: "time limit of a call that attaches or detaches a volume",
		Workers: 10, WorkersFlag: "worker-threads",
		WorkersUsage: "maximum number of volumes that are attached or detached at the same time",
	})
	f.Old("worker-threads", "worker-thread") // as in the KEP's manifest
	f.Duration(&c.resync, "resync", 10*time.Minute, "interval at which all objects are processed again")
	f.Duration(&c.reconcile, "reconcile-sync", time.Minute,
		"interval at which attachments are compared with the driver's list, if the driver can list")
	f.Int(&c.maxEntries, "max-entries", 0,
		"maximum number of `entries` in a page of ListVolumes; 0: the driver decides")
	f.String(&c.defaultFSType, "default-fstype", "", "`filesystem` of volumes whose PersistentVolume names none")
}

func (c *controller) Validate() error {
	c.cluster.Resync(c.resync)
	return c.work.Validate()
}

func (c *controller) Needs() sidecar.Needs {
	return sidecar.Needs{Driver: true, Capabilities: true, Cluster: true,
		Lock: func(driver string) string { return "external-attacher-leader-" + driver }}
}

// Rules implements kube.Ruled.
func (c *controller) Rules(d kube.Rights) kube.Rules { return kube.AttacherRules(d.Secrets) }

// Build makes upstream's controller. For a driver without attachment it is the controller that
// marks every VolumeAttachment as attached: without attachRequired: false in the CSIDriver, pods
// wait for such objects.
func (c *controller) Build(_ context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	client := c.cluster.Client(c.Name(), c.work.Limits).Kube
	informers := c.cluster.Informers()
	attachments, volumes := informers.Storage().V1().VolumeAttachments(), informers.Core().V1().PersistentVolumes()
	lists := env.Controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES] &&
		env.Controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES]
	var handler upstream.Handler
	if env.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		handler = upstream.NewCSIHandler(client, env.Driver,
			attacher.NewAttacher(env.Conn), attacher.NewVolumeLister(env.Conn, c.maxEntries),
			volumes.Lister(), informers.Storage().V1().CSINodes().Lister(), attachments.Lister(),
			&c.work.Timeout,
			env.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY],
			env.Controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
			csitrans.New(), c.defaultFSType)
	} else {
		klog.InfoS("The driver attaches nothing: attachments are only noted", "driver", env.Driver)
		handler, lists = upstream.NewTrivialHandler(client), false
	}
	attach := upstream.NewCSIAttachController(klog.Background(), client, env.Driver, handler, attachments, volumes,
		c.work.Limiter(), c.work.Limiter(), lists, c.reconcile)
	return sidecar.RunnerFunc(func(ctx context.Context) error {
		var workers sync.WaitGroup
		attach.Run(ctx, c.work.Workers, &workers)
		workers.Wait()
		return nil
	}), nil
}
