//go:build linux

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// storage is a backend.Backend, and a Lister, Expander, Snapshotter, Cloner, Attacher and Limiter.
type storage struct {
	cloud *cloud   // nil on a node
	node  string   // the name of this node
	nodes []string // that the cloud knows; nil: any
	limit int64
}

// Disks have sizes of up to largest, in multiples of unit, in bytes.
const unit, largest = 1 << 20, 16 << 40

// smallest has the least sizes of disks with a filesystem, in bytes; "" is none. mkfs refuses less.
var smallest = map[string]int64{"": unit, "ext4": 16 << 20, "xfs": 300 << 20, "btrfs": 256 << 20}

// serialKey is the only key of a publish context.
const serialKey = "serial"

// Close is called after the last call.
func (s *storage) Close() error {
	if s.cloud == nil {
		return nil
	}
	return s.cloud.Close()
}

// idOf derives the ID of a disk or snapshot from its name: a call that is repeated finds what it made.
func idOf(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:20])
}

// Create makes a blank disk. The node that first mounts it makes its filesystem.
func (s *storage) Create(_ context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return s.create(o, &disk{}, func() (string, int64, error) { return "", 0, nil })
}

// Restore makes a disk from a snapshot.
func (s *storage) Restore(_ context.Context, snapshot string, o backend.CreateOptions) (backend.Volume, error) {
	return s.create(o, &disk{Snapshot: snapshot}, func() (string, int64, error) {
		n, err := find(s.cloud.snapshots, "snapshot", snapshot)
		if err != nil {
			return "", 0, err
		}
		return s.cloud.image(snapshotsDir, snapshot), n.Size, nil
	})
}

// Clone makes a disk from another one, as it is at one moment.
func (s *storage) Clone(_ context.Context, source string, o backend.CreateOptions) (backend.Volume, error) {
	return s.create(o, &disk{Origin: source}, func() (string, int64, error) {
		d, err := find(s.cloud.disks, "volume", source)
		if err != nil {
			return "", 0, err
		}
		return s.cloud.image(disksDir, source), d.size, nil
	})
}

// create finds the disk of o.Name, or makes d with what content returns: the path of an image and its
// size in bytes.
func (s *storage) create(o backend.CreateOptions, d *disk, content func() (image string, held int64, err error)) (backend.Volume, error) {
	for key := range o.Parameters {
		return backend.Volume{}, fmt.Errorf("%w: unknown parameter %.64q, must be none", backend.ErrInvalid, key)
	}
	least := int64(unit)
	for _, a := range o.Access {
		m, err := mountOf(a)
		if err == nil && a.SharedWrite && m.FSType != "" {
			err = fmt.Errorf("%w: invalid access mode: several nodes cannot use the %s of a disk while one of them writes: create the volume read-only, or as a block device", backend.ErrInvalid, m.FSType)
		}
		if err != nil {
			return backend.Volume{}, err
		}
		least = max(least, smallest[m.FSType])
	}
	c, id := s.cloud, idOf("disk-", o.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.disks[id]; ok {
		if old.Snapshot != d.Snapshot || old.Origin != d.Origin || old.size < o.Required || (o.Limit > 0 && old.size > o.Limit) {
			return backend.Volume{}, fmt.Errorf("%w: with %d bytes, from snapshot %q or volume %q", backend.ErrExists, old.size, old.Snapshot, old.Origin)
		}
		return old.public(id), c.settle(disksDir)
	}
	image, held, err := content()
	if err != nil {
		return backend.Volume{}, err
	}
	least = max(least, held)
	size, err := sizeOf(max(o.Required, least), o.Limit)
	if err == nil && o.Required > 0 && o.Required < held {
		err = fmt.Errorf("%w: invalid size %d: must be at least %d", backend.ErrOutOfRange, o.Required, held)
	}
	if err != nil {
		return backend.Volume{}, err
	}
	d.Serial, d.Attached, d.size = newSerial(), map[string]attachment{}, size
	if err := c.make(disksDir, id, d, image, size); err != nil {
		return backend.Volume{}, err
	}
	c.disks[id] = d
	return d.public(id), c.settle(disksDir)
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

// newSerial returns the serial number of a new disk: 20 bytes, as many as virtio shows.
func newSerial() string {
	return rand.Text()[:20]
}

// public returns the disk as the driver sees it.
func (d *disk) public(id string) backend.Volume {
	return backend.Volume{ID: id, Size: d.size, Snapshot: d.Snapshot, Origin: d.Origin, Nodes: slices.Sorted(maps.Keys(d.Attached))}
}

// find looks an object up by its ID. Errors: ErrNotFound.
func find[T any](all map[string]*T, what, id string) (*T, error) {
	found, ok := all[id]
	if !ok {
		return nil, fmt.Errorf("%w: %s %.64q", backend.ErrNotFound, what, id)
	}
	return found, nil
}

// Get returns a volume.
func (s *storage) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	d, err := find(s.cloud.disks, "volume", id)
	if err != nil {
		return backend.Volume{}, err
	}
	return d.public(id), nil
}

// Delete deletes a disk that is attached to no node.
func (s *storage) Delete(_ context.Context, id string, _ map[string]string) error {
	c := s.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.disks[id]
	if !ok {
		return c.settle(disksDir)
	}
	if len(d.Attached) > 0 {
		return fmt.Errorf("%w: volume %s is attached to %q", backend.ErrInUse, id, slices.Sorted(maps.Keys(d.Attached)))
	}
	if err := c.remove(disksDir, id); err != nil {
		return err
	}
	delete(c.disks, id)
	return nil
}

// List returns volumes in the order of their IDs.
func (s *storage) List(_ context.Context, after string, limit int) (volumes []backend.Volume, more bool, err error) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	ids, more := page(s.cloud.disks, after, limit, func(*disk) bool { return true })
	for _, id := range ids {
		volumes = append(volumes, s.cloud.disks[id].public(id))
	}
	return volumes, more, nil
}

