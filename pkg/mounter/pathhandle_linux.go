package mounter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
	"golang.org/x/sys/unix"
)

// resolve opens an absolute path. No element of the path may be a symbolic link, including the
// last. Errors: ErrPath for a link, fs.ErrNotExist.
func resolve(path string, flags int) (fd int, err error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_TMPFILE == unix.O_TMPFILE {
		how.Mode = 0o600
	}
	for {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &how)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ELOOP):
			return -1, fmt.Errorf("%w: %s leads through a symbolic link", ErrPath, path)
		case err != nil:
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		default:
			return fd, nil
		}
	}
}

// pathHandle is a handle of a path below the kubelet directory. It holds the parent directory open,
// so that another process can replace only the last element between two steps.
type pathHandle struct {
	parent int    // O_PATH descriptor
	name   string // the last element
	path   string // as the caller spells it
	// mayBeShare reports whether a mount may be one of a share; nil: none is.
	mayBeShare func(state) bool
}

// open resolves path below the kubelet directory without following any link. Errors: ErrPath,
// fs.ErrNotExist if the parent does not exist.
func (l *linux) open(path string) (pathHandle, error) {
	rel, err := paths.Below(l.dir, path)
	if err != nil {
		return pathHandle{}, err
	}
	dir, name := filepath.Split(rel)
	parent, err := resolve(l.real+"/"+dir, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: %w", ErrPath, err)
	}
	if err != nil {
		return pathHandle{}, err
	}
	return pathHandle{parent: parent, name: name, path: path, mayBeShare: l.mayBeShare}, nil
}

func (p pathHandle) close() { unix.Close(p.parent) }

// proc returns a path to p for system calls that take no descriptor. The path resolves through the
// open parent.
func (p pathHandle) proc() string { return procPath(p.parent) + "/" + p.name }

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// openPath returns an O_PATH descriptor of the file, directory or mount at p. A mount at p cannot
// be unmounted while the descriptor is open.
func (p pathHandle) openPath() (int, error) {
	fd, err := unix.Openat(p.parent, p.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	return fd, nil
}

// stat returns the state of the file, directory or mount at p. If the state is broken, stat returns
// an error, too.
//
// The root of a dead FUSE or NFS mount looks alive until its server is asked. Only a share is never
// asked.
func (p pathHandle) stat() (state, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	s, err := stat(p.parent, p.name, flags|unix.AT_STATX_DONT_SYNC)
	if err == nil && s.mounted && s.id.major == 0 && (p.mayBeShare == nil || !p.mayBeShare(s)) {
		s, err = stat(p.parent, p.name, flags)
	}
	if err != nil {
		s.broken = isDead(err)
		return s, &fs.PathError{Op: "statx", Path: p.path, Err: err}
	}
	if s.kind() == unix.S_IFLNK {
		return s, fmt.Errorf("%w: %s is a symbolic link", ErrPath, p.path)
	}
	return s, nil
}

// isDead reports whether err is an error that a mount returns when its server or disk is gone for
// good. EHOSTDOWN is not among them: a share returns it while its server is away, and recovers.
func isDead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EIO)
}

func (p pathHandle) statfs(st *unix.Statfs_t) error {
	fd, err := p.openPath()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstatfs(fd, st); err != nil {
		return &fs.PathError{Op: "statfs", Path: p.path, Err: err}
	}
	return nil
}

// names returns the names of up to n entries of the directory that fd, an O_PATH descriptor, refers
// to.
func names(fd, n int, path string) ([]string, error) {
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(dir), path)
	defer f.Close()
	names, err := f.Readdirnames(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// target is an open mount point: the directory or file on which a mount is put. Its descriptor was
// opened without following links, so a link that replaces the mount point later is never followed.
type target struct {
	pathHandle
	fd   int // O_PATH
	id   fileID
	made bool // this call has created the mount point
}

// target opens the directory or file at p, which must have the type mode and must not be a mount
// point. It must also be empty, as a mount would hide its content. A directory that this call has
// made is not checked for entries. Errors: ErrPath, ErrConflict, ErrNotEmpty.
func (p pathHandle) target(mode uint16, made bool) (target, error) {
	fd, err := p.openPath()
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrPath, err)
	}
	if err != nil {
		return target{}, err
	}
	at, err := statFD(fd)
	switch {
	case err != nil:
		err = &fs.PathError{Op: "statx", Path: p.path, Err: err}
	case at.kind() == unix.S_IFLNK:
		err = fmt.Errorf("%w: %s is a symbolic link", ErrPath, p.path)
	case at.mounted:
		err = fmt.Errorf("%w: %s", ErrConflict, p.path)
	case at.kind() != mode:
		err = fmt.Errorf("%w: %s is %s, must be %s", ErrPath, p.path, typeName(at.kind()), typeName(mode))
	case mode == unix.S_IFREG && at.size > 0:
		err = fmt.Errorf("%w: %s", ErrNotEmpty, p.path)
	case mode == unix.S_IFDIR && !made:
		var found []string
		if found, err = names(fd, 1, p.path); err == nil && len(found) > 0 {
			err = fmt.Errorf("%w: %s", ErrNotEmpty, p.path)
		}
	}
	if err != nil {
		unix.Close(fd)
		return target{}, err
	}
	return target{pathHandle: p, fd: fd, id: at.id, made: made}, nil
}

