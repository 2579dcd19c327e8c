package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// inside is set in the environment of a process that has its own namespace: to fresh for the first
// process there.
const (
	inside = "CAUSEWAY_IN_NAMESPACE"
	fresh  = "fresh"
)

// Enter returns nil in a process with a mount namespace of its own. In any other process it runs
// this program again with the same arguments, in a new mount namespace, and exits with the exit
// code of that run. A user other than root also gets a user namespace, with root rights inside.
// Enter returns an error if the machine permits neither.
//
// In a test, Enter unmounts what other tests have mounted below the temporary directory, in the new
// namespace only.
//
// Enter forwards signals that ask this process to end, and the program in the namespace may take
// its time to clean up. From a terminal the program gets such a signal twice: see SignalContext.
func Enter() error {
	if os.Getenv(inside) == "" {
		return again(0)
	}
	return dropTemporaryMounts()
}

// Entered reports whether Enter or EnterAlone gave this process a mount namespace of its own.
func Entered() bool { return os.Getenv(inside) != "" }

// EnterAlone is Enter with a PID namespace as well: this program is its first process, and all
// processes that it starts end with it. /proc shows only these processes.
func EnterAlone() error {
	if os.Getenv(inside) == "" {
		return again(syscall.CLONE_NEWPID)
	}
	if os.Getpid() != 1 {
		return errors.New("this process was not started in a PID namespace of its own")
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC,
		""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return dropTemporaryMounts()
}

// dropTemporaryMounts unmounts in a test, and in its namespace only, all mounts below the temporary
// directory: another test that runs at the same time could not remove its disk as long as this
// process has a copy of the mount. A mount with this program or its working directory stays.
// In a user namespace all stay, as the kernel locks them: mount_namespaces(7).
func dropTemporaryMounts() error {
	if os.Getenv(inside) != fresh {
		return nil // the mounts are of the process that has started this one
	}
	if err := os.Setenv(inside, "1"); err != nil || !testing.Testing() {
		return err
	}
	temporary, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(temporary))
	if err != nil {
		return err
	}
	below := func(path, mount string) bool { return strings.HasPrefix(path+"/", mount+"/") }
	for _, m := range slices.Backward(mounts) {
		if below(temporary, m.Mountpoint) || below(program, m.Mountpoint) || below(dir, m.Mountpoint) {
			continue
		}
		// EINVAL: locked. ENOENT: another process has removed the directory, and so the mount.
		if err := syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) &&
			!errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// again runs this program in a new mount namespace, and in the namespaces of flags, and exits with
// its exit code. again returns only an error.
func again(flags uintptr) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"="+fresh)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   flags,
		Unshareflags: syscall.CLONE_NEWNS, // as os/exec does with this flag: every mount becomes private
		Pdeathsig:    syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	received := make(chan os.Signal, 3)
	signal.Notify(received, signals()...)
	defer signal.Stop(received)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("new namespaces for user %d: %w", os.Geteuid(), err)
	}
	go func() {
		for s := range received {
			cmd.Process.Signal(s) // fails if it has ended, which Wait reports
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
