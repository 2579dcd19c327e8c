package hostpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Create makes a directory or an image. It takes three fsyncs: the record, the directory around it, and volumes/ after the rename.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, &volume{ID: volumeid.New(volumeid.Volume, b.cfg.Node, o.Name), Name: o.Name}, o)
}

// inlineHandle is how the kubelet names inline volumes.
var inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// CreateInline makes a volume for the life of one pod, whose author says its parameters: of these there is only the kind. What an
// administrator decides in a class, whether a size is enforced say, isn't the author's to undo.
func (b *Backend) CreateInline(ctx context.Context, handle string, o backend.CreateOptions) (backend.Volume, error) {
	if !inlineHandle.MatchString(handle) {
		return backend.Volume{}, fmt.Errorf("%w: an inline volume's handle is csi- and 64 hexadecimal digits", backend.ErrInvalid)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		if key != kindKey {
			return backend.Volume{}, fmt.Errorf("%w: an inline volume has its size and its %s, and no %.64q", backend.ErrInvalid, kindKey, key)
		}
	}
	return b.create(ctx, &volume{ID: volumeid.New(volumeid.Inline, b.cfg.Node, handle), Name: handle, Inline: true}, o)
}

// create makes v, which has its ID and name, as o says, or finds it.
func (b *Backend) create(ctx context.Context, v *volume, o backend.CreateOptions) (backend.Volume, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Volume{}, err
	}
	if err := v.plan(o, nil); err != nil {
		return backend.Volume{}, err
	}
	switch old, err := b.volume(v.Key()); {
	case err == nil:
		return old.public(), old.fits(v, o)
	case !errors.Is(err, backend.ErrNotFound):
		return backend.Volume{}, err
	}
	if err := unblocked(b.jobs.Free(v.ID)); err != nil {
		return backend.Volume{}, err
	}
	v.Created, v.namespace = timestamp(), o.Namespace
	defer b.traffic.begin()()
	err = b.keep(s, v, func() error {
		return s.make(ctx, volumesDir, v.ID, func(half *beneath.Dir) error { return b.makeEmpty(ctx, s, half, v) })
	})
	return v.public(), err
}

// keep promises room to v, makes it, and takes it into the index.
func (b *Backend) keep(s *root, v *volume, make func() error) error {
	if err := b.reserve(s, v.Size); err != nil {
		return err
	}
	switch err := make(); {
	case errors.Is(err, store.ErrUndecided): // its promise stays, too
		b.catalog.BreakVolume(v.Key(), err)
		return err
	case err != nil:
		b.catalog.Release(v.Size)
		return exhausted(err)
	}
	b.catalog.PutVolume(v)
	return nil
}

// timestamp returns the time of now as records hold it.
func timestamp() time.Time { return time.Now().UTC().Truncate(time.Second) }

// makeEmpty makes the content of a new and empty volume, and its record.
func (b *Backend) makeEmpty(ctx context.Context, s *root, half *beneath.Dir, v *volume) error {
	err := error(nil)
	if v.Kind == image {
		err = b.makeImage(ctx, s, half, v)
	} else {
		err = b.makeDirectory(ctx, s, half, v, nil)
	}
	if err != nil {
		return err
	}
	return v.record(half)
}

// record writes the record of v to its incomplete directory.
func (v *volume) record(half *beneath.Dir) error {
	setNamespace(half, v.namespace)
	return store.WriteRecord(half, volumeFormat, v)
}

// makeImage makes a file of the volume's size, with holes for what nobody has written, and a filesystem in it. Here,
// where nobody has written to it yet, is the only place where that is done: what looks blank later may be a filesystem
// on a disk that can't be read.
func (b *Backend) makeImage(ctx context.Context, s *root, dir *beneath.Dir, v *volume) (err error) {
	file, err := dir.OpenFile(imageFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := file.Truncate(v.Size); err != nil {
		return err
	}
	if v.FSType != "" {
		if err := b.format(ctx, file, v); err != nil {
			if disk, look := s.Space(); look == nil && disk.Free < leastFree {
				err = fmt.Errorf("%w: %w", backend.ErrExhausted, err) // which a program can't say
			}
			return err
		}
	}
	crashpoint.Reached("create:formatted")
	return file.Sync()
}

// leastFree is how many bytes a disk must have free for a failing mkfs not to be blamed on it.
const leastFree = 1 << 20

// format makes the filesystem of v in an image.
func (b *Backend) format(ctx context.Context, image *os.File, v *volume) error {
	resume := b.traffic.pause() // the wait is not traffic
	leave, err := b.slots.formats.Acquire(ctx, fair.Claim{Kind: kindFormat, Tenant: v.namespace, Volume: v.ID})
	resume()
	if err != nil {
		return err
	}
	defer leave()
	return b.cfg.Images.Format(ctx, image, v.FSType)
}

// Get returns the volume.
func (b *Backend) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	if _, err := b.ready(); err != nil {
		return backend.Volume{}, err
	}
	v, err := b.volume(id)
	if err != nil {
		return backend.Volume{}, err
	}
	return v.public(), nil
}

// Mount returns the volume's directory, its filesystem or its device. It checks the type of the
// data first: the Mounter follows no link, and its error does not name the obstacle.
func (b *Backend) Mount(_ context.Context, id string, a backend.Access) (mounter.Mount, error) {
	s, err := b.ready()
	if err != nil {
		return mounter.Mount{}, err
	}
	v, err := b.volume(id)
	if err != nil {
		return mounter.Mount{}, err
	}
	for key, value := range a.Context {
		if own, ok := v.context()[key]; !ok || own != value {
			return mounter.Mount{}, fmt.Errorf("%w: volume %s has no such %.64q in its context", backend.ErrInvalid, v.ID, key)
		}
	}
	if b.jobs.Held(v.ID) {
		return mounter.Mount{}, fmt.Errorf("%w: volume %s is being copied: it can be mounted when the copy is complete", backend.ErrBusy, v.ID)
	}
	b.traffic.touch()
	m, err := v.mount(s.dataPath(v), a)
	if err != nil {
		return m, err
	}
	if _, err := s.data(v); err != nil {
		return mounter.Mount{}, fmt.Errorf("cannot mount the data of volume %s: %w", v.ID, misplaced(err))
	}
	if v.Kind == image {
		m.Tenant = s.namespaceOf(v)
	}
	return m, nil
}
