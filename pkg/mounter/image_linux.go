package mounter

import (
	"bytes"
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

// mountImage mounts the filesystem in a file. It is never formatted here: a disk that answers with errors looks blank
// to every tool, and a filesystem made on it then would be the end of the old one. See Format.
func (l *linux) mountImage(ctx context.Context, m Mount, p place, attr attributeSet) error {
	file, b, err := openImage(m.Source)
	if err != nil {
		return err
	}
	defer file.Close()
	flags, data, shown := attr.fresh(m.FSType, m.Options)
	made, done, err := p.prepare(unix.S_IFDIR, func(at state) (bool, error) {
		same, err := l.loops.holds(at, b)
		return same, errors.Join(err, p.verifyFlags(shown))
	})
	if done || err != nil {
		return err
	}
	crashpoint.Reached("image:target-made")
	err = l.mountLoop(ctx, file, m, p, flags, data)
	if err == nil {
		err = p.verifyFlags(shown)
	}
	return l.undo(ctx, m, p, made, err)
}

// mountLoop attaches the file and mounts what is on the device. Nothing is left attached if it dies in the middle: the
// device goes when the last one who holds it does, and that is the mount.
func (l *linux) mountLoop(ctx context.Context, file *os.File, m Mount, p place, flags uintptr, data string) error {
	dev, was, err := l.loops.attach(file, m.loop())
	if err != nil {
		return err
	}
	defer dev.Close()
	crashpoint.Reached("image:attached")
	if !was && m.FSType == "ext4" {
		if err := l.checkExt4(ctx, m, dev); err != nil {
			return err
		}
	}
	switch err := unix.Mount(dev.Name(), p.proc(), m.FSType, flags, data); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EUCLEAN):
		return fmt.Errorf("%w: no %s that can be mounted: %w", ErrFormat, m.FSType, err)
	case err != nil:
		return err
	}
	crashpoint.Reached("image:mounted")
	at, err := p.stat()
	if err != nil {
		return err
	}
	if n, ok := loopNumber(dev.Name()); ok && m.FSType == btrfs {
		l.loops.showsOn(at.id, n)
	}
	name, own, err := find(p.path)
	if err == nil && own == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return err
	}
	l.known.add(p.path, sourceOf(own, name))
	return nil
}

// mountNowhere mounts the filesystem on a device, until the result is closed. No path leads there.
func mountNowhere(device, fsType string, flags ...string) (*os.File, error) {
	fsys, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen %s: %w", fsType, err)
	}
	defer unix.Close(fsys)
	err = unix.FsconfigSetString(fsys, "source", device)
	for _, f := range flags {
		if err == nil {
			err = unix.FsconfigSetFlag(fsys, f)
		}
	}
	if err == nil {
		err = unix.FsconfigCreate(fsys)
	}
	if err != nil {
		return nil, fmt.Errorf("mount the %s on %s: %w", fsType, device, err)
	}
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mount, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mount) // it can't be used for ioctl; the mount is held by whoever has a file in it open
	dir, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the %s on %s: %w", fsType, device, err)
	}
	return os.NewFile(uintptr(dir), device), nil
}

