package archive

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// resolveTries is the number of attempts of Resolve while directories of the path move.
const resolveTries = 100

// Resolve opens an absolute path of a container as an O_PATH descriptor, below root, an O_PATH
// descriptor of the root directory of the container. Links are followed as in the container:
// absolute ones and ".." do not leave root. Links of proc, such as /proc/1/root, are not followed.
// openat2(2), Linux 5.6. Errors: ErrRefused for a path that is not absolute; ErrKernelFilesystem;
// ErrChanged if directories of the path move all the time.
func Resolve(root int, path string) (fd int, err error) {
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "\x00") {
		return -1, fmt.Errorf("%w: %.128q is no absolute path", ErrRefused, path)
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range resolveTries {
		fd, err = unix.Openat2(root, path, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("%w: its directories move", ErrChanged)
	}
	if err == nil {
		if err = checkFilesystem(fd); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return -1, fmt.Errorf("open %.128q: %w", path, err)
	}
	return fd, nil
}

// kernelFilesystems are those whose files are state of the kernel. statfs(2).
var kernelFilesystems = map[int64]string{
	unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "cgroup",
	unix.CGROUP2_SUPER_MAGIC: "cgroup2", unix.DEVPTS_SUPER_MAGIC: "devpts", unix.DEBUGFS_MAGIC: "debugfs",
	unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs", unix.BPF_FS_MAGIC: "bpf",
	unix.SELINUX_MAGIC: "selinuxfs", unix.EFIVARFS_MAGIC: "efivarfs", unix.PSTOREFS_MAGIC: "pstore",
	unix.BINFMTFS_MAGIC: "binfmt_misc", unix.NSFS_MAGIC: "nsfs", configfs: "configfs", mqueue: "mqueue",
}

// Magic numbers that x/sys does not have: fs/configfs/mount.c, ipc/mqueue.c.
const (
	configfs = 0x62656570
	mqueue   = 0x19800202
)

// checkFilesystem returns ErrKernelFilesystem for the descriptor of a file on one.
func checkFilesystem(fd int) error {
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if name, ok := kernelFilesystems[s.Type]; ok {
		return fmt.Errorf("%w: %s", ErrKernelFilesystem, name)
	}
	return nil
}

// pathEntry is an Entry with an O_PATH descriptor. Files are opened through the descriptor, so a
// device or a named pipe that takes the name of a file is never opened.
type pathEntry struct {
	fd   int
	self int // /proc/self/fd
	stat unix.Stat_t
}

// FromDescriptor returns the Entry of an O_PATH descriptor, such as that of Resolve, and closes the
// descriptor with the Entry, or after an error. self is a descriptor of /proc/self/fd, which the
// process may no longer be able to open.
func FromDescriptor(fd, self int) (Entry, error) {
	e := &pathEntry{fd: fd, self: self}
	if err := unix.Fstat(fd, &e.stat); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fstat", err)
	}
	return e, nil
}

// types are the types of files in a stat, except of regular files.
var types = map[uint32]fs.FileMode{
	unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe,
	unix.S_IFSOCK: fs.ModeSocket, unix.S_IFBLK: fs.ModeDevice, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice,
}

func (e *pathEntry) Info() Info {
	mode := fs.FileMode(e.stat.Mode) & fs.ModePerm
	if kind := e.stat.Mode & unix.S_IFMT; kind != unix.S_IFREG {
		mode |= cmp.Or(types[kind], fs.ModeIrregular)
	}
	return Info{Mode: mode, Size: e.stat.Size, Modified: time.Unix(e.stat.Mtim.Unix()), UID: int(e.stat.Uid),
		GID: int(e.stat.Gid)}
}

func (e *pathEntry) Link() (string, error) {
	buffer := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(e.fd, "", buffer)
	if err == nil && n == len(buffer) {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		return "", os.NewSyscallError("readlinkat", err)
	}
	return string(buffer[:n]), nil
}

func (e *pathEntry) Open() (io.ReadCloser, error) {
	fd := -1
	err := AwaitLease(func() (err error) {
		fd, err = unix.Openat(e.self, strconv.Itoa(e.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return descriptor(fd), nil
}

// AwaitLease calls open, which has O_NONBLOCK, again and again while a process holds a lease on the
// file. The kernel has asked the process to release it, and would block another open for 45 s. A file
// server releases it within milliseconds. Errors: ErrLease after 2 s.
func AwaitLease(open func() error) error {
	const pause, patience = 10 * time.Millisecond, 2 * time.Second
	for waited := time.Duration(0); ; waited += pause {
		err := open()
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if waited >= patience {
			return ErrLease
		}
		time.Sleep(pause)
	}
}

// descriptor is an open file. An os.File would try to add each file to its poller: five system
// calls more, which count for small files.
type descriptor int

func (d descriptor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (d descriptor) Close() error { return unix.Close(int(d)) }

func (e *pathEntry) Names(limit int) ([]string, error) {
	fd, err := unix.Openat(e.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	dir := os.NewFile(uintptr(fd), "directory")
	defer dir.Close()
	return readNames(dir, limit)
}

// Child opens an entry, also a mount point: its filesystem is checked where the device differs.
func (e *pathEntry) Child(name string) (Entry, error) {
	fd, err := unix.Openat(e.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	child, err := FromDescriptor(fd, e.self)
	if err != nil {
		return nil, err
	}
	if child.(*pathEntry).stat.Dev != e.stat.Dev {
		if err := checkFilesystem(fd); err != nil {
			child.Close()
			return nil, err
		}
	}
	return child, nil
}

func (e *pathEntry) Close() error { return unix.Close(e.fd) }
