package mounter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/helper"
)

// maxLayers bounds how many mounts stacked at one path Unmount takes away.
const maxLayers = 32

// linux is the Mounter of Linux 5.8 and newer. It asks the kernel by system calls whose cost doesn't grow with the
// number of mounts, and parses mountinfo only where a source must be found by name (Users).
type linux struct {
	dir     string // the kubelet directory, as callers spell it
	real    string // the same without links
	state   string // a directory of its own, for the records of what is frozen
	known   known
	loops   loops
	images  locks[backing] // held by whoever mounts, unmounts, changes or freezes what is in a file
	syncs   locks[backing] // held by whoever unmounts, or writes out what is to be frozen; taken before images
	helpers helper.Pool    // for system calls that a tenant can make hang
	stalls  stalls
	checks  *fair.Slots // for e2fsck and resize2fs
	legacy  atomic.Bool // the kernel lacks open_tree, move_mount (5.2) or mount_setattr (5.12)
}

// New returns the Mounter of this machine for paths below dir, the kubelet directory, which must
// exist. state is a directory for the Mounter alone, which New makes where it is missing and which
// must outlive the process. New first thaws what an earlier process has left frozen. What it cannot
// thaw within seconds it retries in the background, and Failing reports it.
// It needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace.
func New(dir, state string) (Mounter, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("kubelet directory: %w", err)
	}
	if err := mayMount(); err != nil {
		return nil, err
	}
	l := &linux{dir: dir, real: real, state: state, checks: fair.New(fair.Limits{Slots: 8, Tenant: 4, Kind: 8})}
	if err := l.checkKernel(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("directory for records of what is frozen: %w", err)
	}
	if err := l.thawLeft(); err != nil {
		return nil, err
	}
	if err := l.findMounts(); err != nil {
		return nil, fmt.Errorf("mounts below %s: %w", dir, err)
	}
	return l, nil
}

// mayMount returns an error if this process lacks CAP_SYS_ADMIN: without it the first mount would fail, much later.
func mayMount() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return fmt.Errorf("%w: mounting needs CAP_SYS_ADMIN: run as root, in Kubernetes in a privileged container", fs.ErrPermission)
	}
	return nil
}

// checkKernel returns an error for a kernel without openat2 (5.6) or STATX_ATTR_MOUNT_ROOT (5.8).
func (l *linux) checkKernel() error {
	p, err := l.open(filepath.Join(l.dir, "any"))
	if err == nil {
		defer p.close()
		var st unix.Statx_t
		err = unix.Statx(p.parent, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
		if err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			err = unix.ENOSYS
		}
	}
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: Linux 5.8 or newer is needed", errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("kubelet directory: %w", err)
	}
	return nil
}

// findMounts remembers what an earlier process mounted below the directory, so that Siblings knows it.
func (l *linux) findMounts() error {
	below := mountinfo.PrefixFilter(l.real)
	_, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		if skip, _ := below(i); skip || i.Mountpoint == l.real {
			return true, false
		}
		l.known.add(l.dir+strings.TrimPrefix(i.Mountpoint, l.real), sourceOf(i, i.Root))
		if n, ok := loopNumber(i.Source); ok && i.FSType == btrfs { // on this machine's own disk, so it answers
			if at, err := stat(unix.AT_FDCWD, i.Mountpoint, unix.AT_SYMLINK_NOFOLLOW); err == nil {
				l.loops.showsOn(at.id, n)
			}
		}
		return true, false // it need not be kept
	})
	return err
}

// sourceOf names what a mount shows: name, within the filesystem of i.
func sourceOf(i *mountinfo.Info, name string) sourceID {
	return idOf(fmt.Sprintf("%d:%d:%s", i.Major, i.Minor, name))
}

// remember notes that path shows what is at from: where that is known as a mount, the source of it.
func (l *linux) remember(path, from string) error {
	if l.known.addFrom(path, from) {
		return nil
	}
	name, own, err := find(from)
	if err == nil && own == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("find the filesystem of %s: %w", from, err)
	}
	l.known.add(path, sourceOf(own, name))
	return nil
}

