package place

import (
	"errors"
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

// isMountPoint reports whether a rename failed because its target is a mount point: EBUSY. EXDEV is
// the error for a directory of a lower layer of overlayfs, and between bind mounts.
func isMountPoint(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) }
