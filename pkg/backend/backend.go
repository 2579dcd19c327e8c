// Package backend is the contract between CSI and storage. A backend implements Backend, and as many of the optional
// interfaces as its storage can: having the method is having the capability, and the driver reads what it advertises
// off the type. So a backend must not be wrapped, which would hide methods.
//
// What holds for every method, and is held against a backend by backendtest:
//   - It may be called by many goroutines. For one ID the driver makes one changing call at a time, and one Create for
//     one name; but a Create may run beside the Delete of that volume. Snapshots and groups alike. The source of a
//     Restore, Clone or Snapshot is not locked: other calls may change or delete it meanwhile.
//   - It may be called again with the same arguments after any outcome, even a crash, and then finishes the job or
//     finds it done.
//   - An error other than ErrBusy, ErrUnavailable or the context's means that the call has left nothing: to Kubernetes
//     it is final, and whatever were left would be leaked (CSI spec v1.13, error scheme).
//   - IDs, names and parameters are strangers' input. Secrets never appear in an error or a record.
package backend

import (
	"context"
	"errors"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Errors that a backend returns wrapped, with what was tried and on what. The driver turns each into a status code;
// any other error is INTERNAL.
var (
	ErrNotFound    = errors.New("not found")          // no volume or snapshot with that ID, or no node
	ErrExists      = errors.New("exists already")     // a volume with that name, or an attachment, and other properties
	ErrInvalid     = errors.New("invalid argument")   // never right here, whatever the state
	ErrInUse       = errors.New("in use")             // so it can't be deleted, or attached to one more node
	ErrExhausted   = errors.New("no room")            // not here and now; another node may have it
	ErrOutOfRange  = errors.New("out of range")       // a size, or an offset
	ErrBusy        = errors.New("operation pending")  // the same volume is being worked on
	ErrUnavailable = errors.New("not available now")  // the storage does not answer, or the outcome is unknown: the call is repeated
	ErrNotReady    = errors.New("storage not usable") // and won't be until a person acts

	// ErrPrecondition: right, but not while things are as they are; the message says which would have to change.
	ErrPrecondition = errors.New("precondition not met")
)

// Backend is what every kind of storage has.
type Backend interface {
	// Create makes the volume of o.Name, or finds the one that an earlier call made. It returns when the volume is
	// durable. Errors: ErrExists if the one it finds doesn't fit o, ErrInvalid, ErrExhausted, ErrOutOfRange.
	// CSI spec v1.13, CreateVolume.
	Create(ctx context.Context, o CreateOptions) (Volume, error)

	// Get returns the volume, from CreateVolume or inline. Errors: ErrNotFound, for malformed IDs too.
	Get(ctx context.Context, id string, secrets map[string]string) (Volume, error)

	// Delete deletes a volume that Create made. An ID that is unknown or malformed is no error. It doesn't wait until
	// the space is free again. Errors: ErrInUse while a volume of NodeLocal storage is mounted on this machine, or one
	// of an Attacher is attached, in which case it is untouched. CSI spec v1.13, DeleteVolume.
	Delete(ctx context.Context, id string, secrets map[string]string) error

	// Mount says what to mount so that the volume can be used as a says. It changes nothing. The driver asks before
	// each stage and publish, and to find out whether the volume supports a use. Errors: ErrNotFound, ErrInvalid for
	// a use that the volume can't serve, and for a context or an attachment that isn't the volume's.
	Mount(ctx context.Context, id string, a Access) (mounter.Mount, error)
}

// CreateOptions is a CreateVolumeRequest that the driver has checked as far as that doesn't depend on the backend.
type CreateOptions struct {
	Name       string            // 1 to 128 bytes, no control characters but \t, \n and \r; not a path
	Required   int64             // bytes; 0: the backend's choice
	Limit      int64             // bytes; 0: none, else at least Required
	Access     []Access          // every use that must be possible, at least one
	Parameters map[string]string // without the keys that Kubernetes reserves; unknown ones are ErrInvalid
	Mutable    map[string]string // of a Modifier, in the same form: what Modify can change. They override Parameters
	Secrets    map[string]string

	// Namespace is that of the claim or the pod, or "" where it is not known. It tells tenants
	// apart for fair shares of a limited resource, and counts for nothing else.
	Namespace string
}

// Access is one use of a volume. CSI spec v1.13, VolumeCapability.
type Access struct {
	Block    bool     // the device itself, not a filesystem
	FSType   string   // "": the backend's choice
	Options  []string // mount options; may hold secrets
	ReadOnly bool

	// SharedWrite reports that the access mode lets several nodes use the volume at the same time while
	// at least one of them writes: MULTI_NODE_MULTI_WRITER or MULTI_NODE_SINGLE_WRITER. Create, Restore
	// and Clone return ErrInvalid for it if the volume is a disk whose filesystem only one node at a
	// time can write (Mount returns a mounter.BlockDevice with an FSType). With Block they accept it.
	// Mount must not refuse it: a node to which the disk is attached read-only may mount it, and the
	// driver refuses every other node. ReadOnly is of one use, and does not change SharedWrite. A use
	// that the driver makes up, to ask about a staged volume, has no access mode: SharedWrite is false.
	SharedWrite bool

	Context map[string]string // what Volume.Context was, without the keys that Kubernetes reserves; may be incomplete
	Secrets map[string]string

	// PublishContext is what Attach returned for this node, as the CO passes it to NodeStageVolume and
	// NodePublishVolume. The driver remembers it for other questions about a volume that is staged
	// here. It is nil for a volume that is not staged here, and in a controller: then an Attacher
	// whose volumes are disks of the node returns a mounter.BlockDevice without Source. To a backend
	// that does not attach, it means nothing.
	PublishContext map[string]string
}

// Volume is what is known of a volume.
type Volume struct {
	ID         string            // at most 128 bytes
	Size       int64             // bytes
	Parameters map[string]string // that it was made with, defaults filled in
	Context    map[string]string // handed to every later use by the CO; never changes, holds no secrets
	Mutable    map[string]string // of a Modifier: what can be changed, as it is now, defaults filled in
	Inline     bool              // made by Inliner, for one pod
	SourceSnapshot   string            // ID of the snapshot that it was made from; it may be gone
	SourceVolume     string            // ID of the volume that it was cloned from; it may be gone
	Nodes      []string          // of an Attacher: IDs of the nodes that it is attached to, sorted; from Get and List
}

// Lister is a Backend that can enumerate its volumes.
type Lister interface {
	// List returns up to limit volumes with IDs above after, in the order of their IDs, and whether there are more.
	// Inline volumes are not listed. So pages stay right while volumes come and go. CSI spec v1.13, ListVolumes.
	List(ctx context.Context, after string, limit int) (volumes []Volume, more bool, err error)
}

// CapacityReporter is a Backend that knows how much room it has.
type CapacityReporter interface {
	// Capacity returns how much room is left for volumes such as o describes; Name, Required and Limit don't count.
	// Room that was promised to a volume is not left. What can't be served at all has 0 bytes. Errors: ErrInvalid.
	// CSI spec v1.13, GetCapacity.
	Capacity(ctx context.Context, o CreateOptions) (Capacity, error)
}

// Capacity is room for volumes, in bytes.
type Capacity struct {
	Available int64 // for all new volumes together
	Maximum   int64 // for one new volume
}

// Expander is a Backend whose volumes can grow.
type Expander interface {
	// Expand makes the volume at least o.Required bytes large, and returns how large it is then and whether the node
	// has to grow what is on it (mounter.Mounter.Grow). A volume that is large enough is left as it is: none ever
	// shrinks. Errors: ErrNotFound, for inline volumes too, and ErrOutOfRange, also where there is no room: that is
	// final, and the user may ask for less. CSI spec v1.13, ControllerExpandVolume.
	Expand(ctx context.Context, id string, o ExpandOptions) (size int64, node bool, err error)
}

// ExpandOptions is a ControllerExpandVolumeRequest that the driver has checked.
type ExpandOptions struct {
	Required int64 // bytes; at least 1 if Limit is 0
	Limit    int64 // bytes; 0: none, else at least Required
	Secrets  map[string]string
}

// Modifier is a Backend whose volumes have parameters that can change while they are used.
type Modifier interface {
	// Modify gives the volume's mutable parameters these values, of which there is at least one. Those that aren't named
	// stay as they are; "" is what the volume would have if neither Modify nor CreateOptions.Mutable had ever named it:
	// what its Parameters say, or the default. All of them are applied, durably, or after an error none. Errors:
	// ErrNotFound, for inline volumes too; ErrInvalid for a key, a value, or one that this volume can't have.
	// CSI spec v1.13, ControllerModifyVolume.
	Modify(ctx context.Context, id string, parameters, secrets map[string]string) error
}

// NodeLocal is a Backend whose volumes can be used on one node only: they get that node's topology, and access modes
// for many nodes are refused. The IDs of its volumes, snapshots and groups are those that volumeid.New makes: by them
// a router tells which node a call is for.
type NodeLocal interface {
	// Node returns the name of the node.
	Node() string
}

// Inliner is a Backend that can make volumes which live as long as one pod (Kubernetes: CSI ephemeral volumes).
type Inliner interface {
	// CreateInline makes the volume that the kubelet calls handle, or finds it. o.Name is not used. Everything in o
	// comes from the author of the pod. Get, Mount and HealthReporter then know the volume by its handle. Errors: as Create,
	// and ErrInvalid for a handle that isn't the kubelet's: no ID of another volume can be one.
	CreateInline(ctx context.Context, handle string, o CreateOptions) (Volume, error)

	// DeleteInline deletes it. A handle that isn't one of an inline volume is no error, and nothing is done, even
	// while the storage is away: every volume that a pod gives up gets here. Errors: ErrInUse.
	DeleteInline(ctx context.Context, handle string) error
}

// Attacher is a Backend whose volumes must be attached to a node before they can be mounted there, as the disks of a
// cloud. It knows the nodes by the IDs that NodeGetInfo returns on them. Both methods may run on any node.
type Attacher interface {
	// Attach makes the volume usable on o.Node and returns what Mount gets there as Access.PublishContext:
	// nothing secret, and the same when it is called again. Of a disk that is the serial number, by
	// which Mount finds the disk (mounter.FindDevice): the name of a disk is another one on each node
	// and after each boot. With o.Access.ReadOnly, what Mount says for it is read-only.
	// Errors: ErrNotFound for an unknown volume, an inline one and an unknown node; ErrExists if the volume is on that
	// node already, but with another Capability or Access.ReadOnly; ErrInUse, with the ID of another node, if it is
	// there and the two can't share it; ErrInvalid for a use that the volume can't serve; ErrExhausted if the node
	// can take no more volumes. CSI spec v1.13, ControllerPublishVolume.
	Attach(ctx context.Context, id string, o AttachOptions) (attachment map[string]string, err error)

	// Detach takes the volume off the node, or off all nodes if node is "". What isn't attached, or not known at all, is
	// no error. CSI spec v1.13, ControllerUnpublishVolume.
	Detach(ctx context.Context, id, node string, secrets map[string]string) error
}

// AttachOptions is a ControllerPublishVolumeRequest that the driver has checked as far as that doesn't depend on the
// backend.
type AttachOptions struct {
	Node       string // node_id of the request, unchecked. That of a node is volumeid.NodeID of its --node-id
	Access     Access // how the volume will be used there
	Capability string // stands for the volume capability: two are equal exactly if their capabilities are; nothing secret
	ManyNodes  bool   // the volume may be on other nodes too that have it with ManyNodes
	OneWriter  bool   // but only one of all these may have it without Access.ReadOnly
}

// Limiter is an Attacher whose nodes take a limited number of volumes.
type Limiter interface {
	// NodeLimit returns how many volumes can be attached to this node at the same time. 0 is any number. Beyond it
	// Attach returns ErrExhausted. CSI spec v1.13, NodeGetInfo.
	NodeLimit() int64
}

// Prober is a Backend that may not be ready from the start.
type Prober interface {
	// Probe reports whether the backend serves calls. ready is false while it is starting; an error says what a
	// person has to mend, and wraps ErrNotReady. CSI spec v1.13, Probe.
	Probe(ctx context.Context) (ready bool, err error)
}

// HealthReporter is a Backend that can tell what is wrong with its volumes. CSI spec v1.13, the health RPCs.
type HealthReporter interface {
	// Health returns what is wrong with the volume: nothing, if it is well. Errors: ErrNotFound.
	Health(ctx context.Context, id string) ([]Condition, error)

	// ListHealth returns up to limit volumes that aren't well, with IDs above after, in order, and whether there may
	// be more.
	ListHealth(ctx context.Context, after string, limit int) (sick []VolumeHealth, more bool, err error)

	// StorageHealth returns what is wrong with the storage as a whole, as this node sees it. DataLoss is none of it.
	StorageHealth(ctx context.Context) ([]Condition, error)
}

// UsageReporter is a Backend that can tell how full a volume is where its mount can't.
type UsageReporter interface {
	// Usage returns how full the volume is. If known is false, what its mount shows counts. Errors: ErrNotFound.
	// CSI spec v1.13, NodeGetVolumeStats.
	Usage(ctx context.Context, id string) (usage mounter.Usage, known bool, err error)
}

// Severity is how bad a Condition is.
type Severity int

const (
	Degraded     Severity = iota + 1 // usable, but not as it should be
	Inaccessible                     // not usable; the data may be there
	DataLoss                         // data is lost, or very likely so
)

// Condition is one thing that is wrong.
type Condition struct {
	Severity Severity
	Reason   string // one word in CamelCase, for machines
	Message  string // for a person: what, and what to do
}

// VolumeHealth is a volume with what is wrong with it.
type VolumeHealth struct {
	ID         string
	Conditions []Condition // at least one; no two with the same Severity and Reason
}

// MetricsSource is a Backend that counts things for Prometheus.
type MetricsSource interface {
	// Metrics returns the present values. The set of names and labels is always the same.
	Metrics() []Metric
}

// Metric is one value. Its name gets the driver's prefix.
type Metric struct {
	Name    string // snake_case with its unit at the end
	Help    string
	Counter bool              // it only grows; else a gauge
	Labels  map[string]string // nil, or a value for each label; all Metrics of a Name have the same labels
	Value   float64
}