func (l *linux) Mount(ctx context.Context, m Mount, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	attr, err := attributes(m)
	if err != nil {
		return err
	}
	p, err := l.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist, which the caller has to make", ErrPath, filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer p.close()
	release, err := l.holdSource(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	switch m.Kind {
	case Image:
		return l.mountImage(ctx, m, p, attr)
	case Disk:
		return l.mountDisk(ctx, m, p)
	case Device:
		return l.mountDevice(ctx, m, p)
	}
	return l.mountDirectory(ctx, m, p, attr)
}

// holdSource takes the lock of the image that m is, or that m's source is mounted from. A source that can't be looked
// at has none: to mount it fails by itself.
func (l *linux) holdSource(ctx context.Context, m Mount) (release func(), err error) {
	src, err := stat(unix.AT_FDCWD, m.Source, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	switch {
	case err != nil:
		return func() {}, nil
	case m.Kind == Image, m.Kind == Disk:
		return l.images.lock(ctx, src.backing())
	}
	return l.hold(ctx, src, &l.images)
}

// holdAt takes the locks of the image that is mounted at path, as a filesystem or as a Disk. Where path can't be looked
// at there is none, and whoever goes on will see that.
func (l *linux) holdAt(ctx context.Context, path string) (release func(), err error) {
	p, err := l.open(path)
	if err != nil {
		return func() {}, nil
	}
	defer p.close()
	at, err := p.stat()
	if err == nil && !at.mounted && at.mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.diskState()
	}
	if err != nil || !at.mounted {
		return func() {}, nil
	}
	return l.hold(ctx, at, &l.syncs, &l.images)
}

// hold takes locks of the image behind the loop device that something is on, or is, if it is one.
func (l *linux) hold(ctx context.Context, at state, all ...*locks[backing]) (release func(), err error) {
	n, ok := l.loops.number(at)
	if !ok {
		return func() {}, nil
	}
	b, err := fileOfLoop(n)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	var held []func()
	release = func() {
		for _, r := range held {
			r()
		}
	}
	for _, a := range all {
		r, err := a.lock(ctx, b)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, r)
	}
	return release, nil
}

func (l *linux) mountDirectory(ctx context.Context, m Mount, p place, attr attributeSet) error {
	src, err := openSource(m.Source)
	if err != nil {
		return err
	}
	defer unix.Close(src.fd)
	if src.flags&unix.ST_RDONLY != 0 && attr.flags&unix.ST_RDONLY == 0 {
		return fmt.Errorf("%w: %s", ErrReadOnly, m.Source)
	}

	made, done, err := p.prepare(unix.S_IFDIR, func(at state) (bool, error) { return at.id == src.id, p.verify(src, attr) })
	if done || err != nil {
		return err
	}
	crashpoint.Reached("mount:target-made")
	err = l.attach(src, p, attr)
	if err == nil {
		err = p.verify(src, attr)
	}
	if err == nil {
		err = l.remember(p.path, m.Source)
	}
	return l.undo(ctx, m, p, made, err)
}

// undo takes away what a mount that failed because of err has made at p, and returns the whole story.
func (l *linux) undo(ctx context.Context, m Mount, p place, made bool, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("mount %s at %s: %w", m.Source, p.path, err)
	if undo := l.takeAway(context.WithoutCancel(ctx), p.path, false); undo != nil { // the lock is held
		return errors.Join(err, undo)
	}
	if made {
		return errors.Join(err, p.remove())
	}
	return err
}

