package place

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// rename moves an entry within a directory tree. Without replace it never replaces one, also if another
// program makes it at the same moment: renameat2(2), RENAME_NOREPLACE. Errors: fs.ErrExist.
func rename(root *os.Root, from, to string, replace bool) error {
	if replace {
		return root.Rename(from, to)
	}
	return renameat2(root, from, to, unix.RENAME_NOREPLACE)
}

// exchange exchanges two entries of a directory tree at once, where the filesystem can.
func exchange(root *os.Root, a, b string) error {
	err := renameat2(root, a, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // such as NFS and SMB
		return exchangeByThree(root, a, b)
	}
	return err
}

func renameat2(root *os.Root, from, to string, flags uint) error {
	fromDir, err := root.Open(path.Dir(from))
	if err != nil {
		return err
	}
	defer fromDir.Close()
	toDir, err := root.Open(path.Dir(to))
	if err != nil {
		return err
	}
	defer toDir.Close()
	if err := unix.Renameat2(int(fromDir.Fd()), path.Base(from), int(toDir.Fd()), path.Base(to), flags); err != nil {
		return &os.LinkError{Op: "renameat2", Old: from, New: to, Err: err}
	}
	return nil
}

// mounted reports whether an entry is on another mount than its directory, in whatever mount namespace:
// statx(2), STATX_MNT_ID, since Linux 5.8.
func mounted(root *os.Root, name string) (bool, error) {
	dir, err := root.Open(path.Dir(name))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	var above, entry unix.Statx_t
	err = unix.Statx(int(dir.Fd()), "", flags|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &above)
	if err == nil {
		err = unix.Statx(int(dir.Fd()), path.Base(name), flags, unix.STATX_MNT_ID, &entry)
	}
	if err != nil {
		return false, &fs.PathError{Op: "statx", Path: name, Err: err}
	}
	if above.Mask&entry.Mask&unix.STATX_MNT_ID == 0 {
		return false, &fs.PathError{Op: "statx", Path: name, Err: errors.ErrUnsupported}
	}
	return above.Mnt_id != entry.Mnt_id, nil
}

// isMountPoint reports whether a rename failed because its target is a mount point: EBUSY. EXDEV is
// the error for a directory of a lower layer of overlayfs, and between bind mounts.
func isMountPoint(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) }
