package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// A mounted device node does not keep its device attached. If the driver dies after it has set
// autoclear, the node stays mounted, and the kernel may give the number of the device to another
// file. So a backing record, a file beside each node, identifies the image of the device. The
// record also proves that the target file of the node belongs to the driver.

// BackingName is the name of a backing record.
const BackingName = "backing"

// maxBacking bounds the size of a backing record, in bytes: a few numbers with separators.
const maxBacking = 64

// WriteBacking writes the backing record of the device at d: b, and the numbers in more. Errors:
// ErrNotEmpty if a file of another program has its name.
func (p Handle) WriteBacking(b Backing, more ...any) error {
	if _, there, err := p.ReadBacking(); err != nil {
		return err
	} else if there {
		if err := p.RemoveBacking(); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(p.Parent, BackingName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return &fs.PathError{Op: "create", Path: p.backingPath(), Err: err}
	}
	f := os.NewFile(uintptr(fd), p.backingPath())
	_, err = fmt.Fprintln(f, append([]any{b.Dev, b.Ino}, more...)...)
	return errors.Join(err, f.Close())
}

// ReadBacking reads the backing record of the device at d: the file that the device had when its
// node was mounted. A torn record has a zero b, and means that the node was not mounted after the
// record was written. there is false if there is no record. Errors: ErrNotEmpty if a file of
// another program has its name.
func (p Handle) ReadBacking() (b Backing, there bool, err error) {
	b, _, there, err = p.ReadBackingFlag()
	return b, there, err
}

// ReadBackingFlag is [Handle.ReadBacking], and also returns the number behind b in the record,
// or 0.
func (p Handle) ReadBackingFlag() (b Backing, flag int, there bool, err error) {
	foreign := fmt.Errorf("%w: %s is not the driver's file", mounter.ErrNotEmpty, p.backingPath())
	fd, err := unix.Openat(p.Parent, BackingName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return b, 0, false, nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link, a socket
		return b, 0, false, foreign
	case err != nil:
		return b, 0, false, &fs.PathError{Op: "open", Path: p.backingPath(), Err: err}
	}
	f := os.NewFile(uintptr(fd), p.backingPath())
	defer f.Close()
	at, err := StatFD(fd)
	if err != nil {
		return b, 0, false, &fs.PathError{Op: "statx", Path: p.backingPath(), Err: err}
	}
	if at.Kind() != unix.S_IFREG || at.Size > maxBacking {
		return b, 0, false, foreign
	}
	switch n, err := fmt.Fscan(f, &b.Dev, &b.Ino, &flag); {
	case err == nil, n == 2:
		return b, flag, true, nil
	case at.Size == 0 || n > 0: // torn by a power cut
		return Backing{}, 0, true, nil
	}
	return Backing{}, 0, false, foreign
}

// RemoveBacking removes the backing record of the device at d.
func (p Handle) RemoveBacking() error {
	if err := unix.Unlinkat(p.Parent, BackingName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: p.backingPath(), Err: err}
	}
	return nil
}

func (p Handle) backingPath() string { return filepath.Join(filepath.Dir(p.Path), BackingName) }

// IsStale reports whether the device node that is mounted at path was mounted for another backing
// file than b, as its backing record shows. A node without a backing record is not stale.
func IsStale(path string, b Backing) bool {
	dir, name := filepath.Split(path)
	if name != mounter.DeviceName {
		return false
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	d := Handle{Parent: fd, Name: name, Path: path}
	defer d.Close()
	was, there, err := d.ReadBacking()
	return err == nil && there && was != Backing{} && was != b
}

// PrepareNode returns the handle of the device of a Disk in the directory at p. PrepareNode creates
// the directory if p does not exist, and then returns made as true.
func (p Handle) PrepareNode() (d Handle, made bool, err error) {
	if at, err := p.Stat(); errors.Is(err, fs.ErrNotExist) {
		if err := p.Create(unix.S_IFDIR); err != nil {
			return d, false, err
		}
		made = true
	} else if err != nil {
		return d, false, err
	} else if at.Kind() != unix.S_IFDIR {
		return d, false, fmt.Errorf("%w: %s is not a directory", mounter.ErrPath, p.Path)
	}
	if d, err = p.Node(); err == nil {
		if err = d.alone(); err != nil {
			d.Close()
		}
	}
	if err != nil && made {
		err = errors.Join(err, p.uncreate(unix.S_IFDIR))
	}
	return d, made, err
}

// alone returns an error if the directory of a Disk is a mount point (ErrConflict), or has an entry
// that does not belong to the driver (ErrNotEmpty).
func (p Handle) alone() error {
	at, err := StatFD(p.Parent)
	if err == nil && at.Mounted {
		err = fmt.Errorf("%w: %s", mounter.ErrConflict, filepath.Dir(p.Path))
	}
	if err != nil {
		return err
	}
	found, err := entries(p.Parent, 3, p.Path)
	if err == nil && slices.ContainsFunc(found, func(name string) bool {
		return name != mounter.DeviceName && name != BackingName
	}) {
		err = fmt.Errorf("%w: %s", mounter.ErrNotEmpty, filepath.Dir(p.Path))
	}
	return err
}

// Node returns the handle of the device of a Disk in the directory at p. Errors: ErrPath,
// fs.ErrNotExist.
func (p Handle) Node() (Handle, error) {
	dir, err := unix.Openat(p.Parent, p.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return Handle{}, fmt.Errorf("%w: %s is not a directory", mounter.ErrPath, p.Path)
	case err != nil:
		return Handle{}, &fs.PathError{Op: "open", Path: p.Path, Err: err}
	}
	return Handle{Parent: dir, Name: mounter.DeviceName, Path: p.Path + "/" + mounter.DeviceName}, nil
}

// NodeState returns the state of the device of a Disk in the directory at p. If there is no device,
// it returns the zero state, in which nothing is mounted.
func (p Handle) NodeState() (State, error) {
	d, err := p.Node()
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	defer d.Close()
	at, err := d.Stat()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, mounter.ErrPath) {
		return State{}, nil
	}
	return at, err
}

// IsDisk reports whether path is the device node of a Disk.
func (tr *Tree) IsDisk(path string) bool {
	d, err := tr.Open(path)
	if err != nil {
		return false
	}
	defer d.Close()
	_, there, err := d.ReadBacking()
	return d.Name == mounter.DeviceName && there && err == nil
}
