package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// inside is set in the environment of a process that is in its own namespace.
const inside = "CAUSEWAY_IN_NAMESPACE"

// Enter returns nil in a process that is in a mount namespace of its own. Elsewhere it runs this program again, with
// the same arguments, in a new one, and exits with its exit code. A user who isn't root also gets a user namespace,
// and is root in there. It returns an error if the machine permits neither.
//
// A signal that asks this process to end is passed on, and the program in there may take its time to clean up. From a
// terminal it gets that signal twice.
func Enter() error {
	if os.Getenv(inside) != "" {
		return nil
	}
	return again(0)
}

// EnterAlone is Enter, and the processes are in a namespace of their own too: this program is the first of them, and
// whatever it starts ends with it, however it ends. /proc shows these processes and no others.
func EnterAlone() error {
	if os.Getenv(inside) == "" {
		return again(syscall.CLONE_NEWPID)
	}
	if os.Getpid() != 1 {
		return errors.New("the processes are in no namespace of their own: this one was started in another's")
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// again runs this program in a new mount namespace, and in those that flags say, and exits as it does. It returns only
// why it can't.
func again(flags uintptr) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The child dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   flags,
		Unshareflags: syscall.CLONE_NEWNS, // with it, os/exec makes every mount private
		Pdeathsig:    syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, Signals()...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("namespaces of its own, for user %d: %w", os.Geteuid(), err)
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s) // an error is that it has ended, which is what Wait waits for
		}
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			os.Exit(128 + int(status.Signal()))
		}
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		return err
	}
	os.Exit(0)
	return nil
}
