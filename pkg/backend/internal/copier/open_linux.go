package copier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// No open of a tenant's file may block: O_NONBLOCK makes a lease an error, and prevents that a FIFO
// or device that was swapped in waits for its other end.
const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOATIME | unix.O_CLOEXEC
	openPath = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOATIME | unix.O_CLOEXEC
	makeFile = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
)

// inside keeps a path lookup within the filesystem of its start, and off symbolic links. A path
// without ".." then leads down only. RESOLVE_BENEATH would add nothing, and would report a file
// that moves during the lookup as EXDEV, like a mount.
const inside = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// openAt opens a path below an open directory. A symbolic link on the way is ELOOP, a mount EXDEV.
func openAt(dir int, path string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags, Resolve: inside}
	err = retry(func() error { fd, err = unix.Openat2(dir, path, &how); return err })
	if flags&unix.O_NOATIME != 0 && errors.Is(err, unix.EPERM) { // only the owner may use O_NOATIME
		return openAt(dir, path, flags&^unix.O_NOATIME)
	}
	return fd, err
}

// maxPath is the longest path that is given to the kernel, in bytes.
const maxPath = 4000

// openSteps opens the directory below top whose path has the elements names, in as many steps as
// the length of the path requires.
func openSteps(top int, names []string, flags uint64) (int, error) {
	at := top
	for {
		n, long := 0, 0
		for n < len(names) && long+1+len(names[n]) < maxPath {
			long += 1 + len(names[n])
			n++
		}
		path := strings.Join(names[:n], "/")
		if n == 0 {
			path = "."
		}
		names = names[n:]
		next := uint64(openPath | unix.O_DIRECTORY)
		if len(names) == 0 {
			next = flags
		}
		fd, err := openAt(at, path, next)
		if at != top {
			unix.Close(at)
		}
		if err != nil || len(names) == 0 {
			return fd, err
		}
		at = fd
	}
}

// vanished reports whether err, of openAt, means that the directory was removed, moved or replaced.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// mounted adds an explanation to EXDEV of openAt.
func mounted(err error) error {
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("a mounted filesystem is not part of the tree: %w", err)
	}
	return err
}

// identity identifies a file on this machine.
type identity struct {
	major, minor uint32
	inode        uint64
}

func identityOf(st *unix.Statx_t) identity { return identity{st.Dev_major, st.Dev_minor, st.Ino} }

// openSame opens a directory as openSteps does. If it is not the directory that want identifies, fd
// is -1 and the error nil.
func openSame(dir int, names []string, want identity) (fd int, err error) {
	fd, err = openSteps(dir, names, openDir)
	if err != nil {
		return -1, err
	}
	var st unix.Statx_t
	if err = statx(fd, &st); err == nil && identityOf(&st) == want {
		return fd, nil
	}
	unix.Close(fd)
	return -1, err
}

// A lease makes the first open with O_NONBLOCK fail, and the kernel asks its holder to release it.
// A file server does so within milliseconds. A copy waits for a limited time in total, not for each
// file: the kernel would give each holder /proc/sys/fs/lease-break-time, 45 s.
const (
	leaseBudget = 2 * time.Second
	leaseFirst  = 200 * time.Microsecond // the first wait for a file; the next is twice as long
	leaseMost   = 20 * time.Millisecond  // the longest wait
)

// leases is the time that a copy has waited for leases, in nanoseconds.
type leases struct{ waited atomic.Int64 }

// open opens a regular file for reading that is open as a path only. An open by name could reach a
// device by now, and the open of a device can have side effects. Errors: ErrLease.
func (l *leases) open(ctx context.Context, path int) (fd int, err error) {
	for wait := leaseFirst; ; wait = min(2*wait, leaseMost) {
		fd, err = reopen(path)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fd, err
		}
		if l.waited.Add(int64(wait)) > int64(leaseBudget) {
			return fd, ErrLease
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fd, ctx.Err()
		}
	}
}

// reopen opens a file for reading that is open as a path only.
func reopen(path int) (fd int, err error) {
	err = retry(func() error { fd, err = unix.Open(proc(path), openFile, 0); return err })
	if errors.Is(err, unix.EPERM) { // only the owner may use O_NOATIME
		err = retry(func() error { fd, err = unix.Open(proc(path), openFile&^unix.O_NOATIME, 0); return err })
	}
	return fd, err
}

// proc returns a path to an open file, for calls that accept no descriptor that is open as a path.
func proc(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func statx(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, st)
}

// retry repeats a call that a signal has interrupted: the Go runtime sends signals to itself.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// maxShown is the length of a path in an error, in bytes: the path of an entry has no limit.
const maxShown = 200

// path returns the end of the path of an entry of d, from the top of the tree, or of d itself if
// name is "".
func (d *dir) path(name string) string {
	var names []string
	if name != "" {
		names = append(names, name)
	}
	long := len(name)
	for ; d.parent != nil && long <= maxShown+1; d = d.parent {
		names = append(names, d.name)
		long += 1 + len(d.name)
	}
	slices.Reverse(names)
	path := strings.Join(names, "/")
	switch over := len(path) - maxShown; {
	case path == "":
		return "."
	case over > 0:
		return "..." + path[over:]
	}
	return path
}

// names returns the names of the directories from the top to d.
func (d *dir) names() []string {
	var names []string
	for ; d.parent != nil; d = d.parent {
		names = append(names, d.name)
	}
	slices.Reverse(names)
	return names
}

// maxTop is the length of the beginning of a path in an error, in bytes.
const maxTop = 80

// top returns the beginning of the path of d, from the top of the tree.
func (d *dir) top() string {
	path := strings.Join(d.names(), "/")
	if len(path) > maxTop {
		path = path[:maxTop] + "..."
	}
	return path
}

// wrong returns the error of an action on an entry of d, or on d itself if name is "".
func (d *dir) wrong(action, name string, err error) error {
	return fmt.Errorf("%s %q: %w", action, d.path(name), err)
}
