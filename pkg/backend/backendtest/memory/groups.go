package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// group is a group snapshot, or a part of a group snapshot. Its members are in Backend.snapshots.
type group struct {
	id      string
	created time.Time
	sources []string // IDs of volumes, sorted
	members []string // IDs of snapshots, sorted

	// Only for a part: the fields of backend.Part.
	all       []string
	attemptID string
	committed bool
}

// publicGroup returns a description of g for a caller, and the zero value if g is nil. The caller
// holds b.mu.
func (b *Backend) publicGroup(g *group) backend.Group {
	if g == nil {
		return backend.Group{}
	}
	public := backend.Group{ID: g.id, Created: g.created}
	for _, id := range g.members {
		public.Snapshots = append(public.Snapshots, b.snapshots[id].Snapshot)
	}
	return public
}

// SnapshotGroup copies the content of the volumes. b.mu is locked during the copies, so no other
// call changes the volumes. The writes of pods continue. A backend for real pods must stop them
// until the last volume is copied. See [backend.GroupSnapshotter] for the errors. CSI spec v1.13,
// CreateVolumeGroupSnapshot.
func (b *Backend) SnapshotGroup(ctx context.Context, o backend.GroupOptions) (backend.Group, error) {
	if err := noParameters(o.Parameters); err != nil {
		return backend.Group{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Group{}, err
	}
	g := &group{id: idOf("group-", o.Name), sources: slices.Sorted(slices.Values(o.Sources))}
	found, err := b.existing(g)
	if err != nil || found != nil {
		return b.publicGroup(found), err
	}
	members, err := b.takeSnapshots(g)
	if err != nil {
		return backend.Group{}, err
	}
	b.form(g, members)
	return b.publicGroup(g), nil
}

// existing returns the group with the ID of g, or nil. The error is ErrExists if that group has
// other sources. The caller holds b.mu.
func (b *Backend) existing(g *group) (*group, error) {
	found := b.groups[g.id]
	if found != nil && !(slices.Equal(found.sources, g.sources) && slices.Equal(found.all, g.all)) {
		return nil, fmt.Errorf("%w: group %s has the volumes %.128q, of %.128q in all parts",
			backend.ErrExists, g.id, found.sources, found.all)
	}
	return found, nil
}

// takeSnapshots creates all members of g without adding them to b.snapshots. After an error there
// are none. The caller holds b.mu.
func (b *Backend) takeSnapshots(g *group) (members []*snapshot, err error) {
	g.created = time.Now()
	for _, source := range g.sources {
		id := idOf("snap-", g.id+"\x00"+source) // no name of a single snapshot contains \x00
		s, err := b.takeSnapshot(backend.Snapshot{ID: id, Source: source, Created: g.created, Group: g.id})
		if err != nil {
			b.discardAll(members)
			return nil, err
		}
		members = append(members, s)
	}
	return members, nil
}

// discardAll removes the snapshots that takeSnapshots created. The caller holds b.mu.
func (b *Backend) discardAll(members []*snapshot) {
	for _, s := range members {
		b.forget(s)
	}
}

// form adds g and its members to b. The caller holds b.mu.
func (b *Backend) form(g *group, members []*snapshot) {
	for _, s := range members {
		b.snapshots[s.ID] = s
		g.members = append(g.members, s.ID)
	}
	slices.Sort(g.members)
	b.groups[g.id] = g
}

// dissolve removes g and its members from b. The caller holds b.mu.
func (b *Backend) dissolve(g *group) {
	for _, id := range g.members {
		b.forget(b.snapshots[id])
	}
	delete(b.groups, g.id)
}

// findGroup returns the group with this ID, and ErrInvalid if snapshots is neither empty nor
// the members. The caller holds b.mu.
func (b *Backend) findGroup(id string, snapshots []string) (*group, error) {
	g, ok := b.groups[id]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: group %.128q", backend.ErrNotFound, id)
	case len(snapshots) > 0 && !slices.Equal(g.members, slices.Sorted(slices.Values(snapshots))):
		return nil, fmt.Errorf("%w: the members of the group are %q", backend.ErrInvalid, g.members)
	}
	return g, nil
}

// GetGroup returns the group snapshot. Errors: [backend.ErrNotFound], [backend.ErrInvalid].
// CSI spec v1.13, GetVolumeGroupSnapshot.
func (b *Backend) GetGroup(
	_ context.Context, id string, snapshots []string, _ map[string]string,
) (backend.Group, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findGroup(id, snapshots)
	if err != nil {
		return backend.Group{}, err
	}
	return b.publicGroup(g), nil
}

// DeleteGroup deletes the group snapshot and its members. DeleteGroup returns nil for an unknown
// ID. Errors: [backend.ErrInUse], [backend.ErrInvalid]. CSI spec v1.13, DeleteVolumeGroupSnapshot.
func (b *Backend) DeleteGroup(_ context.Context, id string, snapshots []string, _ map[string]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findGroup(id, snapshots)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return b.checkNotPending(id)
	case err != nil:
		return err
	}
	b.dissolve(g)
	return nil
}
