package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Delete moves the directory of a volume into the trash, or does with it what onDelete says, and
// removes the record.
func (b *Backend) Delete(ctx context.Context, id string, secrets map[string]string) error {
	o, err := parseObject(volumeid.Volume, id)
	switch {
	case err != nil && isForeign(id):
		return fmt.Errorf("%w: %.128q is a handle of csi-driver-smb: no record proves that its directory belongs to "+
			"the volume. Delete the directory on the server, then the PersistentVolume", backend.ErrPrecondition, id)
	case err != nil:
		return nil
	}
	s, err := b.store(ctx, o.source, secrets, client.Calls)
	if err != nil {
		return err
	}
	defer s.close()
	end, err := b.jobs.Exclusive(o.key)
	if err != nil {
		return jobError(err)
	}
	defer end()
	err = s.withReserve(ctx, func() error {
		return s.claimed(ctx, o, "", func(c *claim) error { return c.deleteVolume(o) })
	})
	if err == nil && !s.untouched {
		b.emptyTrash(o.source, secrets)
	}
	return err
}

// deleteVolume deletes a volume that the caller has claimed.
func (c *claim) deleteVolume(o object) error {
	ctx, s := c.ctx, c.store
	v, copied, inUse, err := c.lookUp(o)
	switch {
	case errors.Is(err, errEmpty):
		return s.remove(ctx, s.recordPath(volumesDir, o.key))
	case errors.Is(err, backend.ErrNotFound):
		err = c.dropUnrecorded(o)
		c.Keep = err != nil
		return err
	case err != nil:
		return err
	case v.State == creating || v.State == made:
		return s.rollBack(ctx, v)
	case v.State == ready:
		if inUse != nil {
			return inUse
		}
		if done, err := c.deleteAtOnce(v, copied); done || err != nil {
			return err
		}
		if kept, err := s.keepOverlapping(ctx, v); kept || err != nil {
			return err
		}
		before := *v
		v.State, v.Target = deleting, v.target()
		if err := s.replace(ctx, volumesDir, volumeFormat, o, v); err != nil {
			return err
		}
		// A copy that begins after this point finds the volume deleted; readers finds an earlier
		// copy.
		if _, err := s.readers(ctx, o); err != nil {
			return errors.Join(err, s.replace(ctx, volumesDir, volumeFormat, o, &before))
		}
	}
	return s.finishDelete(ctx, v)
}

// lookUp reads the record of a volume, its time, and the markers of copies of the volume, all at
// the same time. copied and inUse are the results of readers.
func (c *claim) lookUp(o object) (v *volume, copied bool, inUse, err error) {
	var group sync.WaitGroup
	var written time.Time // zero after an error: isNewer asks again
	group.Go(func() {
		r, err := c.share.Stat(c.ctx, c.recordPath(volumesDir, o.key))
		if err == nil {
			written = r.Modified
		}
	})
	group.Go(func() { copied, inUse = c.readers(c.ctx, o) })
	v, err = c.readVolume(c.ctx, o)
	group.Wait()
	if err == nil && v.State == ready && v.Written.IsZero() {
		v.Written = written
	}
	return v, copied, inUse, err
}

