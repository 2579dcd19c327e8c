//go:build !linux

package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"github.com/causeway-csi/causeway/internal/regular"
)

// Dir is an open directory. Its methods may be called by many goroutines.
//
// It is an os.Root, and each operation looks at the elements of its path first. These systems have
// no call that resolves a path without links: a link that takes the place of an element between the
// look and the operation is followed, though never out of the directory, and a FIFO that takes the
// place of a file may block the open.
type Dir struct{ root *os.Root }

// readOnly opens a file for reading.
const readOnly = os.O_RDONLY

// Open opens the directory at path, through links. The caller closes it.
func Open(path string) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Dir{root}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Path returns the path with which the directory was opened.
func (d *Dir) Path() string { return d.root.Name() }

// Stat describes the directory.
func (d *Dir) Stat() (fs.FileInfo, error) { return d.root.Stat(".") }

// OpenDir opens the directory called name. The caller closes it.
func (d *Dir) OpenDir(name string) (*Dir, error) {
	if err := d.check("open", name, fs.ModeDir); err != nil {
		return nil, err
	}
	root, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, d.full(name, err)
	}
	return &Dir{root}, nil
}

// OpenDirPath is OpenDirFile here.
func (d *Dir) OpenDirPath(name string) (*os.File, error) { return d.OpenDirFile(name) }

// OpenDirFile opens the directory called name for code that takes files. The caller closes it.
func (d *Dir) OpenDirFile(name string) (*os.File, error) {
	if err := d.check("open", name, fs.ModeDir); err != nil {
		return nil, err
	}
	file, err := d.root.Open(name)
	return file, d.full(name, err)
}

// OpenFile opens the regular file called name, or makes it, as os.OpenFile does.
func (d *Dir) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	if err := d.check("open", name, 0); err != nil && (flag&os.O_CREATE == 0 || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	file, err := d.root.OpenFile(name, flag, perm)
	if err != nil {
		return nil, d.full(name, err)
	}
	info, err := file.Stat()
	if err == nil {
		err = regular.Check(info.Mode(), 0)
	}
	if err != nil {
		file.Close()
		return nil, &fs.PathError{Op: "open", Path: d.join(name), Err: err}
	}
	return file, nil
}

// Lstat describes the entry called name, which may be a link.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) {
	if err := d.checkParent("lstat", name); err != nil {
		return nil, err
	}
	info, err := d.root.Lstat(name)
	return info, d.full(name, err)
}

// Mkdir makes a directory called name.
func (d *Dir) Mkdir(name string, perm fs.FileMode) error {
	if err := d.checkParent("mkdir", name); err != nil {
		return err
	}
	return d.full(name, d.root.Mkdir(name, perm))
}

// Remove removes the file or empty directory called name.
func (d *Dir) Remove(name string) error {
	if err := d.checkParent("remove", name); err != nil {
		return err
	}
	return d.full(name, d.root.Remove(name))
}

// Rename gives the entry called from the name to, in place of a file or empty directory that may be
// there.
func (d *Dir) Rename(from, to string) error {
	for _, name := range []string{from, to} {
		if err := d.checkParent("rename", name); err != nil {
			return err
		}
	}
	err := d.root.Rename(from, to)
	if failed := (*os.LinkError)(nil); errors.As(err, &failed) {
		return &os.LinkError{Op: failed.Op, Old: d.join(from), New: d.join(to), Err: failed.Err}
	}
	return err
}

// check returns an error unless the elements of name are directories, and the last has the type
// want.
func (d *Dir) check(op, name string, want fs.FileMode) error {
	if err := d.checkParent(op, name); err != nil {
		return err
	}
	info, err := d.root.Lstat(name)
	if err != nil {
		return d.full(name, err)
	}
	if err := regular.Check(info.Mode(), want); err != nil {
		return &fs.PathError{Op: op, Path: d.join(name), Err: err}
	}
	return nil
}

// checkParent returns an error unless all elements of name but the last are directories.
func (d *Dir) checkParent(op, name string) error {
	if !fs.ValidPath(name) {
		return &fs.PathError{Op: op, Path: d.join(name), Err: fs.ErrInvalid}
	}
	if parent := path.Dir(name); parent != "." {
		return d.check(op, parent, fs.ModeDir)
	}
	return nil
}

// full gives an error of os.Root the whole path.
func (d *Dir) full(name string, err error) error {
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return &fs.PathError{Op: failed.Op, Path: d.join(name), Err: failed.Err}
	}
	return err
}
