package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Target is an open mount point: the directory or file on which a mount is put. Its descriptor was
// opened without following links, so a link that replaces the mount point later is never followed.
type Target struct {
	Handle
	FD   int // O_PATH
	ID   FileID
	Made bool // this call has created the mount point
}

// target opens the directory or file at p, which must have the type mode and must not be a mount
// point. It must also be empty, as a mount would hide its content. A directory that this call has
// made is not checked for entries. Errors: ErrPath, ErrConflict, ErrNotEmpty.
func (p Handle) target(mode uint16, made bool) (Target, error) {
	fd, err := p.OpenPath()
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", mounter.ErrPath, err)
	}
	if err != nil {
		return Target{}, err
	}
	at, err := StatFD(fd)
	switch {
	case err != nil:
		err = &fs.PathError{Op: "statx", Path: p.Path, Err: err}
	case at.Kind() == unix.S_IFLNK:
		err = fmt.Errorf("%w: %s is a symbolic link", mounter.ErrPath, p.Path)
	case at.Mounted:
		err = fmt.Errorf("%w: %s", mounter.ErrConflict, p.Path)
	case at.Kind() != mode:
		err = fmt.Errorf("%w: %s is %s, must be %s", mounter.ErrPath, p.Path, TypeName(at.Kind()), TypeName(mode))
	case mode == unix.S_IFREG && at.Size > 0:
		err = fmt.Errorf("%w: %s", mounter.ErrNotEmpty, p.Path)
	case mode == unix.S_IFDIR && !made:
		var found []string
		if found, err = entries(fd, 1, p.Path); err == nil && len(found) > 0 {
			err = fmt.Errorf("%w: %s", mounter.ErrNotEmpty, p.Path)
		}
	}
	if err != nil {
		unix.Close(fd)
		return Target{}, err
	}
	return Target{Handle: p, FD: fd, ID: at.ID, Made: made}, nil
}

// TypeName returns the name of a type of file, for an error.
func TypeName(mode uint16) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFREG:
		return "a regular file"
	}
	return "a device, FIFO or socket"
}

// Close closes the target.
func (t Target) Close() { unix.Close(t.FD) }

// Discard removes the target if this call has created the target and it is still at its path.
func (t Target) Discard() error {
	if at, err := t.Stat(); !t.Made || err != nil || at.Mounted || at.ID != t.ID {
		return nil
	}
	flags := 0
	if at, err := StatFD(t.FD); err == nil && at.Kind() == unix.S_IFDIR {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(t.Parent, t.Name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: t.Path, Err: err}
	}
	return nil
}

// Failed discards the target after the mount of m has failed with err. Failed returns err together
// with the error of the removal, or nil if err is nil.
func (t Target) Failed(m mounter.Mount, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("mount %s at %s: %w", m.Source, t.Path, err), t.Discard())
}

// Prepare makes p ready for a mount on a file or a directory; mode is the type. If p is a mount
// point already, done is true, and prepare returns ErrConflict unless the mount is the wanted
// mount. matches compares the mount at p, by its state and its root, with the wanted mount.
func (p Handle) Prepare(
	mode uint16, matches func(at State, root int) (same bool, differs error),
) (t Target, done bool, err error) {
	at, err := p.Stat()
	if at.Broken || at.deleted {
		if err := unix.Unmount(p.Proc(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return t, false, fmt.Errorf("unmount the dead mount at %s: %w", p.Path, err)
		}
		at, err = p.Stat()
	}
	made := false
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := p.Create(mode); err != nil {
			return t, false, err
		}
		made = true
	case err != nil:
		return t, false, err
	case at.Mounted:
		return t, true, p.compare(matches)
	}
	t, err = p.target(mode, made)
	if err != nil && made { // another process replaced the new target, or the kernel is out of resources
		return t, false, errors.Join(err, p.uncreate(mode))
	}
	return t, false, err
}

// compare returns ErrConflict unless matches accepts the mount at p.
func (p Handle) compare(matches func(at State, root int) (same bool, differs error)) error {
	root, err := p.OpenPath()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	at, err := StatFD(root)
	if err != nil {
		return &fs.PathError{Op: "statx", Path: p.Path, Err: err}
	}
	same, differs := false, error(nil)
	if at.Mounted {
		same, differs = matches(at, root)
	}
	switch {
	case !same:
		return fmt.Errorf("%w: %s", mounter.ErrConflict, p.Path)
	case differs != nil:
		return fmt.Errorf("%w: %s %w", mounter.ErrConflict, p.Path, differs)
	}
	return nil
}

// TargetMode is the mode of a file that the driver creates as the target of a device. The sticky
// bit has no effect on a regular file, and marks the file as the driver's from the moment of its
// creation.
const TargetMode = unix.S_ISVTX | 0o640

// IsTarget reports whether a file has the mark of a target that this mounter has made.
func (s State) IsTarget() bool {
	return s.Kind() == unix.S_IFREG && !s.Mounted && s.Size == 0 &&
		s.Mode&unix.S_ISVTX != 0 && s.uid == uint32(os.Geteuid())
}

// MarkTarget marks an empty file as the target of a device, so that the driver still recognizes the
// file after the device is unmounted. fd is an O_PATH descriptor of the file. A file of another
// user stays as it is.
func MarkTarget(fd int) error {
	at, err := StatFD(fd)
	if err != nil || at.IsTarget() || at.Mounted || at.Kind() != unix.S_IFREG || at.Size > 0 ||
		at.uid != uint32(os.Geteuid()) {
		return err
	}
	return unix.Chmod(ProcPath(fd), uint32(at.Mode&0o7777|unix.S_ISVTX))
}

// MarkBelow marks the file that the mount at p hides: the target of a device that an earlier
// release of the driver has mounted. The file is reachable through a clone of the mount of the
// parent directory, because the clone does not include the mount at p.
func (p Handle) MarkBelow() error {
	tree, err := CloneTree(p.Parent)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	fd, err := unix.Openat(tree, p.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: p.Path, Err: err}
	}
	defer unix.Close(fd)
	return MarkTarget(fd)
}

// uncreate removes a target that this call has just created, unless another file has replaced the
// target.
func (p Handle) uncreate(mode uint16) error {
	remove := p.RemoveDirectory
	if mode == unix.S_IFREG {
		remove = func() error { return p.RemoveFile(false) }
	}
	err := remove()
	if errors.Is(err, mounter.ErrPath) || errors.Is(err, mounter.ErrBusy) || errors.Is(err, mounter.ErrNotEmpty) {
		return nil
	}
	return err
}

// Create creates an empty directory or file at p; mode is the type.
func (p Handle) Create(mode uint16) error {
	var err error
	if mode == unix.S_IFREG {
		err = unix.Mknodat(p.Parent, p.Name, unix.S_IFREG|TargetMode, 0)
	} else {
		err = unix.Mkdirat(p.Parent, p.Name, 0o750)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", p.Path, err)
	}
	return nil
}
