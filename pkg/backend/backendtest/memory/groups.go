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

	// Of a part: see backend.Part.
	all     []string
	cut     string
	settled bool
}

// publicGroup returns g, if there is one, as others see it. b.mu must be held.
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
	g := &group{id: idOf("group-", o.Name), sources: slices.Sorted(slices.Values(o.Sources))}
	there, err := b.existing(g)
	if err != nil || there != nil {
		return b.publicGroup(there), err
	}
	members, err := b.cutAll(g)
	if err != nil {
		return backend.Group{}, err
	}
	b.form(g, members)
	return b.publicGroup(g), nil
}

// existing returns the group that has the ID of g, if there is one. Errors: ErrExists if that is of other volumes.
// b.mu must be held.
func (b *Backend) existing(g *group) (*group, error) {
	there := b.groups[g.id]
	if there != nil && !(slices.Equal(there.sources, g.sources) && slices.Equal(there.all, g.all)) {
		return nil, fmt.Errorf("%w: it is of the volumes %.128q, of %.128q in all", backend.ErrExists, there.sources, there.all)
	}
	return there, nil
}

// cutAll makes the members of g, which nobody sees yet, or none. b.mu must be held.
func (b *Backend) cutAll(g *group) (members []*snapshot, err error) {
	g.created = time.Now()
	for _, source := range g.sources {
		id := idOf("snap-", g.id+"\x00"+source) // which the name of no single snapshot can be
		s, err := b.cut(backend.Snapshot{ID: id, Source: source, Created: g.created, Group: g.id})
		if err != nil {
			b.discardAll(members)
			return nil, err
		}
		members = append(members, s)
	}
	return members, nil
}

// discardAll takes what cutAll made away. b.mu must be held.
func (b *Backend) discardAll(members []*snapshot) {
	for _, s := range members {
		b.forget(s)
	}
}

// form makes g the group of its members. b.mu must be held.
func (b *Backend) form(g *group, members []*snapshot) {
	for _, s := range members {
		b.snapshots[s.ID] = s
		g.members = append(g.members, s.ID)
	}
	slices.Sort(g.members)
	b.groups[g.id] = g
}

// dissolve takes a group and its members away. b.mu must be held.
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
		return b.idle(id)
	case err != nil:
		return err
	}
	b.dissolve(g)
	return nil
}