// checkExt4 repairs the filesystem on a device, and grows it to the size of the device.
func (l *linux) checkExt4(ctx context.Context, m Mount, dev *os.File) error {
	leave, err := l.checks.Acquire(ctx, fair.Claim{Kind: "check", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	if err := check(ctx, dev); err != nil {
		return err
	}
	return growOffline(ctx, dev)
}

func (l *linux) Checks() (all []Check) {
	for _, e := range l.checks.Entries() {
		all = append(all, Check{Image: e.Volume, Tenant: e.Tenant, Running: e.Running, Since: e.Since})
	}
	return all
}

// mended are the bits of e2fsck's exit code which say that all is well now: e2fsck(8).
const mended = 1 | 2

// check mends an ext4 that was not unmounted, as far as nobody has to be asked. It fails if the device is in use.
//
// It goes on when the caller has given up: begun anew at each retry, it might never end.
func check(ctx context.Context, disk *os.File) error {
	err := tool(context.WithoutCancel(ctx), disk, "e2fsck", "-p")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if exit.ExitCode()&^mended == 0 {
			return nil
		}
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// formats say how each filesystem is made in a file. Nothing is kept back for root, and nothing is written twice.
var formats = map[string][]string{
	"ext4": {"mkfs.ext4", "-q", "-F", "-m", "0"},
	"xfs":  {"mkfs.xfs", "-q", "-f"},
	btrfs:  {"mkfs.btrfs", "-q", "-f"},
}

func (l *linux) Format(ctx context.Context, image *os.File, fsType string) error {
	command, ok := formats[fsType]
	if !ok {
		return fmt.Errorf("%w: %.32q is none of %s", ErrFormat, fsType, strings.Join(FSTypes(), ", "))
	}
	return tool(ctx, image, command[0], command[1:]...)
}

// tool runs a program on a file, which is its last argument. It has no input, so it can't ask. Errors:
// errors.ErrUnsupported if it isn't installed.
func tool(ctx context.Context, file *os.File, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, append(args, "/proc/self/fd/3")...)
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %s is not installed", errors.ErrUnsupported, name)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%s: %w: %.400s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// mountDisk attaches a file to a loop device and mounts that in the directory at p, which keeps it.
func (l *linux) mountDisk(ctx context.Context, m Mount, p place) error {
	file, b, err := openImage(m.Source)
	if err != nil {
		return err
	}
	defer file.Close()
	made, err := p.prepareDisk(ctx)
	if err != nil {
		return err
	}
	d, err := p.disk()
	if err != nil {
		return err
	}
	defer d.close()
	if err := l.dropStale(ctx, d); err != nil {
		return err
	}
	_, done, err := d.prepare(unix.S_IFREG, func(at state) (bool, error) { return l.loops.holds(at, b) })
	if done {
		return l.keep(file, m) // a driver may have died before it said so
	}
	if err != nil {
		return err
	}
	if err := d.writeBacking(b); err != nil {
		return err
	}
	dev, _, err := l.loops.attach(file, m.loop())
	if err == nil {
		defer dev.Close()
		crashpoint.Reached("disk:attached")
		err = unix.Mount(dev.Name(), d.proc(), "", unix.MS_BIND, "")
	}
	if err == nil {
		crashpoint.Reached("disk:mounted")
		err = setAutoclear(dev, false) // a mounted node doesn't hold its device
	}
	if err == nil {
		err = l.remember(d.path, dev.Name())
	}
	return l.undo(ctx, m, p, made, err)
}

// keep makes sure that the device of a Disk that is mounted already stays, and is as m says.
func (l *linux) keep(file *os.File, m Mount) error {
	dev, _, err := l.loops.attach(file, m.loop())
	if err != nil {
		return err
	}
	defer dev.Close()
	return setAutoclear(dev, false)
}

// A mounted node doesn't hold its device. If the driver dies where the kernel is told to let go, the node is left, and
// the device's number may become another file's. So beside each node there is a file that says whose it is.

// backingName is the name of that file.
const backingName = "backing"

func (d place) writeBacking(b backing) error {
	fd, err := unix.Openat(d.parent, backingName, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	_, err = fmt.Fprintln(f, b.dev, b.ino)
	return errors.Join(err, f.Close())
}

// isOwn reports whether the device whose node is mounted at d, as at says, has the file that it had when it was
// mounted, and returns its number.
func (l *linux) isOwn(d place, at state) (n int, own bool, err error) {
	n, ok := l.loops.number(at)
	if !ok || !at.mounted {
		return 0, false, nil
	}
	fd, err := unix.Openat(d.parent, backingName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return n, false, nil
	}
	if err != nil {
		return n, false, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	var b backing
	if _, err := fmt.Fscan(f, &b.dev, &b.ino); err != nil {
		return n, false, nil // torn, by a power cut: nothing was mounted after it
	}
	own, err = l.loops.holds(at, b)
	return n, own, err
}

// dropStale takes a mounted node away whose device isn't what it was.
func (l *linux) dropStale(ctx context.Context, d place) error {
	at, err := d.stat()
	if err != nil || !at.mounted {
		return nil
	}
	if _, own, err := l.isOwn(d, at); own || err != nil {
		return err
	}
	return d.unmount(ctx, 0)
}

// mountDevice mounts a block device that a Disk made on the file at p. That it is read-only is a property of the
// device, and so of all its targets.
func (l *linux) mountDevice(ctx context.Context, m Mount, p place) error {
	src, err := stat(unix.AT_FDCWD, m.Source, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &fs.PathError{Op: "statx", Path: m.Source, Err: err}
	}
	n, ok := l.loops.number(src)
	if !ok || src.mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("mount %s at %s: it is not a loop device", m.Source, p.path)
	}
	dev, err := openLoop(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	made, done, err := p.prepare(unix.S_IFREG, func(at state) (bool, error) {
		readOnly, err := isReadOnly(dev)
		if err == nil && readOnly != m.ReadOnly {
			err = fmt.Errorf("%s is mounted read-only: %v", p.path, readOnly)
		}
		return at.device == src.device, err
	})
	if done || err != nil {
		return err
	}
	if err = l.setReadOnly(ctx, dev, m, p); err == nil {
		err = unix.Mount(m.Source, p.proc(), "", unix.MS_BIND, "")
	}
	if err == nil {
		err = l.remember(p.path, m.Source)
	}
	return l.undo(ctx, m, p, made, err)
}

// setReadOnly makes the device as m wants it, unless it is mounted elsewhere otherwise. Errors: ErrReadOnly.
func (l *linux) setReadOnly(ctx context.Context, dev *os.File, m Mount, p place) error {
	readOnly, err := isReadOnly(dev)
	if err != nil || readOnly == m.ReadOnly {
		return err
	}
	others, err := l.Siblings(ctx, m.Source)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other != p.path {
			return fmt.Errorf("%w, or written to, at all its paths alike, and it is at %s", ErrReadOnly, other)
		}
	}
	if err := setDeviceReadOnly(dev, m.ReadOnly); err != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if now, err := isReadOnly(dev); err != nil || now == m.ReadOnly {
		return err
	}
	return fmt.Errorf("%w: %s was attached for reading only", ErrReadOnly, dev.Name())
}

func isReadOnly(dev *os.File) (bool, error) {
	value, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKROGET)
	if err != nil {
		return false, &fs.PathError{Op: "BLKROGET", Path: dev.Name(), Err: err}
	}
	return value&0xff != 0, nil
}

// prepareDisk makes the directory for a Disk, where there is none. made says that it is new.
func (p place) prepareDisk(ctx context.Context) (made bool, err error) {
	at, err := p.stat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, p.make(unix.S_IFDIR)
	case err != nil:
		return false, err
	case at.mounted:
		return false, fmt.Errorf("%w: %s", ErrConflict, p.path)
	case at.mode&unix.S_IFMT != unix.S_IFDIR:
		return false, fmt.Errorf("%w: %s is not a directory", ErrPath, p.path)
	}
	return false, p.emptyBut(DeviceName, backingName)
}

// disk is the place of a Disk's device in the directory at p. Errors: fs.ErrNotExist.
func (p place) disk() (place, error) {
	dir, err := unix.Openat(p.parent, p.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return place{}, &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	return place{parent: dir, name: DeviceName, path: p.path + "/" + DeviceName}, nil
}

// diskState is the state of a Disk's device in the directory at p: nothing mounted, if there is none.
func (p place) diskState() (state, error) {
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

// releaseDisk takes the device of a Disk out of the directory at p, whose state is at, if there is one.
func (l *linux) releaseDisk(ctx context.Context, p place, at state) error {
	if at.mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	at, err := p.diskState()
	empty := at.mode&unix.S_IFMT == unix.S_IFREG && at.size == 0 && at.id != fileID{}
	if err != nil || (!at.mounted && !empty) {
		return err
	}
	d, err := p.disk()
	if err != nil {
		return err
	}
	defer d.close()
	if at.mounted {
		if err := l.releaseDevice(ctx, d, at); err != nil {
			return err
		}
	}
	l.known.forget(d.path)
	if err := unix.Unlinkat(d.parent, backingName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: filepath.Join(p.path, backingName), Err: err}
	}
	return d.remove()
}

// releaseDevice unmounts a node. First the device is told to go with its last user; then that user goes.
func (l *linux) releaseDevice(ctx context.Context, d place, at state) error {
	n, own, err := l.isOwn(d, at)
	if err != nil {
		return err
	}
	var dev *os.File
	if own {
		if own, err = l.onlyNode(d, n); err != nil {
			return err
		}
	}
	if own {
		if dev, err = openLoop(n, true); err != nil {
			return err
		}
		defer dev.Close()
		if err := setAutoclear(dev, true); err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
	}
	crashpoint.Reached("disk:releasing")
	err = d.unmount(ctx, 0)
	switch {
	case err != nil && own: // it is used on
		return errors.Join(err, setAutoclear(dev, false))
	case own: // for whoever gets the number next, of whatever driver
		return setDeviceReadOnly(dev, false)
	}
	return err
}

// onlyNode reports whether the device's node is mounted at d only, and not as another Disk. Errors: ErrBusy if a Device
// is mounted from it: who has that would soon write to the disk that gets the number next.
func (l *linux) onlyNode(d place, n int) (bool, error) {
	b, err := fileOfLoop(n)
	if err != nil {
		return false, err
	}
	users, err := l.loops.users(b)
	if err != nil {
		return false, err
	}
	alone := true
	real := l.real + strings.TrimPrefix(d.path, l.dir) // as mountinfo has it
	for _, path := range users {
		if path == real {
			continue
		}
		alone = false
		dir, name := filepath.Split(path)
		if _, err := os.Lstat(filepath.Join(dir, backingName)); err != nil || name != DeviceName {
			return false, fmt.Errorf("unmount %s: %w: the device is mounted at %s, too", d.path, ErrBusy, path)
		}
	}
	return alone, nil
}

// emptyBut returns ErrNotEmpty if the directory at the place has an entry that isn't called one of names.
func (p place) emptyBut(names ...string) error {
	found, err := p.names(len(names) + 1)
	if err == nil && slices.ContainsFunc(found, func(name string) bool { return !slices.Contains(names, name) }) {
		err = fmt.Errorf("%w: %s", ErrNotEmpty, p.path)
	}
	return err
}

// loop returns the number of the loop device that is mounted at p as a device.
func (p place) loop() (int, bool) {
	at, err := p.stat()
	if err == nil && !at.mounted && at.mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.diskState()
	}
	return int(at.device.minor), err == nil && at.mounted && at.mode&unix.S_IFMT == unix.S_IFBLK && at.device.major == loopMajor
}

// openImage opens an image and returns how it would be known behind a loop device.
func openImage(path string) (*os.File, backing, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, backing{}, err
	}
	b, err := backingOf(file)
	if err != nil {
		file.Close()
		return nil, b, err
	}
	return file, b, nil
}
