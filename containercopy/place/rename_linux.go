package place

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/containercopy/archive"
)

// entry returns a staged entry as a path below a root. The root is that of the staging directory: a
// user who owns the directory around it can give its name to another directory.
func (s *Staging) entry(staged string) (*os.Root, string) { return s.Root, staged }

// own returns an error if another user has put a directory in the place of the staging directory.
// The filesystems of foreign can give a new directory another owner and another mode.
func (s *Staging) own() error {
	return withDir(s.Root, ".", func(dir int) error {
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			return &fs.PathError{Op: "fstat", Path: s.name, Err: err}
		}
		if st.Mode&0o077 == 0 && int(st.Uid) == os.Geteuid() {
			return nil
		}
		var f unix.Statfs_t
		if err := fstatfs(dir, &f); err != nil {
			return &fs.PathError{Op: "fstatfs", Path: s.name, Err: err}
		}
		if slices.Contains(foreign, uint32(f.Type)) {
			return nil
		}
		return fmt.Errorf("%w: %.128q was replaced", fs.ErrPermission, s.name)
	})
}

// fstatfs is unix.Fstatfs, but for tests.
var fstatfs = unix.Fstatfs

// foreign are the types of filesystems whose server or mount options decide on owners and modes,
// such as those of dir_mode of mount.cifs(8), or of root_squash of exports(5). statfs(2).
var foreign = []uint32{unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC,
	unix.V9FS_MAGIC, unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, ntfs3}

const ntfs3 = 0x7366746e // of fs/ntfs3/super.c; x/sys lacks it

// withDir calls f with the descriptor of a directory below a root.
func withDir(root *os.Root, name string, f func(dir int) error) error {
	dir, err := root.OpenFile(name, os.O_RDONLY|directory, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(int(dir.Fd()))
}

// openFile opens a file for reading. Another process of the user can hold a lease on it, or put a named
// pipe in its place. Errors: archive.ErrLease.
func openFile(root *os.Root, name string) (f *os.File, err error) {
	err = archive.AwaitLease(func() error {
		f, err = root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		return err
	})
	return f, err
}

// chmodByName sets the permissions of a directory that this process cannot open. Before Linux 6.6, and
// without /proc, the kernel follows a link that another process of the user puts in its place: it could
// change the target itself.
func chmodByName(root *os.Root, name string, mode fs.FileMode) error {
	err := root.Chmod(name, mode)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return withDir(root, path.Dir(name), func(dir int) error {
		return unix.Fchmodat(dir, path.Base(name), uint32(mode.Perm()), 0)
	})
}

// between calls f with the descriptors of the directories of two paths.
func between(from *os.Root, a string, to *os.Root, b string, f func(fromDir, toDir int) error) error {
	err := withDir(from, path.Dir(a), func(fromDir int) error {
		return withDir(to, path.Dir(b), func(toDir int) error { return f(fromDir, toDir) })
	})
	var errno unix.Errno
	if errors.As(err, &errno) {
		return &os.LinkError{Op: "rename", Old: a, New: b, Err: err}
	}
	return err
}

// renameat2 is unix.Renameat2, but for tests.
var renameat2 = unix.Renameat2

// rename renames an entry. Without replace it never replaces one, also if another program makes it
// at the same moment: renameat2(2), RENAME_NOREPLACE. Errors: fs.ErrExist.
func rename(from *os.Root, a string, to *os.Root, b string, replace bool) error {
	return between(from, a, to, b, func(fromDir, toDir int) error {
		if replace {
			return renameat2(fromDir, path.Base(a), toDir, path.Base(b), 0)
		}
		err := renameat2(fromDir, path.Base(a), toDir, path.Base(b), unix.RENAME_NOREPLACE)
		if unflagged(err) {
			return renamePlain(fromDir, path.Base(a), toDir, path.Base(b))
		}
		return err
	})
}

// unflagged reports whether a filesystem has no flags of renameat2: NFS, Ceph and 9p, for example.
func unflagged(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) }

// renamePlain renames an entry without flags, and replaces no file: link(2) never does. A directory
// replaces an empty directory at most, rename(2).
func renamePlain(fromDir int, a string, toDir int, b string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fromDir, a, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err := linkat(fromDir, a, toDir, b, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return renameLinkless(fromDir, a, toDir, b)
		}
		if err != nil {
			return err
		}
		return unix.Unlinkat(fromDir, a, 0)
	}
	if err := unix.Fstatat(toDir, b, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return unix.EEXIST
	}
	return renameat2(fromDir, a, toDir, b, 0)
}

// linkat is unix.Linkat, but for tests.
var linkat = unix.Linkat

