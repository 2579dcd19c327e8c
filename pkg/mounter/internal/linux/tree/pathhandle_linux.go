package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Resolve opens an absolute path. No element of the path may be a symbolic link, including the
// last. Errors: ErrPath for a link, fs.ErrNotExist.
func Resolve(path string, flags int) (fd int, err error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_TMPFILE == unix.O_TMPFILE {
		how.Mode = 0o600
	}
	for {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &how)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ELOOP):
			return -1, fmt.Errorf("%w: %s leads through a symbolic link", mounter.ErrPath, path)
		case err != nil:
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		default:
			return fd, nil
		}
	}
}

// Handle is a handle of a path below the kubelet directory. It holds the parent directory open,
// so that another process can replace only the last element between two steps.
type Handle struct {
	Parent int    // O_PATH descriptor
	Name   string // the last element
	Path   string // as the caller spells it
	// MayBeShare reports whether a mount may be one of a share; nil: none is.
	mayBeShare func(State) bool
}

// Close closes the parent.
func (p Handle) Close() { unix.Close(p.Parent) }

// Proc returns a path to p for system calls that take no descriptor. The path resolves through the
// open parent.
func (p Handle) Proc() string { return ProcPath(p.Parent) + "/" + p.Name }

// ProcPath returns a path of an open file: proc(5).
func ProcPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// OpenPath returns an O_PATH descriptor of the file, directory or mount at p. A mount at p cannot
// be unmounted while the descriptor is open.
func (p Handle) OpenPath() (int, error) {
	fd, err := unix.Openat(p.Parent, p.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: p.Path, Err: err}
	}
	return fd, nil
}

// Stat returns the state of the file, directory or mount at p. If the state is broken, stat returns
// an error, too.
//
// The root of a dead FUSE or NFS mount looks alive until its server is asked. Only a share is never
// asked.
func (p Handle) Stat() (State, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	s, err := Stat(p.Parent, p.Name, flags|unix.AT_STATX_DONT_SYNC)
	if err == nil && s.Mounted && s.ID.Major == 0 && (p.mayBeShare == nil || !p.mayBeShare(s)) {
		s, err = Stat(p.Parent, p.Name, flags)
	}
	if err != nil {
		s.Broken = IsDead(err)
		return s, &fs.PathError{Op: "statx", Path: p.Path, Err: err}
	}
	if s.Kind() == unix.S_IFLNK {
		return s, fmt.Errorf("%w: %s is a symbolic link", mounter.ErrPath, p.Path)
	}
	return s, nil
}

// IsDead reports whether err is an error that a mount returns when its server or disk is gone for
// good. EHOSTDOWN is not among them: a share returns it while its server is away, and recovers.
func IsDead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EIO)
}

// Statfs is statfs(2) of the path.
func (p Handle) Statfs(st *unix.Statfs_t) error {
	fd, err := p.OpenPath()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstatfs(fd, st); err != nil {
		return &fs.PathError{Op: "statfs", Path: p.Path, Err: err}
	}
	return nil
}

// entries returns the names of up to n entries of the directory that fd, an O_PATH descriptor,
// refers to.
func entries(fd, n int, path string) ([]string, error) {
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

// Source is the directory, image or device of a mount call, held by an O_PATH descriptor.
type Source struct {
	FD   int
	path string // as the caller spells it
	Real string // without links
	State
}

// Close closes the source.
func (s Source) Close() { unix.Close(s.FD) }

// OpenImage opens the image for reading and writing. Errors: ErrFormat if s is not a regular file.
func (s Source) OpenImage() (*os.File, error) { return s.OpenImageFor(unix.O_RDWR) }

// OpenImageFor is OpenImage with the access of flags.
func (s Source) OpenImageFor(flags int) (*os.File, error) {
	if s.Kind() != unix.S_IFREG {
		return nil, fmt.Errorf("%w: %s is not a regular file", mounter.ErrFormat, s.path)
	}
	fd, err := unix.Open(ProcPath(s.FD), flags|unix.O_CLOEXEC, 0) // exactly the file that s holds
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: s.path, Err: err}
	}
	return os.NewFile(uintptr(fd), s.path), nil
}

