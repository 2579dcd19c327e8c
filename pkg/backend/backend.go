// Package backend defines the contract between the driver and storage.
//
// A backend is a type that implements [Backend] and those of the optional interfaces of this
// package that its storage supports. The driver derives the CSI capabilities that it advertises
// from the methods of the type. A wrapper that embeds [Backend] hides the methods of the optional
// interfaces, so never wrap a backend.
//
// These rules hold for every method. Package backendtest tests them:
//   - Many goroutines may call a method at the same time. The driver makes only a single changing
//     call at a time for an ID, and a single Create for a name. A Create may run beside the Delete
//     of the same volume. The same holds for snapshots and groups. The driver does not lock the
//     source of a Restore, Clone or Snapshot: other calls may change or delete the source at the
//     same time.
//   - The driver may repeat a call with the same arguments after any outcome, even after a crash.
//     The repeated call finishes the job or finds its result.
//   - A failed call leaves nothing behind, except after [ErrBusy], [ErrUnavailable] or the error of
//     the context. Kubernetes takes every other error as final and never deletes the remains of
//     the call behind (CSI spec v1.13, error scheme).
//   - IDs, names and parameters are untrusted input. An error or a record never contains a secret.
package backend

import (
	"context"
	"errors"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Errors that a backend wraps. The text of the wrapping error names the operation and its object.
// The driver converts each error to a gRPC status code. The errors of the context, of package
// mounter, and system errors such as EMFILE and ENOSPC also have status codes. Any other error
// becomes INTERNAL. CSI spec v1.13, error scheme.
var (
	// ErrNotFound: no volume, snapshot, group or node has this ID. NOT_FOUND.
	ErrNotFound = errors.New("not found")

	// ErrExists: an object with this name, or an attachment to this node, exists with other
	// properties. ALREADY_EXISTS.
	ErrExists = errors.New("already exists")

	// ErrInvalid: this backend never accepts the argument, in any state. INVALID_ARGUMENT.
	ErrInvalid = errors.New("invalid argument")

	// ErrUnauthenticated: the storage rejects the credentials of the request, or those that the
	// driver has for it. UNAUTHENTICATED.
	ErrUnauthenticated = errors.New("credentials rejected")

	// ErrDenied: the storage accepts the credentials, but they do not permit the operation.
	// PERMISSION_DENIED.
	ErrDenied = errors.New("permission denied")

	// ErrInUse: the object is in use. It cannot be deleted, or the volume cannot be attached to
	// another node. FAILED_PRECONDITION.
	ErrInUse = errors.New("in use")

	// ErrExhausted: this node has no capacity for the call now. Another node may have capacity.
	// RESOURCE_EXHAUSTED.
	ErrExhausted = errors.New("insufficient capacity")

	// ErrOutOfRange: a size or an offset is out of range. OUT_OF_RANGE.
	ErrOutOfRange = errors.New("out of range")

	// ErrBusy: another operation on the same object is pending. The caller repeats the call.
	// ABORTED.
	ErrBusy = errors.New("operation pending")

	// ErrUnavailable: the storage does not answer, or the outcome is unknown. The caller repeats
	// the call. UNAVAILABLE.
	ErrUnavailable = errors.New("not available now")

	// ErrNotReady: the storage is unusable until a person repairs it. FAILED_PRECONDITION.
	ErrNotReady = errors.New("storage not usable")

	// ErrPrecondition: the arguments are valid, but the present state does not allow the call. The
	// message names the state that has to change. FAILED_PRECONDITION.
	ErrPrecondition = errors.New("precondition not met")
)

// Backend is the interface that every kind of storage implements.
type Backend interface {
	// Create creates the volume of o.Name and returns when the volume is durable. A repeated call
	// returns the volume of the first call. Errors: [ErrExists] if the existing volume does not fit
	// o, [ErrInvalid], [ErrExhausted], [ErrOutOfRange]. CSI spec v1.13, CreateVolume.
	Create(ctx context.Context, o CreateOptions) (Volume, error)

	// Get returns the volume with this ID. The volume may be inline. Errors: [ErrNotFound], also
	// for a malformed ID. CSI spec v1.13, ControllerGetVolume.
	Get(ctx context.Context, id string, secrets map[string]string) (Volume, error)

	// Delete deletes a volume that Create, Restore or Clone created. Delete returns nil for an
	// unknown or malformed ID and for an inline volume. Delete does not wait until the space is
	// free again. Errors: [ErrInUse] while a volume of a [NodeLocal] backend is mounted on this
	// machine, or a volume of an [Attacher] is attached to a node. The volume is unchanged then.
	// CSI spec v1.13, DeleteVolume.
	Delete(ctx context.Context, id string, secrets map[string]string) error

	// Mount returns the mount of the volume for the use a: its source, options and kind. It changes
	// nothing. The driver calls it before each stage and before the publish of an inline volume,
	// and to find out whether the volume supports a. The driver remembers the result for a staged
	// volume, so that later calls need no answer of the storage. Errors: [ErrNotFound];
	// [ErrInvalid] if the volume does not support a, or if a.Context or a.PublishContext is not
	// that of this volume. CSI spec v1.13, NodeStageVolume, NodePublishVolume and
	// ValidateVolumeCapabilities.
	Mount(ctx context.Context, id string, a Access) (mounter.Mount, error)
}

// CreateOptions is a CreateVolumeRequest. The driver has made every check that does not depend on
// the backend. CSI spec v1.13, CreateVolume.
type CreateOptions struct {
	// Name has 1 to 128 bytes and no control characters except \t, \n and \r. It may contain any
	// other character. Never use it as a path.
	Name string

	Required int64 // Least size in bytes. 0: the backend chooses the size.
	Limit    int64 // Greatest size in bytes. 0: no limit. Otherwise at least Required.

	// Access holds every use that the volume must support. It is not empty.
	Access []Access

	// Parameters are the parameters of the StorageClass, without the keys that Kubernetes reserves.
	// The backend returns [ErrInvalid] for an unknown key.
	Parameters map[string]string

	// Mutable are mutable parameters, which [Modifier.Modify] can change later. They override
	// Parameters. They are empty for a backend that is not a [Modifier].
	Mutable map[string]string

	// Secrets are the secrets of the request.
	Secrets map[string]string

	// Namespace is the namespace of the claim or the pod, or "" if it is unknown. It distinguishes
	// tenants for fair shares of a limited resource and has no other effect.
	Namespace string

	// Claim names the objects of Kubernetes for which the volume is created. A name is "" if it is
	// unknown. A name must have no effect on whether a repeated Create fits the existing volume: a
	// claim that is restored from a backup can have another name. Empty for an inline volume.
	Claim Claim
}

// Claim names a PersistentVolumeClaim and its PersistentVolume. The provisioner sends the names
// with --extra-create-metadata. Each consists of DNS labels (RFC 1123), as the API server verifies.
type Claim struct {
	Namespace string // namespace of the claim
	Name      string // name of the claim
	Volume    string // name of the PersistentVolume
}

// Access is a use of a volume: its volume capability and the maps of the request.
// CSI spec v1.13, VolumeCapability.
type Access struct {
	Block    bool     // The volume is used as a raw block device, without a filesystem.
	FSType   string   // Filesystem type. "": the backend chooses the type.
	Options  []string // Mount options. They may contain secrets.
	ReadOnly bool     // The volume is used read-only.

	// SharedWrite reports that the access mode lets several nodes use the volume at the same time
	// while at least one of them writes: MULTI_NODE_MULTI_WRITER or MULTI_NODE_SINGLE_WRITER.
	// Create, Restore and Clone return [ErrInvalid] for it if the volume is a disk with a
	// filesystem that only one node at a time can write (Mount returns a [mounter.BlockDevice] with
	// an FSType). With Block they accept it. Mount must not reject it: a node to which the disk is
	// attached read-only may mount the disk, and the driver rejects the call on every other node.
	// ReadOnly describes this use only and does not change SharedWrite. When the driver calls Mount
	// to look up a staged volume, there is no access mode and SharedWrite is false.
	SharedWrite bool

	// Context is [Volume.Context] as Create returned it, without the keys that Kubernetes reserves.
	// It may be incomplete.
	Context map[string]string

	// Secrets are the secrets of the request.
	Secrets map[string]string

	// PublishContext is the map that [Attacher.Attach] returned for this node, as the CO passes it
	// to NodeStageVolume and NodePublishVolume. The driver remembers the map for later calls about
	// a volume that is staged on this node. Nil for a volume that is not staged on this node,
	// and in a controller plugin. An Attacher with volumes that are disks of the node then returns
	// a [mounter.BlockDevice] without Source. A backend that is not an Attacher ignores
	// PublishContext.
	PublishContext map[string]string
}

// Volume describes a volume. CSI spec v1.13, Volume.
type Volume struct {
	ID         string            // Volume ID, at most 128 bytes.
	Size       int64             // Size in bytes.
	Parameters map[string]string // Parameters of the create call, completed with the defaults.
	Context    map[string]string // Volume context, which the CO passes to all later calls. Constant, without secrets.

	// Mutable are the present values of the mutable parameters, completed with the defaults. Only a
	// [Modifier] sets this field.
	Mutable map[string]string

	Inline         bool   // An [Inliner] created the volume for a single pod.
	SourceSnapshot string // ID of the snapshot from which the volume was restored. The snapshot may be deleted.
	SourceVolume   string // ID of the volume from which the volume was cloned. That volume may be deleted.

	// Nodes are the sorted IDs of the nodes to which the volume is attached. Only an [Attacher]
	// sets this field, in Get and List.
	Nodes []string
}

// Lister is a [Backend] that can list its volumes.
type Lister interface {
	// List returns up to limit volumes with an ID greater than after, in ascending order of their
	// IDs, and reports whether more volumes follow. As IDs are the position in the list, pages stay
	// correct while volumes are created and deleted. Inline volumes are not listed. CSI spec v1.13,
	// ListVolumes.
	List(ctx context.Context, after string, limit int) (volumes []Volume, more bool, err error)
}

// CapacityReporter is a [Backend] that knows its capacity.
type CapacityReporter interface {
	// Capacity returns the capacity for volumes that o describes. Capacity ignores o.Name,
	// o.Required and o.Limit. Space that is reserved for a volume is not available. If the backend
	// supports no volume of o.Access, it returns 0 bytes. Errors: [ErrInvalid]. CSI spec v1.13,
	// GetCapacity.
	Capacity(ctx context.Context, o CreateOptions) (Capacity, error)
}

// Capacity is space for new volumes. CSI spec v1.13, GetCapacity.
type Capacity struct {
	Available int64 // Bytes for all new volumes together.
	Maximum   int64 // Bytes for a single new volume.
}

// Expander is a [Backend] with volumes that can be expanded.
type Expander interface {
	// Expand makes the volume at least o.Required bytes large. Expand returns the new size in
	// bytes, and node reports whether the node must then grow the filesystem or device
	// ([mounter.Mounter.Grow]). Expand does not change a volume that is large enough, and never
	// shrinks a volume. Errors: [ErrNotFound], also for an inline volume; [ErrOutOfRange], also if
	// there is no space. That error is final, so that the user may ask for less. CSI spec v1.13,
	// ControllerExpandVolume.
	Expand(ctx context.Context, id string, o ExpandOptions) (size int64, node bool, err error)
}

// ExpandOptions is a ControllerExpandVolumeRequest that the driver has checked.
// CSI spec v1.13, ControllerExpandVolume.
type ExpandOptions struct {
	Required int64             // Least size in bytes. At least 1 if Limit is 0.
	Limit    int64             // Greatest size in bytes. 0: no limit. Otherwise at least Required.
	Secrets  map[string]string // Secrets of the request.
}

// Modifier is a [Backend] with parameters that can change while a volume is in use.
type Modifier interface {
	// Modify sets mutable parameters of the volume. parameters is not empty. Keys that are not in
	// parameters keep their values. The value "" resets a parameter to the value that the volume
	// would have if neither Modify nor [CreateOptions.Mutable] had ever named it: the value of its
	// Parameters, or the default. Modify applies all parameters durably, or returns an error and
	// applies none. Errors: [ErrNotFound], also for an inline volume; [ErrInvalid] for an unknown
	// key, an invalid value, or a value that this volume cannot have. CSI spec v1.13,
	// ControllerModifyVolume.
	Modify(ctx context.Context, id string, parameters, secrets map[string]string) error
}

// NodeLocal is a [Backend] with volumes that can be used on a single node only. Its volumes get the
// topology of that node, and the driver rejects access modes for many nodes. The IDs of its
// volumes, snapshots and groups must come from volumeid.New: a router reads from an ID which node
// has to serve the call. CSI spec v1.13, NodeGetInfo, accessible_topology.
type NodeLocal interface {
	// Node returns the name of the node.
	Node() string
}

// Inliner is a [Backend] that can create volumes with the lifetime of a pod. Kubernetes calls them
// CSI ephemeral volumes. The driver creates and deletes them in NodePublishVolume and
// NodeUnpublishVolume.
type Inliner interface {
	// CreateInline creates the volume with the volume ID handle, which the kubelet chooses. A
	// repeated call returns the volume of the first call. CreateInline ignores o.Name. The author
	// of the pod controls all fields of o. Get, Mount and [HealthReporter] find the volume by its
	// handle. Errors: those of Create; [ErrInvalid] for a handle without the kubelet's form, which
	// no ID of another volume may have.
	CreateInline(ctx context.Context, handle string, o CreateOptions) (Volume, error)

	// DeleteInline deletes the inline volume with this handle. DeleteInline returns nil and does
	// nothing for any other handle, even while the storage is unavailable: the driver calls it for
	// every volume that a pod gives up. Errors: [ErrInUse].
	DeleteInline(ctx context.Context, handle string) error
}

// Attacher is a [Backend] with volumes that must be attached to a node before the node can mount
// them, such as the disks of a cloud. It identifies a node by the ID that NodeGetInfo returns on
// that node. Both methods may run on any node.
type Attacher interface {
	// Attach makes the volume usable on o.Node. Attach returns the publish context, which Mount on
	// that node gets as [Access.PublishContext]. The publish context contains no secret, and a
	// repeated call returns the same map. For a disk it holds the serial number, by which Mount
	// finds the disk ([host.FindDevice]): the device name of a disk differs between nodes and
	// between boots. With o.Access.ReadOnly, Mount returns a read-only mount for this publish
	// context.
	//
	// Errors: [ErrNotFound] for an unknown volume, an inline volume and an unknown node;
	// [ErrExists] if the volume is attached to that node with another Capability or
	// Access.ReadOnly; [ErrInUse], with the ID of the other node, if the volume is attached to
	// another node and the two cannot share it; [ErrInvalid] if the volume does not support
	// o.Access; [ErrExhausted] if the node can take no more volumes. CSI spec v1.13,
	// ControllerPublishVolume.
	Attach(ctx context.Context, id string, o AttachOptions) (publishContext map[string]string, err error)

	// Detach detaches the volume from the node, or from all nodes if node is "". Detach returns nil
	// for a volume or node that is unknown or not attached. CSI spec v1.13,
	// ControllerUnpublishVolume.
	Detach(ctx context.Context, id, node string, secrets map[string]string) error
}

// AttachOptions is a ControllerPublishVolumeRequest. The driver has made every check that does not
// depend on the backend. CSI spec v1.13, ControllerPublishVolume.
type AttachOptions struct {
	// Node is the node_id of the request, unchecked. For an existing node it is volumeid.NodeID of
	// the flag --node-id of its node plugin.
	Node string

	// Access is the use of the volume on the node.
	Access Access

	// Capability identifies the volume capability: two strings are equal exactly if their
	// volume capabilities are equal. The string contains no secret.
	Capability string

	// ManyNodes reports that other nodes which also have ManyNodes may use the volume at the same
	// time.
	ManyNodes bool

	// OneWriter reports that at most one of those nodes may attach the volume without
	// Access.ReadOnly.
	OneWriter bool
}

// Limiter is an [Attacher] with nodes that take a limited number of volumes.
type Limiter interface {
	// NodeLimit returns the number of volumes that can be attached to this node at the same time.
	// 0 is no limit. Beyond it, Attach returns [ErrExhausted].
	// CSI spec v1.13, NodeGetInfo, max_volumes_per_node.
	NodeLimit() int64
}

// Prober is a [Backend] that may not be ready from the start.
type Prober interface {
	// Probe reports whether the backend serves calls. ready is false while the backend starts. The
	// error names the fault that a person has to repair, and wraps [ErrNotReady]. CSI spec v1.13,
	// Probe.
	Probe(ctx context.Context) (ready bool, err error)
}

// HealthReporter is a [Backend] that reports the health of its volumes and of its storage.
type HealthReporter interface {
	// Health returns the conditions of the volume, and none for a healthy volume. Errors:
	// [ErrNotFound]. CSI spec v1.13, ControllerGetVolumeHealth and NodeGetVolumeHealth.
	Health(ctx context.Context, id string) ([]Condition, error)

	// ListHealth returns up to limit unhealthy volumes with an ID greater than after, in ascending
	// order of their IDs, and reports whether more may follow. CSI spec v1.13,
	// ControllerListVolumeHealth.
	ListHealth(ctx context.Context, after string, limit int) (unhealthy []VolumeHealth, more bool, err error)

	// StorageHealth returns the conditions of the storage as a whole, as this node sees it. None of
	// them has the severity DataLoss. CSI spec v1.13, NodeGetStorageHealth.
	StorageHealth(ctx context.Context) ([]Condition, error)
}

// Reacher is a [Backend] with volumes that nodes mount from a server, such as shares. The health of
// a volume on a node is the reachability of its server: the driver calls Reach instead of the
// methods of a [HealthReporter], which serve the controller.
type Reacher interface {
	// Reach returns the conditions of the server of m, a Mount that is staged on this node, without
	// credentials. Reach asks the server, and never touches the mount: a call on a mount whose
	// server is silent does not return. Reach returns before the end of ctx. The driver calls Reach
	// for many mounts at the same time, so that a result is worth keeping for some seconds. CSI
	// spec v1.13, NodeGetVolumeHealth and NodeGetStorageHealth.
	Reach(ctx context.Context, m mounter.Mount) ([]Condition, error)
}

// Grouper is a [Backend] whose mounts give all files of a volume to a group, so that pods need no
// change of the ownership of each file (fsGroup of a pod).
type Grouper interface {
	// Owned returns m, a result of Mount, with options by which all files of the volume have the
	// group gid and its members can read and write them. CSI spec v1.13, VOLUME_MOUNT_GROUP.
	Owned(m mounter.Mount, gid uint32) (mounter.Mount, error)
}

// UsageReporter is a [Backend] that knows the usage of a volume where the filesystem of its mount
// cannot report it.
type UsageReporter interface {
	// Usage returns the capacity and usage of the volume in bytes and inodes. If known is false,
	// the driver reports the figures of the mounted filesystem instead. Errors: [ErrNotFound]. CSI
	// spec v1.13, NodeGetVolumeStats.
	Usage(ctx context.Context, id string) (usage mounter.Usage, known bool, err error)
}

// Severity is the severity of a [Condition].
type Severity int

const (
	// Degraded means that the volume is usable, but impaired.
	Degraded Severity = iota + 1

	// Inaccessible means that the volume is unusable. Its data may be intact.
	Inaccessible

	// DataLoss means that data is lost, or very likely lost.
	DataLoss
)

// Condition is a fault of a volume or of storage.
type Condition struct {
	Severity Severity // Severity of the fault.
	Reason   string   // A single word in CamelCase, for machines.
	Message  string   // For a person: the fault and the remedy.
}

// VolumeHealth is an unhealthy volume with its conditions.
type VolumeHealth struct {
	ID         string      // Volume ID.
	Conditions []Condition // Not empty. No two have the same Severity and Reason.
}

// MetricsSource is a [Backend] with metrics for Prometheus.
type MetricsSource interface {
	// Metrics returns the present values. The set of names and labels is constant. A metric that is
	// invalid, or has the name of a metric of the driver, is left out of /metrics, and logged.
	Metrics() []Metric
}

// Metric is a value for Prometheus. The driver adds its prefix to the name.
type Metric struct {
	Name    string // Name in snake_case with the unit at its end.
	Help    string // Help text of the metric.
	Counter bool   // The value only increases. Otherwise the metric is a gauge.

	// Labels is nil, or has a value for each label. All metrics with the same Name have the same
	// labels.
	Labels map[string]string

	Value float64 // Present value, in the unit of the name.
}
