package hostpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Snapshot copies the data of a volume. A mounted image is copied at a point in time, or rejected,
// unless the parameter consistency is none. A directory is copied file by file, except on btrfs,
// where it is a subvolume with a snapshot of its own.
func (b *Backend) Snapshot(ctx context.Context, o backend.SnapshotOptions) (backend.Snapshot, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Snapshot{}, err
	}
	accept, err := snapshotParameters(o.Parameters)
	if err != nil {
		return backend.Snapshot{}, err
	}
	n := &snapshot{ID: volumeid.New(volumeid.Snapshot, b.cfg.Node, o.Name), Name: o.Name, Source: o.Source,
		Accept: accept}
	switch old, err := b.snapshot(n.ID); {
	case err == nil:
		return old.public(), old.fits(n)
	case !errors.Is(err, backend.ErrNotFound):
		return backend.Snapshot{}, err
	}
	if _, err := b.persistent(o.Source); err != nil {
		return backend.Snapshot{}, err
	}
	description := "volume " + n.Source
	if n.Accept != frozen {
		description += ", consistency " + string(n.Accept)
	}
	err = b.runOrJoin(ctx, n.ID, description, []string{n.Source}, func(ctx context.Context, job *jobs.Job) error {
		return b.takeSnapshot(ctx, s, n, fair.Request{Kind: kindSnapshot, Tenant: o.Namespace, Volume: n.Source},
			&copyJob{Job: job})
	})
	if err != nil {
		return backend.Snapshot{}, err
	}
	return b.GetSnapshot(ctx, n.ID, nil)
}

// snapshotParameters reads the parameters of a VolumeSnapshotClass.
func snapshotParameters(parameters map[string]string) (consistency, error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != consistencyKey {
			return "", fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
		}
	}
	return parseConsistency(parameters)
}

// takeSnapshot makes n from its volume, and adds n to the catalog.
func (b *Backend) takeSnapshot(ctx context.Context, s *root, n *snapshot, claim fair.Request, job *copyJob) error {
	if old, err := b.snapshot(n.ID); err == nil { // made just before this job began
		return old.fits(n)
	}
	v, err := b.persistent(n.Source) // from now on the volume cannot be deleted
	if err != nil {
		return err
	}
	defer b.traffic.begin()()
	c := copying{Backend: b, store: s, from: path.Join(volumesDir, v.ID), live: v.ID, accept: n.Accept, claim: claim,
		job: job}
	reserved := c.estimate(v)
	if err := b.reserve(s, reserved); err != nil {
		return err
	}
	n.content = v.content
	err = s.makeObject(ctx, snapshotsDir, n.ID, func(incomplete *beneath.Dir) error {
		got, err := c.run(ctx, n.content, incomplete)
		if err != nil {
			return err
		}
		n.Created = job.pointInTime.UTC()
		n.setResult(got)
		b.catalog.Release(reserved)
		reserved = 0
		if err := b.reserve(s, n.OnDisk); err != nil {
			return err
		}
		reserved = n.OnDisk
		return store.WriteRecord(incomplete, snapshotFormat, n)
	})
	switch {
	case errors.Is(err, store.ErrUndecided): // the space stays reserved
		b.catalog.BreakSnapshot(n.ID, err)
		return err
	case err != nil:
		b.wakeTrash()
		b.catalog.Release(reserved)
		return exhausted(err)
	}
	crashpoint.Reached("snapshot:placed")
	b.catalog.PutSnapshot(n)
	return nil
}

// estimate returns the expected size of a copy of v: at least 1 byte, so that no
// copy begins on a full disk.
func (c copying) estimate(v *volume) (held int64) {
	switch {
	case v.Kind == image:
		if src, err := c.store.Dir().OpenFile(c.store.dataName(v), os.O_RDONLY, 0); err == nil {
			defer src.Close()
			held, _ = copier.OnDisk(src)
		}
	case v.Enforced:
		u, _ := c.quotaUsage(c.store, v)
		held = u.Used
	}
	return max(1, held)
}

// GetSnapshot returns the snapshot.
func (b *Backend) GetSnapshot(_ context.Context, id string, _ map[string]string) (backend.Snapshot, error) {
	n, _, err := b.findSnapshot(id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	return n.public(), nil
}

func (b *Backend) findSnapshot(id string) (*snapshot, *root, error) {
	s, err := b.ready()
	if err != nil {
		return nil, nil, err
	}
	n, err := b.snapshot(id)
	return n, s, err
}

// ListSnapshots returns snapshots from the index.
func (b *Backend) ListSnapshots(_ context.Context, source, after string,
	limit int) (page []backend.Snapshot, more bool, err error) {
	if _, err := b.ready(); err != nil {
		return nil, false, err
	}
	b.catalog.SnapshotsAfter(source, after, func(n *snapshot) bool {
		if more = len(page) == limit; !more {
			page = append(page, n.public())
		}
		return !more
	})
	return page, more, nil
}