// dropUnrecorded removes the directory that a process which has ended made for a volume without a
// record, if it is still empty.
func (c *claim) dropUnrecorded(o object) error {
	if c.began == "" || checkSubDir(c.began) != nil {
		return nil
	}
	v := &volume{object: o, SubDir: c.began}
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

// keepOverlapping removes the record of v, and leaves its directory, if the directory has become
// that of another volume, or is inside or around it: a person has moved directories on the server.
// Errors: backend.ErrPrecondition if the directory is a source of volumes.
func (s *store) keepOverlapping(ctx context.Context, v *volume) (kept bool, err error) {
	if v.Shared {
		return false, nil
	}
	switch err := s.overlaps(ctx, v); {
	case errors.Is(err, errOverlap):
		return true, s.forget(ctx, v)
	case err != nil:
		return false, err
	}
	return false, s.isNoSource(ctx, v)
}

// deleteAtOnce deletes v if that needs no record of the deletion: its directory is gone, or is
// empty and must be deleted. A copy that runs beside it finds the directory empty or gone, and the
// record gone when it ends. copied reports whether there may be markers of copies. The marker stays
// if it is unknown whether the directory was removed.
func (c *claim) deleteAtOnce(v *volume, copied bool) (done bool, err error) {
	if v.Shared || v.onDelete() == retainData {
		return false, nil
	}
	gone, err := c.isGone(v)
	if err != nil || (!gone && v.onDelete() == archiveData) {
		return false, err
	}
	if !gone {
		err = c.share.Remove(c.ctx, c.path(v.SubDir))
		if errors.Is(err, client.ErrNotEmpty) || errors.Is(err, client.ErrShared) {
			return false, nil
		}
	}
	if err == nil {
		c.untouched = true
		err = c.remove(c.ctx, c.recordPath(volumesDir, v.key))
		if err == nil && copied {
			err = c.forgetCopies(c.ctx, v.object)
		}
	}
	c.Keep = err != nil && !isFinal(err)
	return err == nil, err
}

// isGone reports whether v, which is ready, has no directory: the path is free, or an earlier call
// or a person has removed the directory, and another volume has the path since. Errors:
// backend.ErrPrecondition if the directory may be that of another program.
func (c *claim) isGone(v *volume) (bool, error) {
	dir, err := c.share.Stat(c.ctx, c.path(v.SubDir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case !dir.Dir || dir.Link:
		return false, c.notDirectory(v)
	}
	newer, err := c.isNewer(c.ctx, v, dir)
	if err != nil || !newer {
		return false, err
	}
	switch err := c.overlaps(c.ctx, v); {
	case errors.Is(err, errOverlap):
		return true, nil
	case err != nil:
		return false, err
	case c.Succeeds(): // an earlier process may have removed the directory
		return false, fmt.Errorf("%w: %s is newer than the record of its volume: move the directory away if it is "+
			"not the volume's", backend.ErrPrecondition, c.where(v))
	}
	return false, nil
}

// notDirectory is the error for a volume in whose place there is something else.
func (s *store) notDirectory(v *volume) error {
	return fmt.Errorf("%w: %s is not a directory: move it away", backend.ErrPrecondition, s.where(v))
}

// forget removes the record of v, whose directory is gone or stays.
func (s *store) forget(ctx context.Context, v *volume) error {
	if err := s.remove(ctx, s.recordPath(volumesDir, v.key)); err != nil {
		return err
	}
	return s.forgetCopies(ctx, v.object)
}

// target returns the unique path in the store to which the directory of a deleted volume moves, or
// "" if it stays.
func (v *volume) target() string {
	switch {
	case v.Shared || v.onDelete() == retainData:
		return ""
	case v.onDelete() == archiveData:
		name := strings.ReplaceAll(v.SubDir, "/", "-")
		if len(name) > maxArchiveName {
			name = v.key
		}
		return fmt.Sprintf("archived-%s-%s-%s", name, time.Now().UTC().Format("20060102T150405Z"), lease.Random())
	}
	return trashPath(v.key)
}

// maxArchiveName is the maximum length in bytes of the part of an archive's name that comes from
// its volume.
const maxArchiveName = 150

// trashPath returns a unique path in the trash, in the store.
func trashPath(key string) string {
	return strings.Join([]string{metaDir, trashDir, key + "-" + lease.Random()}, "/")
}

// finishDelete removes the directory of a volume in the state deleting, if it is empty, or moves
// it, and removes the record. Any process that has claimed the volume may repeat it.
func (s *store) finishDelete(ctx context.Context, v *volume) error {
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
func (s *store) hasBegun(ctx context.Context, v *volume) (bool, error) {
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
func (s *store) moveOrRemove(ctx context.Context, v *volume) error {
	if v.onDelete() == deleteData {
		err := s.share.Remove(ctx, s.path(v.SubDir))
		if s.untouched = err == nil; s.untouched {
			return nil
		}
		if !errors.Is(err, client.ErrNotEmpty) && !errors.Is(err, client.ErrShared) {
			return err
		}
	}
	return s.move(ctx, v.SubDir, v.Target)
}

// forgetCopies removes the directory of the markers of copies of an object that is deleted.
func (s *store) forgetCopies(ctx context.Context, o object) error {
	// Not empty: of a process that has ended.
	return ignore(s.share.Remove(ctx, s.meta(workDir, lease.ReadersDir(o.key))), client.ErrNotEmpty)
}

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
	case errors.Is(err, fs.ErrNotExist): // a person has removed the directory, or the trash
		return errors.Join(ignore(s.share.Mkdir(ctx, s.meta(trashDir)), fs.ErrExist),
			fmt.Errorf("%w: %w", backend.ErrUnavailable, err))
	}
	return err
}

// toTrash moves a directory of the store into the trash, if it exists.
func (s *store) toTrash(ctx context.Context, key, dir string) error {
	return s.move(ctx, dir, trashPath(key))
}

// emptyTrash removes the content of the trash of a store in the background, unless a task is
// already doing it. secrets are those of the call that filled the trash.
func (b *Backend) emptyTrash(source mounter.ShareSource, secrets map[string]string) {
	name := fold(source.String())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.emptying[name] {
		return
	}
	b.emptying[name] = true
	b.jobs.Go(func(ctx context.Context) {
		err := b.emptyTrashNow(ctx, source, secrets)
		b.mu.Lock()
		delete(b.emptying, name)
		b.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			b.cfg.Report(fmt.Errorf("empty the trash of %s: %w", source, err))
		}
	})
}

// emptyTrashNow removes the content of the trash, and the markers of processes that ended long ago.
// An entry that cannot be removed does not stop the others.
func (b *Backend) emptyTrashNow(ctx context.Context, source mounter.ShareSource, secrets map[string]string) error {
	s, err := b.store(ctx, source, secrets, client.Jobs)
	if err != nil {
		return err
	}
	defer s.close()
	left := map[string]error{}
	for {
		var names []string
		err := s.share.List(ctx, s.meta(trashDir), func(e client.Entry) error {
			if left[e.Name] == nil {
				names = append(names, e.Name)
			}
			return nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		for _, name := range names {
			if err := s.removeTrash(ctx, name); err != nil {
				left[name] = err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	s.mu.Lock()
	s.stuck[s.source.String()] = len(left)
	s.mu.Unlock()
	var failed error
	for _, name := range slices.Sorted(maps.Keys(left)) {
		err := left[name]
		if !errors.Is(err, client.ErrShared) && !errors.Is(err, client.ErrNotEmpty) &&
			!errors.Is(err, backend.ErrBusy) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(failed, s.sweep(ctx), s.fillReserve(ctx))
}

// removeTrash removes an entry of the trash. The record of a volume that is being deleted goes
// first: finishDelete takes a missing entry for a directory that was not moved yet.
func (s *store) removeTrash(ctx context.Context, name string) error {
	key, _, _ := strings.Cut(name, "-")
	if id, err := volumeid.Parse(key); err == nil && id.Kind == volumeid.Volume {
		o := object{key, s.source}
		v, err := s.readVolume(ctx, o)
		if err == nil && v.Target == strings.Join([]string{metaDir, trashDir, name}, "/") {
			err = s.exclusively(ctx, o, func(ctx context.Context) error {
				v, err := s.readVolume(ctx, o)
				if err == nil && v.State == deleting {
					err = s.finishDelete(ctx, v)
				}
				return err
			})
		}
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
	}
	return s.share.RemoveTree(ctx, s.meta(trashDir, name))
}

// sweep removes entries in the directory of markers that have not changed for long, by the clock of
// the server: another file of the directory shows it.
func (s *store) sweep(ctx context.Context) error {
	entries, newest, err := s.listMarkers(ctx, "")
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name] = true
	}
	for _, e := range entries {
		head, _, succeeds := strings.Cut(e.Name, "~")
		switch {
		case newest.Sub(e.Modified) <= s.markerAge:
		case succeeds && names[head]: // removed with the head of its chain
		case e.Dir:
			err = s.sweepCopies(ctx, e.Name, newest)
		case succeeds, strings.Contains(e.Name, "."): // of a record that was not written
			err = s.remove(ctx, s.meta(workDir, e.Name))
		default:
			err = s.sweepMarker(ctx, e.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listMarkers lists the entries of a directory in that of markers, with the time of the newest.
func (s *store) listMarkers(ctx context.Context, dir string) (entries []client.Entry, newest time.Time, err error) {
	err = s.share.List(ctx, s.meta(workDir, dir), func(e client.Entry) error {
		entries = append(entries, e)
		if e.Modified.After(newest) {
			newest = e.Modified
		}
		return nil
	})
	return entries, newest, err
}

// sweepMarker removes the markers of an object that has no record, if their process has ended. With
// a record, the next call for the object removes them.
func (s *store) sweepMarker(ctx context.Context, name string) error {
	if s.hasRecord(ctx, name) {
		return nil
	}
	l, err := s.markers().TryClaim(ctx, name, "")
	if l == nil {
		return err
	}
	defer l.Release(ctx)
	if s.hasRecord(l.Context(), name) {
		return nil
	}
	return s.newClaim(l).dropUnrecorded(object{name, s.source})
}

// sweepCopies removes the old markers of copies of an object, and their directory if it is empty.
// The directory does not change when a marker in it is written.
func (s *store) sweepCopies(ctx context.Context, name string, newest time.Time) error {
	entries, _, err := s.listMarkers(ctx, name)
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name] = true
	}
	for _, e := range entries {
		head, _, succeeds := strings.Cut(e.Name, "~")
		switch {
		case newest.Sub(e.Modified) <= s.markerAge, succeeds && names[head]: // see sweep
		case succeeds:
			err = s.remove(ctx, s.meta(workDir, name, e.Name))
		default:
			err = s.markers().Drop(ctx, name+"/"+e.Name)
		}
		if err != nil {
			return err
		}
	}
	return ignore(s.share.Remove(ctx, s.meta(workDir, name)), client.ErrNotEmpty)
}

// ignore returns err unless it is target.
func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
