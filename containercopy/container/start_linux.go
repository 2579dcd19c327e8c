package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/containercopy/worker"
)

// Program is the program of workers.
type Program struct {
	Root   string // a directory with nothing but the program; the root directory of workers
	Name   string // of the program in Root
	Stderr *os.File
}

// pollInterval is the time between two looks at the container of a worker.
const pollInterval = 100 * time.Millisecond

// Times in which a worker removes an unfinished copy, before it is killed. After the end of the
// container its volumes are unmounted.
const (
	grace     = 500 * time.Millisecond // after the end of the container
	longGrace = time.Minute
)

// Worker is a running worker. Its messages are those of package wire. Read returns io.EOF after the
// end of the worker.
type Worker struct {
	cmd    *exec.Cmd
	socket *net.UnixConn
	buffer []byte
	pidfd  int           // of the first process of the container
	gone   atomic.Bool   // the container has ended
	ended  chan struct{} // closed when the process has ended
	stop   chan struct{} // closed by Stop
	once   sync.Once
}

// Start starts a worker with the identity of the container. The worker ends after Stop, or when the
// container ends, at the latest a second later: a descriptor of the container would keep its
// volumes in use. A worker that waits for a filesystem cannot be killed; Ended shows it.
func (c *Container) Start(p Program, s worker.Spec) (*Worker, error) {
	s.Capabilities, s.Umask = c.Identity.Capabilities, c.Identity.Umask
	first, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	mine, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	pidfd, cmd, err := c.launch(p, theirs)
	if err != nil {
		mine.Close()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	w := &Worker{cmd: cmd, socket: mine, pidfd: pidfd, buffer: make([]byte, wire.MaxMessage),
		ended: make(chan struct{}), stop: make(chan struct{})}
	go func() {
		defer close(w.ended)
		cmd.Wait()
	}()
	go w.watch()
	if err := w.Write(first); err != nil {
		w.Stop()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return w, nil
}

// launch starts the process of a worker, and returns a pidfd of the container of its own.
func (c *Container) launch(p Program, socket *os.File) (pidfd int, cmd *exec.Cmd, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, fd := range []int{c.root, c.proc} {
		f, err := duplicate(fd)
		if err != nil {
			return -1, nil, err
		}
		files = append(files, f)
	}
	if pidfd, err = unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, nil, os.NewSyscallError("fcntl", err)
	}
	cmd = p.command(c.Identity, files[0], socket, files[1])
	if err := cmd.Start(); err != nil {
		unix.Close(pidfd)
		return -1, nil, err
	}
	return pidfd, cmd, nil
}

// duplicate returns a file for a descriptor, which keeps its own.
func duplicate(fd int) (*os.File, error) {
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(d), ""), nil
}

func socketPair() (mine *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "socket of a worker")
	f := os.NewFile(uintptr(fds[0]), "socket")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// Check starts a worker that has no copy and ends. An error shows a node that permits no user
// namespaces, or lacks the program.
func (p Program) Check() error {
	mine, theirs, err := socketPair()
	if err != nil {
		return err
	}
	mine.Close()
	defer theirs.Close()
	root, err := os.Open(p.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	p.Stderr = nil // it reports the closed socket
	one := []IDMap{{Inside: 0, Outside: 0, Size: 1}}
	cmd := p.command(Identity{UIDs: one, GIDs: one}, root, theirs, root)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a worker: %w", err)
	}
	timer := time.AfterFunc(checkLimit, func() { cmd.Process.Kill() })
	defer timer.Stop()
	cmd.Wait()                            // its error is the exit code
	if cmd.ProcessState.ExitCode() != 1 { // that of a worker without a Spec
		return fmt.Errorf("a worker without a copy has ended with %s", cmd.ProcessState)
	}
	return nil
}

// checkLimit is the time for a worker without a copy.
const checkLimit = 5 * time.Second

// command is a worker with an identity and its descriptors.
func (p Program) command(id Identity, root, socket, proc *os.File) *exec.Cmd {
	cmd := &exec.Cmd{Path: "/" + p.Name, Args: []string{p.Name}, Dir: "/", Env: []string{"GOMAXPROCS=2"},
		ExtraFiles: []*os.File{root, socket, proc}, SysProcAttr: id.attributes(p.Root)}
	if p.Stderr != nil {
		cmd.Stderr = p.Stderr
	}
	return cmd
}

// namespaces are those of a worker. The kernel permits a signal to each process of the same user
// that the worker can name, and a user namespace does not change that: the worker can name none. It
// has no network.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC

// attributes start a process in a sibling of the user namespace of the container: with the same
// maps, the kernel's checks of the owners of files have the same results. In it, even root has no
// right on the node.
func (id Identity) attributes(root string) *syscall.SysProcAttr {
	groups := make([]uint32, len(id.Groups))
	for i, g := range id.Groups {
		groups[i] = uint32(g)
	}
	return &syscall.SysProcAttr{
		Chroot:     root,
		Cloneflags: namespaces, UidMappings: idMaps(id.UIDs), GidMappings: idMaps(id.GIDs),
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID), Groups: groups},
		Setsid:                     true,
	}
}

func idMaps(all []IDMap) (m []syscall.SysProcIDMap) {
	for _, i := range all {
		m = append(m, syscall.SysProcIDMap{ContainerID: i.Inside, HostID: i.Outside, Size: i.Size})
	}
	return m
}

// watch ends the worker with its container, or after Stop.
func (w *Worker) watch() {
	defer unix.Close(w.pidfd)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.ended:
			return
		case <-w.stop:
			w.socket.Close() // the worker removes an unfinished copy
			w.await(longGrace)
			return
		case <-tick.C:
			if ended(w.pidfd) {
				w.gone.Store(true)
				w.socket.Close()
				w.await(grace)
				return
			}
		}
	}
}

// await kills the worker after a time, or half a second after the end of its container.
func (w *Worker) await(limit time.Duration) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for end := time.Now().Add(limit); ; {
		select {
		case <-w.ended:
			return
		case now := <-tick.C:
			if ended(w.pidfd) && now.Add(grace).Before(end) {
				end = now.Add(grace)
			}
			if now.After(end) {
				w.cmd.Process.Kill()
				return
			}
		}
	}
}

// Read returns the next message of the worker. Errors: io.EOF at its end.
func (w *Worker) Read() ([]byte, error) {
	n, _, flags, _, err := w.socket.ReadMsgUnix(w.buffer, nil)
	switch {
	case errors.Is(err, net.ErrClosed): // by watch
		err = io.EOF
	case err == nil && flags&unix.MSG_TRUNC != 0:
		err = wire.ErrProtocol
	}
	return w.buffer[:max(n, 0)], err
}

// Write sends a message to the worker.
func (w *Worker) Write(message []byte) error {
	return worker.Retry(func() error {
		_, err := w.socket.Write(message)
		return err
	})
}

// Stop ends the worker, and waits for its end for 2 s. It reports false if the worker still runs:
// it removes an unfinished copy, or waits for a filesystem.
func (w *Worker) Stop() bool {
	w.once.Do(func() { close(w.stop) })
	select {
	case <-w.ended:
		w.socket.Close()
		return true
	case <-time.After(2 * time.Second):
		return false
	}
}

// Ended is closed when the process of the worker has ended.
func (w *Worker) Ended() <-chan struct{} { return w.ended }

// Gone reports whether the worker ends because its container has ended.
func (w *Worker) Gone() bool { return w.gone.Load() }

// PID returns the number of the process of the worker.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

var _ wire.Messages = (*Worker)(nil)
