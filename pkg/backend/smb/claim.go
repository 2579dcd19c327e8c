package smb

import (
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// claim is the exclusive right to change an object, of a store.
type claim struct {
	*store
	*lease.Claim
	ctx   context.Context // that of the lease
	began string          // path in the store of the directory that a process which has ended may have made
}

// markers returns the directory of markers.
func (s *store) markers() *lease.Dir {
	return &lease.Dir{Process: s.process, Share: s.share, Path: s.meta(records.WorkDir), Store: s.source.String(),
		OpenShare: func(ctx context.Context) (lease.Share, func(), error) {
			share, err := s.openShare(ctx, s.source, s.login, client.Calls)
			if err != nil {
				return nil, nil, err
			}
			return share, share.Release, nil
		},
		Prepare: func(ctx context.Context) error {
			if !s.mayPrepare {
				return errUnprepared
			}
			return s.prepare(ctx)
		}}
}

// claimKey is the key of the claim in the context of a change.
type claimKey struct{}

// confirm asks the server whether this process still has the right to the change of ctx, before a
// step that would harm the object if another process had the right.
func (s *store) confirm(ctx context.Context) error {
	if c, ok := ctx.Value(claimKey{}).(*claim); ok {
		return c.Confirm(ctx, s.share)
	}
	return nil
}

// exclusively calls change while this process has the exclusive right to change an object. The
// context of change ends with ctx, and when the right may be lost.
func (s *store) exclusively(ctx context.Context, o records.Object, change func(ctx context.Context) error) error {
	return s.claimed(ctx, o, "", func(c *claim) error { return change(c.ctx) })
}

// claimed is exclusively for a change that needs to know of an earlier process. dir is the path in
// the store of the directory that the change will make before the record of the object, or "".
func (s *store) claimed(ctx context.Context, o records.Object, dir string, change func(c *claim) error) error {
	l, err := s.markers().Claim(ctx, o.Key, o, dir)
	if err != nil {
		return err
	}
	defer l.Release(ctx)
	s.markPrepared()
	return l.Explain(ctx, classified(change(s.newClaim(l))))
}

func (s *store) newClaim(l *lease.Claim) *claim {
	c := &claim{store: s, Claim: l, began: l.Began()}
	c.ctx = context.WithValue(l.Context(), claimKey{}, c)
	return c
}

// whileReading calls copyData while other processes know that this process copies the object from
// to the object to. The context of copyData ends with ctx, and when they may no longer know.
func (s *store) whileReading(ctx context.Context, from, to records.Object,
	copyData func(ctx context.Context) error) error {
	return s.markers().WhileReading(ctx, from.Key, to.Key, copyData)
}

// readers returns ErrInUse while a process copies an object. copied reports whether there may be
// markers of copies.
func (s *store) readers(ctx context.Context, o records.Object) (copied bool, err error) {
	return s.markers().Readers(ctx, o.Key, o)
}

// explainFull makes the error of a claim on a full share one that the caller repeats, if an earlier
// attempt to make o may have left something: a final error must not.
func (s *store) explainFull(ctx context.Context, o records.Object, err error) error {
	if errors.Is(err, lease.ErrNoSuccessor) || (errors.Is(err, lease.ErrNoMarker) && s.hasRecord(ctx, o.Key)) {
		return fmt.Errorf("%w: free space on the share, so that an earlier attempt can be completed: %s",
			backend.ErrUnavailable, err.Error())
	}
	return err
}
