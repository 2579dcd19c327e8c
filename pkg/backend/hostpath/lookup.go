package hostpath

import (
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/catalog"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/jobs"
)

// index is the catalog of the objects below a root, and contents its content.
type (
	index    = catalog.Catalog[*volume, *snapshot, *group]
	contents = catalog.Contents[*volume, *snapshot, *group]
)

// Key is the ID, or the kubelet's handle of an inline volume.
func (v *volume) Key() string {
	if v.Inline {
		return v.Name
	}
	return v.ID
}

func (v *volume) Reserved() int64 { return v.Size }

func (v *volume) Listed() bool { return !v.Inline }

// Project returns the project of a directory's quota, or 0.
func (v *volume) Project() uint32 {
	if v.Mark == nil {
		return 0
	}
	return v.Mark.Project
}

func (n *snapshot) Key() string { return n.ID }

func (n *snapshot) Reserved() int64 { return n.Held }

func (n *snapshot) VolumeID() string { return n.Source }

func (g *group) Key() string { return g.ID }

// volume returns the volume with this ID, or the inline volume with this handle. Errors: ErrNotFound,
// or the reason why the record cannot be used.
func (b *Backend) volume(id string) (*volume, error) {
	v, err := b.catalog.Volume(id)
	return v, found(err)
}

// persistent returns the volume with this ID if it is not inline. Errors: as volume.
func (b *Backend) persistent(id string) (*volume, error) {
	v, err := b.volume(id)
	if err == nil && v.Inline {
		return nil, fmt.Errorf("%w: volume %.128q is a pod's inline volume", backend.ErrNotFound, id)
	}
	return v, err
}

// snapshot returns the snapshot with this ID. Errors: as volume.
func (b *Backend) snapshot(id string) (*snapshot, error) {
	n, err := b.catalog.Snapshot(id)
	return n, found(err)
}

// group returns the group with this ID. Errors: as volume.
func (b *Backend) group(id string) (*group, error) {
	g, err := b.catalog.Group(id)
	return g, found(err)
}

// found gives an error of a lookup its class.
func found(err error) error {
	if none := (*catalog.NotFound)(nil); errors.As(err, &none) {
		return fmt.Errorf("%w: %w", backend.ErrNotFound, err)
	}
	return err
}

// conflicts are the classes of conflicts of jobs.
var conflicts = map[jobs.Reason]error{jobs.Busy: backend.ErrBusy, jobs.Differs: backend.ErrExists, jobs.InUse: backend.ErrInUse}

// unblocked gives an error of package jobs its class.
func unblocked(err error) error {
	c := (*jobs.Conflict)(nil)
	switch {
	case errors.As(err, &c):
		return fmt.Errorf("%w: %w", conflicts[c.Reason], err)
	case errors.Is(err, jobs.ErrStopped):
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return err
}

// runOrJoin is jobs.RunOrJoin. Errors: ErrBusy, ErrExists, ErrUnavailable, those of run and of ctx.
func (b *Backend) runOrJoin(ctx context.Context, id, what string, sources []string, run func(ctx context.Context, job *jobs.Job) error) error {
	return unblocked(b.jobs.RunOrJoin(ctx, id, what, sources, run))
}

// exclusive is jobs.Exclusive. Errors: ErrInUse, ErrBusy.
func (b *Backend) exclusive(ids ...string) (release func(), err error) {
	release, err = b.jobs.Exclusive(ids...)
	return release, unblocked(err)
}
