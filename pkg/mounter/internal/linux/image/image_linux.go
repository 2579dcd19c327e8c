package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Images mounts images.
type Images struct {
	tree        *tree.Tree
	loops       *loop.Devices
	locks       *loop.Locks
	tools       *tool.Runner
	filesystems *filesystem.Programs

	mu          sync.Mutex
	unmountable map[string]string // the last error of a mount, by the path of the image
}

// New returns the Images of a Host of these parts.
func New(tr *tree.Tree, loops *loop.Devices, locks *loop.Locks, tools *tool.Runner,
	filesystems *filesystem.Programs) *Images {
	return &Images{tree: tr, loops: loops, locks: locks, tools: tools, filesystems: filesystems}
}

// Mount mounts the filesystem in a file. Mount never formats the image: a disk that
// answers with errors looks blank to every tool, and a new filesystem would destroy the old
// filesystem. See MakeImage.
func (im *Images) Mount(ctx context.Context, m mounter.Mount, src tree.Source, p tree.Handle,
	attr tree.AttributeSet) error {
	file, err := src.OpenImage()
	if err != nil {
		return err
	}
	defer file.Close()
	o := attr.Fresh(m.FSType, m.Options)
	t, done, err := p.Prepare(unix.S_IFDIR, func(at tree.State, root int) (bool, error) {
		same, err := im.loops.Backs(at, src.Backing())
		return same, errors.Join(err, tree.VerifyFlags(root, o.Shown))
	})
	if done || err != nil {
		return err
	}
	defer t.Close()
	crashpoint.Reached("image:target-made")
	return t.Failed(m, im.mountAttached(ctx, file, m, t, o))
}

// mountAttached attaches the file and mounts the filesystem on the device. If the driver dies
// before the mount, no device stays attached: the kernel detaches the device with its last user.
func (im *Images) mountAttached(ctx context.Context, file *os.File, m mounter.Mount, t tree.Target,
	o tree.Fresh) (err error) {
	defer func() { im.noteMount(m.Source, err) }()
	b, err := tree.BackingOf(file)
	if err != nil {
		return err
	}
	if err := im.tools.Stalls.Check(b); err != nil { // e2fsck or resize2fs may still write to the image
		return err
	}
	dev, was, err := im.loops.Attach(file, loop.OptionsOf(m))
	if err != nil {
		return err
	}
	defer dev.Close()
	crashpoint.Reached("image:attached")
	mounted := false
	if n, ok := loop.Number(dev.Name()); was && ok { // else only a process, such as udev's, has kept it attached
		if mounted, err = loop.IsClaimed(n); err != nil {
			return err
		}
	}
	if !mounted && m.FSType == "ext4" {
		if err := im.filesystems.CheckExt4(ctx, m, tool.Disk{File: dev, Image: b, Path: m.Source,
			Tenant: m.Tenant}); err != nil {
			return err
		}
	}
	r := tree.FilesystemRecipe(dev.Name(), m.FSType, o)
	r.Record = func(root int) error {
		crashpoint.Reached("image:mounted")
		at, err := tree.StatFD(root)
		if err != nil {
			return err
		}
		if n, ok := loop.Number(dev.Name()); ok && m.FSType == tree.Btrfs {
			im.loops.ShowsOn(at.ID, n)
		}
		return im.tree.RememberAs(t.Path, root)
	}
	return im.tree.Attach(t, r)
}

// noteMount records the result of a mount of an image.
func (im *Images) noteMount(image string, err error) {
	damaged := errors.Is(err, mounter.ErrFormat) || errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG)
	im.mu.Lock()
	defer im.mu.Unlock()
	switch {
	case err == nil:
		delete(im.unmountable, image)
	case damaged:
		if im.unmountable == nil {
			im.unmountable = map[string]string{}
		}
		im.unmountable[image] = strings.Join(strings.Fields(err.Error()), " ") // e2fsck writes several lines
	}
}

// Unmountable adds the images whose filesystem the last mount found damaged to all. It forgets
// images that were deleted.
func (im *Images) Unmountable(all map[string]mounter.Failure) {
	im.mu.Lock()
	known := maps.Clone(im.unmountable)
	im.mu.Unlock()
	for image, message := range known {
		if _, err := os.Lstat(image); errors.Is(err, fs.ErrNotExist) {
			im.noteMount(image, nil)
			continue
		}
		all[image] = mounter.Failure{Kind: mounter.Unmountable, Message: message}
	}
}

