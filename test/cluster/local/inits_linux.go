package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initProcess is a running init process of a cluster.
type initProcess struct {
	pid  int // in this machine's namespace
	role string
	node string // empty for the plane
}

// inits finds a cluster's init processes among all of the machine's. They are known by their
// program, which is a file of the cluster's own: no list of PIDs can be out of date, or not have
// been written.
func (f files) inits() ([]initProcess, error) {
	program, err := os.Stat(f.program())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []initProcess
	for _, p := range processes {
		exe, err := os.Stat(filepath.Join(p, "exe"))
		if err != nil || !os.SameFile(exe, program) {
			continue // another's, or it has just ended
		}
		var i initProcess
		if i.pid, err = strconv.Atoi(filepath.Base(p)); err != nil {
			continue
		}
		// It is empty for a moment after the start of the program: then the process counts, but its
		// node is unknown.
		line, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"); len(args) > 2 {
			i.role = args[1]
			i.node = strings.Join(args[3:], "")
		}
		found = append(found, i)
	}
	return found, nil
}

// init returns the init process of a node, or of the plane if node is empty. Errors: it does not
// run.
func (f files) init(node string) (initProcess, error) {
	all, err := f.inits()
	if err != nil {
		return initProcess{}, err
	}
	role := nodeRole
	if node == "" {
		role = planeRole
	}
	for _, i := range all {
		if i.role == role && i.node == node {
			return i, nil
		}
	}
	if node == "" {
		return initProcess{}, errors.New("the control plane does not run")
	}
	return initProcess{}, fmt.Errorf("%s does not run", node)
}

// spawn starts an init process in namespaces of its own, with open files from descriptor 3 on. It
// outlives this process.
func (f files) spawn(log, role string, open []*os.File, args ...string) error {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(f.program(), append([]string{role, f.dir}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/",
		environment("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), out, out
	cmd.ExtraFiles = open
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", role, err)
	}
	go cmd.Wait() // if this process is still there when it ends
	// The kernel tells that the program is executed before it has the command line that inits goes
	// by.
	for {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		if err != nil || len(line) > 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// environment is the environment of all processes of a cluster. It has nothing of the caller's: no
// proxy, no secret, and no TMPDIR, which a node does not see and without which runc runs no
// container.
func environment(path string) []string {
	return []string{"PATH=" + path, "HOME=/root", "TMPDIR=/tmp", "LANG=C.UTF-8"}
}

// killAll kills init processes, and returns when they and everything in their namespaces have
// ended.
func (f files) killAll(which func(initProcess) bool) error {
	for {
		all, err := f.inits()
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(i initProcess) bool { return !which(i) })
		if len(all) == 0 {
			return nil
		}
		for _, i := range all {
			if err := f.kill(i.pid); err != nil {
				return err
			}
		}
	}
}

// kill kills an init process, and no other process that has its PID by now. kill returns when all
// of the namespace's processes have ended, for which the kernel waits before an init ends; its
// program is invisible long before that.
func (f files) kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(fd)
	exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return nil
	}
	if program, err := os.Stat(f.program()); err != nil || !os.SameFile(exe, program) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return nil // it has ended
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
	}
	return fmt.Errorf("process %d of %s, or one in its namespaces, does not end a minute after SIGKILL: something in "+
		"the kernel holds it", pid, f.dir)
}
