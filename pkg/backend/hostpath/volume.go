package hostpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Create makes a directory or an image. Create takes three fsyncs: of the record, of the directory
// around it, and of volumes/ after the rename. An image takes a fourth, of the image itself.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, &volume{ID: volumeid.New(volumeid.Volume, b.cfg.Node, o.Name), Name: o.Name}, o)
}

// inlineHandle is the form of the kubelet's handles of inline volumes.
var inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// CreateInline makes a volume for the life of a pod. The author of the pod sets its parameters, of
// which only the kind is permitted: an author must not override the decisions of an administrator
// in a class, such as the enforcement of a size.
func (b *Backend) CreateInline(ctx context.Context, handle string, o backend.CreateOptions) (backend.Volume, error) {
	if !inlineHandle.MatchString(handle) {
		return backend.Volume{}, fmt.Errorf("%w: invalid handle of an inline volume: must be csi- and 64 hexadecimal "+
			"digits", backend.ErrInvalid)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		if key != kindKey {
			return backend.Volume{}, fmt.Errorf("%w: unknown attribute %.64q of an inline volume: must be size "+
				"or %s", backend.ErrInvalid, key, kindKey)
		}
	}
	return b.create(ctx, &volume{ID: volumeid.New(volumeid.Inline, b.cfg.Node, handle), Name: handle, Inline: true}, o)
}

// create makes v, which has its ID and name, as o requests, or finds the existing volume.
func (b *Backend) create(ctx context.Context, v *volume, o backend.CreateOptions) (backend.Volume, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Volume{}, err
	}
	old, err := b.volume(v.Key())
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		return backend.Volume{}, err
	}
	exists := err == nil
	if exists {
		o = withKind(o, old.Kind) // which --kinds may have excluded since
	} else {
		o = withKind(o, b.kinds[0])
	}
	if err := v.plan(o, nil); err != nil {
		return backend.Volume{}, err
	}
	if exists {
		return old.public(), old.fits(v, o)
	}
	if err := errors.Join(b.servable(v.content, o.Access), joberrors.Classify(b.jobs.Free(v.ID))); err != nil {
		return backend.Volume{}, err
	}
	v.Created, v.namespace = timestamp(), o.Namespace
	defer b.traffic.begin()()
	err = b.makeReserved(s, v, func() error {
		return s.makeObject(ctx, volumesDir, v.ID,
			func(incomplete *beneath.Dir) error { return b.makeEmpty(ctx, s, incomplete, v) })
	})
	return v.public(), err
}

// makeReserved reserves space for v, calls create, and adds v to the catalog.
func (b *Backend) makeReserved(s *root, v *volume, create func() error) error {
	if err := b.reserve(s, v.Size); err != nil {
		return err
	}
	switch err := create(); {
	case errors.Is(err, store.ErrUndecided): // the space stays reserved
		b.catalog.BreakVolume(v.Key(), err)
		return err
	case err != nil:
		b.catalog.Release(v.Size)
		return exhausted(err)
	}
	b.addToCatalog(v, v.Size)
	return nil
}

// addToCatalog adds v to the catalog, for which size bytes were reserved.
func (b *Backend) addToCatalog(v *volume, size int64) {
	b.catalog.PutVolume(v)
	if v.Reserved() == 0 {
		b.catalog.Release(size)
	}
}

// timestamp returns the current time in the precision of records.
func timestamp() time.Time { return time.Now().UTC().Truncate(time.Second) }

// makeEmpty makes the content of a new and empty volume, and its record.
func (b *Backend) makeEmpty(ctx context.Context, s *root, incomplete *beneath.Dir, v *volume) error {
	var err error
	if v.Kind == image {
		err = b.makeImage(ctx, s, incomplete, v)
	} else {
		err = b.makeDirectory(ctx, s, incomplete, v, nil)
	}
	if err != nil {
		return err
	}
	return v.record(incomplete)
}

// record writes the record of v to its incomplete directory.
func (v *volume) record(incomplete *beneath.Dir) error {
	setNamespace(incomplete, v.namespace)
	return store.WriteRecord(incomplete, volumeFormat, v)
}

// makeImage makes an image of the volume's size, with a filesystem. No other function formats an
// image: an image that looks blank later can hold a filesystem that the disk fails to read.
func (b *Backend) makeImage(ctx context.Context, s *root, incomplete *beneath.Dir, v *volume) error {
	leave, err := b.formatSlot(ctx, v)
	if err != nil {
		return err
	}
	defer leave()
	if v.FSType != "" && v.FSType != "ntfs" && v.Size >= mounter.LargeImage && s.reflinks() {
		v.Sector = reflinkSector
	}
	err = s.images.MakeImage(ctx, s.incompleteImage(incomplete), v.Size, v.FSType)
	if err != nil && v.FSType != "" {
		if disk, look := s.Space(); look == nil && disk.Free < leastFree {
			err = fmt.Errorf("%w: %w", backend.ErrExhausted, err) // the error of mkfs has no errno
		}
	}
	if err == nil {
		crashpoint.Reached("create:formatted")
	}
	return err
}

// leastFree is the free space in bytes above which a failure of mkfs is not attributed to a full
// disk.
const leastFree = 1 << 20

// formatSlot waits for a slot to make the filesystem of v, if it has one.
func (b *Backend) formatSlot(ctx context.Context, v *volume) (leave func(), err error) {
	if v.FSType == "" {
		return func() {}, nil
	}
	defer b.traffic.pause()() // time spent waiting is not traffic
	return b.slots.formats.Acquire(ctx, fair.Request{Kind: kindFormat, Tenant: v.namespace, Volume: v.ID})
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

// Mount returns the volume's directory, its filesystem or its device. Mount checks the type of the
// data first: the Mounter follows no link, and the error of the Mounter does not name the link.
func (b *Backend) Mount(_ context.Context, id string, a backend.Access) (mounter.Mount, error) {
	s, err := b.ready()
	if err != nil {
		return mounter.Mount{}, err
	}
	v, err := b.volume(id)
	if err != nil {
		return mounter.Mount{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(a.Context)) {
		if own, ok := v.context()[key]; !ok || own != a.Context[key] {
			return mounter.Mount{}, fmt.Errorf("%w: invalid %.64q in the volume context of %s: must be %q",
				backend.ErrInvalid, key, v.ID, own)
		}
	}
	if b.jobs.WritesBlocked(v.ID) {
		return mounter.Mount{}, fmt.Errorf("%w: volume %s is being copied: it can be mounted when the copy is complete",
			backend.ErrBusy, v.ID)
	}
	b.traffic.touch()
	m, err := v.mount(s.dataPath(v), a)
	if err != nil {
		return m, err
	}
	if err := s.checkData(v); err != nil {
		return mounter.Mount{}, fmt.Errorf("cannot mount the data of volume %s: %w", v.ID, wrongType(err))
	}
	if v.Kind == image {
		m.Tenant = s.namespaceOf(v)
	}
	return m, nil
}
