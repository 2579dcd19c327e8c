package copier

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// attributed is an open file whose attributes are read or set.
type attributed interface {
	list(to []byte) (int, error)
	get(name string, to []byte) (int, error)
	set(name string, value []byte) error
	chmod(mode uint32) error
}

// byFD is a file that is open for reading or writing.
type byFD int

func (f byFD) list(to []byte) (int, error)             { return unix.Flistxattr(int(f), to) }
func (f byFD) get(name string, to []byte) (int, error) { return unix.Fgetxattr(int(f), name, to) }
func (f byFD) set(name string, value []byte) error     { return unix.Fsetxattr(int(f), name, value, 0) }
func (f byFD) chmod(mode uint32) error                 { return unix.Fchmod(int(f), mode) }

// byPath is a file that is open as a path only, or a symbolic link. Its value is that of proc.
type byPath string

func (f byPath) list(to []byte) (int, error)             { return unix.Listxattr(string(f), to) }
func (f byPath) get(name string, to []byte) (int, error) { return unix.Getxattr(string(f), name, to) }
func (f byPath) set(name string, value []byte) error     { return unix.Setxattr(string(f), name, value, 0) }
func (f byPath) chmod(mode uint32) error                 { return unix.Chmod(string(f), mode) }

// fileAttributes copies the attributes of a regular file to its copy. Both are open.
func (t *tree) fileAttributes(src, dst int, st *unix.Statx_t) error {
	now, err := attributes(dst, byFD(src), byFD(dst), st)
	t.progress.addHeld(int64(now.Blocks) * 512)
	return err
}

// nodeAttributes is fileAttributes for files that are open as a path.
func (t *tree) nodeAttributes(src, dst int, st *unix.Statx_t) error {
	_, err := attributes(dst, byPath(proc(src)), byPath(proc(dst)), st)
	return err
}

// directoryAttributes is fileAttributes for directories. All entries of dst must exist by then, as
// new entries would inherit attributes.
func (t *tree) directoryAttributes(src, dst int, st *unix.Statx_t) error {
	if _, err := attributes(dst, byFD(src), byFD(dst), st); err != nil {
		return err
	}
	if err := t.content.copyFlags(src, dst); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	return nil
}

// attributes copies the attributes of from to the file to, which has the descriptor dst, and
// returns the previous status of dst. The order matters: a new owner removes capabilities and the
// setuid bits, and an ACL sets bits of the mode.
func attributes(dst int, from, to attributed, st *unix.Statx_t) (was unix.Statx_t, err error) {
	if err := statx(dst, &was); err != nil {
		return was, err
	}
	chown := was.Uid != st.Uid || was.Gid != st.Gid
	if chown {
		if err := unix.Fchownat(dst, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH); err != nil {
			return was, fmt.Errorf("owner %d, group %d: %w", st.Uid, st.Gid, err)
		}
	}
	xattrs, err := copyXattrs(from, to)
	if err != nil {
		return was, err
	}
	if (chown || xattrs || was.Mode != st.Mode) && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := to.chmod(uint32(st.Mode) & 0o7777); err != nil {
			return was, fmt.Errorf("mode: %w", err)
		}
	}
	when := times(st)
	if err := unix.UtimesNanoAt(dst, "", when[:], unix.AT_EMPTY_PATH); err != nil {
		return was, fmt.Errorf("times: %w", err)
	}
	return was, nil
}

// copyXattrs copies the extended attributes, ACLs among them, and reports whether there are any.
// The kernel hides some of them from this process, for example trusted.* in a user namespace. The
// copy lacks these.
func copyXattrs(from, to attributed) (found bool, err error) {
	names, err := xattr(from.list)
	if errors.Is(err, unix.EOPNOTSUPP) { // the filesystem has no attributes, or none for files of this type
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list attributes: %w", err)
	}
	if len(names) == 0 {
		return false, nil
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		value, err := xattr(func(buffer []byte) (int, error) { return from.get(name, buffer) })
		if errors.Is(err, unix.ENODATA) { // the attribute was removed meanwhile
			continue
		}
		if err != nil {
			return true, fmt.Errorf("read attribute %q: %w", name, err)
		}
		if err := to.set(name, value); err != nil {
			// The kernel may forbid to set a label that the kernel itself has set. The value is
			// correct then.
			now, differs := xattr(func(buffer []byte) (int, error) { return to.get(name, buffer) })
			if differs != nil || string(now) != string(value) {
				return true, fmt.Errorf("set attribute %q: %w", name, err)
			}
		}
	}
	return true, nil
}

// xattr returns the bytes that get writes. With an empty buffer get returns their number, which may
// grow before the next call.
func xattr(get func([]byte) (int, error)) ([]byte, error) {
	for size := 0; ; {
		value := make([]byte, size)
		n, err := get(value)
		switch {
		case errors.Is(err, unix.ERANGE):
			size = 0
		case err != nil:
			return nil, err
		case n <= len(value):
			return value[:n], nil
		default:
			size = n
		}
	}
}

func times(st *unix.Statx_t) [2]unix.Timespec {
	return [2]unix.Timespec{
		{Sec: st.Atime.Sec, Nsec: int64(st.Atime.Nsec)},
		{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)},
	}
}

// noCow is FS_NOCOW_FL, the flag C of chattr(1).
const noCow = 0x00800000

// hasNoFlags reports whether a file is on a filesystem other than btrfs: only btrfs has a flag to
// copy.
func hasNoFlags(fd int) (bool, error) {
	var fs unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(fd, &fs) })
	return fs.Type != unix.BTRFS_SUPER_MAGIC, err
}

// copyFlags copies the flag C from in to out, an empty file or directory of btrfs: a file with the
// flag and a file without it cannot share blocks.
func copyFlags(in, out int) error {
	if none, err := hasNoFlags(out); none || err != nil {
		return err
	}
	from, err := unix.IoctlGetUint32(in, unix.FS_IOC_GETFLAGS)
	if err != nil { // the source is on another filesystem, which has no flags
		return nil
	}
	to, err := unix.IoctlGetUint32(out, unix.FS_IOC_GETFLAGS)
	if err != nil || (from^to)&noCow == 0 {
		return err
	}
	err = unix.IoctlSetPointerInt(out, unix.FS_IOC_SETFLAGS, int(to^noCow))
	if err != nil && cannot(err) { // for example, the file is compressed: the caller copies the data then
		return nil
	}
	return err
}
