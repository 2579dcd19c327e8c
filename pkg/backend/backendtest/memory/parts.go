package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// SnapshotPart copies the content of the volumes between the calls of o.Frozen and o.Durable. b.mu
// is unlocked during these calls. An entry in b.making then protects the volumes from deletion. As
// in SnapshotGroup, nothing stops the writes of pods. See [backend.PartSnapshotter] for the errors.
func (b *Backend) SnapshotPart(ctx context.Context, o backend.PartOptions) (backend.Part, error) {
	if err := cmp.Or(o.Check(), noParameters(o.Parameters)); err != nil {
		return backend.Part{}, err
	}
	g := &group{
		id: idOf("part-", o.Name), sources: slices.Sorted(slices.Values(o.Sources)),
		all: slices.Clone(o.All), attemptID: o.AttemptID,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Part{}, err
	}
	found, err := b.existing(g)
	switch {
	case b.making[g.id] != nil:
		return backend.Part{}, fmt.Errorf("%w: another call is creating group %s", backend.ErrBusy, g.id)
	case err != nil:
		return backend.Part{}, err
	case found != nil:
		return b.publicPart(found), nil
	}
	for _, source := range g.sources {
		if _, err := b.findPersistent(source); err != nil {
			return backend.Part{}, err
		}
	}
	b.making[g.id] = g
	defer delete(b.making, g.id)
	if err := b.callHook(ctx, o.Frozen); err != nil {
		return backend.Part{}, err
	}
	members, err := b.takeSnapshots(g)
	if err != nil {
		return backend.Part{}, err
	}
	if err := b.callHook(ctx, o.Durable); err != nil {
		b.discardAll(members)
		return backend.Part{}, err
	}
	b.form(g, members)
	return b.publicPart(g), nil
}

// callHook calls hook, unless it is nil, and returns its error or else that of ctx. The caller
// holds b.mu. callHook releases b.mu while hook runs.
func (b *Backend) callHook(ctx context.Context, hook func(context.Context) error) error {
	if hook != nil {
		b.mu.Unlock()
		defer b.mu.Lock()
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// checkNotPending returns ErrInUse while a call creates the part with this ID. The caller holds
// b.mu.
func (b *Backend) checkNotPending(id string) error {
	if b.making[id] != nil {
		return fmt.Errorf("%w: a call is creating group %s", backend.ErrInUse, id)
	}
	return nil
}

// checkNotInPart returns ErrInUse while a call creates a part from the volume. The caller holds
// b.mu.
func (b *Backend) checkNotInPart(volume string) error {
	for _, g := range b.making {
		if slices.Contains(g.sources, volume) {
			return fmt.Errorf("%w: a call is creating group %s from volume %s", backend.ErrInUse, g.id, volume)
		}
	}
	return nil
}

// publicPart returns a description of g for a caller. The caller holds b.mu.
func (b *Backend) publicPart(g *group) backend.Part {
	return backend.Part{Group: b.publicGroup(g), All: slices.Clone(g.all), AttemptID: g.attemptID,
		Committed: g.committed}
}

// findPart returns the part of the group with this ID. The caller holds b.mu.
func (b *Backend) findPart(id string) (*group, error) {
	g, err := b.findGroup(id, nil)
	if err == nil && g.attemptID == "" {
		return nil, fmt.Errorf("%w: group %.128q has no parts", backend.ErrNotFound, id)
	}
	return g, err
}

// findPartWithCut returns the part of the group with this ID, and ErrPrecondition if the
// part has another attempt ID. The caller holds b.mu.
func (b *Backend) findPartOfAttempt(id, attemptID string) (*group, error) {
	g, err := b.findPart(id)
	if err == nil && g.attemptID != attemptID {
		return nil, fmt.Errorf("%w: the part has the attempt ID %.64q, not %.64q", backend.ErrPrecondition,
			g.attemptID, attemptID)
	}
	return g, err
}

// GetPart returns the part. Errors: [backend.ErrNotFound].
func (b *Backend) GetPart(_ context.Context, id string) (backend.Part, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findPart(id)
	if err != nil {
		return backend.Part{}, err
	}
	return b.publicPart(g), nil
}

// CommitPart marks the part as committed. See [backend.PartSnapshotter] for the errors.
func (b *Backend) CommitPart(_ context.Context, id, attemptID string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findPartOfAttempt(id, attemptID)
	if err != nil {
		return err
	}
	g.committed = true
	return nil
}

// DiscardPart deletes an uncommitted part and its members. See [backend.PartSnapshotter] for the
// errors.
func (b *Backend) DiscardPart(_ context.Context, id, attemptID string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, err := b.findPartOfAttempt(id, attemptID)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return b.checkNotPending(id)
	case err != nil:
		return err
	case g.committed:
		return fmt.Errorf("%w: the part is committed: delete its group instead", backend.ErrPrecondition)
	}
	b.dissolve(g)
	return nil
}
