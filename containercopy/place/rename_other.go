//go:build !linux

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// entry returns a staged entry as a path below a root, which has the destination, too.
func (s *Staging) entry(staged string) (*os.Root, string) { return s.dir, path.Join(s.name, staged) }

// own returns nil: the user owns the directory around the staging directory.
func (*Staging) own() error { return nil }

// openFile opens a file for reading.
func openFile(root *os.Root, name string) (*os.File, error) { return root.Open(name) }

// chmodByName sets the permissions of a directory that this process cannot open.
func chmodByName(root *os.Root, name string, mode fs.FileMode) error { return root.Chmod(name, mode) }

// rename renames an entry of a root. A file that another program of the user makes at the same
// moment is replaced: this system has no call that prevents it for all kinds of files.
func rename(root *os.Root, a string, _ *os.Root, b string, replace bool) error {
	if !replace {
		_, err := root.Lstat(b)
		if err == nil {
			return &os.LinkError{Op: "rename", Old: a, New: b, Err: fs.ErrExist}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return root.Rename(a, b)
}

// exchange exchanges two entries of a root.
func exchange(root *os.Root, a string, _ *os.Root, b string) error {
	return exchangeByThree(root, a, root, b)
}

// isMountPoint returns false: files cannot be mount points here.
func isMountPoint(error) bool { return false }

// noMount returns ErrMounted if an entry is of another filesystem than its directory: a mount point
// of Unix, or a volume mount point or junction of Windows.
func noMount(root *os.Root, name string) error {
	above, err := root.Lstat(path.Dir(name))
	if err != nil {
		return err
	}
	entry, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if entry.Mode()&fs.ModeIrregular != 0 || entry.IsDir() && device(above) != device(entry) {
		return fmt.Errorf("%w: %.128q", ErrMounted, name)
	}
	return nil
}

// flushTree makes the files of a staged directory durable.
func (c commit) flushTree(staged string) error {
	info, err := c.s.Root.Lstat(staged)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return c.flush(staged)
	}
	err = c.each(staged, batch, func(name string, _ fs.DirEntry) error { return c.flushTree(path.Join(staged, name)) })
	if errors.Is(err, fs.ErrPermission) { // a directory that its owner cannot read
		return nil
	}
	return err
}

// noMounts returns ErrMounted if an entry is a mount point, or has one below it.
func noMounts(root *os.Root, name string) error {
	return walk(root, name, nil)
}

// removeContent removes all entries of a staging directory.
func (s *Staging) removeContent() error {
	names, err := list(s.dir, s.name)
	for _, n := range names {
		if err == nil {
			err = walk(s.dir, path.Join(s.name, n), s.dir.Remove)
		}
	}
	return err
}

// walk looks at an entry and all entries below it. Unless remove is nil it calls it for each, the
// deepest first. Errors: ErrMounted.
func walk(root *os.Root, name string, remove func(name string) error) error {
	if err := noMount(root, name); err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if remove != nil {
			root.Chmod(name, 0o700) // else the first removal shows the reason
		}
		names, err := list(root, name)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := walk(root, path.Join(name, n), remove); err != nil {
				return err
			}
		}
	}
	if remove == nil {
		return nil
	}
	return remove(name)
}

// list returns the names of a directory.
func list(root *os.Root, name string) ([]string, error) {
	dir, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}
