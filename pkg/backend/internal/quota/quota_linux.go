package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Find returns what the filesystem of an open directory has right now. It takes some microseconds, but where btrfs
// counts its extents (a rescan), as after quotas were enabled, limits don't hold yet: then it waits for the end of that.
//
// Errors: ErrNotEnforced, the context's. With ErrNotEnforced the Kind may be Subvolume all the same: without a limit
// those can be made. Otherwise it is "".
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

// Make makes the empty directory called name in parent, held to o.Size. After an error there is none.
// Errors: ErrNotEnforced, unless o.Size is 0; fs.ErrExist.
func Make(m Mechanism, parent *os.File, name string, o Options) (Mark, error) {
	switch m.Kind {
	case Project:
		return makeProject(parent, name, o)
	case Subvolume:
		return Mark{Kind: Subvolume}, makeSubvolume(parent, name, o)
	}
	return Mark{}, errNoKind(m.Kind)
}

// Snapshot makes what the subvolume src holds at this moment a subvolume called name in parent, held to size bytes if
// that isn't 0, whatever src is held to. It is durable on return, and takes milliseconds, whatever there is in src. A
// subvolume that somebody made within src is an empty directory in it. After an error there is none.
// Errors: ErrNotEnforced, unless size is 0; fs.ErrExist; and errors.ErrUnsupported if src is no subvolume of the
// filesystem that parent is on.
func Snapshot(src, parent *os.File, name string, size int64, readOnly bool) (Mark, error) {
	return Mark{Kind: Subvolume}, makeSnapshot(src, parent, name, size, readOnly)
}

// Set makes size bytes the limit of a directory, or takes the limit away if size is 0. It may be below what is used:
// then no more can be written. On btrfs it is durable on return, which takes a commit. Errors: ErrNotEnforced.
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

// Look returns the limit of a directory and what is used of it. Errors: ErrNotEnforced if no limit would hold there,
// because the directory isn't what mark says any more, or quotas are off.
func Look(dir *os.File, mark Mark) (Usage, error) {
	switch mark.Kind {
	case Project:
		return lookAtProject(dir, mark.Project)
	case Subvolume:
		return lookAtSubvolume(dir)
	}
	return Usage{}, errNoKind(mark.Kind)
}

// Discard gives up what holds the directory called name in parent, if there is anything, so that it can be removed as
// any other. A subvolume is removed right away, with all in it, subvolumes too; its room becomes free in the
// background. From a project the limit is taken, unless that is the project of parent or taken reports that a volume
// has it: who owns a directory can give it any. Nothing may be mounted from there. No such directory is no error.
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

// Sweep removes what Discard can't, as it takes the kernel a while to be done with it: the quota groups of subvolumes
// that are gone, whosever they were. Linux 6.18 does that itself, 6.1 doesn't. It looks at each subvolume of the filesystem,
// and is for a start, and for when there is nothing else to do.
func Sweep(root *os.File) error {
	isBtrfs, err := onBtrfs(root)
	if err != nil || !isBtrfs {
		return err
	}
	return sweepGroups(root)
}

func errNoKind(k Kind) error {
	return notEnforced("the record of the directory has the invalid kind of quota %q: must be %q or %q", string(k), Project, Subvolume)
}

// openBelow opens the directory called name in parent.
func openBelow(parent *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	var child int
	if err := with(parent, func(fd int) (err error) { child, err = unix.Openat2(fd, name, &how); return err }); err != nil {
		return nil, &os.PathError{Op: "open", Path: parent.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(child), parent.Name()+"/"+name), nil
}

// onBtrfs reports whether a file is on btrfs.
func onBtrfs(file *os.File) (bool, error) {
	magic, err := magicOf(file)
	return magic == unix.BTRFS_SUPER_MAGIC, err
}

// magicOf returns the number of the kind of filesystem that a file is on: statfs(2).
func magicOf(file *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := with(file, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: file.Name(), Err: err}
	}
	return int64(st.Type), nil
}

// with calls do with the descriptor of a file, which stays open until do returns: after file.Fd() it might not.
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

// request is an ioctl(2), which x/sys/unix has no function for.
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

// unprivileged explains the error of a call that only the machine's root may make.
func unprivileged(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return notEnforced("quotas need CAP_SYS_ADMIN on the machine, not in a user namespace: %w", err)
	}
	return err
}

// removeAfter removes what was made before err, and returns both.
func removeAfter(err error, remove func() error) error {
	if undo := remove(); undo != nil {
		err = errors.Join(err, fmt.Errorf("and removing it again failed: %w", undo))
	}
	return err
}
