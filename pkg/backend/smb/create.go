package smb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

const (
	defaultSize = 1 << 30 // bytes of a volume whose request has no size
	maxSize     = 1 << 56 // bytes: no server has more
)

// Create makes the directory of a volume. The size of the volume is recorded and not enforced.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return b.createFrom(ctx, origin{}, o)
}

// plan returns the volume that a request describes, without the size.
func plan(from origin, o backend.CreateOptions) (*records.Volume, error) {
	parameters, err := complete(o.Parameters)
	if err != nil {
		return nil, err
	}
	if err := checkMutable(o.Mutable, false); err != nil {
		return nil, err
	}
	source, err := parseSource(parameters[sourceKey])
	if err != nil {
		return nil, err
	}
	for _, a := range o.Access {
		if err := checkAccess(a); err != nil {
			return nil, err
		}
		if _, err := withOutage(a.Options, parameters[outageKey]); err != nil {
			return nil, err
		}
	}
	id, err := records.NewObject(volumeid.Volume, source, o.Name)
	if err != nil {
		return nil, err
	}
	v := &records.Volume{Object: id, Parameters: parameters, OnDelete: o.Mutable[onDeleteKey],
		Volume: from.volume, Snapshot: from.snapshot}
	v.Common = records.Common{State: records.Creating, Name: o.Name, Created: now()}
	v.Shared = parameters[existingKey] == "use"
	if v.Shared && from != (origin{}) {
		return nil, fmt.Errorf("%w: a volume with existing=use has no content source", backend.ErrInvalid)
	}
	v.SubDir, err = subDirOf(parameters[subDirKey], o, id.Key)
	return v, err
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// sizeOf returns the size of a volume whose content has at least least bytes.
func sizeOf(o backend.CreateOptions, least int64) (int64, error) {
	size := max(o.Required, least)
	if size == 0 {
		size = defaultSize
		if o.Limit > 0 {
			size = min(size, o.Limit)
		}
	}
	switch {
	case o.Required > 0 && o.Required < least, o.Limit > 0 && o.Limit < least:
		return 0, fmt.Errorf("%w: the source has %d bytes: the request has required_bytes %d and limit_bytes %d",
			backend.ErrOutOfRange, least, o.Required, o.Limit)
	case size > maxSize:
		return 0, fmt.Errorf("%w: %d bytes: must be at most %d", backend.ErrOutOfRange, size, int64(maxSize))
	}
	return size, nil
}

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
	s, err := b.store(ctx, v.Source, o.Secrets, client.Calls)
	if err != nil {
		return backend.Volume{}, err
	}
	defer s.close()
	s.mayPrepare = true
	old, err := s.records().ReadVolume(ctx, v.Object)
	switch {
	case err == nil && old.State == records.Ready: // its source may be gone
		return old.Public(), old.Fits(v, o)
	case err != nil && !errors.Is(err, backend.ErrNotFound):
		return backend.Volume{}, err
	}
	if from == (origin{}) {
		if v.Size, err = sizeOf(o, 0); err != nil {
			return backend.Volume{}, err
		}
		err = b.jobs.Run(ctx, v.Key, "nothing", nil, func(ctx context.Context) error {
			return s.makeVolume(ctx, v, o, nil)
		})
	} else {
		err = b.copyTo(ctx, s, v, from, o, err == nil)
	}
	if err != nil {
		return backend.Volume{}, joberrors.Classify(err)
	}
	if from != (origin{}) { // perhaps made by the job of another call
		if v, err = s.records().ReadVolume(ctx, v.Object); err != nil {
			return backend.Volume{}, err
		}
	}
	return v.Public(), nil
}

// copyTo makes v as a copy, in the background. unfinished reports that an earlier attempt has left
// a record: the job then removes the attempt, also if the source can no longer be copied.
func (b *Backend) copyTo(ctx context.Context, s *store, v *records.Volume, from origin, o backend.CreateOptions,
	unfinished bool) error {
	src, err := s.originOf(from)
	if err != nil {
		return err
	}
	if !unfinished && !b.jobs.Makes(v.Key) {
		c, err := s.copySource(ctx, from)
		if err == nil {
			_, err = sizeOf(o, c.size)
		}
		if err != nil {
			return err
		}
	}
	description := fmt.Sprintf("%+v, %v, %v, %d to %d bytes", from, v.Parameters, o.Mutable, o.Required, o.Limit)
	return b.jobs.RunOrJoin(ctx, v.Key, description, []string{src.Key}, func(ctx context.Context, job *jobs.Job) error {
		s, err := b.store(ctx, v.Source, o.Secrets, client.Jobs)
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
		err = s.makeVolume(ctx, v, o, &copying{from: from, source: src, job: job})
		if s.trashed { // an incomplete copy
			b.emptyTrash(v.Source, o.Secrets)
		}
		return err
	})
}

// makeVolume makes v, empty or with a content, or finishes the work of an earlier attempt.
func (s *store) makeVolume(ctx context.Context, v *records.Volume, o backend.CreateOptions, c *copying) error {
	simple := c == nil && !v.Shared && !strings.Contains(v.SubDir, "/")
	dir := ""
	if simple {
		dir = v.SubDir
	}
	err := s.claimed(ctx, v.Object, dir, func(claim *claim) error {
		ctx := claim.ctx
		old, err := s.records().ReadVolume(ctx, v.Object)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			old = nil
		case err != nil:
			return err
		case old.State == records.Ready:
			if err := old.Fits(v, o); err != nil {
				return err
			}
			*v = *old
			return nil
		case old.State == records.Deleting:
			if err := s.finishDelete(ctx, old); err != nil {
				return err
			}
			old = nil
		case old.State == records.Made || old.SubDir != v.SubDir || old.Shared != v.Shared:
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
	return s.explainFull(ctx, v.Object, err)
}
