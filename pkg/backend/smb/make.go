package smb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// makeSimple makes v with an empty directory directly in the source. The creation of the directory
// is exclusive, so that no record is necessary before it: the marker shows a later process that the
// directory may be ours. The marker stays if it is unknown whether the directory was made.
func (c *claim) makeSimple(v *records.Volume) (err error) {
	existed := false // before any attempt to make v
	defer func() { c.Keep = err != nil && !isFinal(err) && !existed }()
	if c.began != "" && c.began != v.SubDir { // of a request with another directory
		if err := c.dropUnrecorded(v.Object); err != nil {
			return err
		}
		c.began = ""
	}
	dir := c.path(v.SubDir)
	err = c.share.Mkdir(c.ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %s", backend.ErrPrecondition, c.source)
	case errors.Is(err, fs.ErrExist) && c.began == "":
		existed = true
		return c.foreign(c.ctx, v)
	case errors.Is(err, fs.ErrExist):
		e, err := c.share.Stat(c.ctx, dir)
		if err != nil {
			return err
		}
		ours, err := c.isOurs(c.ctx, v, e, c.Head())
		if err != nil {
			return err
		}
		if !ours {
			return c.foreign(c.ctx, v)
		}
	case err != nil:
		return err
	}
	v.State = records.Ready
	err = c.records().Create(c.ctx, records.VolumesDir, records.VolumeFormat, v.Object, v)
	if err != nil && isFinal(err) {
		if e := c.share.Remove(c.ctx, dir); e != nil {
			return fmt.Errorf("%w: %w, and the directory could not be removed: %w", backend.ErrUnavailable, err, e)
		}
	}
	return err
}

// makeEmpty makes the directory of v, which does not exist. The caller has claimed v. old is the
// record that an earlier attempt has left, or nil.
func (s *store) makeEmpty(ctx context.Context, v, old *records.Volume) error {
	if old != nil {
		v.Created = old.Created // rollBack compares it
	} else {
		if err := s.records().Create(ctx, records.VolumesDir, records.VolumeFormat, v.Object, v); err != nil {
			return err
		}
	}
	err := s.makeDirectory(ctx, v, old)
	if err == nil {
		v.State = records.Ready
		err = s.records().Replace(ctx, records.VolumesDir, records.VolumeFormat, v.Object, v)
		if err != nil && isFinal(err) {
			if e := s.rollBack(ctx, v); e != nil {
				return fmt.Errorf("%w: %w, and the directory could not be removed: %w", backend.ErrUnavailable, err, e)
			}
		}
		return err
	}
	if isFinal(err) {
		_, e := s.unfinished(ctx, v)
		if e == nil {
			e = s.records().Remove(ctx, s.records().RecordPath(records.VolumesDir, v.Key))
		}
		if e != nil {
			return fmt.Errorf("%w: %w, and the record could not be removed: %w", backend.ErrUnavailable, err, e)
		}
	}
	return err
}

// makeDirectory makes the directory of v with its parents, or finds the directory of an earlier
// attempt. The record of v exists, so that a call for an overlapping directory finds it.
func (s *store) makeDirectory(ctx context.Context, v, old *records.Volume) error {
	err := s.makeParents(ctx, v)
	if err != nil {
		return err
	}
	if v.Shared || strings.Contains(v.SubDir, "/") {
		if err := s.overlaps(ctx, v); err != nil {
			return err
		}
	}
	if v.Shared {
		if err := s.isNoSource(ctx, v); err != nil {
			return err
		}
	}
	err = s.share.Mkdir(ctx, s.path(v.SubDir))
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.Contains(v.SubDir, "/"):
		return fmt.Errorf("%w: a parent of %s is not a directory, or is gone", backend.ErrPrecondition, s.where(v))
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %s", backend.ErrPrecondition, s.source)
	case err == nil || !errors.Is(err, fs.ErrExist):
		return err
	}
	e, err := s.share.Stat(ctx, s.path(v.SubDir))
	switch {
	case err != nil:
		return err
	case v.Shared && e.Dir && !e.Link:
		return s.overlaps(ctx, v) // a volume that was made directly in the source, since the call before
	case old != nil:
		ours, err := s.isOurs(ctx, v, e, s.records().RecordPath(records.VolumesDir, v.Key))
		if ours || err != nil {
			return err
		}
	}
	return s.foreign(ctx, v)
}

