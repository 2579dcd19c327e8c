package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Restore makes a volume from a snapshot.
func (b *Backend) Restore(ctx context.Context, snapshot string, o backend.CreateOptions) (backend.Volume, error) {
	return b.createFrom(ctx, contentSource{Snapshot: snapshot}, o)
}

// Clone makes a volume from another volume.
func (b *Backend) Clone(ctx context.Context, source string, o backend.CreateOptions) (backend.Volume, error) {
	return b.createFrom(ctx, contentSource{Volume: source}, o)
}

// createFrom makes the volume o.Name from a source, or finds the existing volume.
func (b *Backend) createFrom(ctx context.Context, from contentSource, o backend.CreateOptions) (backend.Volume, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Volume{}, err
	}
	v := &volume{ID: volumeid.New(volumeid.Volume, b.cfg.Node, o.Name), Name: o.Name, From: &from, Created: timestamp()}
	switch old, err := b.volume(v.ID); {
	case err == nil: // the source may be deleted, so its content is assumed to be that of the volume
		source := old.content
		source.Size = 0
		if err := v.plan(o, &source); err != nil {
			return backend.Volume{}, err
		}
		return old.public(), old.fits(v, o)
	case !errors.Is(err, backend.ErrNotFound):
		return backend.Volume{}, err
	}
	source, err := b.contentOf(from)
	if err != nil {
		return backend.Volume{}, err
	}
	if source.Kind == image && !plain(b.cfg.Images) && !b.cfg.WindowsImageClone {
		return backend.Volume{}, fmt.Errorf("%w: %s is of an image, which cannot be restored or cloned on Windows "+
			"yet: create an empty volume and copy the files, or use kind: directory", backend.ErrInvalid, from)
	}
	if err := v.plan(o, &source); err != nil {
		return backend.Volume{}, err
	}
	if err := b.servable(v.content, o.Access); err != nil {
		return backend.Volume{}, err
	}
	accept, err := parseConsistency(o.Parameters)
	if err != nil {
		return backend.Volume{}, err
	}
	id := cmp.Or(from.Snapshot, from.Volume)
	description := fmt.Sprintf("%s, %+v, %v, %v, consistency %s", from, v.content, v.Class, v.Mutable, accept)
	v.namespace = o.Namespace
	err = b.runOrJoin(ctx, v.ID, description, []string{id}, func(ctx context.Context, job *jobs.Job) error {
		if old, err := b.volume(v.ID); err == nil { // made just before this job began
			return old.fits(v, o)
		}
		source, err := b.contentOf(from) // from now on the source cannot be deleted
		if err != nil {
			return err
		}
		c := copying{Backend: b, store: s, from: path.Join(snapshotsDir, id), accept: accept, job: &copyJob{Job: job}}
		c.claim = fair.Request{Kind: kindRestore, Tenant: o.Namespace, Volume: id}
		if from.Volume != "" {
			c.from, c.live, c.claim.Kind = path.Join(volumesDir, id), id, kindClone
		}
		return c.makeVolume(ctx, source, v)
	})
	if err != nil {
		return backend.Volume{}, err
	}
	return b.Get(ctx, v.ID, nil)
}

// contentOf returns the content of the snapshot or volume to be copied.
func (b *Backend) contentOf(from contentSource) (content, error) {
	if from.Volume != "" {
		v, err := b.persistent(from.Volume)
		if err != nil {
			return content{}, err
		}
		return v.content, nil
	}
	n, err := b.snapshot(from.Snapshot)
	if err != nil {
		return content{}, err
	}
	return n.content, nil
}

// makeVolume makes v from its source, and adds v to the catalog.
func (c copying) makeVolume(ctx context.Context, source content, v *volume) error {
	defer c.traffic.begin()()
	defer c.wakeTrash()
	return c.makeReserved(c.store, v, func() error {
		return c.store.makeObject(ctx, volumesDir, v.ID, func(incomplete *beneath.Dir) error {
			if err := c.restore(ctx, source, incomplete, v); err != nil {
				return err
			}
			return v.record(incomplete)
		})
	})
}

// restore makes the data of v in an incomplete directory.
func (c copying) restore(ctx context.Context, source content, incomplete *beneath.Dir, v *volume) error {
	if v.Kind == directory {
		return c.restoreDirectory(ctx, incomplete, v)
	}
	got, err := c.run(ctx, source, incomplete)
	if err != nil {
		return err
	}
	return c.adapt(ctx, incomplete, v, got)
}

// adapt gives the copy of an image the size of v, and gives its filesystem, if any, a new UUID, so
// that both can be mounted at the same time. The filesystem grows when it is mounted. On Windows
// the copy keeps the GUIDs of its source: see Config.WindowsImageClone.
func (c copying) adapt(ctx context.Context, incomplete *beneath.Dir, v *volume, got copied) error {
	if got.size > v.Size {
		return fmt.Errorf("%w: the source has grown to %d bytes during the copy", backend.ErrBusy, got.size)
	}
	if err := c.store.images.GrowImage(ctx, c.store.incompleteImage(incomplete), v.Size); err != nil {
		return err
	}
	if v.FSType != "" && plain(c.store.images) {
		if err := c.renew(ctx, incomplete, v); err != nil {
			return err
		}
	}
	crashpoint.Reached("restore:adapted")
	return nil
}

// renew gives the filesystem of v, in an incomplete directory, a new UUID, durably.
func (c copying) renew(ctx context.Context, incomplete *beneath.Dir, v *volume) (err error) {
	file, err := incomplete.OpenFile(c.store.Image(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := c.newUUID(ctx, file, v); err != nil {
		return err
	}
	return file.Sync()
}

// newUUID changes the UUID of the filesystem in file.
func (c copying) newUUID(ctx context.Context, file *os.File, v *volume) error {
	claim := c.claim
	claim.Kind = kindUUID
	defer c.traffic.pause()() // the programs have a slot of their own, and may hang
	leave, err := c.slots.formats.Acquire(ctx, claim)
	if err != nil {
		return err
	}
	defer leave()
	return c.cfg.Images.NewUUID(ctx, file, v.FSType, v.Sector)
}

// restoreDirectory makes the data directory of v in an incomplete directory, as a copy: a subvolume
// from a subvolume, otherwise file by file.
func (c copying) restoreDirectory(ctx context.Context, incomplete *beneath.Dir, v *volume) error {
	if c.store.subvolumes() {
		_, why, err := c.store.admit(ctx, v)
		if err != nil {
			return err
		}
		err = c.subvolumeOf(ctx, incomplete, false)
		if err == nil {
			v.Mark = &quota.Mark{Kind: quota.Subvolume}
			return c.enforce(incomplete, v, why)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return c.makeDirectory(ctx, c.store, incomplete, v, func(dst *os.File) error {
		_, err := c.treeTo(ctx, dst)
		return err
	})
}