// MountNode attaches a file to a loop device and mounts the device node in the directory at p.
func (im *Images) MountNode(ctx context.Context, m mounter.Mount, src tree.Source, p tree.Handle,
	_ tree.AttributeSet) error {
	file, err := src.OpenImage()
	if err != nil {
		return err
	}
	defer file.Close()
	d, made, err := p.PrepareNode()
	if err != nil {
		return err
	}
	defer d.Close()
	if err = im.mountNode(ctx, file, m, src.Backing(), d); err == nil {
		return nil
	}
	at, look := tree.StatFD(d.Parent)
	return errors.Join(err, look, tree.Target{Handle: p, FD: d.Parent, ID: at.ID, Made: made}.Discard())
}

// mountNode mounts the node of a Disk at d.
func (im *Images) mountNode(ctx context.Context, file *os.File, m mounter.Mount, b tree.Backing, d tree.Handle) error {
	if err := im.unmountStale(ctx, d); err != nil {
		return err
	}
	t, done, err := d.Prepare(unix.S_IFREG, func(at tree.State, _ int) (bool, error) { return im.loops.Backs(at, b) })
	if done && err == nil {
		return im.keepAttached(file, m) // an earlier driver may have died before it cleared autoclear
	}
	if err != nil {
		return err
	}
	defer t.Close()
	err = d.WriteBacking(b)
	if err == nil {
		if err = im.attachNode(file, m, t); err != nil && t.Made {
			err = errors.Join(err, d.RemoveBacking())
		}
	}
	return t.Failed(m, err)
}

// attachNode attaches a file to a loop device and mounts its node on t.
func (im *Images) attachNode(file *os.File, m mounter.Mount, t tree.Target) error {
	dev, _, err := im.loops.Attach(file, loop.OptionsOf(m))
	if err != nil {
		return err
	}
	defer dev.Close()
	crashpoint.Reached("disk:attached")
	at, err := tree.StatFD(int(dev.Fd()))
	if err != nil {
		return &fs.PathError{Op: "statx", Path: dev.Name(), Err: err}
	}
	r := tree.DeviceNodeRecipe(int(dev.Fd()), at.Device)
	r.Record = func(root int) error {
		crashpoint.Reached("disk:mounted")
		if err := loop.SetAutoclear(dev, false); err != nil { // a mounted node does not keep its device attached
			return err
		}
		if err := errors.Join(tree.MarkTarget(t.FD), im.tree.RememberAs(t.Path, root)); err != nil {
			return errors.Join(err, loop.SetAutoclear(dev, true))
		}
		return nil
	}
	return im.tree.Attach(t, r)
}

// keepAttached clears autoclear of the device of a mounted Disk, so that the device stays attached,
// and sets the properties that m asks for.
func (im *Images) keepAttached(file *os.File, m mounter.Mount) error {
	dev, _, err := im.loops.Attach(file, loop.OptionsOf(m))
	if err != nil {
		return err
	}
	defer dev.Close()
	return loop.SetAutoclear(dev, false)
}

// isOwn reports whether the loop device whose node is mounted at d still has the file of its
// backing record, and returns the number of the device and that file. at is the state of d. The
// device may be about to be detached: see [loop.Devices.FileOf].
func (im *Images) isOwn(d tree.Handle, at tree.State) (n int, b tree.Backing, own bool, err error) {
	n, ok := im.loops.NumberOf(at)
	if !ok || !at.Mounted {
		return 0, b, false, nil
	}
	b, there, err := d.ReadBacking()
	if errors.Is(err, mounter.ErrNotEmpty) || (err == nil && (!there || b == tree.Backing{})) {
		return n, b, false, nil
	}
	if err != nil {
		return n, b, false, err
	}
	own, err = im.loops.Backs(at, b)
	if tree.IsDead(err) { // it is safer to leave a device attached than to detach the device of another image
		return n, b, false, nil
	}
	return n, b, own, err
}

