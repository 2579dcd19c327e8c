//go:build linux || windows

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// storage is a backend.Backend, and a Lister, Expander, Snapshotter, Cloner, Attacher and Limiter:
// the common part of drivers for attached disks. EDIT marks the parts that depend on the cloud.
type storage struct {
	cloud cloud  // nil on a node
	node  string // the name of this node
	limit int64  // of the disks on a node; 0: none
	find  finder // of the disks on this node
}

// A finder returns the device of a disk that is attached to this node: its path without links, its
// sequence number (see mounter.Mount), and whether the cloud attached it read-only. Errors:
// ErrPrecondition or mounter.ErrDevice if the node does not have the disk.
type finder func(ctx context.Context, serial, volume string) (path string, sequence uint64, readOnly bool, err error)

// findBy returns a finder for a function such as host.FindDevice. Whether a disk is read-only is
// then a property of the device, which the mounter reads.
func findBy(find func(ctx context.Context, serial string) (path string, sequence uint64, err error)) finder {
	return func(ctx context.Context, serial, _ string) (string, uint64, bool, error) {
		path, sequence, err := find(ctx, serial)
		return path, sequence, false, err
	}
}

// cloud is the interface of the driver to a cloud. Many goroutines call it, but one at a time for
// the changes of one ID. A check and the change that depends on it are a single call, so that
// nothing happens in between. After an error, the same call can be repeated. Every method can also
// return ErrUnavailable, if the call may have had its effect, and the error of ctx. The errors are
// those of package backend: the driver derives the status code from them.
type cloud interface {
	// CreateDisk creates the disk d.ID with d.Size, as a copy of d.SourceSnapshot or d.SourceVolume
	// if either is set. If the disk exists, CreateDisk returns it unchanged, also if it differs
	// from d. Errors: ErrNotFound for the source, ErrOutOfRange if the source is larger than
	// d.Size, ErrExhausted.
	CreateDisk(ctx context.Context, d disk) (disk, error)
	// Disk returns a disk. Errors: ErrNotFound.
	Disk(ctx context.Context, id string) (disk, error)
	// Disks returns up to limit disks with IDs above after, sorted, and whether there are more.
	Disks(ctx context.Context, after string, limit int) (disks []disk, more bool, err error)
	// DeleteDisk deletes a disk, if present. Errors: ErrInUse while the disk is attached.
	DeleteDisk(ctx context.Context, id string) error
	// GrowDisk makes a disk at least size bytes large, also on the nodes that have it. Errors:
	// ErrNotFound; ErrOutOfRange if there is no space.
	GrowDisk(ctx context.Context, id string, size int64) error
	// AttachDisk attaches a disk to a node. AttachDisk returns a or, if it is repeated, the a of
	// the first call, which may have another Size. Errors: ErrNotFound for the disk or the node,
	// ErrExists if the disk is attached to the node in another way, ErrInUse, with the name of
	// another node, if the two cannot share the disk, and ErrExhausted if the node has no slot for
	// a disk.
	AttachDisk(ctx context.Context, id, node string, a attachment) (attachment, error)
	// DetachDisk detaches a disk from a node, or from all nodes if node is "". An attachment or a
	// disk that does not exist is no error. Errors: ErrInUse while the node has the disk mounted.
	DetachDisk(ctx context.Context, id, node string) error

	// CreateSnapshot copies the disk source at a point in time. If the snapshot id exists,
	// CreateSnapshot returns it unchanged, also if it is of another disk. Errors: ErrNotFound,
	// ErrExhausted.
	CreateSnapshot(ctx context.Context, id, source string) (backend.Snapshot, error)
	// Snapshot returns a snapshot. Errors: ErrNotFound.
	Snapshot(ctx context.Context, id string) (backend.Snapshot, error)
	// Snapshots lists the snapshots of a disk, or all snapshots if source is "", as Disks lists
	// disks.
	Snapshots(ctx context.Context, source, after string, limit int) (snapshots []backend.Snapshot, more bool, err error)
	// DeleteSnapshot deletes a snapshot, if present. Disks that were made from it stay.
	DeleteSnapshot(ctx context.Context, id string) error

	// Close is called after the last call.
	Close() error
}

