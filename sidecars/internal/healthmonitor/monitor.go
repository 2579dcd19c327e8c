// Package healthmonitor queries the controller side of a CSI driver for the health of its volumes,
// and reports it in the status of the PersistentVolumeClaim, in events on the claim and on the pods
// that use it, and in metrics. The node side is the kubelet's. KEP-1432 as of Kubernetes 1.37; CSI
// spec v1.13, ControllerListVolumeHealth and ControllerGetVolumeHealth; for older drivers CSI spec
// v1.12, VolumeCondition in ListVolumes and ControllerGetVolume.
package healthmonitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Options are the settings of an operator.
type Options struct {
	// ListInterval is the time from the end of a round to the next one, as long as lists succeed.
	ListInterval time.Duration
	// GetInterval is the same for rounds in which each volume is queried.
	GetInterval time.Duration
	// Timeout bounds a call to the driver.
	Timeout time.Duration
	// Workers is the number of volumes that are queried, and of claims that are written, at the
	// same time.
	Workers int
	// PageSize is the number of volumes in a page of a list; 0: the default of the driver.
	PageSize int
	// PodEvents adds events on the pods that use a volume. It costs a cache of all pods.
	PodEvents bool
	// UnknownConditions reports the conditions of types that the monitor does not know, with the
	// status Unknown. Without it they are ignored, as CSI v1.13 requires.
	UnknownConditions bool
}

// Config configures a Monitor.
type Config struct {
	Options
	// Driver is the name in spec.csi.driver of the monitored volumes. Migrated volumes are not
	// monitored.
	Driver       string
	Capabilities rpc.ControllerCapabilitySet
	Conn         grpc.ClientConnInterface
	Client       kubernetes.Interface
	// Informers must be started by the caller after NewMonitor.
	Informers informers.SharedInformerFactory
	Recorder  record.EventRecorder
	// Register registers the collectors.
	Register func(...prometheus.Collector)
}

// Monitor monitors the volumes of a driver in rounds.
type Monitor struct {
	Config
	source   source
	identity csi.IdentityClient
	volumes  corelisters.PersistentVolumeLister
	claims   corelisters.PersistentVolumeClaimLister
	pods     corelisters.PodLister // nil without PodEvents
	synced   []cache.InformerSynced
	metrics  *metrics
	field    field // status.healthStatus
	unknown  field // the status Unknown in it

	// The following fields belong to the round that runs.
	trouble    map[string]trouble    // by volume ID
	unreadable *failures             // answers of this round that could not be read
	memories   map[types.UID]*memory // by claim: abnormal ones, and those whose recovery the cache does not show yet
}

// NewMonitor returns a monitor, and gets the informers that it needs from the factory. Errors: see
// sourceOf.
func NewMonitor(c Config) (*Monitor, error) {
	from, err := sourceOf(c.Driver, c.Capabilities, csi.NewControllerClient(c.Conn))
	if err != nil {
		return nil, err
	}
	m := &Monitor{
		Config: c, source: from, identity: csi.NewIdentityClient(c.Conn), metrics: newMetrics(c.Driver),
	}
	c.Register(m.metrics.collectors()...)
	m.watch()
	return m, nil
}

func (m *Monitor) watch() {
	core := m.Informers.Core().V1()
	m.volumes, m.claims = core.PersistentVolumes().Lister(), core.PersistentVolumeClaims().Lister()
	m.synced = []cache.InformerSynced{core.PersistentVolumes().Informer().HasSynced,
		core.PersistentVolumeClaims().Informer().HasSynced}
	if m.PodEvents {
		m.pods = core.Pods().Lister()
		m.synced = append(m.synced, core.Pods().Informer().HasSynced)
	}
}

// Run monitors the volumes until ctx is done, and returns nil when all of its goroutines have
// ended.
func (m *Monitor) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), m.synced...) {
		return nil // ctx is done
	}
	for {
		wait, err := m.round(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(errors.New(printable(err.Error(), maxMessage)),
				"A round of volume health had failures")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// round queries all volumes, reports changes, and returns the time until the next round. Its error
// is for the log: the next round retries.
func (m *Monitor) round(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	targets, err := m.targets()
	if err != nil {
		return m.GetInterval, err
	}
	answers, err := m.queryAll(ctx, targets)
	if ctx.Err() != nil {
		return 0, ctx.Err() // the result cannot be written, so there are no events either
	}
	wait := m.GetInterval
	if m.source.lists && err == nil {
		wait = m.ListInterval
	}
	err = errors.Join(err, m.unreadable.error(), m.reportAll(ctx, targets, answers))
	m.metrics.round(time.Since(start), time.Now(), m.memories)
	return wait, err
}

// target is a volume, and the claim that it is bound to.
type target struct {
	volume *v1.PersistentVolume
	claim  *v1.PersistentVolumeClaim
}

// deleting reports whether the volume or the claim is being deleted, so that the storage may be
// gone.
func (t target) deleting() bool {
	return t.volume.DeletionTimestamp != nil || t.claim.DeletionTimestamp != nil
}

// provisioned reports whether a provisioner created the PV. A driver need not know the volume of a
// PV that an administrator wrote (static provisioning).
func (t target) provisioned() bool { return t.volume.Annotations[provisionedBy] != "" }

// provisionedBy is the annotation that external-provisioner gives to the PVs that it creates.
const provisionedBy = "pv.kubernetes.io/provisioned-by"

// targets returns the bound volumes of the driver by volume ID: several PVs may share an ID.
func (m *Monitor) targets() (map[string][]target, error) {
	volumes, err := m.volumes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("read PVs from the cache: %w", err)
	}
	targets := map[string][]target{}
	for _, v := range volumes {
		if v.Spec.CSI == nil || v.Spec.CSI.Driver != m.Driver {
			continue
		}
		if c := m.claimOf(v); c != nil {
			id := v.Spec.CSI.VolumeHandle
			targets[id] = append(targets[id], target{v, c})
		}
	}
	return targets, nil
}

// claimOf returns the claim to which v is bound, or nil. The claim must also name v: a PV names its
// claim before the two are bound, and a new claim may have the name of a deleted one.
func (m *Monitor) claimOf(v *v1.PersistentVolume) *v1.PersistentVolumeClaim {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	c, err := m.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || c.UID != ref.UID || c.Spec.VolumeName != v.Name {
		return nil
	}
	return c
}
