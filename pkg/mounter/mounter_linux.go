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
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/keylock"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// maxLayers bounds the number of stacked mounts that Unmount removes from a path.
const maxLayers = 32

// linux is the Host of Linux 5.8 and newer. It uses system calls whose cost does not grow with the
// number of mounts, and parses mountinfo only to find a source by its name (MountPointsOf).
type linux struct {
	dir      string // the kubelet directory, as callers spell it
	real     string // the kubelet directory without links
	state    string // directory of the Host alone, for the records of frozen filesystems
	known    known
	loops    loops
	layers   inflight.Group[string, layer]    // of overlays, by path
	opens    inflight.Group[int, struct{}]    // opens the root of a filesystem, by mount ID
	looks    inflight.Group[fileID, looked]   // at the content of block devices, by device number
	rescans  inflight.Group[string, struct{}] // of the sizes of SCSI disks, by the file in sysfs
	images   keylock.Locks[backing]           // held by calls that mount, unmount, change or freeze an image
	syncs    keylock.Locks[backing]           // held to unmount, flush, freeze or trim an image; taken before images
	helpers  helper.Pool                      // for system calls that a tenant can make stall
	freezers helper.Pool                      // for freezes, so that they never take a helper from a thaw
	// for system calls on shares, which wait for a server
	shareHelpers helper.Pool
	shareSlots   *fair.Slots // of the helpers for mounts and usage of shares
	unmountSlots *fair.Slots // of the helpers for unmounts of shares, which a silent server must not delay
	shares       shares
	secrets      secrets
	usages       usages
	silent       silence
	paths        keylock.Locks[string] // held by calls that mount or unmount a path, until their helpers have ended
	stalls       stalls
	checks       *fair.Slots      // for e2fsck and resize2fs
	growths      *fair.Slots      // for growths of mounted filesystems
	toolLimit    time.Duration    // the constant toolLimit, or less in a test
	mayBeShare   func(state) bool // reports whether a mount may be one of a share
	legacy       atomic.Bool      // the kernel lacks open_tree, move_mount (5.2) or mount_setattr (5.12)
}

// New returns the Host of this machine for paths below dir, the kubelet directory, which must
// exist. state is a directory for the Host alone, which must outlive the process. New creates a
// missing state directory. New first thaws the filesystems that an earlier process has left
// frozen. If a thaw takes longer than a few seconds, New retries it in the background, and Failing
// reports the filesystem.
//
// New needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace.
func New(dir, state string) (Host, error) {
	if err := paths.CheckDir(dir); err != nil {
		return nil, err
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("kubelet directory: %w", err)
	}
	if err := mayMount(); err != nil {
		return nil, err
	}
	l := &linux{
		dir: dir, real: resolved, state: state, toolLimit: toolLimit,
		checks:  fair.New(checkSlots),
		growths: fair.New(growSlots),

		shareSlots: fair.New(shareSlots), unmountSlots: fair.New(unmountSlots),
	}
	l.mayBeShare = l.shares.may
	if err := l.checkKernel(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("directory for the records of frozen filesystems: %w", err)
	}
	if err := l.thawRecords(); err != nil {
		return nil, err
	}
	if err := l.findMounts(); err != nil {
		return nil, fmt.Errorf("mounts below %s: %w", dir, err)
	}
	return l, nil
}

// mayMount returns an error if this process lacks CAP_SYS_ADMIN. Otherwise the process would start
// and its first mount would fail, much later.
func mayMount() error {
	if !hasCapability(unix.CAP_SYS_ADMIN) {
		return fmt.Errorf("%w: mounting needs CAP_SYS_ADMIN: run as root, in Kubernetes in a privileged container",
			fs.ErrPermission)
	}
	return nil
}

// hasCapability reports whether this process has the capability number, which must be below 32.
func hasCapability(number uint) bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&head, &caps[0]) == nil && caps[0].Effective&(1<<number) != 0
}

// checkKernel returns an error for a kernel without openat2 (Linux 5.6) or STATX_ATTR_MOUNT_ROOT
// (Linux 5.8).
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

