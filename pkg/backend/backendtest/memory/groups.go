package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// group is what there is of a group of snapshots. Its members are among the snapshots.
type group struct {
	id      string
	created time.Time
	sources []string // IDs of volumes, sorted
	members []string // IDs of snapshots, sorted
}

// publicGroup returns g as others see it. b.mu must be held.
func (b *Backend) publicGroup(g *group) backend.Group {
	public := backend.Group{ID: g.id, Created: g.created}
	for _, id := range g.members {
		public.Snapshots = append(public.Snapshots, b.snapshots[id].Snapshot)
	}
	return public
}

// SnapshotGroup copies what the volumes hold. For that long nobody else gets at them, as b.mu is held. Pods do: where
// there are some, their writes are held back until the last volume is cut.
func (b *Backend) SnapshotGroup(ctx context.Context, o backend.GroupOptions) (backend.Group, error) {
	if err := noParameters(o.Parameters); err != nil {
		return backend.Group{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Group{}, err
	}
	g := &group{id: idOf("group-", o.Name), created: time.Now(), sources: slices.Sorted(slices.Values(o.Sources))}
	if there, ok := b.groups[g.id]; ok {
		if !slices.Equal(there.sources, g.sources) {
			return backend.Group{}, fmt.Errorf("%w: it is of the volumes %.128q", backend.ErrExists, there.sources)
		}
		return b.publicGroup(there), nil
	}
	for _, source := range g.sources {
		id := idOf("snap-", o.Name+"\x00"+source) // which the name of no single snapshot can be
		s, err := b.cut(backend.Snapshot{ID: id, Source: source, Created: g.created, Group: g.id})
		if err != nil {
			b.dissolve(g)
			return backend.Group{}, err
		}
		b.snapshots[id] = s
		g.members = append(g.members, id)
	}
	slices.Sort(g.members)
	b.groups[g.id] = g
	return b.publicGroup(g), nil
}

// dissolve takes a group and its members away, all that there are. b.mu must be held.
func (b *Backend) dissolve(g *group) {
	for _, id := range g.members {
		b.forget(b.snapshots[id])
	}
	delete(b.groups, g.id)
}

// findGroup returns the group with this ID, if its members are snapshots or the caller says none. b.mu must be held.
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

// GetGroup returns the group.
func (b *Backend) GetGroup(_ context.Context, id string, snapshots []string, _ map[string]string) (backend.Group, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findGroup(id, snapshots)
	if err != nil {
		return backend.Group{}, err
	}
	return b.publicGroup(g), nil
}

// DeleteGroup forgets the group and its members.
func (b *Backend) DeleteGroup(_ context.Context, id string, snapshots []string, _ map[string]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findGroup(id, snapshots)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	b.dissolve(g)
	return nil
}