// page returns up to limit IDs of matching objects, all above the ID after, and whether there are more.
func page[T any](all map[string]*T, after string, limit int, wanted func(*T) bool) (ids []string, more bool) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		switch {
		case id <= after || !wanted(all[id]):
		case len(ids) == limit:
			return ids, true
		default:
			ids = append(ids, id)
		}
	}
	return ids, false
}

// Expand grows a disk, also while it is attached. The node then grows the filesystem.
func (s *storage) Expand(_ context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	d, err := find(s.cloud.disks, "volume", id)
	if err != nil {
		return 0, false, err
	}
	if size, err = sizeOf(max(o.Required, d.size), o.Limit); err != nil {
		return 0, false, err
	}
	return size, true, s.cloud.grow(id, d, size)
}

// Snapshot copies a disk by reflink, as it is at one moment.
func (s *storage) Snapshot(_ context.Context, o backend.SnapshotOptions) (backend.Snapshot, error) {
	for key := range o.Parameters {
		return backend.Snapshot{}, fmt.Errorf("%w: unknown parameter %.64q, must be none", backend.ErrInvalid, key)
	}
	c, id := s.cloud, idOf("snap-", o.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.snapshots[id]; ok {
		if old.Source != o.Source {
			return backend.Snapshot{}, fmt.Errorf("%w: of volume %.64q", backend.ErrExists, old.Source)
		}
		return *old, c.settle(snapshotsDir)
	}
	d, err := find(c.disks, "volume", o.Source)
	if err != nil {
		return backend.Snapshot{}, err
	}
	n := &backend.Snapshot{ID: id, Source: o.Source, Size: d.size, Created: time.Now()}
	if err := c.make(snapshotsDir, id, n, c.image(disksDir, o.Source), d.size); err != nil {
		return backend.Snapshot{}, err
	}
	c.snapshots[id] = n
	return *n, c.settle(snapshotsDir)
}

// GetSnapshot returns a snapshot.
func (s *storage) GetSnapshot(_ context.Context, id string, _ map[string]string) (backend.Snapshot, error) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	n, err := find(s.cloud.snapshots, "snapshot", id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	return *n, nil
}

// DeleteSnapshot deletes a snapshot. The disks that were made from it have copies of their own.
func (s *storage) DeleteSnapshot(_ context.Context, id string, _ map[string]string) error {
	c := s.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.snapshots[id]; !ok {
		return c.settle(snapshotsDir)
	}
	if err := c.remove(snapshotsDir, id); err != nil {
		return err
	}
	delete(c.snapshots, id)
	return nil
}

// ListSnapshots returns snapshots in the order of their IDs.
func (s *storage) ListSnapshots(_ context.Context, source, after string, limit int) (snapshots []backend.Snapshot, more bool, err error) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	ids, more := page(s.cloud.snapshots, after, limit, func(n *backend.Snapshot) bool { return source == "" || n.Source == source })
	for _, id := range ids {
		snapshots = append(snapshots, *s.cloud.snapshots[id])
	}
	return snapshots, more, nil
}

