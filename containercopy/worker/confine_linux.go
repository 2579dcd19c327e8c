package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// permittedCapabilities are those that a copy can use. The worker keeps those that the first
// process of its container has, too.
const permittedCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER

// openFiles is the maximum number of open files: one for each directory of a path, and some more.
const openFiles = 1024

// confine opens /proc/self/fd, and drops every right that the copy does not need. The calling
// goroutine keeps its thread: the label of new files is one of a thread.
func confine(s *Spec) (self int, err error) {
	runtime.LockOSThread()
	self, err = unix.Openat(ProcFD, "self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open /proc/self/fd", err)
	}
	if s.Label != "" {
		if err := setLabel(s.Label); err != nil {
			return -1, fmt.Errorf("label new files %q: %w", s.Label, err)
		}
	}
	if err := unix.Close(ProcFD); err != nil {
		return -1, os.NewSyscallError("close", err)
	}
	unix.Umask(s.Umask & 0o077) // the worker uses its files and directories; the rest is of archive.Unpack
	if err := dropCapabilities(s.Capabilities & permittedCapabilities); err != nil {
		return -1, err
	}
	limits := map[int]uint64{unix.RLIMIT_NOFILE: openFiles, unix.RLIMIT_CORE: 0}
	if s.Limits.Bytes > 0 {
		limits[unix.RLIMIT_FSIZE] = uint64(s.Limits.Bytes)
	}
	for which, limit := range limits {
		if err := unix.Setrlimit(which, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return -1, os.NewSyscallError("setrlimit", err)
		}
	}
	return self, filterCalls()
}

// setLabel sets the SELinux context of files that this thread makes. proc(5).
func setLabel(label string) error {
	fd, err := unix.Openat(ProcFD, "thread-self/attr/fscreate", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(label))
	return err
}

// dropCapabilities keeps a set of capabilities in all threads, as far as the process has them, and
// takes away all ways to get others. capabilities(7).
func dropCapabilities(keep uint64) error {
	if err := allThreads("prctl", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return err
	}
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		err := allThreads("prctl", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errors.Is(err, unix.EPERM) { // a process without CAP_SETPCAP: a user other than root
			break
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: a capability that this kernel does not have
			return err
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range data {
		kept := data[i].Permitted & uint32(keep>>(32*i))
		data[i] = unix.CapUserData{Effective: kept, Permitted: kept}
	}
	return setCapabilities(&header, &data)
}

// allThreads makes a system call in all threads of the process.
func allThreads(name string, trap, a1, a2, a3 uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3); errno != 0 {
		return os.NewSyscallError(name, errno)
	}
	return nil
}
