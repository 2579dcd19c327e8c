package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// SnapshotPart copies what the volumes hold between its two questions. As b.mu can't be held while others answer, what is
// being made is in b.making, which keeps its volumes from being deleted. Here nobody writes to a volume but pods, who
// aren't held back, as in SnapshotGroup.
func (b *Backend) SnapshotPart(ctx context.Context, o backend.PartOptions) (backend.Part, error) {
	if err := cmp.Or(o.Check(), noParameters(o.Parameters)); err != nil {
		return backend.Part{}, err
	}
	g := &group{
		id: idOf("part-", o.Name), sources: slices.Sorted(slices.Values(o.Sources)),
		all: slices.Clone(o.All), cut: o.Cut,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Part{}, err
	}
	there, err := b.existing(g)
	switch {
	case b.making[g.id] != nil:
		return backend.Part{}, fmt.Errorf("%w: it is being made by another call", backend.ErrBusy)
	case err != nil:
		return backend.Part{}, err
	case there != nil:
		return b.publicPart(there), nil
	}
	for _, source := range g.sources {
		if _, err := b.findPersistent(source); err != nil {
			return backend.Part{}, err
		}
	}
	b.making[g.id] = g
	defer delete(b.making, g.id)
	if err := b.asked(ctx, o.Frozen); err != nil {
		return backend.Part{}, err
	}
	members, err := b.cutAll(g)
	if err != nil {
		return backend.Part{}, err
	}
	if err := b.asked(ctx, o.Durable); err != nil {
		b.discardAll(members)
		return backend.Part{}, err
	}
	b.form(g, members)
	return b.publicPart(g), nil
}

// asked returns what hook says, if there is one, or why ctx has ended. b.mu must be held, and isn't while hook is called.
func (b *Backend) asked(ctx context.Context, hook func(context.Context) error) error {
	if hook != nil {
		b.mu.Unlock()
		defer b.mu.Lock()
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// idle returns ErrInUse if the part with this ID is being made. b.mu must be held.
func (b *Backend) idle(id string) error {
	if b.making[id] != nil {
		return fmt.Errorf("%w: group %s is being made", backend.ErrInUse, id)
	}
	return nil
}

// uncut returns ErrInUse if a part is being made of the volume. b.mu must be held.
func (b *Backend) uncut(volume string) error {
	for _, g := range b.making {
		if slices.Contains(g.sources, volume) {
			return fmt.Errorf("%w: group %s is being made of volume %s", backend.ErrInUse, g.id, volume)
		}
	}
	return nil
}

// publicPart returns g as others see it. b.mu must be held.
func (b *Backend) publicPart(g *group) backend.Part {
	return backend.Part{Group: b.publicGroup(g), All: slices.Clone(g.all), Cut: g.cut, Settled: g.settled}
}

// findPart returns the part of the group with this ID. b.mu must be held.
func (b *Backend) findPart(id string) (*group, error) {
	g, err := b.findGroup(id, nil)
	if err == nil && g.cut == "" {
		return nil, fmt.Errorf("%w: group %.128q has no parts", backend.ErrNotFound, id)
	}
	return g, err
}

// findCut returns the same, if the part is of that cut. Errors: ErrPrecondition. b.mu must be held.
func (b *Backend) findCut(id, cut string) (*group, error) {
	g, err := b.findPart(id)
	if err == nil && g.cut != cut {
		return nil, fmt.Errorf("%w: it is of the cut %.64q, not of %.64q", backend.ErrPrecondition, g.cut, cut)
	}
	return g, err
}

// GetPart returns the part.
func (b *Backend) GetPart(_ context.Context, id string) (backend.Part, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findPart(id)
	if err != nil {
		return backend.Part{}, err
	}
	return b.publicPart(g), nil
}

// SettlePart marks the part.
func (b *Backend) SettlePart(_ context.Context, id, cut string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findCut(id, cut)
	if err != nil {
		return err
	}
	g.settled = true
	return nil
}

// DiscardPart forgets the part and its members.
func (b *Backend) DiscardPart(_ context.Context, id, cut string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findCut(id, cut)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return b.idle(id)
	case err != nil:
		return err
	case g.settled:
		return fmt.Errorf("%w: the part is settled, and deleted with its group only", backend.ErrPrecondition)
	}
	b.dissolve(g)
	return nil
}
