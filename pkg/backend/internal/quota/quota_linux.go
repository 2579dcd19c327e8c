package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Find returns the mechanism that the filesystem of an open directory has now. Find takes some
// microseconds. While btrfs counts its extents (a rescan, for example after quotas were enabled),
// limits do not hold, and Find waits for the end of the rescan.
//
// Errors: ErrNotEnforced, the error of the context. With ErrNotEnforced the Kind can be Subvolume:
// subvolumes without a limit are possible. Otherwise it is "".
func Find(ctx context.Context, dir *os.File) (Mechanism, error) {
	isBtrfs, err := onBtrfs(dir)
	switch {
	case err != nil:
		return Mechanism{}, err
	case !isBtrfs:
		if err := projectsEnforced(dir); err != nil {
			return Mechanism{}, err
		}
		return Mechanism{Kind: Project}, nil
	}
	if err := awaitRescan(ctx, dir); err != nil {
		return Mechanism{}, err
	}
	simple, err := groupsEnforced(dir)
	return Mechanism{Kind: Subvolume, Simple: simple}, err
}

// Make makes the empty directory name in parent, with the limit o.Size. After an error there is no
// directory. Errors: ErrNotEnforced, unless o.Size is 0; fs.ErrExist.
func Make(m Mechanism, parent *os.File, name string, o Options) (Mark, error) {
	switch m.Kind {
	case Project:
		return makeProject(parent, name, o)
	case Subvolume:
		return Mark{Kind: Subvolume}, makeSubvolume(parent, name, o)
	}
	return Mark{}, errNoKind(m.Kind)
}

// Snapshot makes a snapshot of the subvolume src: the subvolume name in parent, with a limit of
// size bytes, or without a limit if size is 0. The limit of src does not matter. The snapshot is
// durable on return, and takes milliseconds for any amount of data. A subvolume inside src is an
// empty directory in the snapshot. After an error there is no snapshot. Errors: ErrNotEnforced,
// unless size is 0; fs.ErrExist; and errors.ErrUnsupported if src is not a subvolume of the
// filesystem of parent.
func Snapshot(src, parent *os.File, name string, size int64, readOnly bool) (Mark, error) {
	return Mark{Kind: Subvolume}, makeSnapshot(src, parent, name, size, readOnly)
}

// Set changes the limit of a directory to size bytes, or removes the limit if size is 0. If the
// limit is below the usage, further writes fail. On btrfs the change is durable on return, which
// takes a commit. Errors: ErrNotEnforced.
func Set(dir *os.File, mark Mark, size int64) error {
	switch mark.Kind {
	case Project:
		if err := inProject(dir, mark.Project); err != nil {
			return err
		}
		return limitProject(dir, mark.Project, size)
	case Subvolume:
		return limitTop(dir, size)
	}
	return errNoKind(mark.Kind)
}

// Look returns the limit and the usage of a directory. Errors: ErrNotEnforced if no limit holds
// there, as the directory no longer matches mark, or quotas are off.
func Look(dir *os.File, mark Mark) (Usage, error) {
	switch mark.Kind {
	case Project:
		return lookAtProject(dir, mark.Project)
	case Subvolume:
		return lookAtSubvolume(dir)
	}
	return Usage{}, errNoKind(mark.Kind)
}

// Discard releases the limit of the directory name in parent, so that the directory can be removed
// like any other. A subvolume is removed at once, with its content and the subvolumes in it; the
// kernel frees its space in the background. The limit of a project is removed, unless parent has
// the same project, or taken reports that a volume has it: the owner of a directory can give it any
// project. Nothing may be mounted from the directory. A missing directory is no error.
func Discard(parent *os.File, name string, taken func(project uint32) bool) error {
	dir, err := openBelow(parent, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	isBtrfs, err := onBtrfs(dir)
	if err != nil || !isBtrfs {
		return errors.Join(err, discardProject(parent, dir, taken))
	}
	if id, err := subvolumeID(dir); err == nil {
		return destroySubvolumes(parent, id)
	} else if !errors.Is(err, ErrNotEnforced) {
		return err
	}
	return nil
}

// Sweep removes the quota groups of subvolumes that no longer exist, of all programs. Discard
// cannot remove them, as the kernel needs a while to remove a subvolume. Linux 6.18 removes them
// itself, 6.1 does not. Sweep reads every subvolume of the filesystem: call it at start and when
// idle.
func Sweep(root *os.File) error {
	isBtrfs, err := onBtrfs(root)
	if err != nil || !isBtrfs {
		return err
	}
	return sweepGroups(root)
}

func errNoKind(k Kind) error {
	return notEnforced("the record of the directory has the invalid kind of quota %q: must be %q or %q", string(k),
		Project, Subvolume)
}

// openBelow opens the directory name in parent.
func openBelow(parent *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	var child int
	if err := with(parent, func(fd int) (err error) {
		child, err = unix.Openat2(fd, name, &how)
		return err
	}); err != nil {
		return nil, &os.PathError{Op: "open", Path: parent.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(child), parent.Name()+"/"+name), nil
}

// onBtrfs reports whether a file is on btrfs.
func onBtrfs(file *os.File) (bool, error) {
	magic, err := magicOf(file)
	return magic == unix.BTRFS_SUPER_MAGIC, err
}

// magicOf returns the filesystem type of a file, as a number: statfs(2).
func magicOf(file *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := with(file, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: file.Name(), Err: err}
	}
	return int64(st.Type), nil //nolint:unconvert // 32 bits on 386
}

// with calls do with the descriptor of a file, and keeps the file open until do returns. A
// finalizer could close it after file.Fd().
func with(file *os.File, do func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// request is an ioctl(2) for which x/sys/unix has no function.
type request struct {
	number uintptr
	name   string
}

func (r request) call(file *os.File, arg unsafe.Pointer) error {
	err := with(file, func(fd int) error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), r.number, uintptr(arg)); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return &os.PathError{Op: r.name, Path: file.Name(), Err: err}
	}
	return nil
}

// unprivileged explains the error of a call that is reserved for root of the initial user
// namespace.
func unprivileged(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return notEnforced("quotas need CAP_SYS_ADMIN on the machine, not in a user namespace: %w", err)
	}
	return err
}

// removeAfter removes an object that was made before err, and returns both errors.
func removeAfter(err error, remove func() error) error {
	if undo := remove(); undo != nil {
		err = errors.Join(err, fmt.Errorf("roll back: %w", undo))
	}
	return err
}
