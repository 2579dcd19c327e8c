package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Container is a running container. The caller calls Close.
type Container struct {
	Identity Identity

	pidfd int
	dir   int // /proc/PID, O_PATH
	root  int // O_PATH
	proc  int // the root of the proc, O_PATH

	once sync.Once
}

// Node is the node of containers.
type Node struct {
	Proc string // the directory of a proc of the PID namespace of the node
	Init int    // the number of a process with the files of the node: 1
}

// Open opens the container whose first process has this number, by the runtime. cgroup is a part of
// the path of its control group, such as the ID of the container.
//
// The caller asks the runtime again afterwards: if it names the same process, the number was not
// used by two processes meanwhile. Errors: ErrGone, ErrNotContained.
func (n Node) Open(pid int, cgroup string) (*Container, error) {
	c := &Container{pidfd: -1, dir: -1, root: -1, proc: -1}
	if err := c.open(n, pid, cgroup); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Container) open(n Node, pid int, cgroup string) (err error) {
	if c.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return gone("pidfd_open", err)
	}
	if c.proc, err = unix.Open(n.Proc, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("open "+n.Proc, err)
	}
	if c.dir, err = openPath(c.proc, strconv.Itoa(pid)); err != nil {
		return gone("open", err)
	}
	if c.root, err = openPath(c.dir, "root"); err != nil {
		return gone("open root", err)
	}
	if c.Identity, err = c.identity(); err != nil {
		return err
	}
	if err := c.isContained(cgroup, n.Init); err != nil {
		return err
	}
	if c.Ended() { // else all of the above is of the process with the pidfd
		return ErrGone
	}
	return nil
}

func openPath(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// gone gives the error for a process that has ended its class.
func gone(op string, err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s: %w", ErrGone, op, err)
	}
	return os.NewSyscallError(op, err)
}

// read reads a file of the process.
func (c *Container) read(name string) ([]byte, error) {
	fd, err := unix.Openat(c.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone("open "+name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(f)
	if err != nil {
		return nil, gone("read "+name, errors.Unwrap(err))
	}
	return b.Bytes(), nil
}

func (c *Container) identity() (Identity, error) {
	var texts [3][]byte
	for i, name := range []string{"uid_map", "gid_map", "status"} {
		var err error
		if texts[i], err = c.read(name); err != nil {
			return Identity{}, err
		}
	}
	uids, err := parseMap(texts[0])
	if err != nil {
		return Identity{}, err
	}
	gids, err := parseMap(texts[1])
	if err != nil {
		return Identity{}, err
	}
	return parseStatus(texts[2], uids, gids)
}

// isContained returns ErrNotContained unless the process is in the control group of the container,
// in a mount namespace that is not the node's nor this process's, and has another root directory.
// The process of a virtual machine or of a sandbox has the root directory of the node.
func (c *Container) isContained(cgroup string, init int) error {
	text, err := c.read("cgroup")
	if err != nil {
		return err
	}
	if cgroup == "" || !bytes.Contains(text, []byte(cgroup)) {
		return fmt.Errorf("%w: its control group is not that of %.128q", ErrNotContained, cgroup)
	}
	for _, other := range []string{"self", strconv.Itoa(init)} {
		dir, err := openPath(c.proc, other)
		if err != nil {
			return gone("open "+other, err)
		}
		same, err := c.sharesFiles(dir)
		unix.Close(dir)
		if err != nil {
			return err
		}
		if same {
			return fmt.Errorf("%w: it has the files of process %s", ErrNotContained, other)
		}
	}
	return nil
}

// sharesFiles reports whether another process has the same mount namespace or the same root
// directory.
func (c *Container) sharesFiles(other int) (bool, error) {
	for _, name := range []string{"ns/mnt", "root"} {
		var mine, theirs unix.Stat_t
		var err error
		if name == "root" { // that of the copies: the process can change its root meanwhile
			err = unix.Fstat(c.root, &mine)
		} else {
			err = unix.Fstatat(c.dir, name, &mine, 0)
		}
		if err != nil {
			return false, gone("stat "+name, err)
		}
		if err := unix.Fstatat(other, name, &theirs, 0); err != nil {
			return false, gone("stat "+name, err)
		}
		if mine.Dev == theirs.Dev && mine.Ino == theirs.Ino {
			return true, nil
		}
	}
	return false, nil
}

// Ended reports whether the first process has ended. pidfd_open(2).
func (c *Container) Ended() bool { return ended(c.pidfd) }

func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// Close closes all descriptors. The filesystems of the container are in use until then.
func (c *Container) Close() {
	c.once.Do(func() {
		for _, fd := range []int{c.root, c.dir, c.proc, c.pidfd} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	})
}
