package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
)

const btrfs = "btrfs"

// mountImage mounts the filesystem in a file. mountImage never formats the image: a disk that
// answers with errors looks blank to every tool, and a new filesystem would destroy the old
// filesystem. See MakeImage.
func (l *linux) mountImage(ctx context.Context, m Mount, src source, p pathHandle, attr attributeSet) error {
	file, err := src.openImage()
	if err != nil {
		return err
	}
	defer file.Close()
	o := attr.fresh(m.FSType, m.Options)
	t, done, err := p.prepare(unix.S_IFDIR, func(at state, root int) (bool, error) {
		same, err := l.loops.backs(at, src.backing())
		return same, errors.Join(err, verifyFlags(root, o.shown))
	})
	if done || err != nil {
		return err
	}
	defer t.close()
	crashpoint.Reached("image:target-made")
	return t.failed(m, l.mountLoop(ctx, file, m, t, o))
}

// mountLoop attaches the file and mounts the filesystem on the device. If the driver dies before
// the mount, no device stays attached: the kernel detaches the device with its last user.
func (l *linux) mountLoop(ctx context.Context, file *os.File, m Mount, t target, o fresh) error {
	b, err := backingOf(file)
	if err != nil {
		return err
	}
	if err := l.stalls.check(b); err != nil { // e2fsck or resize2fs may still write to the image
		return err
	}
	dev, was, err := l.loops.attach(file, m.loop())
	if err != nil {
		return err
	}
	defer dev.Close()
	crashpoint.Reached("image:attached")
	mounted := false
	if n, ok := loopNumber(dev.Name()); was && ok { // else only a process, such as udev's, has kept it attached
		if mounted, err = isClaimed(n); err != nil {
			return err
		}
	}
	if !mounted && m.FSType == "ext4" {
		if err := l.checkExt4(ctx, m, disk{file: dev, image: b, path: m.Source, tenant: m.Tenant}); err != nil {
			return err
		}
	}
	r := filesystemRecipe(dev.Name(), m.FSType, o)
	r.record = func(root int) error {
		crashpoint.Reached("image:mounted")
		at, err := statFD(root)
		if err != nil {
			return err
		}
		if n, ok := loopNumber(dev.Name()); ok && m.FSType == btrfs {
			l.loops.showsOn(at.id, n)
		}
		return l.rememberAs(t.path, root)
	}
	return l.attach(t, r)
}

// mountDetached mounts the filesystem on a device at no path. The mount lasts until the returned
// file is closed.
func mountDetached(device, fsType string, flags ...string) (*os.File, error) {
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mount, err := newFilesystem(device, fsType, flags, attributes)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mount) // ioctl does not accept this descriptor; dir below keeps the mount
	dir, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the %s on %s: %w", fsType, device, err)
	}
	return os.NewFile(uintptr(dir), device), nil
}