// makeParents makes the directories around that of v. Errors: backend.ErrPrecondition if one of
// them is the source of other volumes.
func (s *store) makeParents(ctx context.Context, v *records.Volume) error {
	parents := strings.Split(v.SubDir, "/")
	for i := range len(parents) - 1 {
		parent := s.path(parents[:i+1]...)
		err := s.share.Mkdir(ctx, parent)
		if err == nil {
			continue
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
		switch is, err := s.isSource(ctx, parent); {
		case is:
			return fmt.Errorf("%w: %s is in the directory %s of another class's source: name that source, or choose "+
				"another subDir", backend.ErrPrecondition, s.where(v), parent)
		case err != nil:
			return err
		}
	}
	return nil
}

// makeCopy makes v with the content of c. The caller has claimed v.
func (s *store) makeCopy(ctx context.Context, v, old *records.Volume, o backend.CreateOptions, c *copying) error {
	return s.whileReading(ctx, c.source, v.Object, func(ctx context.Context) error {
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
		v.State = records.Creating
		if old != nil {
			v.Created = old.Created // rollBack compares it
		} else {
			if err := s.records().Create(ctx, records.VolumesDir, records.VolumeFormat, v.Object, v); err != nil {
				return err
			}
		}
		if err = s.makeDirectory(ctx, v, old); err == nil {
			v.State = records.Made
			err = s.records().Replace(ctx, records.VolumesDir, records.VolumeFormat, v.Object, v)
		}
		if err == nil {
			err = s.copyData(ctx, src.dir, v.SubDir, c.job)
		}
		if err == nil {
			_, err = s.copySource(ctx, c.from) // not deleted meanwhile by a process that did not know of the copy
		}
		if err == nil {
			v.State = records.Ready
			err = s.records().Replace(ctx, records.VolumesDir, records.VolumeFormat, v.Object, v)
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

// copying is a copy in progress.
type copying struct {
	from   origin
	source records.Object
	job    *jobs.Job
}

// content is a directory that can be copied.
type content struct {
	records.Object
	dir  string // path in the store
	size int64  // bytes of the volume or snapshot
}

// copySource returns the content of an origin. Errors: those of originOf.
func (s *store) copySource(ctx context.Context, from origin) (content, error) {
	o, err := s.originOf(from)
	if err != nil {
		return content{}, err
	}
	if from.snapshot != "" {
		n, err := s.records().ReadSnapshot(ctx, o)
		if err == nil && n.State != records.Ready {
			err = fmt.Errorf("%w: snapshot %s", backend.ErrNotFound, o)
		}
		if err != nil {
			return content{}, err
		}
		return content{o, n.Dir(), n.Size}, nil
	}
	v, err := s.liveVolume(ctx, o)
	if err != nil {
		return content{}, err
	}
	return content{o, v.SubDir, v.Size}, nil
}

// originOf returns the object of an origin. Errors: backend.ErrNotFound; ErrInvalid if it is in
// another store.
func (s *store) originOf(from origin) (records.Object, error) {
	kind := volumeid.Volume
	if from.snapshot != "" {
		kind = volumeid.Snapshot
	}
	o, err := records.ParseObject(kind, cmp.Or(from.volume, from.snapshot))
	if err == nil && records.Fold(o.Source.String()) != records.Fold(s.source.String()) {
		err = fmt.Errorf("%w: the content source is in %s, the volume in %s: a copy must have the same source",
			backend.ErrInvalid, o.Source, s.source)
	}
	return o, err
}

// origin is the content source of a volume: the ID of a volume or of a snapshot. The zero value is
// that of an empty volume.
type origin struct{ volume, snapshot string }

// clear removes the content of a directory.
func (s *store) clear(ctx context.Context, dir string) error {
	var entries []string
	err := s.share.List(ctx, dir, func(e client.Entry) error {
		entries = append(entries, e.Name)
		return nil
	})
	for _, name := range entries {
		err = errors.Join(err, s.share.RemoveTree(ctx, path.Join(dir, name)))
	}
	return err
}

// report passes the progress of a copy to its job.
func report(ctx context.Context, p *client.Progress, job *jobs.Job) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
			job.Report(jobs.Progress{Bytes: p.Bytes.Load()})
		}
	}
}
