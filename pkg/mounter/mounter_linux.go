package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// linux is the Host of Linux 5.8 and newer. It asks the kernel by system calls whose cost doesn't grow with the
// number of mounts, and parses mountinfo only where a source must be found by name (Users).
type linux struct {
	dir       string // the kubelet directory, as callers spell it
	real      string // the same without links
	state     string // a directory of its own, for the records of what is frozen
	known     known
	loops     loops
	layers    asks[string, layer]    // of overlays, by path
	opens     asks[int, struct{}]    // of the roots of filesystems, by mount ID
	looks     asks[fileID, looked]   // at what is on block devices, by number
	rescans   asks[string, struct{}] // of the sizes of SCSI disks, by the file in sysfs
	images    locks[backing]         // held by calls that mount, unmount, change or freeze an image
	syncs     locks[backing]         // held by calls that unmount an image, or write it out before a freeze; taken before images
	helpers   helper.Pool            // for system calls that a tenant can make hang
	freezers  helper.Pool            // for freezes: they never keep a helper from a thaw
	stalls    stalls
	checks    *fair.Slots   // for e2fsck and resize2fs
	growths   *fair.Slots   // for growths of mounted filesystems
	toolLimit time.Duration // that constant, or less in a test
	legacy    atomic.Bool   // the kernel lacks open_tree, move_mount (5.2) or mount_setattr (5.12)
}

// New returns this machine, for paths below dir, the kubelet directory, which must
// exist. state is a directory for the Host alone, which New makes where it is missing and which
// must outlive the process. New first thaws what an earlier process has left frozen. What it cannot
// thaw within seconds it retries in the background, and Failing reports it.
// It needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace.
func New(dir, state string) (Host, error) {
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
	l := &linux{
		dir: dir, real: real, state: state, toolLimit: toolLimit,
		checks:  fair.New(fair.Limits{Slots: 8, Tenant: 4, Kind: 8}),
		growths: fair.New(fair.Limits{Slots: maxGrowing, Tenant: tenantGrow, Kind: maxGrowing}),
	}
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
	if !hasCapability(unix.CAP_SYS_ADMIN) {
		return fmt.Errorf("%w: mounting needs CAP_SYS_ADMIN: run as root, in Kubernetes in a privileged container", fs.ErrPermission)
	}
	return nil
}

// hasCapability reports whether this process has a capability below 32.
func hasCapability(number uint) bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&head, &caps[0]) == nil && caps[0].Effective&(1<<number) != 0
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

// findMounts remembers the mounts that an earlier process has made below the directory, so that
// OtherTargets knows them, and marks the files of its devices, so that Remove does.
func (l *linux) findMounts() error {
	below := mountinfo.PrefixFilter(l.real)
	var devices []string // paths of loop devices' nodes
	numbers := map[string]string{}
	ours := map[string]bool{} // names of devices that a Disk has
	_, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		if skip, _ := below(i); skip || i.Mountpoint == l.real {
			return true, false
		}
		path := l.dir + strings.TrimPrefix(i.Mountpoint, l.real)
		l.known.add(path, sourceOf(i, i.Root))
		if n, ok := loopNumber(i.Source); ok && i.FSType == btrfs { // on this machine's own disk, so it answers
			if at, err := statAt(i); err == nil {
				l.loops.showsOn(at.id, n)
			}
		}
		if _, ok := loopNumber("/dev" + i.Root); ok {
			devices, numbers[path] = append(devices, path), i.Root
			ours[i.Root] = ours[i.Root] || l.isDisk(path)
		}
		return true, false // it need not be kept
	})
	for _, path := range devices {
		if p, err := l.open(path); err == nil {
			if ours[numbers[path]] {
				p.markBelow() // without the mark, Remove knows a file only if it unmounts the device itself
			}
			p.close()
		}
	}
	return err
}

// statAt describes the root of a mount. Errors: ErrPath if its path leads elsewhere by now.
func statAt(i *mountinfo.Info) (state, error) {
	fd, err := resolve(i.Mountpoint, unix.O_PATH)
	if err != nil {
		return state{}, err
	}
	defer unix.Close(fd)
	at, err := statFD(fd)
	if err == nil && at.mount != uint64(i.ID) {
		err = fmt.Errorf("%w: another mount is at %s", ErrPath, i.Mountpoint)
	}
	return at, err
}

