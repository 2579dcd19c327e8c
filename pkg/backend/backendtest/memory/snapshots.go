package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// snapshot is a snapshot with its data.
type snapshot struct {
	backend.Snapshot
	data data
}

// source is the source of a volume: the ID of a snapshot or volume, which may be deleted. Both are
// empty for a volume without source.
type source struct{ snapshot, volume string }

func (s source) String() string {
	switch {
	case s.snapshot != "":
		return fmt.Sprintf("snapshot %.128q", s.snapshot)
	case s.volume != "":
		return fmt.Sprintf("volume %.128q", s.volume)
	}
	return "none"
}

// contentOf returns the data of a source and the least size in bytes of a volume from it. block
// reports whether the new volume is a block device. The caller holds b.mu.
func (b *Backend) contentOf(from source, block bool) (content data, least int64, err error) {
	switch {
	case from.snapshot != "":
		s, err := b.findSnapshot(from.snapshot)
		if err != nil {
			return data{}, 0, err
		}
		content, least = s.data, s.Size
	case from.volume != "":
		v, err := b.findPersistent(from.volume)
		if err != nil {
			return data{}, 0, err
		}
		content, least = v.data, v.size
	default:
		return data{}, 0, nil
	}
	if content.block != block {
		return data{}, 0, fmt.Errorf("%w: a block device and a directory cannot be copied to each other: %s",
			backend.ErrInvalid, from)
	}
	return content, least, nil
}

// findSnapshot returns the snapshot with this ID. The caller holds b.mu.
func (b *Backend) findSnapshot(id string) (*snapshot, error) {
	s, ok := b.snapshots[id]
	if !ok {
		return nil, fmt.Errorf("%w: snapshot %.128q", backend.ErrNotFound, id)
	}
	return s, nil
}

// noParameters returns ErrInvalid if parameters is not empty: snapshots of this backend have none.
func noParameters(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		return fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
	}
	return nil
}

// Snapshot copies the content of the volume. See [backend.Snapshotter] for the errors. CSI spec
// v1.13, CreateSnapshot.
func (b *Backend) Snapshot(ctx context.Context, o backend.SnapshotOptions) (backend.Snapshot, error) {
	if err := noParameters(o.Parameters); err != nil {
		return backend.Snapshot{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Snapshot{}, err
	}
	id := idOf("snap-", o.Name)
	if s, ok := b.snapshots[id]; ok {
		if s.Source != o.Source {
			return backend.Snapshot{}, fmt.Errorf("%w: snapshot %s has source volume %.128q",
				backend.ErrExists, id, s.Source)
		}
		return s.Snapshot, nil
	}
	s, err := b.takeSnapshot(backend.Snapshot{ID: id, Source: o.Source, Created: time.Now()})
	if err != nil {
		return backend.Snapshot{}, err
	}
	b.snapshots[id] = s
	return s.Snapshot, nil
}

// takeSnapshot creates the snapshot that s describes, without adding it to b.snapshots. The caller
// holds b.mu.
func (b *Backend) takeSnapshot(s backend.Snapshot) (*snapshot, error) {
	v, err := b.findPersistent(s.Source)
	if err != nil {
		return nil, err
	}
	d, err := b.newData(v.data, v.data.block, v.size)
	if err != nil {
		return nil, err
	}
	s.Size = v.size
	return &snapshot{Snapshot: s, data: d}, nil
}

// GetSnapshot returns the snapshot. Errors: [backend.ErrNotFound]. CSI spec v1.13, GetSnapshot.
func (b *Backend) GetSnapshot(_ context.Context, id string, _ map[string]string) (backend.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.findSnapshot(id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	return s.Snapshot, nil
}

// DeleteSnapshot deletes the snapshot. DeleteSnapshot returns nil for an unknown ID. Errors:
// [backend.ErrInvalid] for a member of a group. CSI spec v1.13, DeleteSnapshot.
func (b *Backend) DeleteSnapshot(_ context.Context, id string, _ map[string]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.snapshots[id]
	switch {
	case !ok:
		return nil
	case s.Group != "":
		return fmt.Errorf("%w: snapshot %s is a member of group %s: delete the group instead",
			backend.ErrInvalid, id, s.Group)
	}
	b.forget(s)
	return nil
}

// forget removes a snapshot and its data. The caller holds b.mu.
func (b *Backend) forget(s *snapshot) {
	b.discard(s.data, s.Size)
	delete(b.snapshots, s.ID)
}

// ListSnapshots lists snapshots in the order of their IDs. See [backend.Snapshotter]. CSI spec
// v1.13, ListSnapshots.
func (b *Backend) ListSnapshots(
	_ context.Context, source, after string, limit int,
) (snapshots []backend.Snapshot, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snapshots, more = page(b.snapshots, after, limit, func(s *snapshot) (backend.Snapshot, bool) {
		return s.Snapshot, source == "" || s.Source == source
	})
	return snapshots, more, nil
}

// Restore creates a volume with the content of the snapshot. See [backend.Snapshotter] for the
// errors. CSI spec v1.13, CreateVolume.
func (b *Backend) Restore(ctx context.Context, snapshot string, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, idOf("mem-", o.Name), o, &volume{from: source{snapshot: snapshot}})
}

// Clone creates a volume with the content of another volume. See [backend.Cloner] for the errors.
// CSI spec v1.13, CreateVolume.
func (b *Backend) Clone(ctx context.Context, volumeID string, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, idOf("mem-", o.Name), o, &volume{from: source{volume: volumeID}})
}
