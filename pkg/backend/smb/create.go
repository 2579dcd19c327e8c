package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/mounter"
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
func plan(from origin, o backend.CreateOptions) (*volume, error) {
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
	id, err := newObject(volumeid.Volume, source, o.Name)
	if err != nil {
		return nil, err
	}
	v := &volume{object: id, Parameters: parameters, OnDelete: o.Mutable[onDeleteKey],
		Volume: from.volume, Snapshot: from.snapshot}
	v.common = common{State: creating, Name: o.Name, Created: now()}
	v.Shared = parameters[existingKey] == "use"
	if v.Shared && from != (origin{}) {
		return nil, fmt.Errorf("%w: a volume with existing=use has no content source", backend.ErrInvalid)
	}
	v.SubDir, err = subDirOf(parameters[subDirKey], o, id.key)
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

// checkAccess returns ErrInvalid for a use that no share supports.
func checkAccess(a backend.Access) error {
	switch {
	case a.Block:
		return fmt.Errorf("%w: a volume on a share cannot be a block device", backend.ErrInvalid)
	case a.FSType != "" && a.FSType != "cifs" && a.FSType != "smb3":
		return fmt.Errorf("%w: invalid filesystem type %.64q: must be empty or cifs", backend.ErrInvalid, a.FSType)
	}
	if err := mounter.CheckOptions(mounter.Share, "", a.Options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return nil
}

// makeSimple makes v with an empty directory directly in the source. The creation of the directory
// is exclusive, so that no record is necessary before it: the marker shows a later process that the
// directory may be ours. The marker stays if it is unknown whether the directory was made.
func (c *claim) makeSimple(v *volume) (err error) {
	existed := false // before any attempt to make v
	defer func() { c.Keep = err != nil && !isFinal(err) && !existed }()
	if c.began != "" && c.began != v.SubDir { // of a request with another directory
		if err := c.dropUnrecorded(v.object); err != nil {
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
	v.State = ready
	err = c.create(c.ctx, volumesDir, volumeFormat, v.object, v)
	if err != nil && isFinal(err) {
		if e := c.share.Remove(c.ctx, dir); e != nil {
			return fmt.Errorf("%w: %w, and the directory could not be removed: %w", backend.ErrUnavailable, err, e)
		}
	}
	return err
}

// foreign is the error for a directory that existed before: it names the volume that has the
// directory, if any.
func (s *store) foreign(ctx context.Context, v *volume) error {
	if err := s.overlaps(ctx, v); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s exists, and no record of this source names it: choose another subDir, or share the "+
		"directory with existing=use", backend.ErrPrecondition, s.where(v))
}

// makeEmpty makes the directory of v, which does not exist. The caller has claimed v. old is the
// record that an earlier attempt has left, or nil.
func (s *store) makeEmpty(ctx context.Context, v, old *volume) error {
	if old != nil {
		v.Created = old.Created // rollBack compares it
	} else {
		if err := s.create(ctx, volumesDir, volumeFormat, v.object, v); err != nil {
			return err
		}
	}
	err := s.makeDirectory(ctx, v, old)
	if err == nil {
		v.State = ready
		err = s.replace(ctx, volumesDir, volumeFormat, v.object, v)
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
			e = s.remove(ctx, s.recordPath(volumesDir, v.key))
		}
		if e != nil {
			return fmt.Errorf("%w: %w, and the record could not be removed: %w", backend.ErrUnavailable, err, e)
		}
	}
	return err
}

// isFinal reports whether the caller does not repeat a call that fails with err: the call must leave
// nothing behind.
func isFinal(err error) bool {
	return !errors.Is(err, backend.ErrBusy) && !errors.Is(err, backend.ErrUnavailable) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// makeDirectory makes the directory of v with its parents, or finds the directory of an earlier
// attempt. The record of v exists, so that a call for an overlapping directory finds it.
func (s *store) makeDirectory(ctx context.Context, v, old *volume) error {
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
		ours, err := s.isOurs(ctx, v, e, s.recordPath(volumesDir, v.key))
		if ours || err != nil {
			return err
		}
	}
	return s.foreign(ctx, v)
}

// makeParents makes the directories around that of v. Errors: backend.ErrPrecondition if one of
// them is the source of other volumes.
func (s *store) makeParents(ctx context.Context, v *volume) error {
	parents := strings.Split(v.SubDir, "/")
	for i := range len(parents) - 1 {
		parent := s.path(parents[:i+1]...)
		err := s.share.Mkdir(ctx, parent)
		if err == nil {
			continue
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
		switch _, err := s.share.Stat(ctx, path.Join(parent, metaDir)); {
		case err == nil:
			return fmt.Errorf("%w: %s is in the directory %s of another class's source: name that source, or choose "+
				"another subDir", backend.ErrPrecondition, s.where(v), parent)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

// where returns the source of the directory of v.
func (s *store) where(v *volume) string { return s.source.String() + "/" + v.SubDir }

// isOurs reports whether an earlier attempt has made a directory: it is empty, and the server made
// it after a file that the attempt has made. Errors: errOverlap if it is that of another volume.
func (s *store) isOurs(ctx context.Context, v *volume, dir client.Entry, file string) (bool, error) {
	if !dir.Dir || dir.Link {
		return false, nil
	}
	f, err := s.share.Stat(ctx, file)
	if err != nil || dir.Created.Before(f.Created) {
		return false, err
	}
	empty, err := s.isEmpty(ctx, s.path(v.SubDir))
	if err != nil || !empty {
		return false, err
	}
	return true, s.overlaps(ctx, v)
}

// isNewer reports whether the server made a directory after the record of v, which was written when
// the directory of v existed.
func (s *store) isNewer(ctx context.Context, v *volume, dir client.Entry) (bool, error) {
	err := s.keepWritten(ctx, v)
	return err == nil && dir.Created.After(v.Written), err
}

// keepWritten sets v.Written, if it is not set, to the time at which the server has written the
// record of v: a later record must not have a later time. The time of the write counts: on NTFS a
// file that replaces another has the creation time of the other (tunneling).
func (s *store) keepWritten(ctx context.Context, v *volume) error {
	if !v.Written.IsZero() {
		return nil
	}
	r, err := s.share.Stat(ctx, s.recordPath(volumesDir, v.key))
	v.Written = r.Modified
	return err
}

// isNoSource returns backend.ErrPrecondition if the directory of v is the source of other volumes,
// or is around a source in the file of shares.
func (s *store) isNoSource(ctx context.Context, v *volume) error {
	dir := s.source
	dir.Path = s.path(v.SubDir)
	sources := s.shares.sources()
	inside := slices.IndexFunc(sources, func(other mounter.ShareSource) bool { return contains(dir, other) })
	if inside >= 0 {
		return fmt.Errorf("%w: %s is around the source %s: choose another subDir", backend.ErrPrecondition, dir,
			sources[inside])
	}
	_, err := s.share.Stat(ctx, path.Join(dir.Path, metaDir))
	if err == nil {
		return fmt.Errorf("%w: %s is the source of other volumes: delete these first, or choose another subDir",
			backend.ErrPrecondition, dir)
	}
	return ignore(err, fs.ErrNotExist)
}

func (s *store) isEmpty(ctx context.Context, dir string) (bool, error) {
	err := s.share.List(ctx, dir, func(client.Entry) error { return errFound })
	if errors.Is(err, errFound) {
		return false, nil
	}
	return err == nil, err
}

var errFound = errors.New("found")

// errOverlap is the error for a directory that overlaps with that of another volume.
var errOverlap = fmt.Errorf("%w: the directories of two volumes overlap", backend.ErrPrecondition)

// overlaps returns errOverlap if the directory of v is inside or around that of another volume, or
// is the same. Two volumes with existing=use may have the same directory. A volume that is made
// directly in the source has its directory before its record, so overlaps waits for those that are
// being made. Errors: backend.ErrBusy.
func (s *store) overlaps(ctx context.Context, v *volume) error {
	if err := s.awaitMakers(ctx, v); err != nil {
		return err
	}
	mine := fold(v.SubDir)
	return s.eachVolume(ctx, func(other *volume) error {
		theirs := fold(other.SubDir)
		switch {
		case other.key == v.key, v.Shared && other.Shared && mine == theirs:
			return nil
		case overlap(mine, theirs):
			return fmt.Errorf("%w: %s, and %s of volume %s", errOverlap, s.where(v), s.where(other), other)
		}
		return nil
	})
}

// overlap reports whether two clean paths are the same, or one is below the other.
func overlap(a, b string) bool { return a == b || within(a, b) || within(b, a) }

// within reports whether a clean path is below another.
func within(inner, outer string) bool { return strings.HasPrefix(inner, outer+"/") }

// eachVolume calls each for the volumes of the store, in any state. Errors: backend.ErrNotReady for
// an unreadable record.
func (s *store) eachVolume(ctx context.Context, each func(v *volume) error) error {
	entries, err := s.keys(ctx, volumesDir, volumeid.Volume)
	if err != nil {
		return err
	}
	for _, e := range entries {
		v, err := s.listedVolume(ctx, e)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			continue
		case isUnreadable(err):
			return fmt.Errorf("compare the directories of all volumes of %s: %w", s.source, err)
		case err != nil:
			return err
		}
		if err := each(v); err != nil {
			return err
		}
	}
	return nil
}

// listedVolume returns the record of a listed volume.
func (s *store) listedVolume(ctx context.Context, e client.Entry) (*volume, error) {
	r, err := s.cache.get(cacheKey(s.source, volumesDir, e.Name), e, func() (any, error) {
		v, err := s.readVolume(ctx, object{e.Name, s.source})
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return r.(*volume), nil
}

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