// typeName returns the name of a type of file, for an error.
func typeName(mode uint16) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFREG:
		return "a regular file"
	}
	return "a device, FIFO or socket"
}

func (t target) close() { unix.Close(t.fd) }

// discard removes the target if this call has created the target and it is still at its path.
func (t target) discard() error {
	if at, err := t.stat(); !t.made || err != nil || at.mounted || at.id != t.id {
		return nil
	}
	flags := 0
	if at, err := statFD(t.fd); err == nil && at.kind() == unix.S_IFDIR {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(t.parent, t.name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: t.path, Err: err}
	}
	return nil
}

// failed discards the target after the mount of m has failed with err. failed returns err together
// with the error of the removal, or nil if err is nil.
func (t target) failed(m Mount, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("mount %s at %s: %w", m.Source, t.path, err), t.discard())
}

// prepare makes p ready for a mount on a file or a directory; mode is the type. If p is a mount
// point already, done is true, and prepare returns ErrConflict unless the mount is the wanted
// mount. matches compares the mount at p, by its state and its root, with the wanted mount.
func (p pathHandle) prepare(
	mode uint16, matches func(at state, root int) (same bool, differs error),
) (t target, done bool, err error) {
	at, err := p.stat()
	if at.broken || at.deleted {
		if err := unix.Unmount(p.proc(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return t, false, fmt.Errorf("unmount the dead mount at %s: %w", p.path, err)
		}
		at, err = p.stat()
	}
	made := false
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := p.make(mode); err != nil {
			return t, false, err
		}
		made = true
	case err != nil:
		return t, false, err
	case at.mounted:
		return t, true, p.compare(matches)
	}
	t, err = p.target(mode, made)
	if err != nil && made { // another process replaced the new target, or the kernel is out of resources
		return t, false, errors.Join(err, p.unmake(mode))
	}
	return t, false, err
}

// compare returns ErrConflict unless matches accepts the mount at p.
func (p pathHandle) compare(matches func(at state, root int) (same bool, differs error)) error {
	root, err := p.openPath()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	at, err := statFD(root)
	if err != nil {
		return &fs.PathError{Op: "statx", Path: p.path, Err: err}
	}
	same, differs := false, error(nil)
	if at.mounted {
		same, differs = matches(at, root)
	}
	switch {
	case !same:
		return fmt.Errorf("%w: %s", ErrConflict, p.path)
	case differs != nil:
		return fmt.Errorf("%w: %s %w", ErrConflict, p.path, differs)
	}
	return nil
}

// targetMode is the mode of a file that the driver creates as the target of a device. The sticky
// bit has no effect on a regular file, and marks the file as the driver's from the moment of its
// creation.
const targetMode = unix.S_ISVTX | 0o640

// isTarget reports whether a file has the mark of a target that this mounter has made.
func (s state) isTarget() bool {
	return s.kind() == unix.S_IFREG && !s.mounted && s.size == 0 &&
		s.mode&unix.S_ISVTX != 0 && s.uid == uint32(os.Geteuid())
}

// mark marks an empty file as the target of a device, so that the driver still recognizes the file
// after the device is unmounted. fd is an O_PATH descriptor of the file. A file of another user
// stays as it is.
func mark(fd int) error {
	at, err := statFD(fd)
	if err != nil || at.isTarget() || at.mounted || at.kind() != unix.S_IFREG || at.size > 0 ||
		at.uid != uint32(os.Geteuid()) {
		return err
	}
	return unix.Chmod(procPath(fd), uint32(at.mode&0o7777|unix.S_ISVTX))
}

