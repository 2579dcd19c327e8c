package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// snapshot is what there is of a snapshot.
type snapshot struct {
	backend.Snapshot
	data data
}

// source is what a volume was made from: the ID of a snapshot, of a volume, or nothing. What has the ID may be gone.
type source struct{ snapshot, volume string }

func (s source) String() string {
	switch {
	case s.snapshot != "":
		return fmt.Sprintf("snapshot %.128q", s.snapshot)
	case s.volume != "":
		return fmt.Sprintf("volume %.128q", s.volume)
	}
	return "nothing"
}

// contentOf returns what there is to copy from a source for a block device or a directory, and how many bytes a volume
// with it has at least. b.mu must be held.
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
		return data{}, 0, fmt.Errorf("%w: of a block device there can be block devices only, of a directory directories", backend.ErrInvalid)
	}
	return content, least, nil
}

// findSnapshot returns the snapshot with this ID. b.mu must be held.
func (b *Backend) findSnapshot(id string) (*snapshot, error) {
	s, ok := b.snapshots[id]
	if !ok {
		return nil, fmt.Errorf("%w: snapshot %.128q", backend.ErrNotFound, id)
	}
	return s, nil
}

// noParameters returns an error for parameters of a snapshot: here it has none.
func noParameters(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		return fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
	}
	return nil
}

// Snapshot copies what the volume holds.
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
			return backend.Snapshot{}, fmt.Errorf("%w: it is of volume %.128q", backend.ErrExists, s.Source)
		}
		return s.Snapshot, nil
	}
	s, err := b.cut(backend.Snapshot{ID: id, Source: o.Source, Created: time.Now()})
	if err != nil {
		return backend.Snapshot{}, err
	}
	b.snapshots[id] = s
	return s.Snapshot, nil
}

// cut makes the snapshot that s describes. b.mu must be held.
func (b *Backend) cut(s backend.Snapshot) (*snapshot, error) {
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

// GetSnapshot returns the snapshot.
func (b *Backend) GetSnapshot(_ context.Context, id string, _ map[string]string) (backend.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.findSnapshot(id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	return s.Snapshot, nil
}

// DeleteSnapshot forgets the snapshot.
func (b *Backend) DeleteSnapshot(_ context.Context, id string, _ map[string]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.snapshots[id]
	switch {
	case !ok:
		return nil
	case s.Group != "":
		return fmt.Errorf("%w: snapshot %s is a member of group %s, and is deleted with it", backend.ErrInvalid, id, s.Group)
	}
	b.forget(s)
	return nil
}

// forget takes a snapshot away. b.mu must be held.
func (b *Backend) forget(s *snapshot) {
	b.discard(s.data, s.Size)
	delete(b.snapshots, s.ID)
}

// ListSnapshots returns snapshots in the order of their IDs.
func (b *Backend) ListSnapshots(_ context.Context, source, after string, limit int) (snapshots []backend.Snapshot, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snapshots, more = page(b.snapshots, after, limit, func(s *snapshot) (backend.Snapshot, bool) {
		return s.Snapshot, source == "" || s.Source == source
	})
	return snapshots, more, nil
}

// Restore makes a volume with what the snapshot holds.
func (b *Backend) Restore(ctx context.Context, snapshot string, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, idOf("mem-", o.Name), o, &volume{from: source{snapshot: snapshot}})
}

// Clone makes a volume with what another one holds.
func (b *Backend) Clone(ctx context.Context, volumeID string, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, idOf("mem-", o.Name), o, &volume{from: source{volume: volumeID}})
}