// prepare makes p ready for a mount on a file or a directory: made says that it is new, done that what is wanted is
// mounted there already. is tells whether it is, and what differs.
func (p place) prepare(mode uint16, is func(at state) (same bool, differs error)) (made, done bool, err error) {
	at, err := p.stat()
	if at.broken || at.deleted {
		if err := unix.Unmount(p.proc(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return false, false, fmt.Errorf("take the dead mount at %s away: %w", p.path, err)
		}
		at, err = p.stat()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, false, p.make(mode)
	case err != nil:
		return false, false, err
	case at.mounted:
		same, differs := is(at)
		switch {
		case !same:
			return false, false, fmt.Errorf("%w: %s", ErrConflict, p.path)
		case differs != nil:
			return false, false, fmt.Errorf("%w: %w", ErrConflict, differs)
		}
		return false, true, nil
	case at.mode&unix.S_IFMT != mode:
		return false, false, fmt.Errorf("%w: %s is a file where a directory is needed, or the other way round", ErrPath, p.path)
	case mode == unix.S_IFREG && at.size > 0:
		return false, false, fmt.Errorf("%w: %s", ErrNotEmpty, p.path)
	case mode == unix.S_IFREG:
		return false, false, nil
	}
	return false, false, p.empty()
}

// make makes an empty directory or file.
func (p place) make(mode uint16) error {
	var err error
	if mode == unix.S_IFREG {
		err = unix.Mknodat(p.parent, p.name, unix.S_IFREG|0o640, 0)
	} else {
		err = unix.Mkdirat(p.parent, p.name, 0o750)
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", p.path, err)
	}
	return nil
}

// attach makes the mount. open_tree, mount_setattr and move_mount put it there with all of its options in one step;
// a bind by mount(2) ignores MS_RDONLY in silence, and needs a second call, until which it is writable.
func (l *linux) attach(src source, p place, attr attributeSet) error {
	target, err := unix.Openat(p.parent, p.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if !l.legacy.Load() {
		err := attachTree(src, target, attr)
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return err
		}
		l.legacy.CompareAndSwap(false, errors.Is(err, unix.ENOSYS)) // EPERM may be this one mount's
	}
	return attachLegacy(src, target, p, attr)
}

func attachTree(src source, target int, attr attributeSet) error {
	tree, err := unix.OpenTree(src.fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	set := unix.MountAttr{Attr_set: attr.set, Attr_clr: attr.clear}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &set); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

func attachLegacy(src source, target int, p place, attr attributeSet) error {
	if err := unix.Mount(procPath(src.fd), procPath(target), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	flags := (src.flags&managedFlags)&^attr.clearFlags() | attr.flags
	if err := unix.Mount("", p.proc(), "", unix.MS_BIND|unix.MS_REMOUNT|mountFlags(flags), ""); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	return nil
}

// verify asks the kernel whether src is mounted at p with the options of attr and no others than src's own.
func (p place) verify(src source, attr attributeSet) error {
	at, err := p.stat()
	if err != nil {
		return err
	}
	if !at.mounted || at.id != src.id {
		return fmt.Errorf("%s does not show what was mounted there", p.path)
	}
	return p.verifyFlags((src.flags&managedFlags)&^attr.clearFlags() | attr.flags)
}

// verifyFlags asks the kernel whether what is mounted at p has these flags, and no other ones that options are about.
func (p place) verifyFlags(want int64) error {
	var st unix.Statfs_t
	if err := p.statfs(&st); err != nil {
		return err
	}
	if got := st.Flags & managedFlags; got != want {
		return fmt.Errorf("%s has the mount flags %#x, not %#x", p.path, got, want)
	}
	return nil
}

func (l *linux) Unmount(ctx context.Context, path string) error {
	release, err := l.holdAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return l.takeAway(ctx, path, false)
}

func (l *linux) Remove(ctx context.Context, path string) error {
	release, err := l.holdAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return l.takeAway(ctx, path, true)
}

// takeAway unmounts layer by layer until the kernel says that path is no mount. When path is to be removed, that its
// removal succeeds says so. The caller has the lock of what is mounted there.
func (l *linux) takeAway(ctx context.Context, path string, remove bool) error {
	p, err := l.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		l.known.forget(path)
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	for range maxLayers {
		at, err := p.stat()
		switch {
		case at.broken:
			err = p.unmount(ctx, unix.MNT_DETACH)
		case errors.Is(err, fs.ErrNotExist):
			l.known.forget(path)
			return nil
		case err == nil && at.mounted:
			err = p.unmount(ctx, 0)
		case err == nil && !remove:
			l.known.forget(path)
			return l.releaseDisk(ctx, p, at)
		}
		if err == nil && remove {
			crashpoint.Reached("remove:unmounted")
			err = p.remove()
			if errors.Is(err, ErrNotEmpty) && l.releaseDisk(ctx, p, at) == nil {
				err = p.remove()
			}
			if err == nil {
				l.known.forget(path)
				return nil
			}
			if errors.Is(err, ErrBusy) { // there is one more layer
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("unmount %s: still a mount after %d tries", path, maxLayers)
}

// unmount takes one layer away. It is tried again for some 30 ms while the mount is busy: whoever but looks at it, as
// a stat(2) does, holds it for that moment. Errors: ErrBusy.
func (p place) unmount(ctx context.Context, flags int) error {
	path := p.proc()
	err := unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW)
	for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait <= 16*time.Millisecond; wait *= 2 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w", p.path, ErrBusy)
		case <-time.After(wait):
		}
		err = unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		err = ErrBusy
	case err == nil, errors.Is(err, unix.EINVAL): // no mount any more, as the next look will tell
		return nil
	}
	return fmt.Errorf("unmount %s: %w", p.path, err)
}

// remove removes an empty directory, or an empty file, on which a device was mounted. Errors: ErrBusy for a mount
// point, ErrNotEmpty, ErrPath.
func (p place) remove() error {
	err := unix.Unlinkat(p.parent, p.name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTDIR) {
		if at, look := p.stat(); look == nil && at.mode&unix.S_IFMT == unix.S_IFREG && at.size == 0 {
			err = unix.Unlinkat(p.parent, p.name, 0)
		}
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		err = ErrNotEmpty
	case errors.Is(err, unix.ENOTDIR):
		err = fmt.Errorf("%w: not a directory", ErrPath)
	case errors.Is(err, unix.EBUSY):
		err = ErrBusy
	}
	return fmt.Errorf("remove %s: %w", p.path, err)
}

func (l *linux) Mounted(_ context.Context, m Mount, path string) (bool, error) {
	src, err := stat(unix.AT_FDCWD, m.Source, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return false, fmt.Errorf("source of %s: %w", path, &fs.PathError{Op: "statx", Path: m.Source, Err: err})
	}
	return l.shows(path, func(at state) (bool, error) {
		switch m.Kind {
		case Image, Disk:
			return l.loops.holds(at, src.backing())
		case Device:
			return at.mode&unix.S_IFMT == unix.S_IFBLK && at.device == src.device, nil
		}
		return at.id == src.id, nil
	})
}

func (l *linux) Occupied(_ context.Context, path string) (bool, error) {
	return l.shows(path, func(state) (bool, error) { return true, nil })
}

func (l *linux) Siblings(_ context.Context, path string) ([]string, error) {
	others, source := l.known.siblings(path)
	if len(others) == 0 {
		return nil, nil
	}
	p, err := l.open(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	self, err := p.stat()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, other := range others {
		switch there, err := l.shows(other, func(at state) (bool, error) { return at.id == self.id, nil }); {
		case err != nil: // its class is not that of path
			return nil, fmt.Errorf("%w: %s, where the same may be mounted, can't be looked at: %v", ErrBusy, other, err)
		case there:
			paths = append(paths, other)
		default:
			l.known.forgetFrom(other, source) // somebody else unmounted it
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// shows reports whether something is mounted at path and is the right thing. Where nothing is, it looks for a Disk.
func (l *linux) shows(path string, is func(state) (bool, error)) (bool, error) {
	p, err := l.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.close()
	at, err := p.stat()
	if at.broken || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && !at.mounted && at.mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.diskState()
	}
	if err != nil || !at.mounted || at.deleted {
		return false, err
	}
	return is(at)
}

func (l *linux) Users(source string) ([]string, error) {
	name, own, err := find(source)
	if err != nil || own == nil {
		return nil, err
	}
	if at, err := stat(unix.AT_FDCWD, source, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &fs.PathError{Op: "statx", Path: source, Err: err}
	} else if at.mode&unix.S_IFMT == unix.S_IFREG {
		return l.loops.users(at.backing())
	}
	// One pass over mountinfo is enough: since Linux 5.8 a reader keeps its place by a cursor, so a mount that is there
	// the whole time is listed, however many come and go meanwhile.
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.ID == own.ID || i.Major != own.Major || i.Minor != own.Minor ||
			(i.Root != name && !strings.HasPrefix(i.Root, strings.TrimSuffix(name, "/")+"/")), false
	})
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	slices.Sort(paths)
	return paths, nil
}

// IsFilesystem reports whether path is the top of a filesystem, whole, and not just a directory of one.
func IsFilesystem(path string) (bool, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	name, own, err := find(real)
	if err == nil && own == nil {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return err == nil && name == "/", err
}

// IsShared reports whether mounts made below path, which must exist, are seen outside this mount namespace. In a
// container they must be, or pods would see empty directories: mountPropagation: Bidirectional.
func IsShared(path string) (bool, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	_, own, err := find(real)
	if err == nil && own == nil {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return err == nil && strings.Contains(own.Optional, "shared:"), err
}

// find returns the name that path has within its filesystem, and the mount through which it is seen, which is nil if
// there is no such path.
func find(path string) (name string, own *mountinfo.Info, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	real, err := os.Readlink(procPath(fd))
	if err != nil {
		return "", nil, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return "", nil, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == st.Mnt_id
		return !found, found
	})
	if err != nil {
		return "", nil, err
	}
	if len(infos) == 0 {
		return "", nil, fmt.Errorf("%s is on mount %d, which mountinfo does not list", path, st.Mnt_id)
	}
	rel, err := filepath.Rel(infos[0].Mountpoint, real)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(infos[0].Root, rel), infos[0], nil
}

func (l *linux) Usage(_ context.Context, path string) (Usage, error) {
	p, err := l.open(path)
	if err != nil {
		return Usage{}, err
	}
	defer p.close()
	if n, ok := p.loop(); ok {
		return loopUsage(n)
	}
	var st unix.Statfs_t
	if err := p.statfs(&st); err != nil {
		return Usage{}, err
	}
	unit := st.Frsize
	return Usage{
		TotalBytes:      int64(st.Blocks) * unit,
		UsedBytes:       int64(st.Blocks-st.Bfree) * unit,
		AvailableBytes:  int64(st.Bavail) * unit,
		TotalInodes:     int64(st.Files),
		UsedInodes:      int64(st.Files - st.Ffree),
		AvailableInodes: int64(st.Ffree),
	}, nil
}

// place is a path below the kubelet directory, held by its parent, so that nothing can be swapped beneath us.
type place struct {
	parent int    // O_PATH descriptor
	name   string // the last element
	path   string // as it was asked for
}

// open resolves path below the kubelet directory without following any link.
// Errors: ErrPath, fs.ErrNotExist (the parent).
func (l *linux) open(path string) (place, error) {
	rel, err := below(l.dir, path)
	if err != nil {
		return place{}, err
	}
	dir, name := filepath.Split(rel)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	parent, err := unix.Openat2(unix.AT_FDCWD, l.real+"/"+dir, &how)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return place{}, fmt.Errorf("%w: %s: %w", ErrPath, filepath.Dir(path), err)
	case err != nil:
		return place{}, &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	return place{parent: parent, name: name, path: path}, nil
}

func (p place) close() { unix.Close(p.parent) }

// proc names the place for the system calls that take no descriptor. It resolves through the parent that we hold.
func (p place) proc() string { return procPath(p.parent) + "/" + p.name }

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// stat tells what is at the place. broken comes with an error.
func (p place) stat() (state, error) {
	s, err := stat(p.parent, p.name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		s.broken = isDead(err)
		return s, &fs.PathError{Op: "statx", Path: p.path, Err: err}
	}
	if s.mode&unix.S_IFMT == unix.S_IFLNK {
		return s, fmt.Errorf("%w: %s is a symbolic link", ErrPath, p.path)
	}
	return s, nil
}

// isDead reports whether err is how a mount answers whose server or disk is gone.
func isDead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EHOSTDOWN) || errors.Is(err, unix.EIO)
}

func (p place) statfs(st *unix.Statfs_t) error {
	fd, err := unix.Openat(p.parent, p.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstatfs(fd, st); err != nil {
		return &fs.PathError{Op: "statfs", Path: p.path, Err: err}
	}
	return nil
}

// empty returns ErrNotEmpty if the directory at the place has entries.
func (p place) empty() error {
	names, err := p.names(1)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%w: %s", ErrNotEmpty, p.path)
	}
	return err
}

// names returns up to n names of entries of the directory at the place.
func (p place) names(n int) ([]string, error) {
	fd, err := unix.Openat(p.parent, p.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), p.path)
	defer f.Close()
	names, err := f.Readdirnames(n)
	if err == io.EOF {
		err = nil
	}
	return names, err
}

// fileID names a file or directory of this machine, however it is reached.
type fileID struct {
	major, minor uint32
	ino          uint64
}

// state is what statx(2) says of a path. STATX_ATTR_MOUNT_ROOT (Linux 5.8) tells mount points, binds too.
type state struct {
	id      fileID
	device  fileID // what a device node stands for; the inode is 0
	mode    uint16
	size    uint64
	mounted bool // the root of a mount
	deleted bool // a mount whose directory is gone
	broken  bool // a mount that answers with an error, such as that of a dead server
}

func stat(dir int, path string, flags int) (state, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, flags, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_NLINK|unix.STATX_SIZE, &st); err != nil {
		return state{}, err
	}
	mounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	return state{
		id:      fileID{st.Dev_major, st.Dev_minor, st.Ino},
		device:  fileID{major: st.Rdev_major, minor: st.Rdev_minor},
		size:    st.Size,
		mode:    st.Mode,
		mounted: mounted,
		deleted: mounted && st.Nlink == 0,
	}, nil
}

// source is an open directory that is to be mounted, with the flags of the mount through which it was reached.
type source struct {
	fd    int
	id    fileID
	flags int64
}

func openSource(path string) (source, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return source{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	s, err := stat(fd, "", unix.AT_EMPTY_PATH)
	var st unix.Statfs_t
	if err == nil {
		err = unix.Fstatfs(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		return source{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return source{fd: fd, id: s.id, flags: st.Flags}, nil
}
