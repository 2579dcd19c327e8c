package hostpath

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// dataMode is the mode of a new volume's directory, which belongs to root, as on a freshly made filesystem. Pods that
// don't run as root set fsGroup.
const dataMode = 0o755

// volumeFormat is the form of a volume's record.json. Version 1 is the first.
var volumeFormat = record.Format{Version: 1}

// volume is the content of a record.json. It never changes once it is in the index.
type volume struct {
	ID   string `json:"id"`
	Name string `json:"name"` // given to CreateVolume, or the kubelet's handle of an inline volume
	content
	Inline  bool      `json:"inline,omitempty"`
	From    *origin   `json:"from,omitempty"`    // nil if it was made empty
	Class   settings  `json:"class,omitempty"`   // that it was made with
	Mutable settings  `json:"mutable,omitempty"` // that came later, and override Class
	Created time.Time `json:"created"`

	// Of a directory: how its limit is found, nil if it can have none; whether it has one; and whether it had none when
	// it was made, though that was preferred.
	Mark     *quota.Mark `json:"mark,omitempty"`
	Enforced bool        `json:"enforced,omitempty"`
	Promised bool        `json:"promised,omitempty"`

	namespace string // while it is made; see namespaceOf
}

// origin is what a volume was made from: nothing, a snapshot or a volume, either of which may be gone.
type origin struct {
	Snapshot string `json:"snapshot,omitempty"` // ID
	Volume   string `json:"volume,omitempty"`   // ID
}

func (o origin) String() string {
	switch {
	case o.Snapshot != "":
		return "snapshot " + o.Snapshot
	case o.Volume != "":
		return "volume " + o.Volume
	}
	return "nothing"
}

func (v *volume) origin() origin {
	if v.From == nil {
		return origin{}
	}
	return *v.From
}

func (v *volume) public() backend.Volume {
	id := v.ID
	if v.Inline {
		id = v.Name
	}
	return backend.Volume{
		ID: id, Size: v.Size, Parameters: v.parameters(), Mutable: v.mutable(), Inline: v.Inline,
		Snapshot: v.origin().Snapshot, Origin: v.origin().Volume, Context: v.context(),
	}
}

// Most volumes have nothing but the standard in these. They share it, as a list has thousands: nobody changes it.
var (
	plainParameters = map[kind]map[string]string{directory: {kindKey: string(directory)}, image: {kindKey: string(image)}}
	plainMutable    = map[kind]map[string]string{directory: mutableOf(&volume{content: content{Kind: directory}}), image: mutableOf(&volume{content: content{Kind: image}})}
	promised        = map[string]string{contextKey: contextPromised}
)

// parameters are those that v was made with.
func (v *volume) parameters() map[string]string {
	if len(v.Class) == 0 {
		return plainParameters[v.Kind]
	}
	all := maps.Clone(plainParameters[v.Kind])
	maps.Copy(all, v.Class)
	return all
}

// mutable returns what holds for v, for those who ask.
func (v *volume) mutable() map[string]string {
	if len(v.Class) == 0 && len(v.Mutable) == 0 {
		return plainMutable[v.Kind]
	}
	return mutableOf(v)
}

// context is what the CO hands on to every use of v.
func (v *volume) context() map[string]string {
	if v.Promised && !v.Inline {
		return promised
	}
	return nil
}

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
	v.Created, v.namespace = now(), o.Namespace
	defer b.traffic.begin()()
	err = b.keep(s, v, func() error {
		return s.place(ctx, volumesDir, v.ID, func(half *beneath.Dir) error { return b.fill(ctx, s, half, v) })
	})
	return v.public(), err
}

// keep promises room to v, makes it, and takes it into the index.
func (b *Backend) keep(s *store, v *volume, make func() error) error {
	if err := b.reserve(s, v.Size); err != nil {
		return err
	}
	switch err := make(); {
	case errors.Is(err, errHalf): // its promise stays, too
		b.catalog.BreakVolume(v.Key(), err)
		return err
	case err != nil:
		b.catalog.Release(v.Size)
		return exhausted(err)
	}
	b.catalog.PutVolume(v)
	return nil
}

// now is what a record says of when.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// errHalf says that something is in its place, but perhaps not durably, and only a start can tell.
var errHalf = fmt.Errorf("%w: restart the driver", backend.ErrUnavailable)

// place makes the directory called id in dir: fill puts into it, durably, what it is to hold. After an error there is
// nothing of it, unless that is errHalf.
func (s *store) place(ctx context.Context, dir, id string, fill func(half *beneath.Dir) error) error {
	half, err := s.prepare(ctx, id, fill)
	if err != nil {
		return err
	}
	final := path.Join(dir, id)
	if err := s.root.Rename(half, final); err != nil {
		return errors.Join(err, s.discard(half))
	}
	crashpoint.Reached("create:renamed")
	if err := s.root.Sync(dir); err != nil {
		if undo := s.root.Rename(final, half); undo != nil { // the next start finds it, whole
			return fmt.Errorf("%w: %w", errHalf, errors.Join(err, undo))
		}
		return errors.Join(err, s.discard(half))
	}
	crashpoint.Reached("create:durable")
	return nil
}

