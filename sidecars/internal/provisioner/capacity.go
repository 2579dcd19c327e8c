package provisioner

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity/topology"
	upstream "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/owner"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
	lib "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// capacityFlags are the flags for CSIStorageCapacity objects, from which the scheduler reads
// capacity.
type capacityFlags struct {
	on        bool
	immediate bool
	poll      time.Duration
	level     int
	threads   int
	limits    kube.Limits
	all       *sidecar.Flags
}

func (c *capacityFlags) flags(f *sidecar.Flags) {
	c.all = f
	f.Bool(&c.on, "enable-capacity", false,
		"publish the available capacity, as CSIStorageCapacity objects in $NAMESPACE")
	f.Bool(&c.immediate, "capacity-for-immediate-binding", false,
		"publish capacity for classes with immediate binding, too; the scheduler does not need this")
	f.Duration(&c.poll, "capacity-poll-interval", time.Minute, "interval of GetCapacity calls")
	f.Int(&c.level, "capacity-ownerref-level", 1,
		"owner of the CSIStorageCapacity objects, from the pod $POD_NAME upwards: -1 none, 0 the pod, 1 its "+
			"StatefulSet or DaemonSet, 2 its Deployment")
	f.Int(&c.threads, "capacity-threads", 1, "maximum number of CSIStorageCapacity objects that are "+
		"processed at the same time")
	f.Float(&c.limits.QPS, "kube-api-capacity-qps", 1,
		"average `requests` per second for CSIStorageCapacity objects to the API server")
	f.Int(&c.limits.Burst, "kube-api-capacity-burst", 5,
		"maximum burst of `requests` for CSIStorageCapacity objects to the API server")
}

func (c *capacityFlags) validate() error {
	switch {
	case !c.on:
		return c.all.Need("enable-capacity", "capacity-for-immediate-binding", "capacity-poll-interval",
			"capacity-ownerref-level", "capacity-threads", "kube-api-capacity-qps", "kube-api-capacity-burst")
	case c.poll <= 0:
		return fmt.Errorf("--capacity-poll-interval=%v: it must be above zero", c.poll)
	}
	return c.limits.Validate()
}

// pod has the namespace of the objects, and the name of the pod from which the owner is found, from
// the environment.
func (c *capacityFlags) pod(getenv func(string) string) (namespace, name string, err error) {
	namespace, name = getenv("NAMESPACE"), getenv("POD_NAME")
	switch {
	case namespace == "":
		err = errors.New("--enable-capacity needs the namespace for its objects in the environment: NAMESPACE")
	case c.level >= 0 && name == "":
		err = errors.New("--enable-capacity needs the pod's name in the environment, to find the owner of " +
			"its objects: POD_NAME (or --capacity-ownerref-level=-1)")
	}
	return namespace, name, err
}

// publishCapacity adds the controller for capacity, and returns a provisioner that reports changes
// to it. The controller has clients of its own: a cluster with many nodes has many such objects,
// and claims must not wait for them.
func (c *controller) publishCapacity(env *sidecar.Env, p place, making lib.Provisioner,
	together *runs) (lib.Provisioner, error) {
	f := c.capacity
	namespace, pod, err := f.pod(os.Getenv)
	if err != nil {
		return nil, err
	}
	own := c.cluster.Client(c.Name()+"-capacity", f.limits)
	owned, err := c.owner(own, namespace, pod)
	if err != nil {
		return nil, err
	}
	id := "external-provisioner"
	if c.nodes.on {
		id = shorten(id, p.node.NodeName, validation.DNS1035LabelMaxLength)
	}
	mine := labels.Set{capacity.DriverNameLabel: env.Driver, capacity.ManagedByLabel: id}.String()
	factory := informers.NewSharedInformerFactoryWithOptions(own.Kube, upstream.ResyncPeriodOfCsiNodeInformer,
		informers.WithNamespace(namespace), informers.WithTransform(c.cluster.Transform()),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = mine }))
	c.cluster.Own(factory)
	where := c.segments(env.Driver, own, p)
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[capacity.QueueKey](c.work.Retry.Start, c.work.Retry.Max),
		workqueue.TypedRateLimitingQueueConfig[capacity.QueueKey]{Name: "csistoragecapacity"})
	room := capacity.NewCentralCapacityController(csi.NewControllerClient(env.Conn), env.Driver,
		own.Kube.StorageV1(), queue, owned, id, namespace, where,
		c.cluster.Informers().Storage().V1().StorageClasses(), factory.Storage().V1().CSIStorageCapacities(),
		f.poll, f.immediate, c.work.Timeout)
	if err := legacyregistry.CustomRegister(room); err != nil {
		return nil, fmt.Errorf("metrics of room: %w", err)
	}
	*together = append(*together,
		func(ctx context.Context, _ *sync.WaitGroup) { where.RunWorker(ctx); <-ctx.Done() },
		func(ctx context.Context, workers *sync.WaitGroup) { room.Run(ctx, f.threads, workers) })
	return capacity.NewProvisionWrapper(making, room), nil
}

// segments are the topology segments whose capacity is published.
func (c *controller) segments(driver string, own kube.Clients, p place) topology.Informer {
	if p.node != nil {
		var here topology.Segment
		for key, value := range p.node.NodeInfo.GetAccessibleTopology().GetSegments() {
			here = append(here, topology.SegmentEntry{Key: key, Value: value})
		}
		return topology.NewFixedNodeTopology(&here)
	}
	shared := c.cluster.Informers()
	return topology.NewNodeTopology(driver, own.Kube, shared.Core().V1().Nodes(), shared.Storage().V1().CSINodes(),
		workqueue.NewTypedRateLimitingQueueWithConfig(c.work.Limiter(),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "csitopology"}))
}

// owner returns the owner of the objects, with which Kubernetes deletes them, or nil.
func (c *controller) owner(own kube.Clients, namespace, pod string) (*metav1.OwnerReference, error) {
	level := c.capacity.level
	if level < 0 {
		return nil, nil
	}
	ref, err := owner.Lookup(own.Config, namespace, pod, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, level)
	if err != nil {
		return nil, fmt.Errorf("--capacity-ownerref-level=%d: find the owner of the pod %s/%s: %w", level,
			namespace, pod, err)
	}
	return ref, nil
}

// shorten joins two parts of a label value with -. A digest replaces the text above the maximum
// length, so that values stay unique. The values are those of upstream, as the objects outlive the
// process.
func shorten(base, suffix string, most int) string {
	digest := func(s string) string {
		h := fnv.New32a()
		h.Write([]byte(s))
		return fmt.Sprintf("%08x", h.Sum32())
	}
	name := base + "-" + suffix
	if len(name) <= most {
		return name
	}
	const dashes, digits = 2, 8
	if keep := most - len(suffix) - dashes - digits; keep > 0 {
		return base[:keep] + "-" + digest(base) + "-" + suffix
	}
	return base[:min(len(base), most-1-digits)] + "-" + digest(name)
}