// findMounts records the mounts that an earlier process has made below the kubelet directory, for
// OtherTargets. findMounts also marks the target files of block devices, for Remove.
func (l *linux) findMounts() error {
	below := mountinfo.PrefixFilter(l.real)
	var devices []string // paths of loop devices' nodes
	numbers := map[string]string{}
	ours := map[string]bool{} // names of the devices of Disks
	_, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		if skip, _ := below(i); skip || i.Mountpoint == l.real {
			return true, false
		}
		path := l.dir + strings.TrimPrefix(i.Mountpoint, l.real)
		l.known.add(path, sourceOf(i, i.Root))
		if i.FSType == cifs {
			l.shares.add(uint32(i.Major), uint32(i.Minor))
		}
		if n, ok := loopNumber(i.Source); ok && i.FSType == btrfs { // a local disk, so statx does not stall
			if at, err := statAt(i); err == nil {
				l.loops.showsOn(at.id, n)
			}
		}
		if _, ok := loopNumber("/dev" + i.Root); ok {
			devices, numbers[path] = append(devices, path), i.Root
			ours[i.Root] = ours[i.Root] || l.isDisk(path)
		}
		return true, false
	})
	for _, path := range devices {
		if p, err := l.open(path); err == nil {
			if ours[numbers[path]] {
				p.markBelow() // without the mark, Remove accepts a file only after its own unmount of the device
			}
			p.close()
		}
	}
	return err
}

// statAt returns the state of the root of a mount. Errors: ErrPath if its path now leads to another
// mount.
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

// isDisk reports whether path is the device node of a Disk.
func (l *linux) isDisk(path string) bool {
	d, err := l.open(path)
	if err != nil {
		return false
	}
	defer d.close()
	_, there, err := d.readBacking()
	return d.name == DeviceName && there && err == nil
}

// sourceOf returns the ID of the source that a mount shows: the file or directory name within the
// filesystem of i.
func sourceOf(i *mountinfo.Info, name string) sourceID {
	return idOf(fmt.Sprintf("%d:%d:%s", i.Major, i.Minor, name))
}

// remember records that path shows the same source as from. If from is itself a known mount, that
// source is the source of from.
func (l *linux) remember(path string, from source) error {
	if l.known.addFrom(path, from.path) {
		return nil
	}
	return l.rememberAs(path, from.fd)
}

// rememberAs records that path shows the directory, file or filesystem that fd refers to.
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
		return fmt.Errorf("%w: %s does not exist: the caller must create it", ErrPath, filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer p.close()
	if m.Kind == BlockDevice && m.Source == "" {
		return fmt.Errorf("%w: the volume is not attached to this node:"+
			" does the driver's CSIDriver have attachRequired?", ErrDevice)
	}
	if m.Kind == Share {
		return l.mountShare(ctx, m, p, attr)
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
		return l.mountDisk(ctx, m, src, p, attr)
	case Device:
		return l.mountDevice(ctx, m, src, p, attr)
	case BlockDevice:
		return l.mountBlockDevice(ctx, m, src, p, attr)
	}
	return l.mountDirectory(ctx, m, src, p, attr)
}

// lockSource opens the source of m and takes the lock of its image. The source is the image itself,
// or a mount of the filesystem in the image. While lockSource waits for the lock, it holds nothing
// open: the source may be a mount that another call unmounts.
func (l *linux) lockSource(ctx context.Context, m Mount) (src source, release func(), err error) {
	at, err := l.statSource(m.Source)
	if err != nil {
		return src, nil, err
	}
	var unlock func()
	switch m.Kind {
	case Image, Disk:
		unlock, err = l.images.Lock(ctx, at.backing())
	case BlockDevice:
		unlock, err = l.images.Lock(ctx, at.deviceKey())
	default:
		unlock, err = l.lockImage(ctx, at, &l.images)
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

// lockImageAt takes the locks of the image that is mounted at path, as a filesystem or as a Disk.
// It takes no lock if path cannot be inspected: the caller's next step on path reports that error.
func (l *linux) lockImageAt(ctx context.Context, path string) (release func(), err error) {
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
	return l.lockImage(ctx, at, &l.syncs, &l.images)
}

// lockImage takes the locks of an image: the backing file of the loop device of a mount. It takes
// none if the mount has no loop device.
func (l *linux) lockImage(ctx context.Context, at state, all ...*keylock.Locks[backing]) (release func(), err error) {
	n, ok := l.loops.number(at)
	if !ok {
		return func() {}, nil
	}
	b, err := l.loops.fileOf(n)
	// On a dead disk the unmount continues without locks, so that the pod can end.
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) || isDead(err) {
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
		r, err := a.Lock(ctx, b)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, r)
	}
	return release, nil
}

