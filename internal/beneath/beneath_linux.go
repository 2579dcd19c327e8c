package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/regular"
)

// Dir is an open directory. Its methods may be called by many goroutines.
type Dir struct{ file *os.File }

// readOnly opens a file for reading.
const readOnly = unix.O_RDONLY

// openat2(2), of Linux 5.6. Without ".." in a path there is no EAGAIN, but for a file with a lease.
const (
	resolve   = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	directory = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// Open opens the directory at path, through links. The caller closes it.
func Open(path string) (*Dir, error) {
	file, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		err = &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("%w: it must be a directory", ErrType)}
	}
	if err != nil {
		return nil, err
	}
	return &Dir{file}, nil
}

// Of returns the Dir of a directory that is open already, and takes it over.
func Of(dir *os.File) *Dir { return &Dir{dir} }

// Close closes the directory.
func (d *Dir) Close() error { return d.file.Close() }

// Path returns the path with which the directory was opened.
func (d *Dir) Path() string { return d.file.Name() }

// Stat describes the directory.
func (d *Dir) Stat() (fs.FileInfo, error) { return d.file.Stat() }

// OpenDir opens the directory called name. The caller closes it.
func (d *Dir) OpenDir(name string) (*Dir, error) {
	file, err := d.OpenDirFile(name)
	if err != nil {
		return nil, err
	}
	return &Dir{file}, nil
}