// checkExt4 repairs the filesystem on a device, and grows the filesystem to the size of the device.
func (l *linux) checkExt4(ctx context.Context, m Mount, d disk) error {
	leave, err := l.checks.Acquire(ctx, fair.Request{Kind: "check", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	if err := l.check(ctx, d); err != nil {
		return err
	}
	return l.growOffline(ctx, d)
}

// Limits of the checks, and of the growths of mounted filesystems, at the same time.
var (
	checkSlots = fair.Limits{Slots: 8, Tenant: 4, Kind: 8}
	growSlots  = fair.Limits{Slots: 32, Tenant: 4, Kind: 32}
)

func (l *linux) Checks() (all []Check) {
	for _, e := range l.checks.Entries() {
		all = append(all, Check{Image: e.Volume, Tenant: e.Tenant, Running: e.Running, Since: e.Since})
	}
	return all
}

// check repairs an ext4 that was not unmounted cleanly, as far as e2fsck needs no answers from a
// user. check fails if the device is in use.
//
// The repair goes on after the end of ctx: if each retry began anew, the repair might never end.
func (l *linux) check(ctx context.Context, d disk) error {
	return e2fsckError(l.tool(context.WithoutCancel(ctx), d, killed, "e2fsck", "-p"))
}

// e2fsckError returns the error of e2fsck, or nil if the exit code means that no error is left in
// the filesystem: e2fsck(8).
func e2fsckError(err error) error {
	const repaired, reboot = 1, 2
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if exit.ExitCode()&^(repaired|reboot) == 0 {
			return nil
		}
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// formats are the commands that make each filesystem in a file. ext4 reserves no blocks for root.
var formats = map[string][]string{
	"ext4": {"mkfs.ext4", "-q", "-F", "-m", "0"},
	"xfs":  {"mkfs.xfs", "-q", "-f"},
	btrfs:  {"mkfs.btrfs", "-q", "-f"},
}

// canFormat returns errors.ErrUnsupported if the program that makes a filesystem is not installed,
// or there is none for Linux, and ErrFormat for a type outside of FSTypes.
func canFormat(fsType string) error {
	if err := CheckFSType(fsType); err != nil {
		return err
	}
	command, ok := formats[fsType]
	if !ok {
		return fmt.Errorf("%w: the filesystem %s on Linux", errors.ErrUnsupported, fsType)
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return fmt.Errorf("%w: %s is not installed", errors.ErrUnsupported, command[0])
	}
	return nil
}

// format makes a filesystem in an image that is not in use. canFormat has accepted its type.
func (l *linux) format(ctx context.Context, image *os.File, fsType string) error {
	d, err := imageDisk(image)
	if err != nil {
		return err
	}
	command := formats[fsType]
	return l.tool(ctx, d, killed, command[0], command[1:]...)
}

// mountDisk attaches a file to a loop device and mounts the device node in the directory at p.
func (l *linux) mountDisk(ctx context.Context, m Mount, src source, p pathHandle, _ attributeSet) error {
	file, err := src.openImage()
	if err != nil {
		return err
	}
	defer file.Close()
	d, made, err := p.prepareDisk()
	if err != nil {
		return err
	}
	defer d.close()
	if err = l.mountNode(ctx, file, m, src.backing(), d); err == nil {
		return nil
	}
	at, look := statFD(d.parent)
	return errors.Join(err, look, target{pathHandle: p, fd: d.parent, id: at.id, made: made}.discard())
}

// mountNode mounts the node of a Disk at d.
func (l *linux) mountNode(ctx context.Context, file *os.File, m Mount, b backing, d pathHandle) error {
	if err := l.unmountStale(ctx, d); err != nil {
		return err
	}
	t, done, err := d.prepare(unix.S_IFREG, func(at state, _ int) (bool, error) { return l.loops.backs(at, b) })
	if done && err == nil {
		return l.keepAttached(file, m) // an earlier driver may have died before it cleared autoclear
	}
	if err != nil {
		return err
	}
	defer t.close()
	err = d.writeBacking(b)
	if err == nil {
		if err = l.attachNode(file, m, t); err != nil && t.made {
			err = errors.Join(err, d.removeBacking())
		}
	}
	return t.failed(m, err)
}

// attachNode attaches a file to a loop device and mounts its node on t.
func (l *linux) attachNode(file *os.File, m Mount, t target) error {
	dev, _, err := l.loops.attach(file, m.loop())
	if err != nil {
		return err
	}
	defer dev.Close()
	crashpoint.Reached("disk:attached")
	at, err := statFD(int(dev.Fd()))
	if err != nil {
		return &fs.PathError{Op: "statx", Path: dev.Name(), Err: err}
	}
	r := deviceNodeRecipe(int(dev.Fd()), at.device)
	r.record = func(root int) error {
		crashpoint.Reached("disk:mounted")
		if err := setAutoclear(dev, false); err != nil { // a mounted node does not keep its device attached
			return err
		}
		if err := errors.Join(mark(t.fd), l.rememberAs(t.path, root)); err != nil {
			return errors.Join(err, setAutoclear(dev, true))
		}
		return nil
	}
	return l.attach(t, r)
}

// keepAttached clears autoclear of the device of a mounted Disk, so that the device stays attached,
// and sets the properties that m asks for.
func (l *linux) keepAttached(file *os.File, m Mount) error {
	dev, _, err := l.loops.attach(file, m.loop())
	if err != nil {
		return err
	}
	defer dev.Close()
	return setAutoclear(dev, false)
}

// A mounted device node does not keep its device attached. If the driver dies after it has set
// autoclear, the node stays mounted, and the kernel may give the number of the device to another
// file. So a backing record, a file beside each node, identifies the image of the device. The
// record also proves that the target file of the node belongs to the driver.

// backingName is the name of a backing record.
const backingName = "backing"

// maxBacking bounds the size of a backing record, in bytes: a few numbers with separators.
const maxBacking = 64

// writeBacking writes the backing record of the device at d: b, and the numbers in more. Errors:
// ErrNotEmpty if a file of another program has its name.
func (p pathHandle) writeBacking(b backing, more ...any) error {
	if _, there, err := p.readBacking(); err != nil {
		return err
	} else if there {
		if err := p.removeBacking(); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(p.parent, backingName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return &fs.PathError{Op: "create", Path: p.backingPath(), Err: err}
	}
	f := os.NewFile(uintptr(fd), p.backingPath())
	_, err = fmt.Fprintln(f, append([]any{b.dev, b.ino}, more...)...)
	return errors.Join(err, f.Close())
}

// readBacking reads the backing record of the device at d: the file that the device had when its
// node was mounted. A torn record has a zero b, and means that the node was not mounted after the
// record was written. there is false if there is no record. Errors: ErrNotEmpty if a file of
// another program has its name.
func (p pathHandle) readBacking() (b backing, there bool, err error) {
	b, _, there, err = p.readBackingFlag()
	return b, there, err
}

// readBackingFlag is [pathHandle.readBacking], and also returns the number behind b in the record,
// or 0.
func (p pathHandle) readBackingFlag() (b backing, flag int, there bool, err error) {
	foreign := fmt.Errorf("%w: %s is not the driver's file", ErrNotEmpty, p.backingPath())
	fd, err := unix.Openat(p.parent, backingName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return b, 0, false, nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link, a socket
		return b, 0, false, foreign
	case err != nil:
		return b, 0, false, &fs.PathError{Op: "open", Path: p.backingPath(), Err: err}
	}
	f := os.NewFile(uintptr(fd), p.backingPath())
	defer f.Close()
	at, err := statFD(fd)
	if err != nil {
		return b, 0, false, &fs.PathError{Op: "statx", Path: p.backingPath(), Err: err}
	}
	if at.kind() != unix.S_IFREG || at.size > maxBacking {
		return b, 0, false, foreign
	}
	switch n, err := fmt.Fscan(f, &b.dev, &b.ino, &flag); {
	case err == nil, n == 2:
		return b, flag, true, nil
	case at.size == 0 || n > 0: // torn by a power cut
		return backing{}, 0, true, nil
	}
	return backing{}, 0, false, foreign
}

// removeBacking removes the backing record of the device at d.
func (p pathHandle) removeBacking() error {
	if err := unix.Unlinkat(p.parent, backingName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: p.backingPath(), Err: err}
	}
	return nil
}

func (p pathHandle) backingPath() string { return filepath.Join(filepath.Dir(p.path), backingName) }

// isOwn reports whether the loop device whose node is mounted at d still has the file of its
// backing record, and returns the number of the device and that file. at is the state of d. The
// device may be about to be detached: see [loops.fileOf].
func (l *linux) isOwn(d pathHandle, at state) (n int, b backing, own bool, err error) {
	n, ok := l.loops.number(at)
	if !ok || !at.mounted {
		return 0, b, false, nil
	}
	b, there, err := d.readBacking()
	if errors.Is(err, ErrNotEmpty) || (err == nil && (!there || b == backing{})) {
		return n, b, false, nil
	}
	if err != nil {
		return n, b, false, err
	}
	own, err = l.loops.backs(at, b)
	if isDead(err) { // it is safer to leave a device attached than to detach the device of another image
		return n, b, false, nil
	}
	return n, b, own, err
}

// isStale reports whether the device node that is mounted at path was mounted for another backing
// file than b, as its backing record shows. A node without a backing record is not stale.
func isStale(path string, b backing) bool {
	dir, name := filepath.Split(path)
	if name != DeviceName {
		return false
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	d := pathHandle{parent: fd, name: name, path: path}
	defer d.close()
	was, there, err := d.readBacking()
	return err == nil && there && was != backing{} && was != b
}

// unmountStale unmounts the node at d if its device no longer has the file of the backing record.
func (l *linux) unmountStale(ctx context.Context, d pathHandle) error {
	at, err := d.stat()
	if err != nil || !at.mounted {
		return nil
	}
	if _, _, own, err := l.isOwn(d, at); own || err != nil {
		return err
	}
	return d.unmount(ctx, 0)
}

// mountDevice bind mounts the node of a block device on the file at p. Read-only is a property of
// the device, and so of all its targets.
func (l *linux) mountDevice(ctx context.Context, m Mount, src source, p pathHandle, _ attributeSet) error {
	if src.kind() != unix.S_IFBLK {
		return fmt.Errorf("mount %s at %s: the source is not a block device", m.Source, p.path)
	}
	dev, err := openDevice(src.fd, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	t, done, err := p.prepare(unix.S_IFREG, func(at state, _ int) (bool, error) {
		readOnly, err := isReadOnly(dev)
		if err == nil && readOnly != m.ReadOnly {
			err = fmt.Errorf("is mounted read-only: %v", readOnly)
		}
		return at.kind() == unix.S_IFBLK && at.device == src.device, err
	})
	if done || err != nil {
		return err
	}
	defer t.close()
	if err = l.setReadOnly(ctx, dev, m, p); err == nil {
		r := deviceNodeRecipe(src.fd, src.device)
		r.record = func(int) error { return errors.Join(mark(t.fd), l.remember(p.path, src)) }
		err = l.attach(t, r)
	}
	return t.failed(m, err)
}

// setReadOnly makes the device read-only or writable, as m requests. Errors: ErrReadOnly if the
// device has another target that needs the opposite, or cannot be changed.
func (l *linux) setReadOnly(ctx context.Context, dev *os.File, m Mount, p pathHandle) error {
	readOnly, err := isReadOnly(dev)
	if err != nil || readOnly == m.ReadOnly {
		return err
	}
	others, err := l.OtherTargets(ctx, m.Source)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other != p.path {
			return fmt.Errorf("%w: %s must be read-only, or writable, at all its paths: it is also mounted at %s",
				ErrReadOnly, dev.Name(), other)
		}
	}
	if err := setDeviceReadOnly(dev, m.ReadOnly); err != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if now, err := isReadOnly(dev); err != nil || now == m.ReadOnly {
		return err
	}
	return fmt.Errorf("%w: %s was attached read-only", ErrReadOnly, dev.Name())
}

func isReadOnly(dev *os.File) (bool, error) {
	value, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKROGET)
	if err != nil {
		return false, &fs.PathError{Op: "BLKROGET", Path: dev.Name(), Err: err}
	}
	return value&0xff != 0, nil
}

// prepareDisk returns the handle of the device of a Disk in the directory at p. prepareDisk creates
// the directory if p does not exist, and then returns made as true.
func (p pathHandle) prepareDisk() (d pathHandle, made bool, err error) {
	if at, err := p.stat(); errors.Is(err, fs.ErrNotExist) {
		if err := p.make(unix.S_IFDIR); err != nil {
			return d, false, err
		}
		made = true
	} else if err != nil {
		return d, false, err
	} else if at.kind() != unix.S_IFDIR {
		return d, false, fmt.Errorf("%w: %s is not a directory", ErrPath, p.path)
	}
	if d, err = p.disk(); err == nil {
		if err = d.alone(); err != nil {
			d.close()
		}
	}
	if err != nil && made {
		err = errors.Join(err, p.unmake(unix.S_IFDIR))
	}
	return d, made, err
}

// alone returns an error if the directory of a Disk is a mount point (ErrConflict), or has an entry
// that does not belong to the driver (ErrNotEmpty).
func (p pathHandle) alone() error {
	at, err := statFD(p.parent)
	if err == nil && at.mounted {
		err = fmt.Errorf("%w: %s", ErrConflict, filepath.Dir(p.path))
	}
	if err != nil {
		return err
	}
	found, err := names(p.parent, 3, p.path)
	if err == nil && slices.ContainsFunc(found, func(name string) bool {
		return name != DeviceName && name != backingName
	}) {
		err = fmt.Errorf("%w: %s", ErrNotEmpty, filepath.Dir(p.path))
	}
	return err
}

// disk returns the handle of the device of a Disk in the directory at p. Errors: ErrPath,
// fs.ErrNotExist.
func (p pathHandle) disk() (pathHandle, error) {
	dir, err := unix.Openat(p.parent, p.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return pathHandle{}, fmt.Errorf("%w: %s is not a directory", ErrPath, p.path)
	case err != nil:
		return pathHandle{}, &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	return pathHandle{parent: dir, name: DeviceName, path: p.path + "/" + DeviceName}, nil
}

// diskState returns the state of the device of a Disk in the directory at p. If there is no device,
// it returns the zero state, in which nothing is mounted.
func (p pathHandle) diskState() (state, error) {
	d, err := p.disk()
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, nil
	}
	if err != nil {
		return state{}, err
	}
	defer d.close()
	at, err := d.stat()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrPath) {
		return state{}, nil
	}
	return at, err
}

// releaseDisk unmounts the device of a Disk, if there is one, from the directory at p. releaseDisk
// then removes the files of the driver from the directory, and no others. at is the state of p.
func (l *linux) releaseDisk(ctx context.Context, p pathHandle, at state) error {
	if at.kind() != unix.S_IFDIR {
		return nil
	}
	d, err := p.disk()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	at, err = d.stat()
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrPath) {
		return err
	}
	if at.mounted {
		writable := d.becomesWritable(at)
		if err := l.releaseDevice(ctx, d, at); err != nil {
			return err
		}
		writable()
	}
	l.known.forget(d.path)
	_, there, err := d.readBacking()
	if err != nil && !errors.Is(err, ErrNotEmpty) {
		return err
	}
	empty := at.kind() == unix.S_IFREG && at.size == 0
	if at.mounted || at.isTarget() || (empty && there) {
		if err := d.removeFile(true); err != nil {
			return err
		}
	}
	if there { // removed last, as it proves that the target file belongs to the driver
		return d.removeBacking()
	}
	return nil
}

// releaseDevice unmounts the node at d. releaseDevice sets autoclear first, so that the kernel
// detaches the device with its last user, and then removes that user.
func (l *linux) releaseDevice(ctx context.Context, d pathHandle, at state) error {
	n, b, own, err := l.isOwn(d, at)
	if err != nil {
		return err
	}
	if own {
		if own, err = l.onlyNode(d, n); err != nil {
			return err
		}
	}
	var dev *os.File
	if own {
		if dev, err = openOwn(n, b); err != nil {
			return err
		}
		own = dev != nil
	}
	if own {
		defer dev.Close()
		if err := setAutoclear(dev, true); err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
	}
	crashpoint.Reached("disk:releasing")
	err = d.unmount(ctx, 0)
	switch {
	case err != nil && own: // the device stays in use
		return errors.Join(err, setAutoclear(dev, false))
	case own: // for the next file with this device number, also of another program
		return setDeviceReadOnly(dev, false)
	}
	return err
}

// onlyNode reports whether the node of device n is mounted at d only, and not as another Disk.
// Errors: ErrBusy if a Device is mounted from the node: after a detach, the user of the Device
// would write to the next disk with the same device number.
func (l *linux) onlyNode(d pathHandle, n int) (bool, error) {
	b, err := l.loops.fileOf(n)
	if err != nil {
		return false, err
	}
	users, err := l.loops.users(b)
	if err != nil {
		return false, err
	}
	alone := true
	resolved := l.real + strings.TrimPrefix(d.path, l.dir) // as mountinfo spells it
	for _, path := range users {
		if path == resolved {
			continue
		}
		alone = false
		dir, name := filepath.Split(path)
		if _, err := os.Lstat(filepath.Join(dir, backingName)); err != nil || name != DeviceName {
			return false, fmt.Errorf("unmount %s: %w: the device is also mounted at %s", d.path, ErrBusy, path)
		}
	}
	return alone, nil
}

// deviceUsage returns the size of the block device that is mounted at p, or at DeviceName in the
// directory at p. ok is false if there is no block device.
func (p pathHandle) deviceUsage() (u Usage, ok bool, err error) {
	at, err := p.stat()
	if err == nil && !at.mounted && at.kind() == unix.S_IFDIR {
		if p, err = p.disk(); err != nil {
			return u, false, nil
		}
		defer p.close()
		at, err = p.stat()
	}
	if err != nil || !at.mounted || at.kind() != unix.S_IFBLK {
		return u, false, nil
	}
	fd, err := p.openPath()
	if err != nil {
		return u, true, err
	}
	defer unix.Close(fd)
	dev, err := openDevice(fd, 0)
	if err != nil {
		return u, true, err
	}
	defer dev.Close()
	size, err := sizeOf(dev)
	return Usage{TotalBytes: int64(size)}, true, err
}

// loop returns the number of the loop device whose node is mounted at p, or at DeviceName in the
// directory at p. Without such a device, loop returns false.
func (p pathHandle) loop() (int, bool) {
	at, err := p.stat()
	if err == nil && !at.mounted && at.mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.diskState()
	}
	return int(at.device.minor), err == nil && at.mounted &&
		at.mode&unix.S_IFMT == unix.S_IFBLK && at.device.major == loopMajor
}
