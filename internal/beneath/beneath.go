// Package beneath opens, makes, renames and removes files beneath an open directory. No operation
// leaves that directory, and none follows a symbolic link at any element of its path.
//
// os.Root keeps the first promise and not the second: it follows links that stay inside. A link in
// place of a volume's directory would then show the data of another volume.
//
// Paths have slashes between their elements and satisfy fs.ValidPath; "." is the directory itself.
// Errors are *fs.PathError (of Rename *os.LinkError) with the path as the caller of Open gave it,
// and the errors of package fs can be found in them. A path element of the wrong type is ErrType
// with the path of that element: a FIFO in place of a file, for example, or a link. No open waits
// for the writer of a FIFO.
package beneath

import (
	"io/fs"
	"path"

	"github.com/causeway-csi/causeway/internal/regular"
)

// ErrType reports that an element of a path does not have the type of file that it must have.
var ErrType = regular.ErrType

// ReadFile returns the content of the regular file called name, which has at most limit bytes.
// Errors: fs.ErrNotExist, ErrType, regular.ErrSize.
func (d *Dir) ReadFile(name string, limit int64) ([]byte, error) {
	file, err := d.OpenFile(name, readOnly, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return regular.Read(file, limit)
}

// Check describes the entry name, which must have the type want: fs.ModeDir, or 0 for a regular
// file. Errors: fs.ErrNotExist, ErrType.
func (d *Dir) Check(name string, want fs.FileMode) (fs.FileInfo, error) {
	info, err := d.Lstat(name)
	if err != nil {
		return nil, err
	}
	if err := regular.Check(info.Mode(), want); err != nil {
		return nil, &fs.PathError{Op: "check", Path: d.join(name), Err: err}
	}
	return info, nil
}

// Names returns the names in the directory called name, in no order.
func (d *Dir) Names(name string) ([]string, error) {
	dir, err := d.OpenDirFile(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// Chmod sets the permissions of the directory name, independent of the umask. Windows has no modes:
// there the directory and its entries get an access control list, with the group Users if others
// may write.
func (d *Dir) Chmod(name string, mode fs.FileMode) error {
	dir, err := d.OpenDirFile(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return setMode(dir, mode)
}

// join returns the path of name for a message.
func (d *Dir) join(name string) string { return path.Join(d.Path(), name) }