// OpenDirFile opens the directory called name for code that takes files. The caller closes it.
func (d *Dir) OpenDirFile(name string) (*os.File, error) {
	fd, err := d.openat(name, unix.O_RDONLY|directory, 0)
	if err != nil {
		return nil, d.failed("open", name, fs.ModeDir, err)
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// OpenDirPath opens the directory called name as a path only (O_PATH), which waits for no lock. The
// caller closes it.
func (d *Dir) OpenDirPath(name string) (*os.File, error) {
	fd, err := d.openat(name, unix.O_PATH|directory, 0)
	if err != nil {
		return nil, d.failed("open", name, fs.ModeDir, err)
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// OpenFile opens the regular file called name, or makes it, as os.OpenFile does.
func (d *Dir) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	if flag&os.O_CREATE == 0 {
		perm = 0 // openat2 refuses permissions that have no use
	}
	const safe = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_LARGEFILE
	fd, err := d.openat(name, flag|safe, perm)
	if err != nil {
		return nil, d.failed("open", name, 0, err)
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil && stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.ENXIO
	}
	if err == nil { // or os.NewFile would hand the file to the poller, and loop(4) would inherit the flag
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flag&unix.O_APPEND)
	}
	if err != nil {
		unix.Close(fd)
		return nil, d.failed("open", name, 0, err)
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// Lstat describes the entry called name, which may be a link.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) {
	fd, err := d.openat(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.failed("lstat", name, anyType, err)
	}
	file := os.NewFile(uintptr(fd), d.join(name))
	defer file.Close()
	return file.Stat()
}

// Mkdir makes a directory called name.
func (d *Dir) Mkdir(name string, perm fs.FileMode) error {
	err := d.withParent(name, func(parent int, base string) error {
		return unix.Mkdirat(parent, base, uint32(perm.Perm()))
	})
	if err != nil {
		return d.failed("mkdir", name, anyType, err)
	}
	return nil
}

// Remove removes the file or empty directory called name.
func (d *Dir) Remove(name string) error {
	err := d.withParent(name, func(parent int, base string) error {
		err := unix.Unlinkat(parent, base, 0)
		if errors.Is(err, unix.EISDIR) {
			err = unix.Unlinkat(parent, base, unix.AT_REMOVEDIR)
		}
		return err
	})
	if err != nil {
		return d.failed("remove", name, anyType, err)
	}
	return nil
}

// Rename gives the entry called old the name target, in place of a file or empty directory that may
// be there.
func (d *Dir) Rename(old, target string) error {
	name := old
	err := d.withParent(old, func(from int, was string) error {
		name = target
		return d.withParent(target, func(to int, is string) error { return unix.Renameat(from, was, to, is) })
	})
	if err == nil {
		return nil
	}
	if failed := (*fs.PathError)(nil); errors.As(d.failed("rename", name, anyType, err), &failed) {
		if err = failed.Err; failed.Path != d.join(name) {
			err = fmt.Errorf("%s: %w", failed.Path, err)
		}
	}
	return &os.LinkError{Op: "rename", Old: d.join(old), New: d.join(target), Err: err}
}

// Sync makes the entries of the directory called name durable.
func (d *Dir) Sync(name string) error {
	if name == "." {
		return d.file.Sync()
	}
	dir, err := d.OpenDirFile(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// openat opens the entry called name.
func (d *Dir) openat(name string, flag int, perm fs.FileMode) (fd int, err error) {
	if !fs.ValidPath(name) {
		return -1, fs.ErrInvalid
	}
	how := unix.OpenHow{Flags: uint64(flag), Mode: uint64(perm.Perm()), Resolve: resolve}
	err = d.with(func(dir int) error {
		for {
			if fd, err = unix.Openat2(dir, name, &how); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
	return fd, err
}

// withParent calls do with the directory that holds the entry called name, and the last element of
// name.
func (d *Dir) withParent(name string, do func(parent int, base string) error) error {
	if !fs.ValidPath(name) || name == "." {
		return fs.ErrInvalid
	}
	dir, base := path.Split(name)
	if dir == "" {
		return d.with(func(fd int) error { return do(fd, base) })
	}
	parent, err := d.openat(path.Clean(dir), unix.O_PATH|directory, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return do(parent, base)
}

// with calls do with the descriptor of the directory, which stays open until do returns.
func (d *Dir) with(do func(fd int) error) error {
	conn, err := d.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if conn.Control(func(fd uintptr) { failed = do(int(fd)) }) != nil {
		return fs.ErrClosed
	}
	return failed
}

// anyType is for a last element that may have any type.
const anyType = fs.ModeIrregular

// failed returns err for an operation on the entry called name, whose type must be want. For an
// element of the wrong type the kernel's error depends on the operation; here it is ErrType, with
// the path of the element and its type.
func (d *Dir) failed(op, name string, want fs.FileMode, err error) error {
	at := name
	switch {
	case !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EISDIR) &&
		!errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENODEV):
	case want != anyType:
		at, err = d.explain(name, want, err)
	case path.Dir(name) != ".":
		at, err = d.explain(path.Dir(name), fs.ModeDir, err)
	}
	return &fs.PathError{Op: op, Path: d.join(at), Err: err}
}

// explain returns ErrType with the element of name that has the wrong type. If all types are right
// by now, err decides which error it was.
func (d *Dir) explain(name string, want fs.FileMode, err error) (string, error) {
	switch element, wrong := d.wrong(name, want); {
	case wrong != nil:
		return element, wrong
	case errors.Is(err, unix.ENXIO):
		return name, fmt.Errorf("%w: it must be %s", ErrType, regular.Describe(want))
	case errors.Is(err, unix.ELOOP):
		return name, fmt.Errorf("%w: an element of the path is a symbolic link", ErrType)
	}
	return name, err
}

// wrong returns ErrType with the first element of name that has the wrong type. All but the last
// must be directories, and the last must have the type want. wrong returns nil if all types are
// right now.
func (d *Dir) wrong(name string, want fs.FileMode) (element string, err error) {
	for end := 0; end < len(name); {
		next := strings.IndexByte(name[end:]+"/", '/')
		element, must := name[:end+next], fs.ModeDir
		if end += next + 1; end > len(name) {
			must = want
		}
		info, err := d.Lstat(element)
		if err != nil {
			return "", nil
		}
		if err := regular.Check(info.Mode(), must); err != nil {
			return element, err
		}
	}
	return "", nil
}
