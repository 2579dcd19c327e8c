package hostpath

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// dataMode is the mode of a new volume's directory, which belongs to root, as on a freshly made filesystem. Pods that
// don't run as root set fsGroup.
const dataMode = 0o755

// Create makes a directory or an image. It takes three fsyncs: the record, the directory around it, and volumes/ after the rename.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, &volume{ID: volumeid.New(b.cfg.Node, o.Name), Name: o.Name}, o)
}

// inlineHandle is how the kubelet names inline volumes.
var inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// CreateInline makes a directory for the life of one pod.
func (b *Backend) CreateInline(ctx context.Context, handle string, o backend.CreateOptions) (backend.Volume, error) {
	if !inlineHandle.MatchString(handle) {
		return backend.Volume{}, fmt.Errorf("%w: an inline volume's handle is csi- and 64 hexadecimal digits", backend.ErrInvalid)
	}
	return b.create(ctx, &volume{ID: volumeid.NewInline(b.cfg.Node, handle), Name: handle, Inline: true}, o)
}

// create makes v, which has its ID and name, as o says, or finds it.
func (b *Backend) create(ctx context.Context, v *volume, o backend.CreateOptions) (backend.Volume, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Volume{}, err
	}
	want, err := plan(o)
	if err != nil {
		return backend.Volume{}, err
	}
	key := v.ID
	if v.Inline {
		key = v.Name
	}
	switch old, err := b.index.find(key); {
	case err == nil:
		return old.public(), old.fits(want, o)
	case !errors.Is(err, backend.ErrNotFound):
		return backend.Volume{}, err
	}

	want.ID, want.Name, want.Inline, want.Created = v.ID, v.Name, v.Inline, time.Now().UTC().Truncate(time.Second)
	v = want
	defer b.busy()()
	if err := b.reserve(s, v.Size); err != nil {
		return backend.Volume{}, err
	}
	switch err := s.make(ctx, v); {
	case errors.Is(err, backend.ErrUnavailable): // its promise stays, too
		b.index.breaks(key, err)
		return backend.Volume{}, err
	case err != nil:
		b.index.release(v.Size)
		return backend.Volume{}, exhausted(err)
	}
	b.index.put(v)
	return v.public(), nil
}

// make makes the volume on disk. After an error there is nothing of it, unless that is ErrUnavailable.
func (s *store) make(ctx context.Context, v *volume) (err error) {
	half := path.Join(stagingDir, v.ID+"-"+random())
	if err := s.root.Mkdir(half, 0o700); err != nil {
		return err
	}
	crashpoint.Reached("create:half-made")
	if err := errors.Join(s.fill(ctx, half, v), ctx.Err()); err != nil {
		return errors.Join(err, s.discard(half))
	}
	final := path.Join(volumesDir, v.ID)
	if err := s.root.Rename(half, final); err != nil {
		return errors.Join(err, s.discard(half))
	}
	crashpoint.Reached("create:renamed")
	if err := record.SyncDir(s.root, volumesDir); err != nil {
		if undo := s.root.Rename(final, half); undo != nil { // the next start finds it, whole
			return fmt.Errorf("%w: restart the driver: %w", backend.ErrUnavailable, errors.Join(err, undo))
		}
		return errors.Join(err, s.discard(half))
	}
	crashpoint.Reached("create:durable")
	return nil
}

// fill makes the content of a half-made volume, durably. It leaves nothing open: Windows renames no open directory.
func (s *store) fill(ctx context.Context, half string, v *volume) error {
	dir, err := s.root.OpenRoot(half)
	if err != nil {
		return err
	}
	defer dir.Close()
	if v.Kind == image {
		err = s.makeImage(ctx, dir, v)
	} else {
		err = makeDirectory(dir)
	}
	if err != nil {
		return err
	}
	if err := volumeFormat.Create(dir, recordFile, v); err != nil {
		return err
	}
	crashpoint.Reached("create:recorded")
	return record.SyncDir(dir, ".")
}

func makeDirectory(dir *os.Root) error {
	if err := dir.Mkdir(dataDir, dataMode); err != nil {
		return err
	}
	return dir.Chmod(dataDir, dataMode) // whatever the umask is
}