// unmountStale unmounts the node at d if its device no longer has the file of the backing record.
func (im *Images) unmountStale(ctx context.Context, d tree.Handle) error {
	at, err := d.Stat()
	if err != nil || !at.Mounted {
		return nil
	}
	if _, _, own, err := im.isOwn(d, at); own || err != nil {
		return err
	}
	return d.Unmount(ctx, 0)
}

// ReleaseDevice unmounts the node at d. ReleaseDevice sets autoclear first, so that the kernel
// detaches the device with its last user, and then removes that user.
func (im *Images) ReleaseDevice(ctx context.Context, d tree.Handle, at tree.State) error {
	n, b, own, err := im.isOwn(d, at)
	if err != nil {
		return err
	}
	if own {
		if own, err = im.onlyNode(d, n); err != nil {
			return err
		}
	}
	var dev *os.File
	if own {
		if dev, err = loop.OpenOwn(n, b); err != nil {
			return err
		}
		own = dev != nil
	}
	if own {
		defer dev.Close()
		if err := loop.SetAutoclear(dev, true); err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
	}
	crashpoint.Reached("disk:releasing")
	err = d.Unmount(ctx, 0)
	switch {
	case err != nil && own: // the device stays in use
		return errors.Join(err, loop.SetAutoclear(dev, false))
	case own: // for the next file with this device number, also of another program
		return tree.SetDeviceReadOnly(dev, false)
	}
	return err
}

// onlyNode reports whether the node of device n is mounted at d only, and not as another Disk.
// Errors: ErrBusy if a Device is mounted from the node: after a detach, the user of the Device
// would write to the next disk with the same device number.
func (im *Images) onlyNode(d tree.Handle, n int) (bool, error) {
	b, err := im.loops.FileOf(n)
	if err != nil {
		return false, err
	}
	users, err := im.loops.Users(b)
	if err != nil {
		return false, err
	}
	alone := true
	resolved := im.tree.Real + strings.TrimPrefix(d.Path, im.tree.Dir) // as mountinfo spells it
	for _, path := range users {
		if path == resolved {
			continue
		}
		alone = false
		dir, name := filepath.Split(path)
		if _, err := os.Lstat(filepath.Join(dir, tree.BackingName)); err != nil || name != mounter.DeviceName {
			return false, fmt.Errorf("unmount %s: %w: the device is also mounted at %s", d.Path, mounter.ErrBusy, path)
		}
	}
	return alone, nil
}

// Detach is that of mounter.Images. It holds the lock of the image, so that the device is not that
// of a Disk whose node is about to be mounted.
func (im *Images) Detach(ctx context.Context, image string) (device string, err error) {
	src, release, err := im.locks.LockSource(ctx, mounter.Mount{Kind: mounter.Disk, Source: image})
	if err != nil {
		return "", err
	}
	defer release()
	b := src.Backing()
	n, ok, err := im.loops.DeviceFor(b)
	if err != nil || !ok {
		return "", err
	}
	users, err := im.loops.Users(b)
	if err != nil || !slices.Equal(users, []string{loop.Path(n)}) {
		return "", err
	}
	was, err := setAutoclear(n, b, true)
	if err != nil {
		return "", err
	}
	if loop.Released(n, b) {
		return "", nil
	}
	if !was { // that of a Disk, which stays attached without a user
		_, err = setAutoclear(n, b, false)
	}
	return loop.Path(n), err
}

// setAutoclear sets whether the kernel detaches a device that has the backing file b with its last
// user, and returns whether it did before. A device that was read-only stays so: a process that has
// it open must not write.
func setAutoclear(n int, b tree.Backing, on bool) (was bool, err error) {
	dev, err := loop.OpenOwn(n, b)
	if err != nil || dev == nil {
		return true, err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err == nil {
		was, err = info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0, loop.SetAutoclear(dev, on)
	}
	if errors.Is(err, unix.ENXIO) { // it is detached
		return true, nil
	}
	return was, err
}

// Tune is that of mounter.Images.
func (im *Images) Tune(ctx context.Context, m mounter.Mount) error {
	if m.Kind != mounter.Image && m.Kind != mounter.Disk {
		return nil
	}
	src, release, err := im.locks.LockSource(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	file, err := src.OpenImage()
	if err != nil {
		return err
	}
	defer file.Close()
	return im.loops.TuneFile(file, src.Backing(), loop.OptionsOf(m))
}