// disk is a disk as the cloud describes it. Nodes are those that have the disk now.
type disk struct {
	backend.Volume
	Serial string // as the node sees it; no other disk has it, ever
}

// attachment is how a disk is attached to a node. It is comparable. A cloud may keep it as a tag.
type attachment struct {
	Capability string `json:"capability"` // of CSI; attachments of a disk to one node must have the same
	ReadOnly   bool   `json:"readOnly"`
	ManyNodes  bool   `json:"manyNodes"` // other nodes with ManyNodes can have the disk, too
	OneWriter  bool   `json:"oneWriter"` // but only one of them without ReadOnly

	// Size is the size of the disk when it was attached, in bytes; 0: the cloud does not keep it.
	Size int64 `json:"size,omitempty"`
}

// EDIT: disks have sizes of up to largest, in multiples of unit, in bytes.
const unit, largest = 1 << 20, 16 << 40

// smallest has the least sizes of disks with a filesystem, in bytes; "" is none. mkfs refuses less.
var smallest = map[string]int64{"": unit, "ext4": 16 << 20, "xfs": 300 << 20, "btrfs": 256 << 20, "ntfs": 64 << 20}

// Keys of a publish context. A publish context of an earlier version of the driver has no size.
const serialKey, sizeKey = "serial", "size"

// Close is called after the last call.
func (s *storage) Close() error {
	if s.cloud == nil {
		return nil
	}
	return s.cloud.Close()
}

// idOf derives the ID of a disk or snapshot from its name: a repeated call finds the object of the
// first. EDIT: a cloud that chooses its IDs needs a tag or name with this text, and a search for
// it.
func idOf(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:20])
}

// Create makes a blank disk. The node that first mounts it makes its filesystem.
func (s *storage) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return s.create(ctx, o, backend.Volume{}, func() (int64, error) { return 0, nil })
}

// Restore makes a disk from a snapshot.
func (s *storage) Restore(ctx context.Context, snapshot string, o backend.CreateOptions) (backend.Volume, error) {
	return s.create(ctx, o, backend.Volume{SourceSnapshot: snapshot}, func() (int64, error) {
		n, err := s.cloud.Snapshot(ctx, snapshot)
		return n.Size, err
	})
}

// Clone makes a disk from the current content of another disk.
func (s *storage) Clone(ctx context.Context, source string, o backend.CreateOptions) (backend.Volume, error) {
	return s.create(ctx, o, backend.Volume{SourceVolume: source}, func() (int64, error) {
		d, err := s.cloud.Disk(ctx, source)
		return d.Size, err
	})
}

// create finds the disk of o.Name, or makes it from the source that v names. held returns the size
// of the source in bytes. The source may be deleted by the time that a call is repeated.
func (s *storage) create(ctx context.Context, o backend.CreateOptions, v backend.Volume,
	held func() (int64, error)) (backend.Volume, error) {
	least, err := leastSize(o)
	if err != nil {
		return v, err
	}
	v.ID = idOf("disk-", o.Name)
	d, err := s.cloud.Disk(ctx, v.ID)
	if errors.Is(err, backend.ErrNotFound) {
		if v.Size, err = sizeOfCopy(o, least, held); err == nil {
			d, err = s.cloud.CreateDisk(ctx, disk{Volume: v})
		}
	}
	if err != nil {
		return v, err
	}
	if d.SourceSnapshot != v.SourceSnapshot || d.SourceVolume != v.SourceVolume || d.Size < o.Required ||
		(o.Limit > 0 && d.Size > o.Limit) {
		return v, fmt.Errorf("%w: with %d bytes, from snapshot %q or volume %q", backend.ErrExists, d.Size,
			d.SourceSnapshot, d.SourceVolume)
	}
	return d.Volume, nil
}

