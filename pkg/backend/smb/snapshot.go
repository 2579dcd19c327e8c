package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// dir returns the directory of the data of a snapshot, in the store.
func (n *snapshot) dir() string { return strings.Join([]string{metaDir, snapshotsDir, n.key}, "/") }

// Snapshot copies the directory of a volume, file by file: the snapshot is not of one point in
// time.
func (b *Backend) Snapshot(ctx context.Context, o backend.SnapshotOptions) (backend.Snapshot, error) {
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		return backend.Snapshot{}, fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
	}
	volume, err := parseObject(volumeid.Volume, o.Source)
	if err != nil {
		return backend.Snapshot{}, err
	}
	id, err := newObject(volumeid.Snapshot, volume.source, o.Name)
	if err != nil {
		return backend.Snapshot{}, err
	}
	s, err := b.store(ctx, volume.source, o.Secrets, client.Calls)
	if err != nil {
		return backend.Snapshot{}, err
	}
	defer s.close()
	switch old, err := s.readSnapshot(ctx, id); {
	case err == nil && old.State == ready:
		return old.public(), old.fits(o.Source)
	case err != nil && !errors.Is(err, backend.ErrNotFound):
		return backend.Snapshot{}, err
	case err != nil && !b.jobs.Makes(id.key):
		if _, err := s.liveVolume(ctx, volume); err != nil {
			return backend.Snapshot{}, err
		}
	}
	n := &snapshot{object: id, Volume: o.Source}
	n.Name = o.Name
	err = b.jobs.RunOrJoin(ctx, id.key, "volume "+o.Source, []string{volume.key},
		func(ctx context.Context, job *jobs.Job) error {
			s, err := b.store(ctx, volume.source, o.Secrets, client.Jobs)
			if err != nil {
				return err
			}
			defer s.close()
			leave, err := b.startCopy(ctx, "snapshot", volume, o.Namespace)
			if err != nil {
				return err
			}
			defer leave()
			return s.takeSnapshot(ctx, n, volume, job)
		})
	if err != nil {
		return backend.Snapshot{}, jobError(err)
	}
	return b.GetSnapshot(ctx, id.String(), o.Secrets)
}

// fits returns ErrExists if the snapshot is one of another volume.
func (n *snapshot) fits(source string) error {
	if n.Volume != source {
		return fmt.Errorf("%w: snapshot %.64q of volume %s", backend.ErrExists, n.Name, n.Volume)
	}
	return nil
}

// takeSnapshot makes n, or finishes the work of an earlier attempt.
func (s *store) takeSnapshot(ctx context.Context, n *snapshot, source object, job *jobs.Job) error {
	err := s.exclusively(ctx, n.object, func(ctx context.Context) error {
		old, err := s.readSnapshot(ctx, n.object)
		switch {
		case err == nil && old.State == ready:
			return old.fits(n.Volume)
		case err == nil:
			if err := s.dropSnapshot(ctx, old); err != nil {
				return err
			}
		case !errors.Is(err, backend.ErrNotFound):
			return err
		}
		return s.whileReading(ctx, source, n.object, func(ctx context.Context) error {
			return s.copySnapshot(ctx, n, source, job)
		})
	})
	return s.explainFull(ctx, n.object, err)
}

// copySnapshot copies the data of a volume to n, which does not exist. The caller has claimed n.
func (s *store) copySnapshot(ctx context.Context, n *snapshot, source object, job *jobs.Job) error {
	v, err := s.liveVolume(ctx, source)
	if err != nil {
		return err
	}
	n.State, n.Size, n.Created = creating, v.Size, now()
	if err := s.create(ctx, snapshotsDir, snapshotFormat, n.object, n); err != nil {
		return err
	}
	err = s.share.Mkdir(ctx, s.path(n.dir()))
	if errors.Is(err, fs.ErrExist) { // left by a process that has ended
		if err = s.confirm(ctx); err == nil {
			err = s.clear(ctx, s.path(n.dir()))
		}
	}
	if err == nil {
		err = s.copyData(ctx, v.SubDir, n.dir(), job)
	}
	if err == nil {
		_, err = s.liveVolume(ctx, source) // not deleted meanwhile by a process that did not know of the copy
	}
	if err == nil {
		n.State = ready
		err = s.replace(ctx, snapshotsDir, snapshotFormat, n.object, n)
	}
	if err != nil && isFinal(err) {
		if e := s.dropSnapshot(ctx, n); e != nil {
			return fmt.Errorf("%w: %w, and the copy could not be removed: %w", backend.ErrUnavailable, err, e)
		}
	}
	return err
}

// dropSnapshot moves the data of a snapshot into the trash and removes its record. The caller has
// claimed it.
func (s *store) dropSnapshot(ctx context.Context, n *snapshot) error {
	if err := s.toTrash(ctx, n.key, n.dir()); err != nil {
		return err
	}
	if err := s.remove(ctx, s.recordPath(snapshotsDir, n.key)); err != nil {
		return err
	}
	return s.forgetCopies(ctx, n.object)
}

// GetSnapshot returns the snapshot.
func (b *Backend) GetSnapshot(ctx context.Context, id string, secrets map[string]string) (backend.Snapshot, error) {
	o, err := parseObject(volumeid.Snapshot, id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	s, err := b.store(ctx, o.source, secrets, client.Calls)
	if err != nil {
		return backend.Snapshot{}, err
	}
	defer s.close()
	n, err := s.readSnapshot(ctx, o)
	if err == nil && n.State != ready {
		err = fmt.Errorf("%w: snapshot %s", backend.ErrNotFound, o)
	}
	if err != nil {
		return backend.Snapshot{}, err
	}
	return n.public(), nil
}

// DeleteSnapshot deletes a snapshot.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string, secrets map[string]string) error {
	o, err := parseObject(volumeid.Snapshot, id)
	if err != nil {
		return nil
	}
	s, err := b.store(ctx, o.source, secrets, client.Calls)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := s.readSnapshot(ctx, o); errors.Is(err, backend.ErrNotFound) && !errors.Is(err, errEmpty) {
		if _, err := s.share.Stat(ctx, s.meta(workDir)); errors.Is(err, fs.ErrNotExist) {
			return errUnprepared
		}
		return nil
	}
	end, err := b.jobs.Exclusive(o.key)
	if err != nil {
		return jobError(err)
	}
	defer end()
	err = s.withReserve(ctx, func() error {
		return s.exclusively(ctx, o, func(ctx context.Context) error { return s.deleteSnapshot(ctx, o) })
	})
	if err == nil {
		b.emptyTrash(o.source, secrets)
	}
	return err
}

// deleteSnapshot deletes a snapshot that the caller has claimed.
func (s *store) deleteSnapshot(ctx context.Context, o object) error {
	n, err := s.readSnapshot(ctx, o)
	switch {
	case errors.Is(err, errEmpty):
		return s.remove(ctx, s.recordPath(snapshotsDir, o.key))
	case errors.Is(err, backend.ErrNotFound):
		return nil
	case err != nil:
		return err
	case n.State == ready: // a copy that begins after the record finds the snapshot deleted
		if _, err := s.readers(ctx, o); err != nil {
			return err
		}
		before := *n
		n.State = deleting
		if err := s.replace(ctx, snapshotsDir, snapshotFormat, o, n); err != nil {
			return err
		}
		if _, err := s.readers(ctx, o); err != nil {
			return errors.Join(err, s.replace(ctx, snapshotsDir, snapshotFormat, o, &before))
		}
	}
	return s.dropSnapshot(ctx, n)
}