// prepare makes what fill puts into a new directory in staging/, durably but for its entry there, and returns its name.
func (s *store) prepare(ctx context.Context, id string, fill func(half *beneath.Dir) error) (half string, err error) {
	half = path.Join(stagingDir, id+"-"+random())
	if err := s.root.Mkdir(half, 0o700); err != nil {
		return "", err
	}
	crashpoint.Reached("create:half-made")
	if err := errors.Join(s.filled(half, fill), ctx.Err()); err != nil {
		return "", errors.Join(err, s.drop(half, err))
	}
	return half, nil
}

// filled calls fill. It leaves nothing open: Windows renames no open directory.
func (s *store) filled(half string, fill func(half *beneath.Dir) error) error {
	dir, err := s.root.OpenDir(half)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := fill(dir); err != nil {
		return err
	}
	crashpoint.Reached("create:recorded")
	return dir.Sync(".")
}

// fill makes the content of a new and empty volume, and its record.
func (b *Backend) fill(ctx context.Context, s *store, half *beneath.Dir, v *volume) error {
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
	return volumeFormat.Create(half, recordFile, v)
}

// makeImage makes a file of the volume's size, with holes for what nobody has written, and a filesystem in it. Here,
// where nobody has written to it yet, is the only place where that is done: what looks blank later may be a filesystem
// on a disk that can't be read.
func (b *Backend) makeImage(ctx context.Context, s *store, dir *beneath.Dir, v *volume) (err error) {
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

// drop takes an incomplete volume, snapshot or member away, after the error why. If a helper may
// still work on its files, drop moves them to the trash, and they stay there until the helper has
// ended: to remove a file would wait for the helper's lock.
func (s *store) drop(half string, why error) error {
	g := (*givenUp)(nil)
	if !errors.As(why, &g) {
		return s.discard(half)
	}
	name := path.Base(half)
	if err := s.root.Rename(half, path.Join(trashDir, name)); err != nil {
		return err
	}
	s.parked.add(name, "a copy to it hangs", g.gone)
	return nil
}

// discard takes an incomplete thing away: at once, or to the trash if it holds a tree.
func (s *store) discard(half string) error {
	if err := discardData(s.root, half, nil); err != nil { // it is tried again there
		return s.root.Rename(half, path.Join(trashDir, path.Base(half)))
	}
	for _, name := range []string{path.Join(half, recordFile), path.Join(half, imageFile), path.Join(half, dataDir), half} {
		if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.root.Rename(half, path.Join(trashDir, path.Base(half)))
		}
	}
	return nil
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

// Delete moves the volume to the trash.
func (b *Backend) Delete(_ context.Context, id string, _ map[string]string) error {
	return b.remove(id, false)
}

// DeleteInline moves an inline volume to the trash.
func (b *Backend) DeleteInline(_ context.Context, handle string) error {
	b.traffic.touch()
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
	release, err := b.exclusive(id)
	if err != nil {
		return err
	}
	defer release()
	v, err := b.volume(id)
	if errors.Is(err, backend.ErrNotFound) || (err == nil && v.Inline != inline) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.traffic.begin()()
	if err := b.unused(s, v); err != nil {
		return err
	}
	crashpoint.Reached("delete:checked")
	// What is in the trash may be emptied at once, and its project be given up: no volume has it any more.
	b.catalog.YieldProject(v)
	if err := b.trash(s, path.Join(volumesDir, v.ID)); err != nil {
		b.catalog.PutVolume(v)
		return err
	}
	b.catalog.DropVolume(v)
	return nil
}

// trash moves something to the trash, durably.
func (b *Backend) trash(s *store, name string) error {
	err := s.root.Rename(name, path.Join(trashDir, path.Base(name)+"-"+random()))
	if isReadOnly(err) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier try may have got this far
		return err
	}
	crashpoint.Reached("delete:renamed")
	// One fsync of the new parent makes a rename durable on ext4, xfs and btrfs.
	if err := s.root.Sync(trashDir); err != nil {
		return err
	}
	crashpoint.Reached("delete:durable")
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
	users, err := b.cfg.Images.Users(source)
	if errors.Is(err, mounter.ErrPath) { // a link is in the path, which no argument of the call has caused
		if _, at := s.data(v); at != nil {
			return misplaced(at)
		}
	}
	if err != nil {
		return fmt.Errorf("find out whether volume %s is in use: %w", v.ID, err)
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: volume %s is mounted at %s", backend.ErrInUse, v.ID, strings.Join(users[:min(3, len(users))], ", "))
	}
	return nil
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
		return mounter.Mount{}, fmt.Errorf("%w: volume %s is being copied, and its disk can't be written to meanwhile", backend.ErrBusy, v.ID)
	}
	b.traffic.touch()
	m, err := v.mount(s.dataPath(v), a)
	if err != nil {
		return m, err
	}
	if _, err := s.data(v); err != nil {
		return mounter.Mount{}, fmt.Errorf("the data of volume %s can't be mounted: %w", v.ID, misplaced(err))
	}
	if v.Kind == image {
		m.Tenant = s.namespaceOf(v)
	}
	return m, nil
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