// mountDirectory mounts a directory once more.
func (l *linux) mountDirectory(_ context.Context, m Mount, src source, p pathHandle, attr attributeSet) error {
	if src.kind() != unix.S_IFDIR {
		return &fs.PathError{Op: "mount", Path: m.Source, Err: unix.ENOTDIR}
	}
	flags, err := l.flagsAt(src.fd, src.state)
	if err != nil {
		return err
	}
	if flags&unix.ST_RDONLY != 0 && attr.flags&unix.ST_RDONLY == 0 {
		return fmt.Errorf("%w: %s", ErrReadOnly, m.Source)
	}
	shown := (flags&managedFlags)&^attr.clearFlags() | attr.flags
	t, done, err := p.prepare(unix.S_IFDIR, func(at state, root int) (bool, error) {
		return at.id == src.id, l.verifyFlagsAt(root, at, shown)
	})
	if done || err != nil {
		return err
	}
	defer t.close()
	crashpoint.Reached("mount:target-made")
	r := directoryRecipe(src, attr, shown)
	share, err := l.shareAt(src.state)
	if err != nil {
		return t.failed(m, err)
	}
	if share != nil { // only mountinfo shows its flags without a question to its server
		r.check = func(root int) error { return checkSame(root, src) }
	}
	r.record = func(root int) error {
		if share != nil {
			if err := l.verifyRoot(root, shown); err != nil {
				return err
			}
		}
		return l.remember(p.path, src)
	}
	return t.failed(m, l.attach(t, r))
}

// Grow grows the mount m at path.
func (l *linux) Grow(ctx context.Context, m Mount, path string) error {
	switch m.Kind {
	case Image, Disk:
		return l.growMounted(ctx, m, path)
	case BlockDevice:
		return l.growBlockDevice(ctx, m, path)
	}
	return nil
}

func (l *linux) Unmount(ctx context.Context, path string) error {
	release, err := l.lockImageAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return l.unmountLayers(ctx, path, false)
}

func (l *linux) Remove(ctx context.Context, path string) error {
	release, err := l.lockImageAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return l.unmountLayers(ctx, path, true)
}