// isDisk reports whether path is the device of a Disk.
func (l *linux) isDisk(path string) bool {
	d, err := l.open(path)
	if err != nil {
		return false
	}
	defer d.close()
	_, there, err := d.readBacking()
	return d.name == DeviceName && there && err == nil
}

// sourceOf names what a mount shows: name, within the filesystem of i.
func sourceOf(i *mountinfo.Info, name string) sourceID {
	return idOf(fmt.Sprintf("%d:%d:%s", i.Major, i.Minor, name))
}

// remember notes that path shows the same as from: where from is known as a mount, the source of it.
func (l *linux) remember(path string, from source) error {
	if l.known.addFrom(path, from.path) {
		return nil
	}
	return l.rememberAs(path, from.fd)
}

// rememberAs notes that path shows the directory, file or filesystem that fd stands for.
func (l *linux) rememberAs(path string, fd int) error {
	name, own, err := findFD(fd)
	if err != nil {
		return fmt.Errorf("find the filesystem of %s: %w", path, err)
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
	if m.Kind == BlockDevice && m.Source == "" {
		return fmt.Errorf("%w: the volume is not attached to this node: does the driver's CSIDriver have attachRequired?", ErrDevice)
	}
	src, release, err := l.lockSource(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	switch m.Kind {
	case Image:
		return l.mountImage(ctx, m, src, p, attr)
	case Disk:
		return l.mountDisk(ctx, m, src, p)
	case Device:
		return l.mountDevice(ctx, m, src, p)
	case BlockDevice:
		return l.mountBlockDevice(ctx, m, src, p, attr)
	}
	return l.mountDirectory(m, src, p, attr)
}

// lockSource opens m's source and takes the lock of the image that it is, or is mounted from. While
// it waits it holds nothing open: the source may be a mount that another call unmounts.
func (l *linux) lockSource(ctx context.Context, m Mount) (src source, release func(), err error) {
	at, err := l.statSource(m.Source)
	if err != nil {
		return src, nil, err
	}
	var unlock func()
	switch m.Kind {
	case Image, Disk:
		unlock, err = l.images.lock(ctx, at.backing())
	case BlockDevice:
		unlock, err = l.images.lock(ctx, at.deviceKey())
	default:
		unlock, err = l.hold(ctx, at, &l.images)
	}
	if err != nil {
		return src, nil, err
	}
	src, err = l.openSource(m.Source)
	if err == nil && (src.id != at.id || src.device != at.device) {
		src.close()
		err = fmt.Errorf("%w: %s was replaced during the call", ErrBusy, m.Source)
	}
	if err != nil {
		unlock()
		return src, nil, err
	}
	return src, func() { src.close(); unlock() }, nil
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
	b, err := l.loops.fileOf(n)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) || isDead(err) { // a pod on a dead disk must end
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

func (l *linux) mountDirectory(m Mount, src source, p place, attr attributeSet) error {
	if src.kind() != unix.S_IFDIR {
		return &fs.PathError{Op: "mount", Path: m.Source, Err: unix.ENOTDIR}
	}
	flags, err := flagsOf(src.fd)
	if err != nil {
		return err
	}
	if flags&unix.ST_RDONLY != 0 && attr.flags&unix.ST_RDONLY == 0 {
		return fmt.Errorf("%w: %s", ErrReadOnly, m.Source)
	}
	shown := (flags&managedFlags)&^attr.clearFlags() | attr.flags
	t, done, err := p.prepare(unix.S_IFDIR, func(at state, root int) (bool, error) {
		return at.id == src.id, verifyFlags(root, shown)
	})
	if done || err != nil {
		return err
	}
	defer t.close()
	crashpoint.Reached("mount:target-made")
	r := directoryRecipe(src, attr, shown)
	r.record = func(int) error { return l.remember(p.path, src) }
	return t.failed(m, l.attach(t, r))
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

// takeAway unmounts layer by layer until the kernel says that path is no mount. If path is to be
// removed, its removal says so. The caller has the lock of the image that is mounted there.
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
	device := false // the node of a device was mounted there
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
			device = device || at.kind() == unix.S_IFBLK
		case err == nil && !remove:
			l.known.forget(path)
			return l.releaseDisk(ctx, p, at)
		}
		if err == nil && remove {
			crashpoint.Reached("remove:unmounted")
			err = l.removeAt(ctx, p, at, device)
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

// removeAt removes what was mounted on at p: a directory, with the device of a Disk in it, or the
// file of a device. device says that this call has unmounted a device from it.
func (l *linux) removeAt(ctx context.Context, p place, at state, device bool) error {
	err := p.removeDirectory()
	switch {
	case errors.Is(err, unix.ENOTDIR):
		err = p.removeFile(device)
	case errors.Is(err, ErrNotEmpty):
		if failed := l.releaseDisk(ctx, p, at); failed != nil {
			return fmt.Errorf("%w: %v", err, failed) // whose class would mean another layer
		}
		err = p.removeDirectory()
	}
	return err
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

// removeDirectory removes an empty directory. Errors: ErrBusy for a mount point, ErrNotEmpty,
// ErrPath, which is also unix.ENOTDIR, for what is none.
func (p place) removeDirectory() error {
	err := unix.Unlinkat(p.parent, p.name, unix.AT_REMOVEDIR)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		err = ErrNotEmpty
	case errors.Is(err, unix.ENOTDIR):
		err = fmt.Errorf("%w: %w", ErrPath, err)
	case errors.Is(err, unix.EBUSY):
		err = ErrBusy
	}
	return fmt.Errorf("remove %s: %w", p.path, err)
}

// removeFile removes the file on which a device was mounted, and no other file. A file that this
// mounter has made carries a mark. known says that the file is one without the mark.
// Errors: ErrBusy for a mount point, ErrPath.
func (p place) removeFile(known bool) error {
	at, err := p.stat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case at.mounted:
		return fmt.Errorf("remove %s: %w", p.path, ErrBusy)
	case at.kind() != unix.S_IFREG:
		return fmt.Errorf("remove %s: %w: it is neither a directory nor a file", p.path, ErrPath)
	case at.size > 0:
		return fmt.Errorf("remove %s: %w: a file of %d bytes is no target of a device", p.path, ErrPath, at.size)
	case !known && !at.isTarget():
		return fmt.Errorf("remove %s: %w: this driver has not made the file: remove it by hand if nothing needs it", p.path, ErrPath)
	}
	err = unix.Unlinkat(p.parent, p.name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		err = ErrBusy
	}
	return fmt.Errorf("remove %s: %w", p.path, err)
}

func (l *linux) Mounted(_ context.Context, m Mount, path string) (bool, error) {
	if m.Kind == BlockDevice && m.Source == "" { // it is not attached
		return false, nil
	}
	src, err := l.statSource(m.Source)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if m.Kind == BlockDevice && m.isNode() {
		return l.rawMounted(path, src.device)
	}
	return l.shows(path, func(at state) (bool, error) {
		switch m.Kind {
		case BlockDevice:
			return onDevice(at, src.device)
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

func (l *linux) OtherTargets(_ context.Context, path string) ([]string, error) {
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

// find returns the name that path has within its filesystem, and the mount through which it is
// seen, which is nil if there is no such path. No element of path may be a link.
func find(path string) (name string, own *mountinfo.Info, err error) {
	fd, err := resolve(path, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	defer unix.Close(fd)
	return findFD(fd)
}

// findFD is find of an open file or directory.
func findFD(fd int) (name string, own *mountinfo.Info, err error) {
	real, err := os.Readlink(procPath(fd))
	if err != nil {
		return "", nil, err
	}
	at, err := statFD(fd)
	if err != nil {
		return "", nil, &fs.PathError{Op: "statx", Path: real, Err: err}
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.mount
		return !found, found
	})
	if err != nil {
		return "", nil, err
	}
	if len(infos) == 0 {
		return "", nil, fmt.Errorf("%s is on mount %d, which mountinfo does not list", real, at.mount)
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
	if u, ok, err := p.deviceUsage(); ok || err != nil {
		return u, err
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