// leastSize returns the least size of a disk that can be used as o describes, in bytes. Errors:
// ErrInvalid.
func leastSize(o backend.CreateOptions) (int64, error) {
	for key := range o.Parameters { // EDIT: read those of your storage classes
		return 0, fmt.Errorf("%w: unknown parameter %.64q, must be none", backend.ErrInvalid, key)
	}
	least := int64(unit)
	for _, a := range o.Access {
		m, err := mountOf(a)
		if err == nil && a.SharedWrite && m.FSType != "" {
			err = fmt.Errorf("%w: invalid access mode: several nodes cannot use the %s of a disk while one of them "+
				"writes: create the volume read-only, or as a block device", backend.ErrInvalid, m.FSType)
		}
		if err != nil {
			return 0, err
		}
		least = max(least, smallest[m.FSType])
	}
	return least, nil
}

// sizeOfCopy returns the size of a new disk, which is at least that of its source.
func sizeOfCopy(o backend.CreateOptions, least int64, held func() (int64, error)) (int64, error) {
	source, err := held()
	if err == nil && o.Required > 0 && o.Required < source {
		err = fmt.Errorf("%w: invalid size %d: must be at least %d", backend.ErrOutOfRange, o.Required, source)
	}
	if err != nil {
		return 0, err
	}
	return sizeOf(max(o.Required, least, source), o.Limit)
}

// sizeOf returns the size of a disk for so many bytes.
func sizeOf(required, limit int64) (int64, error) {
	if required > largest {
		return 0, fmt.Errorf("%w: invalid size %d: must be at most %d", backend.ErrOutOfRange, required, int64(largest))
	}
	size := (required + unit - 1) / unit * unit
	if limit > 0 && size > limit {
		return 0, fmt.Errorf("%w: invalid limit %d: the disk must have %d bytes", backend.ErrOutOfRange, limit, size)
	}
	return size, nil
}

// Get returns a volume.
func (s *storage) Get(ctx context.Context, id string, _ map[string]string) (backend.Volume, error) {
	d, err := s.cloud.Disk(ctx, id)
	return d.Volume, err
}

// Delete deletes a disk that is attached to no node.
func (s *storage) Delete(ctx context.Context, id string, _ map[string]string) error {
	return s.cloud.DeleteDisk(ctx, id)
}

// List returns volumes in the order of their IDs.
func (s *storage) List(ctx context.Context, after string, limit int) (volumes []backend.Volume, more bool, err error) {
	disks, more, err := s.cloud.Disks(ctx, after, limit)
	for _, d := range disks {
		volumes = append(volumes, d.Volume)
	}
	return volumes, more, err
}

// Expand grows a disk, also while it is attached. The node then grows the filesystem.
func (s *storage) Expand(ctx context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	d, err := s.cloud.Disk(ctx, id)
	if err != nil {
		return 0, false, err
	}
	if size, err = sizeOf(max(o.Required, d.Size), o.Limit); err != nil {
		return 0, false, err
	}
	return size, true, s.cloud.GrowDisk(ctx, id, size)
}

// Snapshot copies the current content of a disk.
func (s *storage) Snapshot(ctx context.Context, o backend.SnapshotOptions) (backend.Snapshot, error) {
	for key := range o.Parameters { // EDIT: read those of your snapshot classes
		return backend.Snapshot{}, fmt.Errorf("%w: unknown parameter %.64q, must be none", backend.ErrInvalid, key)
	}
	n, err := s.cloud.CreateSnapshot(ctx, idOf("snap-", o.Name), o.Source)
	if err == nil && n.Source != o.Source {
		err = fmt.Errorf("%w: of volume %.64q", backend.ErrExists, n.Source)
	}
	return n, err
}

// GetSnapshot returns a snapshot.
func (s *storage) GetSnapshot(ctx context.Context, id string, _ map[string]string) (backend.Snapshot, error) {
	return s.cloud.Snapshot(ctx, id)
}

// DeleteSnapshot deletes a snapshot. The disks that were made from it have copies of their own.
func (s *storage) DeleteSnapshot(ctx context.Context, id string, _ map[string]string) error {
	return s.cloud.DeleteSnapshot(ctx, id)
}

// ListSnapshots returns snapshots in the order of their IDs.
func (s *storage) ListSnapshots(ctx context.Context, source, after string,
	limit int) (snapshots []backend.Snapshot, more bool, err error) {
	return s.cloud.Snapshots(ctx, source, after, limit)
}