// renameLinkless is renamePlain for a file of a filesystem without hard links, such as some of
// FUSE. The new name is that of an empty file for a moment: open(2), O_EXCL.
func renameLinkless(fromDir int, a string, toDir int, b string) error {
	fd, err := unix.Openat(toDir, b, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = renameat2(fromDir, a, toDir, b, 0)
	if err == nil {
		return nil
	}
	var mine, theirs unix.Stat_t // another program may have made or written it meanwhile
	if unix.Fstat(fd, &mine) == nil && unix.Fstatat(toDir, b, &theirs, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		mine.Ino == theirs.Ino && theirs.Size == 0 {
		unix.Unlinkat(toDir, b, 0)
	}
	return err
}

// exchange exchanges two entries at once, where the filesystem can.
func exchange(from *os.Root, a string, to *os.Root, b string) error {
	err := between(from, a, to, b, func(fromDir, toDir int) error {
		return renameat2(fromDir, path.Base(a), toDir, path.Base(b), unix.RENAME_EXCHANGE)
	})
	if unflagged(err) {
		return exchangeByThree(from, a, to, b)
	}
	return err
}

// isMountPoint reports whether a rename failed because its target is a mount point: EBUSY. EXDEV is
// the error for a directory of a lower layer of overlayfs, and between bind mounts.
func isMountPoint(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) }

// noMount returns ErrMounted if an entry is on another mount than its directory. The kernel
// protects mount points of the mount namespace of this process only, and the destination can be in
// that of a container.
func noMount(root *os.Root, name string) error {
	return withDir(root, path.Dir(name), func(dir int) error { return noMountAt(dir, path.Base(name)) })
}

// noMountAt compares mounts by statx(2), STATX_MNT_ID, since Linux 5.8.
func noMountAt(dir int, name string) error {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	var above, entry unix.Statx_t
	err := unix.Statx(dir, "", flags|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &above)
	if err == nil {
		err = unix.Statx(dir, name, flags, unix.STATX_MNT_ID, &entry)
	}
	switch {
	case err != nil:
	case above.Mask&entry.Mask&unix.STATX_MNT_ID == 0:
		err = errors.ErrUnsupported
	case above.Mnt_id != entry.Mnt_id:
		return fmt.Errorf("%w: %.128q", ErrMounted, name)
	default:
		return nil
	}
	return &fs.PathError{Op: "statx", Path: name, Err: err}
}

// flushTree makes the staged copy durable: syncfs(2), for one call is faster than one for each
// file, and needs no right to read the entries.
func (c commit) flushTree(string) error {
	return withDir(c.s.Root, ".", func(dir int) error { return os.NewSyscallError("syncfs", syncfs(dir)) })
}

// syncfs is unix.Syncfs, but for tests.
var syncfs = unix.Syncfs

// noMounts returns ErrMounted if an entry is a mount point, or has one below it.
func noMounts(root *os.Root, name string) error {
	return withDir(root, path.Dir(name), func(dir int) error {
		return walk(dir, path.Base(name), nil)
	})
}

// removeContent removes all entries of a staging directory.
func (s *Staging) removeContent() error {
	return withDir(s.Root, ".", func(dir int) error {
		return each(dir, true, func(name string) error {
			return walk(dir, name, func(dir int, name string, isDir bool) error {
				s.done.Add(1)
				return unlink(dir, name, isDir)
			})
		})
	})
}

// insideError is an error of an entry in a directory.
type insideError struct {
	path string
	err  error
}

func (e *insideError) Error() string { return fmt.Sprintf("in %.128q: %v", e.path, e.err) }
func (e *insideError) Unwrap() error { return e.err }

// inside adds the name of a directory to an error of an entry in it. The text has the path once.
func inside(name string, err error) error {
	var e *insideError
	if errors.As(err, &e) {
		e.path = path.Join(name, e.path)
		return err
	}
	return &insideError{name, err}
}

func unlink(dir int, name string, isDir bool) error {
	flags := 0
	if isDir {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(dir, name, flags); err != nil {
		return &fs.PathError{Op: "unlinkat", Path: name, Err: err}
	}
	return nil
}

// walk looks at an entry and all entries below it. It follows no link, and leads into no other
// mount: openat2(2). Unless unlink is nil it calls it for each, the deepest first. Errors:
// ErrMounted.
func walk(dir int, name string, unlink func(dir int, name string, isDir bool) error) error {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unix.Openat2(dir, name, &how)
	if errors.Is(err, unix.EACCES) && unlink != nil &&
		unix.Fchmodat(dir, name, 0o700, unix.AT_SYMLINK_NOFOLLOW) == nil { // closed for its owner
		fd, err = unix.Openat2(dir, name, &how)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		if err := noMountAt(dir, name); err != nil {
			return err
		}
		if unlink == nil {
			return nil
		}
		return unlink(dir, name, false)
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: %.128q", ErrMounted, name)
	case err != nil:
		return &fs.PathError{Op: "openat2", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if unlink != nil {
		unix.Fchmod(fd, 0o700) // else the first unlink shows the reason
	}
	if err := each(fd, unlink != nil, func(child string) error { return walk(fd, child, unlink) }); err != nil {
		return inside(name, err)
	}
	if unlink == nil {
		return nil
	}
	return unlink(dir, name, true)
}

// each calls f for the names of a directory, in memory that does not depend on their number. With
// removes f removes each entry: the next ones are read from the start.
func each(dir int, removes bool, f func(name string) error) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	d := os.NewFile(uintptr(fd), ".")
	defer d.Close()
	for {
		names, err := d.Readdirnames(batch)
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && removes {
			_, err = d.Seek(0, io.SeekStart)
		}
		if err != nil {
			return err
		}
	}
}