// unmountLayers unmounts layer by layer until path is no mount point. With remove, the removal of
// path shows that no layer is left. The caller holds the locks of the image that is mounted there.
func (l *linux) unmountLayers(ctx context.Context, path string, remove bool) error {
	hold, err := l.lockPath(ctx, path)
	if err != nil {
		return err
	}
	defer hold.free()
	p, err := l.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		l.known.forget(path)
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	device := false // a device node was mounted there
	for range maxLayers {
		at, err := p.stat()
		switch {
		case at.broken:
			err = p.unmount(ctx, unix.MNT_DETACH)
		case errors.Is(err, fs.ErrNotExist):
			l.known.forget(path)
			return nil
		case err == nil && at.mounted:
			err = l.unmountLayer(ctx, p, at, hold)
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
			if errors.Is(err, ErrBusy) { // another layer is mounted there
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("unmount %s: still a mount point after %d tries", path, maxLayers)
}

// unmountLayer removes the topmost mount at p.
func (l *linux) unmountLayer(ctx context.Context, p pathHandle, at state, hold *pathLock) error {
	share, err := l.shareAt(at)
	if err != nil {
		return err
	}
	if share != nil {
		return l.unmountShare(ctx, p, at, share, hold)
	}
	return p.unmount(ctx, 0)
}

// removeAt removes the mount point at p: a directory with or without the device of a Disk, or the
// target file of a device. device reports whether this call has unmounted a device from p.
func (l *linux) removeAt(ctx context.Context, p pathHandle, at state, device bool) error {
	err := p.removeDirectory()
	switch {
	case errors.Is(err, unix.ENOTDIR):
		err = p.removeFile(device)
	case errors.Is(err, ErrNotEmpty):
		if failed := l.releaseDisk(ctx, p, at); failed != nil {
			return fmt.Errorf("%w: %v", err,
				failed) //nolint:errorlint // not wrapped: its class ErrBusy would mean another layer
		}
		err = p.removeDirectory()
	}
	return err
}

// unmount removes one layer. While the mount is busy, unmount retries for about 30 ms: even a
// stat(2) of another process keeps the mount busy for a moment. Errors: ErrBusy.
func (p pathHandle) unmount(ctx context.Context, flags int) error {
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
	case err == nil, errors.Is(err, unix.EINVAL): // EINVAL: no mount point any more, which the next stat shows
		return nil
	}
	return fmt.Errorf("unmount %s: %w", p.path, err)
}

// removeDirectory removes an empty directory. Errors: ErrBusy for a mount point; ErrNotEmpty;
// ErrPath, which is also unix.ENOTDIR, if p is not a directory.
func (p pathHandle) removeDirectory() error {
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

// removeFile removes the target file of a device, and no other file. A target file that this
// mounter has made carries a mark; see targetMode. known means that the caller knows the file as a
// target file, also without the mark. Errors: ErrBusy for a mount point, ErrPath.
func (p pathHandle) removeFile(known bool) error {
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
		return fmt.Errorf("remove %s: %w: a file of %d bytes is not the target of a device", p.path, ErrPath, at.size)
	case !known && !at.isTarget():
		return fmt.Errorf("remove %s: %w: this driver has not made the file: remove it by hand if nothing needs it",
			p.path, ErrPath)
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
	if m.Kind == BlockDevice && m.Source == "" { // the device is not attached
		return false, nil
	}
	if m.Kind == Share {
		return l.shareMounted(m, path)
	}
	src, err := l.statSource(m.Source)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if m.Kind == BlockDevice && m.IsDevice() {
		return l.rawMounted(path, src.device)
	}
	return l.shows(path, func(at state) (bool, error) {
		switch m.Kind {
		case BlockDevice:
			return onDevice(at, src.device)
		case Image, Disk:
			return l.loops.backs(at, src.backing())
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
	others, source := l.known.otherPaths(path)
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
		case err != nil:
			return nil, fmt.Errorf("%w: cannot inspect %s, where the same source may be mounted: %v",
				ErrBusy, other, err) //nolint:errorlint // its class would concern path
		case there:
			paths = append(paths, other)
		default:
			l.known.forgetFrom(other, source) // another process unmounted it
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// shows reports whether path has a mount that the function is accepts. If path is a directory
// without a mount, shows looks for the device of a Disk in the directory.
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

// IsFilesystem reports whether path is the root of a filesystem. A directory below the root is not,
// nor is a bind mount of such a directory.
func IsFilesystem(path string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	name, own, err := find(resolved)
	if err == nil && own == nil {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return err == nil && name == "/", err
}

// IsShared reports whether new mounts below path, which must exist, propagate outside this mount
// namespace. In a container they must propagate (mountPropagation: Bidirectional). Otherwise pods
// would see empty directories.
func IsShared(path string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	_, own, err := find(resolved)
	if err == nil && own == nil {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return err == nil && strings.Contains(own.Optional, "shared:"), err
}

// find returns the name of path within its filesystem, and the mount through which path is reached.
// The mount is nil if path does not exist. No element of path may be a link.
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

// findFD is [find] for an open file or directory.
func findFD(fd int) (name string, own *mountinfo.Info, err error) {
	resolved, err := os.Readlink(procPath(fd))
	if err != nil {
		return "", nil, err
	}
	at, err := statFD(fd)
	if err != nil {
		return "", nil, &fs.PathError{Op: "statx", Path: resolved, Err: err}
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.mount
		return !found, found
	})
	if err != nil {
		return "", nil, err
	}
	if len(infos) == 0 {
		return "", nil, fmt.Errorf("%s is on mount %d, which mountinfo does not list", resolved, at.mount)
	}
	rel, err := filepath.Rel(infos[0].Mountpoint, resolved)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(infos[0].Root, rel), infos[0], nil
}

func (l *linux) Usage(ctx context.Context, path string) (Usage, error) {
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
	if at, err := p.stat(); err == nil {
		if share, err := l.shareAt(at); err != nil {
			return Usage{}, err
		} else if share != nil {
			return l.shareUsage(ctx, p, at, share)
		}
	}
	var st unix.Statfs_t
	if err := p.statfs(&st); err != nil {
		return Usage{}, err
	}
	return usageOf(st), nil
}

// usageOf converts the result of statfs(2).
func usageOf(st unix.Statfs_t) Usage {
	unit := st.Frsize
	return Usage{
		TotalBytes:      int64(st.Blocks) * unit,
		UsedBytes:       int64(st.Blocks-st.Bfree) * unit,
		AvailableBytes:  int64(st.Bavail) * unit,
		TotalInodes:     int64(st.Files),
		UsedInodes:      int64(st.Files - st.Ffree),
		AvailableInodes: int64(st.Ffree),
	}
}
