//go:build !linux

package place

import (
	"errors"
	"io/fs"
	"os"
	"path"
)

// rename moves an entry within a directory tree. A file that another program of the user makes at the
// same moment is replaced: this system has no call that prevents it for all kinds of files.
func rename(root *os.Root, from, to string, replace bool) error {
	if !replace {
		_, err := root.Lstat(to)
		if err == nil {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return root.Rename(from, to)
}

// exchange exchanges two entries of a directory tree.
func exchange(root *os.Root, a, b string) error { return exchangeByThree(root, a, b) }

// mounted reports whether an entry is of another filesystem than its directory: a mount point of Unix, or
// a volume mount point or junction of Windows.
func mounted(root *os.Root, name string) (bool, error) {
	above, err := root.Lstat(path.Dir(name))
	if err != nil {
		return false, err
	}
	entry, err := root.Lstat(name)
	if err != nil {
		return false, err
	}
	return entry.Mode()&fs.ModeIrregular != 0 || entry.IsDir() && device(above) != device(entry), nil
}

// isMountPoint returns false: files cannot be mount points here.
func isMountPoint(error) bool { return false }