// makeImage makes a file of the volume's size, with holes for what nobody has written, and a filesystem in it. Here,
// where nobody has written to it yet, is the only place where that is done: what looks blank later may be a filesystem
// on a disk that can't be read.
func (s *store) makeImage(ctx context.Context, dir *os.Root, v *volume) (err error) {
	file, err := dir.OpenFile(imageFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := file.Truncate(v.Size); err != nil {
		return err
	}
	if v.FSType != "" {
		if err := s.format(ctx, file, v.FSType); err != nil {
			if disk, look := s.space(); look == nil && disk.free < leastFree {
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

// discard removes a half-made volume, in which no pod has written.
func (s *store) discard(half string) error {
	for _, name := range []string{path.Join(half, recordFile), path.Join(half, dataDir), path.Join(half, imageFile), half} {
		if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Get returns the volume.
func (b *Backend) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	if _, err := b.ready(); err != nil {
		return backend.Volume{}, err
	}
	v, err := b.index.find(id)
	if err != nil {
		return backend.Volume{}, err
	}
	return v.public(), nil
}

// Delete moves the volume to the trash.
func (b *Backend) Delete(_ context.Context, id string, _ map[string]string) error {
	return b.remove(id, false)
}

// DeleteInline moves an inline volume to the trash.
func (b *Backend) DeleteInline(_ context.Context, handle string) error {
	// Every volume that is unpublished gets here. One that CreateVolume made must not have to wait for the root.
	if _, err := volumeid.Parse(handle); err == nil {
		return nil
	}
	return b.remove(handle, true)
}

func (b *Backend) remove(id string, inline bool) error {
	s, err := b.ready()
	if err != nil {
		return err
	}
	v, err := b.index.find(id)
	if errors.Is(err, backend.ErrNotFound) || (err == nil && v.Inline != inline) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.busy()()
	if err := b.unused(s, v); err != nil {
		return err
	}
	crashpoint.Reached("delete:checked")
	err = s.root.Rename(path.Join(volumesDir, v.ID), path.Join(trashDir, v.ID+"-"+random()))
	if isReadOnly(err) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier try may have got this far
		return err
	}
	crashpoint.Reached("delete:renamed")
	// One fsync of the new parent makes a rename durable on ext4, xfs and btrfs.
	if err := record.SyncDir(s.root, trashDir); err != nil {
		return err
	}
	crashpoint.Reached("delete:durable")
	b.index.drop(v)
	b.count.trashed.Add(1)
	b.wakeTrash()
	return nil
}

// unused returns ErrInUse if the volume is mounted anywhere on this machine, as the kernel sees it now: there is no
// attach to prevent a delete, and what is in the trash is removed, through any mount of it too.
func (b *Backend) unused(s *store, v *volume) error {
	source := filepath.Dir(s.dataPath(v))
	if v.Kind == image {
		source = s.dataPath(v)
	}
	users, err := b.cfg.Users(source)
	if err != nil {
		return fmt.Errorf("find out whether volume %s is in use: %w", v.ID, err)
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: volume %s is mounted at %s", backend.ErrInUse, v.ID, strings.Join(users[:min(3, len(users))], ", "))
	}
	return nil
}

// Mount returns the volume's directory, its filesystem or its device.
func (b *Backend) Mount(_ context.Context, id string, a backend.Access) (mounter.Mount, error) {
	s, err := b.ready()
	if err != nil {
		return mounter.Mount{}, err
	}
	v, err := b.index.find(id)
	if err != nil {
		return mounter.Mount{}, err
	}
	for key := range a.Context { // the volumes of this backend have none
		return mounter.Mount{}, fmt.Errorf("%w: volume %s has no %.64q in its context", backend.ErrInvalid, v.ID, key)
	}
	return v.mount(s.dataPath(v), a)
}

// busy counts a call that the emptying of the trash gives way to, until what it returns is called.
func (b *Backend) busy() func() {
	b.count.calls.Add(1)
	return func() { b.count.calls.Add(-1) }
}

// exhausted turns the errors of a disk that is full or read-only into ErrExhausted: another node may have room.
func exhausted(err error) error {
	if isTooLarge(err) {
		return fmt.Errorf("%w: %w", backend.ErrOutOfRange, err)
	}
	if isFull(err) || isReadOnly(err) {
		return fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	return err
}

// random returns a suffix that makes a name new.
func random() string { return strings.ToLower(rand.Text()[:10]) }
