package smb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// errOverlap is the error for a directory that overlaps with that of another volume.
var errOverlap = fmt.Errorf("%w: the directories of two volumes overlap", backend.ErrPrecondition)

// errMayOverlap is the error for a directory of which that is not known.
var errMayOverlap = fmt.Errorf("%w: the directories of two volumes may be the same", backend.ErrPrecondition)

// overlaps returns errOverlap if the directory of v is inside or around that of another volume, or
// is the same. Two volumes with existing=use may have the same directory. A volume that is made
// directly in the source has its directory before its record, so overlaps waits for those that are
// being made. Paths that some server takes for one are the same. Errors: backend.ErrBusy.
func (s *store) overlaps(ctx context.Context, v *records.Volume) error {
	return s.overlapsBy(ctx, v, client.FoldName)
}

// overlapsBy is overlaps for paths that are the same if fold returns the same text.
func (s *store) overlapsBy(ctx context.Context, v *records.Volume, fold func(path string) string) error {
	return s.eachOverlapping(ctx, v, fold, func(other *records.Volume) error { return s.overlapError(v, other) })
}

func (s *store) overlapError(v, other *records.Volume) error {
	return fmt.Errorf("%w: %s, and %s of volume %s", errOverlap, s.where(v), s.where(other), other)
}

// eachOverlapping calls f for each volume whose directory overlaps with that of v.
func (s *store) eachOverlapping(ctx context.Context, v *records.Volume, fold func(path string) string,
	f func(other *records.Volume) error) error {
	if err := s.awaitMakers(ctx, v); err != nil {
		return err
	}
	mine := fold(v.SubDir)
	return s.eachVolume(ctx, func(other *records.Volume) error {
		theirs := fold(other.SubDir)
		if other.Key == v.Key || v.Shared && other.Shared && mine == theirs || !overlap(mine, theirs) {
			return nil
		}
		return f(other)
	})
}

// overlapsOnServer is overlaps for a directory that exists. It asks the server whether it takes paths
// of different text for one: most servers tell some of them apart, and the directory of a deleted
// volume must not stay there. Errors: errMayOverlap, too.
func (s *store) overlapsOnServer(ctx context.Context, v *records.Volume) error {
	return s.eachOverlapping(ctx, v, client.FoldName, func(other *records.Volume) error {
		is, known := overlap(v.SubDir, other.SubDir), true
		if !is {
			var err error
			if is, known, err = s.isReachedThrough(ctx, v, other); err != nil {
				return err
			}
		}
		switch {
		case !known:
			return fmt.Errorf("%w: no probe shows whether the server takes %s, and %s of volume %s, for one: if it "+
				"does not, delete the first on the server", errMayOverlap, s.where(v), s.where(other), other)
		case is:
			return s.overlapError(v, other)
		}
		return nil
	})
}

// isReachedThrough reports whether a new file in the directory of v is there, too, if the path of
// another volume takes the place of the first elements of the path. That is not known if no file can be
// made, or looked up, or if a program of a pod removes the new file, as one that mirrors a directory
// does.
func (s *store) isReachedThrough(ctx context.Context, v, other *records.Volume) (is, known bool, err error) {
	mine, theirs := strings.Split(v.SubDir, "/"), strings.Split(other.SubDir, "/")
	n := min(len(mine), len(theirs))
	alias := path.Join(slices.Concat(theirs[:n], mine[n:])...)
	probe := "causeway-" + rand.Text()
	file := path.Join(s.path(v.SubDir), probe)
	err = s.share.Create(ctx, file, nil)
	if errors.Is(err, backend.ErrDenied) {
		return false, false, nil
	} else if err != nil {
		return false, false, err
	}
	_, err = s.share.Stat(ctx, path.Join(s.path(alias), probe))
	is, known = err == nil, !errors.Is(err, backend.ErrDenied)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = s.share.Stat(ctx, file)
		known = !errors.Is(err, fs.ErrNotExist)
	}
	if !known {
		err = nil
	}
	return is, known, errors.Join(err, s.share.Remove(ctx, file))
}

// isNoSource returns backend.ErrPrecondition if the directory of v is the source of other volumes,
// or is around a source in the file of shares.
func (s *store) isNoSource(ctx context.Context, v *records.Volume) error {
	dir := s.source
	dir.Path = s.path(v.SubDir)
	sources := s.shares.sources()
	inside := slices.IndexFunc(sources, func(other mounter.ShareSource) bool {
		return contains(client.FoldName, dir, other)
	})
	if inside >= 0 {
		return fmt.Errorf("%w: %s is around the source %s: choose another subDir", backend.ErrPrecondition, dir,
			sources[inside])
	}
	is, err := s.isSource(ctx, dir.Path)
	if is {
		return fmt.Errorf("%w: %s is the source of other volumes: delete these first, or choose another subDir. If it "+
			"never was a source, a pod has made %s there: move that to another place", backend.ErrPrecondition, dir,
			records.MetaDir)
	}
	return err
}

// isSource reports whether a directory has the records of a source. A pod can make another file or
// directory of their name: that is no source.
func (s *store) isSource(ctx context.Context, dir string) (bool, error) {
	for _, kind := range []string{"", records.VolumesDir, records.SnapshotsDir} {
		e, err := s.share.Stat(ctx, path.Join(dir, records.MetaDir, kind))
		switch {
		case kind == "" && errors.Is(err, fs.ErrNotExist): // one request for most directories
			return false, nil
		case err == nil && kind != "" && e.Dir:
			return true, nil
		case ignore(err, fs.ErrNotExist) != nil:
			return false, err
		}
	}
	return false, nil
}

// isOurs reports whether an earlier attempt has made a directory: it is empty, and the server made
// it after a file that the attempt has made. Errors: errOverlap if it is that of another volume.
func (s *store) isOurs(ctx context.Context, v *records.Volume, dir client.Entry, file string) (bool, error) {
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
func (s *store) isNewer(ctx context.Context, v *records.Volume, dir client.Entry) (bool, error) {
	err := s.keepWritten(ctx, v)
	return err == nil && dir.Created.After(v.Written), err
}

// keepWritten sets v.Written, if it is not set, to the time at which the server has written the
// record of v: a later record must not have a later time. The time of the write counts: on NTFS a
// file that replaces another has the creation time of the other (tunneling).
func (s *store) keepWritten(ctx context.Context, v *records.Volume) error {
	if !v.Written.IsZero() {
		return nil
	}
	r, err := s.share.Stat(ctx, s.records().RecordPath(records.VolumesDir, v.Key))
	v.Written = r.Modified
	return err
}

func (s *store) isEmpty(ctx context.Context, dir string) (bool, error) {
	err := s.share.List(ctx, dir, func(client.Entry) error { return errFound })
	if errors.Is(err, errFound) {
		return false, nil
	}
	return err == nil, err
}

// foreign is the error for a directory that existed before: it names the volume that has the
// directory, if any.
func (s *store) foreign(ctx context.Context, v *records.Volume) error {
	if err := s.overlaps(ctx, v); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s exists, and no record of this source names it: choose another subDir, or share the "+
		"directory with existing=use", backend.ErrPrecondition, s.where(v))
}
