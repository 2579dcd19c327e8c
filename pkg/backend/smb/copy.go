package smb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// origin is the content source of a volume: the ID of a volume or of a snapshot. The zero value is
// that of an empty volume.
type origin struct{ volume, snapshot string }

// Clone copies the directory of a volume, file by file: the copy is not of one point in time.
func (b *Backend) Clone(ctx context.Context, source string, o backend.CreateOptions) (backend.Volume, error) {
	return b.createFrom(ctx, origin{volume: source}, o)
}

// Restore copies the directory of a snapshot.
func (b *Backend) Restore(ctx context.Context, snapshot string, o backend.CreateOptions) (backend.Volume, error) {
	return b.createFrom(ctx, origin{snapshot: snapshot}, o)
}

// createFrom makes the volume o.Name, or finds the existing volume.
func (b *Backend) createFrom(ctx context.Context, from origin, o backend.CreateOptions) (backend.Volume, error) {
	v, err := plan(from, o)
	if err != nil {
		return backend.Volume{}, err
	}
	s, err := b.store(ctx, v.source, o.Secrets, client.Calls)
	if err != nil {
		return backend.Volume{}, err
	}
	defer s.close()
	s.mayPrepare = true
	old, err := s.readVolume(ctx, v.object)
	switch {
	case err == nil && old.State == ready: // its source may be gone
		return old.public(), old.fits(v, o)
	case err != nil && !errors.Is(err, backend.ErrNotFound):
		return backend.Volume{}, err
	}
	if from == (origin{}) {
		if v.Size, err = sizeOf(o, 0); err != nil {
			return backend.Volume{}, err
		}
		err = b.jobs.Run(ctx, v.key, "nothing", nil, func(ctx context.Context) error {
			return s.make(ctx, v, o, nil)
		})
	} else {
		err = b.copyTo(ctx, s, v, from, o, err == nil)
	}
	if err != nil {
		return backend.Volume{}, jobError(err)
	}
	if from != (origin{}) { // perhaps made by the job of another call
		if v, err = s.readVolume(ctx, v.object); err != nil {
			return backend.Volume{}, err
		}
	}
	return v.public(), nil
}

// copyTo makes v as a copy, in the background. unfinished reports that an earlier attempt has left
// a record: the job then removes the attempt, also if the source can no longer be copied.
func (b *Backend) copyTo(ctx context.Context, s *store, v *volume, from origin, o backend.CreateOptions,
	unfinished bool) error {
	src, err := s.originOf(from)
	if err != nil {
		return err
	}
	if !unfinished && !b.jobs.Makes(v.key) {
		c, err := s.copySource(ctx, from)
		if err == nil {
			_, err = sizeOf(o, c.size)
		}
		if err != nil {
			return err
		}
	}
	description := fmt.Sprintf("%+v, %v, %v, %d to %d bytes", from, v.Parameters, o.Mutable, o.Required, o.Limit)
	return b.jobs.RunOrJoin(ctx, v.key, description, []string{src.key}, func(ctx context.Context, job *jobs.Job) error {
		s, err := b.store(ctx, v.source, o.Secrets, client.Jobs)
		if err != nil {
			return err
		}
		defer s.close()
		s.mayPrepare = true
		leave, err := b.startCopy(ctx, "copy", src, o.Namespace)
		if err != nil {
			return err
		}
		defer leave()
		return s.make(ctx, v, o, &copying{from: from, source: src, job: job})
	})
}

// content is a directory that can be copied.
type content struct {
	object
	dir  string // path in the store
	size int64  // bytes of the volume or snapshot
}

// originOf returns the object of an origin. Errors: backend.ErrNotFound; ErrInvalid if it is in
// another store.
func (s *store) originOf(from origin) (object, error) {
	kind := volumeid.Volume
	if from.snapshot != "" {
		kind = volumeid.Snapshot
	}
	o, err := parseObject(kind, cmp.Or(from.volume, from.snapshot))
	if err == nil && fold(o.source.String()) != fold(s.source.String()) {
		err = fmt.Errorf("%w: the content source is in %s, the volume in %s: a copy must have the same source",
			backend.ErrInvalid, o.source, s.source)
	}
	return o, err
}

// copySource returns the content of an origin. Errors: those of originOf.
func (s *store) copySource(ctx context.Context, from origin) (content, error) {
	o, err := s.originOf(from)
	if err != nil {
		return content{}, err
	}
	if from.snapshot != "" {
		n, err := s.readSnapshot(ctx, o)
		if err == nil && n.State != ready {
			err = fmt.Errorf("%w: snapshot %s", backend.ErrNotFound, o)
		}
		if err != nil {
			return content{}, err
		}
		return content{o, n.dir(), n.Size}, nil
	}
	v, err := s.liveVolume(ctx, o)
	if err != nil {
		return content{}, err
	}
	return content{o, v.SubDir, v.Size}, nil
}

// copying is a copy in progress.
type copying struct {
	from   origin
	source object
	job    *jobs.Job
}