// markBelow marks the file that the mount at p hides: the target of a device that an earlier
// release of the driver has mounted. The file is reachable through a clone of the mount of the
// parent directory, because the clone does not include the mount at p.
func (p pathHandle) markBelow() error {
	tree, err := cloneTree(p.parent)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	fd, err := unix.Openat(tree, p.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	defer unix.Close(fd)
	return mark(fd)
}

// unmake removes a target that this call has just created, unless another file has replaced the
// target.
func (p pathHandle) unmake(mode uint16) error {
	remove := p.removeDirectory
	if mode == unix.S_IFREG {
		remove = func() error { return p.removeFile(false) }
	}
	err := remove()
	if errors.Is(err, ErrPath) || errors.Is(err, ErrBusy) || errors.Is(err, ErrNotEmpty) {
		return nil
	}
	return err
}

// make creates an empty directory or file at p; mode is the type.
func (p pathHandle) make(mode uint16) error {
	var err error
	if mode == unix.S_IFREG {
		err = unix.Mknodat(p.parent, p.name, unix.S_IFREG|targetMode, 0)
	} else {
		err = unix.Mkdirat(p.parent, p.name, 0o750)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", p.path, err)
	}
	return nil
}

// source is the directory, image or device of a mount call, held by an O_PATH descriptor.
type source struct {
	fd   int
	path string // as the caller spells it
	real string // without links
	state
}

// openSource opens the source of a mount. No element of its path may be a link. A source below the
// kubelet directory is another mount: it is resolved from the real path of that directory, which
// itself may be reached through a link. Errors: ErrPath for a link, fs.ErrNotExist.
func (l *linux) openSource(path string) (source, error) {
	resolved := path
	if rel, err := paths.Below(l.dir, path); err == nil {
		resolved = filepath.Join(l.real, rel)
	}
	fd, err := resolve(resolved, unix.O_PATH)
	if err != nil {
		return source{}, fmt.Errorf("source: %w", err)
	}
	at, err := statFD(fd)
	if err != nil {
		unix.Close(fd)
		return source{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return source{fd: fd, path: path, real: resolved, state: at}, nil
}

func (s source) close() { unix.Close(s.fd) }

// statSource returns the state of the source of a mount, and leaves nothing open.
func (l *linux) statSource(path string) (state, error) {
	s, err := l.openSource(path)
	if err != nil {
		return state{}, err
	}
	s.close()
	return s.state, nil
}

// openImage opens the image for reading and writing. Errors: ErrFormat if s is not a regular file.
func (s source) openImage() (*os.File, error) { return s.openImageFor(unix.O_RDWR) }

// openImageFor is openImage with the access of flags.
func (s source) openImageFor(flags int) (*os.File, error) {
	if s.kind() != unix.S_IFREG {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrFormat, s.path)
	}
	fd, err := unix.Open(procPath(s.fd), flags|unix.O_CLOEXEC, 0) // exactly the file that s holds
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: s.path, Err: err}
	}
	return os.NewFile(uintptr(fd), s.path), nil
}

// fileID identifies a file or directory of this machine, independent of its path.
type fileID struct {
	major, minor uint32
	ino          uint64
}

// state is the result of statx(2) for a path. STATX_ATTR_MOUNT_ROOT (Linux 5.8) shows whether the
// path is a mount point, of a bind mount too.
type state struct {
	id      fileID
	device  fileID // the device of a device node; the inode is 0
	mount   uint64 // ID of the mount through which the path is reached
	mode    uint16
	uid     uint32
	size    uint64
	mounted bool // the path is the root of a mount
	deleted bool // the path is a mount whose directory was deleted
	broken  bool // statx returned an error of a dead mount, such as that of a dead server
}

// kind returns the type of the file: S_IFDIR, for example.
func (s state) kind() uint16 { return s.mode & unix.S_IFMT }

// stat returns the state of a path. With AT_STATX_DONT_SYNC, the kernel answers from its memory for
// the root of a mount, and does not wait for a server.
func stat(dir int, path string, flags int) (state, error) {
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_INO | unix.STATX_NLINK |
		unix.STATX_SIZE | unix.STATX_MNT_ID
	var st unix.Statx_t
	if err := unix.Statx(dir, path, flags, mask, &st); err != nil {
		return state{}, err
	}
	mounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	return state{
		id:      fileID{st.Dev_major, st.Dev_minor, st.Ino},
		device:  fileID{major: st.Rdev_major, minor: st.Rdev_minor},
		mount:   st.Mnt_id,
		size:    st.Size,
		mode:    st.Mode,
		uid:     st.Uid,
		mounted: mounted,
		deleted: mounted && st.Nlink == 0,
	}, nil
}

// statFD is [stat] for an open file, directory or mount. It does not wait for a server.
func statFD(fd int) (state, error) { return stat(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC) }
