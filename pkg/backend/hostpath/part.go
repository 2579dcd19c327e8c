package hostpath

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// A part of a group on several nodes is a group of the volumes of this node, with an ID that is the
// same on all nodes. While the part is made, two hooks ask the caller, which makes all parts. The
// record stores whether all parts are known to be committed.

// SnapshotPart makes snapshots of images at a point in time, which o.Frozen extends to other nodes.
func (b *Backend) SnapshotPart(ctx context.Context, o backend.PartOptions) (backend.Part, error) {
	if err := o.Check(); err != nil {
		return backend.Part{}, err
	}
	id := volumeid.New(volumeid.Group, volumeid.SeveralNodes, o.Name)
	g, err := b.makeGroup(o.GroupOptions,
		&group{ID: id, Name: o.Name, All: slices.Clone(o.All), AttemptID: o.AttemptID},
		func(t *groupJob) error {
			t.frozen, t.durable = o.Frozen, o.Durable
			return joberrors.Classify(b.jobs.Run(ctx, id, "volumes "+strings.Join(t.sources, ", "), t.sources, t.run))
		})
	if err != nil {
		return backend.Part{}, err
	}
	return b.publicPart(g)
}

func (b *Backend) publicPart(g *group) (backend.Part, error) {
	public, err := b.publicGroup(g)
	return backend.Part{Group: public, All: slices.Clone(g.All), AttemptID: g.AttemptID, Committed: g.Committed}, err
}

// GetPart returns the part.
func (b *Backend) GetPart(_ context.Context, id string) (backend.Part, error) {
	if _, err := b.ready(); err != nil {
		return backend.Part{}, err
	}
	g, err := b.part(id)
	if err != nil {
		return backend.Part{}, err
	}
	return b.publicPart(g)
}

// CommitPart records that the parts of all nodes exist.
func (b *Backend) CommitPart(_ context.Context, id, attemptID string) error {
	s, err := b.ready()
	if err != nil {
		return err
	}
	if _, err := b.part(id); err != nil { // ErrNotFound, not ErrInUse, while the part is being made
		return err
	}
	release, err := b.exclusive(id) // otherwise DiscardPart could run meanwhile
	if err != nil {
		return err
	}
	defer release()
	g, err := b.part(id)
	if err == nil {
		err = g.checkAttempt(attemptID)
	}
	if err != nil || g.Committed {
		return err
	}
	next := *g
	next.Committed = true
	crashpoint.Reached("part:settling")
	// After an error the old record stays: other nodes may have committed their parts.
	if err := s.Rewrite(groupsDir, id, partFormat, &next); err != nil {
		return fmt.Errorf("%w: commit group %s: %w", backend.ErrUnavailable, id, err)
	}
	crashpoint.Reached("part:settled")
	b.catalog.PutGroup(&next)
	return nil
}

// DiscardPart moves the part to the trash as DeleteGroup does.
func (b *Backend) DiscardPart(_ context.Context, id, attemptID string) error {
	return b.removeGroup(id, func(g *group) error {
		err := g.checkAttempt(attemptID)
		if err == nil && g.Committed {
			err = fmt.Errorf("%w: group %s is committed: delete the group", backend.ErrPrecondition, id)
		}
		return err
	})
}