// make makes v, empty or with a content, or finishes the work of an earlier attempt.
func (s *store) make(ctx context.Context, v *volume, o backend.CreateOptions, c *copying) error {
	simple := c == nil && !v.Shared && !strings.Contains(v.SubDir, "/")
	dir := ""
	if simple {
		dir = v.SubDir
	}
	err := s.claimed(ctx, v.object, dir, func(claim *claim) error {
		ctx := claim.ctx
		old, err := s.readVolume(ctx, v.object)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			old = nil
		case err != nil:
			return err
		case old.State == ready:
			if err := old.fits(v, o); err != nil {
				return err
			}
			*v = *old
			return nil
		case old.State == deleting:
			if err := s.finishDelete(ctx, old); err != nil {
				return err
			}
			old = nil
		case old.State == made || old.SubDir != v.SubDir || old.Shared != v.Shared:
			// An attempt with another request, or a copy that was interrupted.
			if err := s.rollBack(ctx, old); err != nil {
				return err
			}
			old = nil
		}
		switch {
		case simple && old == nil:
			return claim.makeSimple(v)
		case c == nil:
			return s.makeEmpty(ctx, v, old)
		}
		return s.makeCopy(ctx, v, old, o, c)
	})
	return s.explainFull(ctx, v.object, err)
}

// makeCopy makes v with the content of c. The caller has claimed v.
func (s *store) makeCopy(ctx context.Context, v, old *volume, o backend.CreateOptions, c *copying) error {
	return s.whileReading(ctx, c.source, v.object, func(ctx context.Context) error {
		src, err := s.copySource(ctx, c.from) // from now on the source cannot be deleted
		if err == nil {
			v.Size, err = sizeOf(o, src.size)
		}
		if err != nil {
			if old != nil && isFinal(err) {
				if e := s.rollBack(ctx, old); e != nil {
					return fmt.Errorf("%w: %w, and an earlier attempt could not be removed: %w",
						backend.ErrUnavailable, err, e)
				}
			}
			return err
		}
		v.State = creating
		if old != nil {
			v.Created = old.Created // rollBack compares it
		} else {
			if err := s.create(ctx, volumesDir, volumeFormat, v.object, v); err != nil {
				return err
			}
		}
		if err = s.makeDirectory(ctx, v, old); err == nil {
			v.State = made
			err = s.replace(ctx, volumesDir, volumeFormat, v.object, v)
		}
		if err == nil {
			err = s.copyData(ctx, src.dir, v.SubDir, c.job)
		}
		if err == nil {
			_, err = s.copySource(ctx, c.from) // not deleted meanwhile by a process that did not know of the copy
		}
		if err == nil {
			v.State = ready
			err = s.replace(ctx, volumesDir, volumeFormat, v.object, v)
		}
		if err != nil && isFinal(err) {
			if e := s.rollBack(ctx, v); e != nil {
				return fmt.Errorf("%w: %w, and the copy could not be removed: %w", backend.ErrUnavailable, err, e)
			}
		}
		return err
	})
}

// copyData copies the content of a directory of the store to an empty one.
func (s *store) copyData(ctx context.Context, from, to string, job *jobs.Job) error {
	var p client.Progress
	watched, stop := context.WithCancel(ctx)
	defer stop()
	go report(watched, &p, job)
	err := s.share.CopyTree(ctx, s.path(from), s.path(to), &p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: the directory of the source is gone: %w", backend.ErrPrecondition, err)
	case errors.Is(err, fs.ErrExist): // the new directory was empty: another process writes to it
		return fmt.Errorf("%w: another process writes to the copy: %w", backend.ErrUnavailable, err)
	case errors.Is(err, client.ErrShared):
		return fmt.Errorf("%w: %s", backend.ErrPrecondition, err.Error())
	}
	return err
}

// unfinished returns the record of v, which was never ready, from the server, or nil if there is
// none. A process that was stopped for long must not remove the work of the next process. Errors:
// backend.ErrUnavailable if the record is not that of v.
func (s *store) unfinished(ctx context.Context, v *volume) (*volume, error) {
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	now, err := s.readVolume(ctx, v.object)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case now.State == ready || now.State == deleting || !now.Created.Equal(v.Created) || now.SubDir != v.SubDir:
		return nil, fmt.Errorf("%w: another process has changed volume %s", backend.ErrUnavailable, v)
	}
	return now, nil
}

// rollBack removes the record of v, which was never ready, and the directory as far as it is ours.
// The caller has claimed v. Errors: those of unfinished.
func (s *store) rollBack(ctx context.Context, v *volume) error {
	now, err := s.unfinished(ctx, v)
	if err != nil {
		return err
	}
	if now != nil && !v.Shared {
		if err := s.dropDirectory(ctx, now); err != nil {
			return err
		}
	}
	return s.remove(ctx, s.recordPath(volumesDir, v.key))
}

// dropDirectory removes the directory of v, which was never ready, if it exists and is that of v.
func (s *store) dropDirectory(ctx context.Context, v *volume) error {
	dir, err := s.share.Stat(ctx, s.path(v.SubDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if v.State == made {
		newer, err := s.isNewer(ctx, v, dir)
		if err != nil || newer {
			return err
		}
		return s.toTrash(ctx, v.key, v.SubDir)
	}
	ours, err := s.isOurs(ctx, v, dir, s.recordPath(volumesDir, v.key))
	if err == nil && ours {
		err = s.share.Remove(ctx, s.path(v.SubDir)) // fails if it is no longer empty
	}
	if errors.Is(err, client.ErrNotEmpty) || errors.Is(err, errOverlap) {
		return nil
	}
	return err
}