// FileID identifies a file or directory of this machine, independent of its path.
type FileID struct {
	Major, Minor uint32
	ino          uint64
}

// State is the result of statx(2) for a path. STATX_ATTR_MOUNT_ROOT (Linux 5.8) shows whether the
// path is a mount point, of a bind mount too.
type State struct {
	ID      FileID
	Device  FileID // the device of a device node; the inode is 0
	Mount   uint64 // ID of the mount through which the path is reached
	Mode    uint16
	uid     uint32
	Size    uint64
	Mounted bool // the path is the root of a mount
	deleted bool // the path is a mount whose directory was deleted
	Broken  bool // statx returned an error of a dead mount, such as that of a dead server
}

// Kind returns the type of the file: S_IFDIR, for example.
func (s State) Kind() uint16 { return s.Mode & unix.S_IFMT }

// Stat returns the state of a path. With AT_STATX_DONT_SYNC, the kernel answers from its memory for
// the root of a mount, and does not wait for a server.
func Stat(dir int, path string, flags int) (State, error) {
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_INO | unix.STATX_NLINK |
		unix.STATX_SIZE | unix.STATX_MNT_ID
	var st unix.Statx_t
	if err := unix.Statx(dir, path, flags, mask, &st); err != nil {
		return State{}, err
	}
	mounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	return State{
		ID:      FileID{st.Dev_major, st.Dev_minor, st.Ino},
		Device:  FileID{Major: st.Rdev_major, Minor: st.Rdev_minor},
		Mount:   st.Mnt_id,
		Size:    st.Size,
		Mode:    st.Mode,
		uid:     st.Uid,
		Mounted: mounted,
		deleted: mounted && st.Nlink == 0,
	}, nil
}

// StatFD is [stat] for an open file, directory or mount. It does not wait for a server.
func StatFD(fd int) (State, error) { return Stat(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC) }

// DeviceKey is the key of a block device for locks and stalls. No file has inode 0.
func (s State) DeviceKey() Backing { return Backing{unix.Mkdev(s.Device.Major, s.Device.Minor), 0} }

// A loop device presents a file as a block device. The kernel attaches the same file to two loop
// devices without an error. Each device then has its own page cache, which corrupts the filesystem
// in the file. So the driver looks for a file among the attached devices before it attaches the
// file. It compares the device and inode of the file, which the kernel reports reliably. The names
// of backing files are no such key: the kernel truncates them, they become stale, and they belong
// to another mount namespace. See loop(4).

// Backing identifies the backing file of a loop device by its device and inode, as stat(2) does.
type Backing struct{ Dev, Ino uint64 }

// Backing returns the identity that the file has as a backing file.
func (s State) Backing() Backing { return Backing{unix.Mkdev(s.ID.Major, s.ID.Minor), s.ID.ino} }

// BackingOf returns the identity of an open file.
func BackingOf(file *os.File) (Backing, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return Backing{}, &fs.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	return Backing{st.Dev, st.Ino}, nil
}

// UsageOf converts the result of statfs(2).
func UsageOf(st unix.Statfs_t) mounter.Usage {
	unit := st.Frsize
	return mounter.Usage{
		TotalBytes:      int64(st.Blocks) * unit,
		UsedBytes:       int64(st.Blocks-st.Bfree) * unit,
		AvailableBytes:  int64(st.Bavail) * unit,
		TotalInodes:     int64(st.Files),
		UsedInodes:      int64(st.Files - st.Ffree),
		AvailableInodes: int64(st.Ffree),
	}
}

// Dup returns a further descriptor of the file that fd refers to.
func Dup(fd int, path string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.NewFile(uintptr(n), path), nil
}
