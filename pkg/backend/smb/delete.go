package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Delete moves the directory of a volume into the trash, or does with it what onDelete says, and
// removes the record.
func (b *Backend) Delete(ctx context.Context, id string, secrets map[string]string) error {
	o, err := records.ParseObject(volumeid.Volume, id)
	switch {
	case err != nil && isForeign(id):
		return fmt.Errorf("%w: %.128q is a handle of csi-driver-smb: no record proves that its directory belongs to "+
			"the volume. Delete the directory on the server, then the PersistentVolume", backend.ErrPrecondition, id)
	case err != nil:
		return nil
	}
	s, err := b.store(ctx, o.Source, secrets, client.Calls)
	if err != nil {
		return err
	}
	defer s.close()
	end, err := b.jobs.Exclusive(o.Key)
	if err != nil {
		return joberrors.Classify(err)
	}
	defer end()
	err = s.withReserve(ctx, secrets, func() error {
		return s.claimed(ctx, o, "", func(c *claim) error { return c.deleteVolume(o) })
	})
	if err == nil && !s.untouched {
		b.emptyTrash(o.Source, secrets)
	}
	return err
}

// deleteVolume deletes a volume that the caller has claimed.
func (c *claim) deleteVolume(o records.Object) error {
	ctx, s := c.ctx, c.store
	v, copied, inUse, err := c.lookUp(o)
	switch {
	case errors.Is(err, records.ErrEmpty):
		return s.records().Remove(ctx, s.records().RecordPath(records.VolumesDir, o.Key))
	case errors.Is(err, backend.ErrNotFound):
		err = c.dropUnrecorded(o)
		c.Keep = err != nil
		return err
	case err != nil:
		return err
	case v.State == records.Creating || v.State == records.Made:
		return s.rollBack(ctx, v)
	case v.State == records.Ready:
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
		v.State, v.Target = records.Deleting, targetOf(v)
		if err := s.records().Replace(ctx, records.VolumesDir, records.VolumeFormat, o, v); err != nil {
			return err
		}
		// A copy that begins after this point finds the volume deleted; readers finds an earlier
		// copy.
		if _, err := s.readers(ctx, o); err != nil {
			return errors.Join(err, s.records().Replace(ctx, records.VolumesDir, records.VolumeFormat, o, &before))
		}
	}
	return s.finishDelete(ctx, v)
}

// lookUp reads the record of a volume, its time, and the markers of copies of the volume, all at
// the same time. copied and inUse are the results of readers.
func (c *claim) lookUp(o records.Object) (v *records.Volume, copied bool, inUse, err error) {
	var group sync.WaitGroup
	var written time.Time // zero after an error: isNewer asks again
	group.Go(func() {
		r, err := c.share.Stat(c.ctx, c.records().RecordPath(records.VolumesDir, o.Key))
		if err == nil {
			written = r.Modified
		}
	})
	group.Go(func() { copied, inUse = c.readers(c.ctx, o) })
	v, err = c.records().ReadVolume(c.ctx, o)
	group.Wait()
	if err == nil && v.State == records.Ready && v.Written.IsZero() {
		v.Written = written
	}
	return v, copied, inUse, err
}

// keepOverlapping removes the record of v, and leaves its directory, if the directory has become
// that of another volume, or is inside or around it: a person has moved directories on the server.
// Errors: backend.ErrPrecondition if the directory is a source of volumes.
func (s *store) keepOverlapping(ctx context.Context, v *records.Volume) (kept bool, err error) {
	if v.Shared {
		return false, nil
	}
	switch err := s.overlapsOnServer(ctx, v); {
	case errors.Is(err, errOverlap), errors.Is(err, errMayOverlap):
		s.cfg.Report(fmt.Errorf("the directory of volume %s is not deleted: %w", v, err))
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
func (c *claim) deleteAtOnce(v *records.Volume, copied bool) (done bool, err error) {
	if v.Shared || v.DeletePolicy() == records.RetainData {
		return false, nil
	}
	gone, err := c.isGone(v)
	if err != nil || (!gone && v.DeletePolicy() == records.ArchiveData) {
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
		err = c.records().Remove(c.ctx, c.records().RecordPath(records.VolumesDir, v.Key))
		if err == nil && copied {
			err = c.forgetCopies(c.ctx, v.Object)
		}
	}
	c.Keep = err != nil && !isFinal(err)
	return err == nil, err
}

// isGone reports whether v, which is ready, has no directory: the path is free, or an earlier call
// or a person has removed the directory, and another volume has the path since. Errors:
// backend.ErrPrecondition if the directory may be that of another program.
func (c *claim) isGone(v *records.Volume) (bool, error) {
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
	switch err := c.overlapsOnServer(c.ctx, v); {
	case errors.Is(err, errOverlap):
		return true, nil
	case errors.Is(err, errMayOverlap):
		c.cfg.Report(fmt.Errorf("the directory of volume %s is not deleted: %w", v, err))
		return true, nil
	case err != nil:
		return false, err
	case c.Succeeds(): // an earlier process may have removed the directory
		return false, fmt.Errorf("%w: %s is newer than the record of its volume: move the directory away if it is "+
			"not the volume's", backend.ErrPrecondition, c.where(v))
	}
	return false, nil
}

// isForeign reports whether id is a handle of csi-driver-smb: its parts are separated by "#".
func isForeign(id string) bool { return strings.Contains(id, "#") }
