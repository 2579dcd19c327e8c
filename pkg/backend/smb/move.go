package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// move moves a directory of the store, if it exists.
func (s *store) move(ctx context.Context, from, to string) error {
	if _, err := s.share.Stat(ctx, s.path(from)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := s.confirm(ctx); err != nil {
		return err
	}
	err := client.Retry(ctx, func() error { return s.share.Rename(ctx, s.path(from), s.path(to)) })
	switch {
	case errors.Is(err, client.ErrShared):
		return fmt.Errorf("%w: another client has files of %s open: %s", backend.ErrInUse, s.path(from), err.Error())
	case errors.Is(err, backend.ErrDenied): // Samba 4.22: for open files as well
		return fmt.Errorf("%w: the account may not move %s, or another client has files of it open", err, s.path(from))
	case errors.Is(err, fs.ErrNotExist): // a person has removed the directory, or the trash
		return errors.Join(ignore(s.share.Mkdir(ctx, s.meta(trashDir)), fs.ErrExist),
			fmt.Errorf("%w: %w", backend.ErrUnavailable, err))
	}
	return err
}

// toTrash moves a directory of the store into the trash, if it exists.
func (s *store) toTrash(ctx context.Context, key, dir string) error {
	s.trashed = true
	return s.move(ctx, dir, trashPath(key))
}

// trashPath returns a unique path in the trash, in the store.
func trashPath(key string) string {
	return strings.Join([]string{records.MetaDir, trashDir, key + "-" + lease.Random()}, "/")
}

// maxArchiveName is the maximum length in bytes of the part of an archive's name that comes from
// its volume.
const maxArchiveName = 150

// targetOf returns the unique path in the store to which the directory of a deleted volume moves,
// or "" if it stays.
func targetOf(v *records.Volume) string {
	switch {
	case v.Shared || v.DeletePolicy() == records.RetainData:
		return ""
	case v.DeletePolicy() == records.ArchiveData:
		name := strings.ReplaceAll(v.SubDir, "/", "-")
		if len(name) > maxArchiveName {
			name = v.Key
		}
		return fmt.Sprintf("archived-%s-%s-%s", name, time.Now().UTC().Format("20060102T150405Z"), lease.Random())
	}
	return trashPath(v.Key)
}

// finishDelete removes the directory of a volume in the state deleting, if it is empty, or moves
// it, and removes the record. Any process that has claimed the volume may repeat it.
func (s *store) finishDelete(ctx context.Context, v *records.Volume) error {
	if v.Target != "" {
		begun, err := s.hasBegun(ctx, v)
		if err == nil && !begun {
			err = s.moveOrRemove(ctx, v)
		}
		if err != nil {
			return err
		}
	}
	return s.forget(ctx, v)
}

// hasBegun reports whether an earlier attempt has moved or removed the directory of v. A directory
// that the server made after the record of the deletion is not that of v.
func (s *store) hasBegun(ctx context.Context, v *records.Volume) (bool, error) {
	if _, err := s.share.Stat(ctx, s.path(v.Target)); !errors.Is(err, fs.ErrNotExist) {
		return err == nil, err
	}
	dir, err := s.share.Stat(ctx, s.path(v.SubDir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case !dir.Dir || dir.Link:
		return false, s.notDirectory(v)
	}
	return s.isNewer(ctx, v, dir)
}

// moveOrRemove removes the directory of v if it is empty and not archived, or moves it.
func (s *store) moveOrRemove(ctx context.Context, v *records.Volume) error {
	if v.DeletePolicy() != records.DeleteData {
		return s.move(ctx, v.SubDir, v.Target)
	}
	removeErr := s.share.Remove(ctx, s.path(v.SubDir))
	if s.untouched = removeErr == nil; s.untouched {
		return nil
	}
	mayDelete := errors.Is(removeErr, client.ErrNotEmpty)
	if !mayDelete && !errors.Is(removeErr, client.ErrShared) {
		return removeErr
	}
	err := s.move(ctx, v.SubDir, v.Target)
	if mayDelete && errors.Is(err, backend.ErrDenied) { // hardly for lack of a right
		err = fmt.Errorf("%w: another client probably has files of %s open: %s", backend.ErrInUse,
			s.path(v.SubDir), err.Error())
	}
	return err
}

// notDirectory is the error for a volume in whose place there is something else.
func (s *store) notDirectory(v *records.Volume) error {
	return fmt.Errorf("%w: %s is not a directory: move it away", backend.ErrPrecondition, s.where(v))
}

// forget removes the record of v, whose directory is gone or stays.
func (s *store) forget(ctx context.Context, v *records.Volume) error {
	if err := s.records().Remove(ctx, s.records().RecordPath(records.VolumesDir, v.Key)); err != nil {
		return err
	}
	return s.forgetCopies(ctx, v.Object)
}

// forgetCopies removes the directory of the markers of copies of an object that is deleted.
func (s *store) forgetCopies(ctx context.Context, o records.Object) error {
	// Not empty: of a process that has ended.
	return ignore(s.share.Remove(ctx, s.meta(records.WorkDir, lease.ReadersDir(o.Key))), client.ErrNotEmpty)
}

// unfinished returns the record of v, which was never ready, from the server, or nil if there is
// none. A process that was stopped for long must not remove the work of the next process. Errors:
// backend.ErrUnavailable if the record is not that of v.
func (s *store) unfinished(ctx context.Context, v *records.Volume) (*records.Volume, error) {
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	now, err := s.records().ReadVolume(ctx, v.Object)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case now.State == records.Ready || now.State == records.Deleting || !now.Created.Equal(v.Created) ||
		now.SubDir != v.SubDir:
		return nil, fmt.Errorf("%w: another process has changed volume %s", backend.ErrUnavailable, v)
	}
	return now, nil
}

// rollBack removes the record of v, which was never ready, and the directory as far as it is ours.
// The caller has claimed v. Errors: those of unfinished.
func (s *store) rollBack(ctx context.Context, v *records.Volume) error {
	now, err := s.unfinished(ctx, v)
	if err != nil {
		return err
	}
	if now != nil && !v.Shared {
		if err := s.dropDirectory(ctx, now); err != nil {
			return err
		}
	}
	return s.records().Remove(ctx, s.records().RecordPath(records.VolumesDir, v.Key))
}

// dropDirectory removes the directory of v, which was never ready, if it exists and is that of v.
func (s *store) dropDirectory(ctx context.Context, v *records.Volume) error {
	dir, err := s.share.Stat(ctx, s.path(v.SubDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if v.State == records.Made {
		newer, err := s.isNewer(ctx, v, dir)
		if err != nil || newer {
			return err
		}
		return s.toTrash(ctx, v.Key, v.SubDir)
	}
	ours, err := s.isOurs(ctx, v, dir, s.records().RecordPath(records.VolumesDir, v.Key))
	if err == nil && ours {
		err = s.share.Remove(ctx, s.path(v.SubDir)) // fails if it is no longer empty
	}
	if errors.Is(err, client.ErrNotEmpty) || errors.Is(err, errOverlap) {
		return nil
	}
	return err
}

// dropUnrecorded removes the directory that a process which has ended made for a volume without a
// record, if it is still empty.
func (c *claim) dropUnrecorded(o records.Object) error {
	if c.began == "" || checkSubDir(c.began) != nil {
		return nil
	}
	v := &records.Volume{Object: o, SubDir: c.began}
	dir, err := c.share.Stat(c.ctx, c.path(v.SubDir))
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	ours, err := c.isOurs(c.ctx, v, dir, c.Head())
	if err == nil && ours {
		err = c.share.Remove(c.ctx, c.path(v.SubDir))
	}
	return ignore(ignore(err, errOverlap), client.ErrNotEmpty)
}