// NodeLimit returns how many disks a node takes.
func (s *storage) NodeLimit() int64 { return s.limit }

// Attach attaches a disk to a node. The publish context is the serial number of the disk.
func (s *storage) Attach(_ context.Context, id string, o backend.AttachOptions) (map[string]string, error) {
	c := s.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	d, err := find(c.disks, "volume", id)
	if err != nil {
		return nil, err
	}
	if s.nodes != nil && !slices.Contains(s.nodes, o.Node) {
		return nil, fmt.Errorf("%w: node %.64q, must be one of %q", backend.ErrNotFound, o.Node, s.nodes)
	}
	if _, err := mountOf(o.Access); err != nil {
		return nil, err
	}
	a := attachment{Capability: o.Capability, ReadOnly: o.Access.ReadOnly, ManyNodes: o.ManyNodes, OneWriter: o.OneWriter}
	switch old, ok := d.Attached[o.Node]; {
	case ok && old != a:
		return nil, fmt.Errorf("%w: the disk is attached to node %q with another capability, or read-only on one side", backend.ErrExists, o.Node)
	case !ok:
		if err := d.shares(a); err != nil {
			return nil, err
		}
		if n := c.attachedTo(o.Node); s.limit > 0 && n >= s.limit {
			return nil, fmt.Errorf("%w: node %q has %d disks, must have at most %d", backend.ErrExhausted, o.Node, n, s.limit)
		}
	}
	return map[string]string{serialKey: d.Serial}, c.attach(id, d, o.Node, a)
}

// Detach detaches a disk from a node, or from all.
func (s *storage) Detach(_ context.Context, id, node string, _ map[string]string) error {
	d, nodes := s.attachments(id)
	for _, at := range nodes {
		if node == "" || node == at {
			if err := s.cloud.detach(id, d, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// attachments returns a disk, and the nodes to which it is attached: none if there is no such disk.
func (s *storage) attachments(id string) (*disk, []string) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	d, ok := s.cloud.disks[id]
	if !ok {
		return nil, nil
	}
	return d, slices.Sorted(maps.Keys(d.Attached))
}

// Mount returns the disk of this node. A node has no cloud to ask: it looks for the serial number.
func (s *storage) Mount(_ context.Context, id string, a backend.Access) (mounter.Mount, error) {
	m, err := mountOf(a)
	if err != nil {
		return m, err
	}
	serial := a.Attachment[serialKey]
	if a.Attachment != nil && (serial == "" || len(a.Attachment) != 1) {
		return m, fmt.Errorf("%w: the publish context must have the key %s alone", backend.ErrInvalid, serialKey)
	}
	here := true
	if s.cloud != nil {
		if here, err = s.known(id, serial); err != nil {
			return m, err
		}
	}
	m.Serial = serial
	if serial == "" || !here {
		return m, nil
	}
	readOnly := false
	m.Source, readOnly, err = findDisk(serial, id, s.node)
	m.ReadOnly = m.ReadOnly || readOnly
	return m, err
}

// known returns an error for a disk that the cloud does not have, or that has another serial number.
// here reports whether it is attached to this node.
func (s *storage) known(id, serial string) (here bool, err error) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()
	d, err := find(s.cloud.disks, "volume", id)
	if err == nil && serial != "" && serial != d.Serial {
		err = fmt.Errorf("%w: volume %s has another serial number", backend.ErrInvalid, id)
	}
	if err != nil {
		return false, err
	}
	_, here = d.Attached[s.node]
	return here, nil
}

// mountOf returns the mount of a disk, without the disk. Errors: ErrInvalid for a use that no disk can
// serve.
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
