package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Snapshot copies the directory of a volume, file by file: the snapshot is not of one point in
// time.
func (b *Backend) Snapshot(ctx context.Context, o backend.SnapshotOptions) (backend.Snapshot, error) {
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		return backend.Snapshot{}, fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
	}
	volume, err := records.ParseObject(volumeid.Volume, o.Source)
	if err != nil {
		return backend.Snapshot{}, err
	}
	id, err := records.NewObject(volumeid.Snapshot, volume.Source, o.Name)
	if err != nil {
		return backend.Snapshot{}, err
	}
	s, err := b.store(ctx, volume.Source, o.Secrets, client.Calls)
	if err != nil {
		return backend.Snapshot{}, err
	}
	defer s.close()
	switch old, err := s.records().ReadSnapshot(ctx, id); {
	case err == nil && old.State == records.Ready:
		return old.Public(), old.Fits(o.Source)
	case err != nil && !errors.Is(err, backend.ErrNotFound):
		return backend.Snapshot{}, err
	case err != nil && !b.jobs.Makes(id.Key):
		if _, err := s.liveVolume(ctx, volume); err != nil {
			return backend.Snapshot{}, err
		}
	}
	n := &records.Snapshot{Object: id, Volume: o.Source}
	n.Name = o.Name
	err = b.jobs.RunOrJoin(ctx, id.Key, "volume "+o.Source, []string{volume.Key},
		func(ctx context.Context, job *jobs.Job) error {
			s, err := b.store(ctx, volume.Source, o.Secrets, client.Jobs)
			if err != nil {
				return err
			}
			defer s.close()
			leave, err := b.startCopy(ctx, "snapshot", volume, o.Namespace)
			if err != nil {
				return err
			}
			defer leave()
			err = s.takeSnapshot(ctx, n, volume, job)
			if s.trashed { // an incomplete copy
				b.emptyTrash(volume.Source, o.Secrets)
			}
			return err
		})
	if err != nil {
		return backend.Snapshot{}, joberrors.Classify(err)
	}
	return b.GetSnapshot(ctx, id.String(), o.Secrets)
}

// takeSnapshot makes n, or finishes the work of an earlier attempt.
func (s *store) takeSnapshot(ctx context.Context, n *records.Snapshot, source records.Object, job *jobs.Job) error {
	err := s.exclusively(ctx, n.Object, func(ctx context.Context) error {
		old, err := s.records().ReadSnapshot(ctx, n.Object)
		switch {
		case err == nil && old.State == records.Ready:
			return old.Fits(n.Volume)
		case err == nil:
			if err := s.dropSnapshot(ctx, old); err != nil {
				return err
			}
		case !errors.Is(err, backend.ErrNotFound):
			return err
		}
		return s.whileReading(ctx, source, n.Object, func(ctx context.Context) error {
			return s.copySnapshot(ctx, n, source, job)
		})
	})
	return s.explainFull(ctx, n.Object, err)
}

// copySnapshot copies the data of a volume to n, which does not exist. The caller has claimed n.
func (s *store) copySnapshot(ctx context.Context, n *records.Snapshot, source records.Object, job *jobs.Job) error {
	v, err := s.liveVolume(ctx, source)
	if err != nil {
		return err
	}
	n.State, n.Size, n.Created = records.Creating, v.Size, now()
	if err := s.records().Create(ctx, records.SnapshotsDir, records.SnapshotFormat, n.Object, n); err != nil {
		return err
	}
	err = s.share.Mkdir(ctx, s.path(n.Dir()))
	if errors.Is(err, fs.ErrExist) { // left by a process that has ended
		if err = s.confirm(ctx); err == nil {
			err = s.clear(ctx, s.path(n.Dir()))
		}
	}
	if err == nil {
		err = s.copyData(ctx, v.SubDir, n.Dir(), job)
	}
	if err == nil {
		_, err = s.liveVolume(ctx, source) // not deleted meanwhile by a process that did not know of the copy
	}
	if err == nil {
		n.State = records.Ready
		err = s.records().Replace(ctx, records.SnapshotsDir, records.SnapshotFormat, n.Object, n)
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
func (s *store) dropSnapshot(ctx context.Context, n *records.Snapshot) error {
	if err := s.toTrash(ctx, n.Key, n.Dir()); err != nil {
		return err
	}
	if err := s.records().Remove(ctx, s.records().RecordPath(records.SnapshotsDir, n.Key)); err != nil {
		return err
	}
	return s.forgetCopies(ctx, n.Object)
}

// GetSnapshot returns the snapshot.
func (b *Backend) GetSnapshot(ctx context.Context, id string, secrets map[string]string) (backend.Snapshot, error) {
	o, err := records.ParseObject(volumeid.Snapshot, id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	s, err := b.store(ctx, o.Source, secrets, client.Calls)
	if err != nil {
		return backend.Snapshot{}, err
	}
	defer s.close()
	n, err := s.records().ReadSnapshot(ctx, o)
	if err == nil && n.State != records.Ready {
		err = fmt.Errorf("%w: snapshot %s", backend.ErrNotFound, o)
	}
	if err != nil {
		return backend.Snapshot{}, err
	}
	return n.Public(), nil
}

// DeleteSnapshot deletes a snapshot.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string, secrets map[string]string) error {
	o, err := records.ParseObject(volumeid.Snapshot, id)
	if err != nil {
		return nil
	}
	s, err := b.store(ctx, o.Source, secrets, client.Calls)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := s.records().ReadSnapshot(ctx, o); errors.Is(err, backend.ErrNotFound) &&
		!errors.Is(err, records.ErrEmpty) {
		if _, err := s.share.Stat(ctx, s.meta(records.WorkDir)); errors.Is(err, fs.ErrNotExist) {
			return errUnprepared
		}
		return nil
	}
	end, err := b.jobs.Exclusive(o.Key)
	if err != nil {
		return joberrors.Classify(err)
	}
	defer end()
	err = s.withReserve(ctx, secrets, func() error {
		return s.exclusively(ctx, o, func(ctx context.Context) error { return s.deleteSnapshot(ctx, o) })
	})
	if err == nil {
		b.emptyTrash(o.Source, secrets)
	}
	return err
}

// deleteSnapshot deletes a snapshot that the caller has claimed.
func (s *store) deleteSnapshot(ctx context.Context, o records.Object) error {
	n, err := s.records().ReadSnapshot(ctx, o)
	switch {
	case errors.Is(err, records.ErrEmpty):
		return s.records().Remove(ctx, s.records().RecordPath(records.SnapshotsDir, o.Key))
	case errors.Is(err, backend.ErrNotFound):
		return nil
	case err != nil:
		return err
	case n.State == records.Ready: // a copy that begins after the record finds the snapshot deleted
		if _, err := s.readers(ctx, o); err != nil {
			return err
		}
		before := *n
		n.State = records.Deleting
		if err := s.records().Replace(ctx, records.SnapshotsDir, records.SnapshotFormat, o, n); err != nil {
			return err
		}
		if _, err := s.readers(ctx, o); err != nil {
			return errors.Join(err, s.records().Replace(ctx, records.SnapshotsDir, records.SnapshotFormat, o, &before))
		}
	}
	return s.dropSnapshot(ctx, n)
}
