//go:build !cgo

package worker

// The C library starts threads with clone3, which the filter refuses: a worker is linked without it.

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// filtered is in the environment of the process of TestCallsUnderTheFilter.
const filtered = "CAUSEWAY_TEST_FILTERED"

// TestCallsUnderTheFilter: the kernel refuses processes, namespaces and sockets, and the Go runtime
// still gets its threads.
func TestCallsUnderTheFilter(t *testing.T) {
	if os.Getenv(filtered) != "" {
		fmt.Println(callUnderTheFilter())
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), filtered+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "<nil>\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func callUnderTheFilter() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // for a user who is not root
		return err
	}
	if err := filterCalls(); err != nil {
		return err
	}
	for name, call := range map[string][2]uintptr{
		"clone of a process":                       {unix.SYS_CLONE, uintptr(unix.SIGCHLD)},
		"clone of a process with a user namespace": {unix.SYS_CLONE, unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)},
		"clone of a thread with a mount namespace": {unix.SYS_CLONE, unix.CLONE_THREAD | unix.CLONE_NEWNS},
		"clone3":  {unix.SYS_CLONE3, 0},
		"execve":  {unix.SYS_EXECVE, 0},
		"setns":   {unix.SYS_SETNS, 0},
		"unshare": {unix.SYS_UNSHARE, unix.CLONE_NEWUSER},
		"socket":  {unix.SYS_SOCKET, unix.AF_INET},
	} {
		switch id, _, errno := unix.RawSyscall(call[0], call[1], 0, 0); {
		case errno == 0 && id == 0 && call[0] == unix.SYS_CLONE: // the new process
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		case errno != unix.EPERM:
			return fmt.Errorf("%s: %w, want EPERM", name, errno)
		}
	}
	var begun, all sync.WaitGroup
	begun.Add(8)
	for range 8 {
		all.Go(func() {
			runtime.LockOSThread() // each has a thread of its own
			begun.Done()
			begun.Wait()
		})
	}
	all.Wait()
	return nil
}