// NodeLimit returns how many disks a node takes. EDIT: it may depend on the type of the machine.
func (s *storage) NodeLimit() int64 { return s.limit }

// Attach attaches a disk to a node.
func (s *storage) Attach(ctx context.Context, id string, o backend.AttachOptions) (map[string]string, error) {
	if _, err := mountOf(o.Access); err != nil {
		return nil, err
	}
	d, err := s.cloud.Disk(ctx, id)
	if err != nil {
		return nil, err
	}
	a := attachment{Capability: o.Capability, ReadOnly: o.Access.ReadOnly, ManyNodes: o.ManyNodes,
		OneWriter: o.OneWriter, Size: d.Size}
	if a, err = s.cloud.AttachDisk(ctx, id, o.Node, a); err != nil {
		return nil, err
	}
	return publishContext(d.Serial, a.Size), nil
}

// publishContext returns the facts that a node needs about a disk: its serial number, and its least
// size in bytes. A disk never shrinks, so the size stays right when the disk grows, and the publish
// context stays the same: a node refuses to stage a volume again with another publish context.
func publishContext(serial string, size int64) map[string]string {
	c := map[string]string{serialKey: serial}
	if size > 0 {
		c[sizeKey] = strconv.FormatInt(size, 10)
	}
	return c
}

// readPublishContext is the reverse of publishContext. For nil it returns nothing. Errors:
// ErrInvalid.
func readPublishContext(c map[string]string) (serial string, size int64, err error) {
	for key, value := range c {
		switch key {
		case serialKey:
			serial = value
		case sizeKey:
			if size, err = strconv.ParseInt(value, 10, 64); err != nil || size <= 0 {
				return "", 0, fmt.Errorf("%w: invalid %s %.64q in the publish context: must be a number of bytes",
					backend.ErrInvalid, key, value)
			}
		default:
			return "", 0, fmt.Errorf("%w: unknown key %.64q in the publish context: must be %s or %s",
				backend.ErrInvalid, key, serialKey, sizeKey)
		}
	}
	if c != nil && serial == "" {
		return "", 0, fmt.Errorf("%w: the publish context has no %s", backend.ErrInvalid, serialKey)
	}
	return serial, size, nil
}

// Detach detaches a disk from a node, or from all.
func (s *storage) Detach(ctx context.Context, id, node string, _ map[string]string) error {
	return s.cloud.DetachDisk(ctx, id, node)
}

// Mount returns the disk of this node. A node has no cloud to ask: it looks for the serial number.
func (s *storage) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	m, err := mountOf(a)
	if err == nil {
		m.Serial, m.Size, err = readPublishContext(a.PublishContext)
	}
	if err != nil {
		return m, err
	}
	here := m.Serial != ""
	if s.cloud != nil {
		d, err := s.cloud.Disk(ctx, id)
		if err == nil && here && m.Serial != d.Serial {
			err = fmt.Errorf("%w: volume %s has another serial number", backend.ErrInvalid, id)
		}
		if err != nil {
			return m, err
		}
		here = here && slices.Contains(d.Nodes, s.node)
	}
	if !here {
		return m, nil
	}
	var readOnly bool
	m.Source, m.Sequence, readOnly, err = s.find(ctx, m.Serial, id)
	m.ReadOnly = m.ReadOnly || readOnly
	return m, err
}

// mountOf returns the mount of a disk, without the disk. Errors: ErrInvalid for a use that no disk
// can serve.
func mountOf(a backend.Access) (mounter.Mount, error) {
	m := mounter.Mount{Kind: mounter.BlockDevice, Options: a.Options, ReadOnly: a.ReadOnly}
	if !a.Block {
		m.FSType = cmp.Or(a.FSType, "ext4")
	}
	if len(a.Context) > 0 {
		return m, fmt.Errorf("%w: a volume has no context", backend.ErrInvalid)
	}
	if err := mounter.CheckOptions(m.Kind, m.FSType, a.Options); err != nil {
		return m, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return m, nil
}
