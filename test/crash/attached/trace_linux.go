package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls are the system calls at which a program can be stopped.
var calls = map[string][]uint64{
	"write": {unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_PWRITEV},
	"sync":  {unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE},
}

// trace runs a program, stops it for good when it enters the nth call of a kind, and kills the
// process that started this process. trace also kills that process if the program ends before.
// Arguments: the kind, n, the program and its arguments. trace returns only errors.
func trace(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // ptrace(2) takes calls of the thread that traces only
	cmd := exec.Command(args[2], args[3:]...)
	for fd := uintptr(3); fd <= 4; fd++ { // the disk and a directory, as the mounter passes them
		if _, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err == nil {
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "inherited"))
		}
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := await(cmd.Process.Pid, calls[args[0]], n); err != nil {
		return err
	}
	if err := syscall.Kill(os.Getppid(), syscall.SIGKILL); err != nil {
		return err
	}
	select {} // the program stays stopped until both are killed
}

// await runs a traced program until a thread enters the nth of these calls, or the program ends.
func await(pid int, of []uint64, n int) error {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil { // it has just started
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return fmt.Errorf("PTRACE_SETOPTIONS: %w", err)
	}
	for thread, signal := pid, 0; ; {
		if err := unix.PtraceSyscall(thread, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("PTRACE_SYSCALL: %w", err)
		}
		var err error
		if thread, err = syscall.Wait4(-1, &status, syscall.WALL, nil); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		signal = 0
		switch {
		case status.Exited() || status.Signaled():
			if thread == pid {
				return nil
			}
		case status.StopSignal() == syscall.SIGTRAP|0x80: // PTRACE_O_TRACESYSGOOD
			call, err := entered(thread)
			if err != nil {
				return err
			}
			if slices.Contains(of, call) {
				if n--; n == 0 {
					return nil
				}
			}
		case status.StopSignal() != syscall.SIGTRAP && status.StopSignal() != syscall.SIGSTOP:
			signal = int(status.StopSignal())
		}
	}
}

// none is no number of a system call.
const none = ^uint64(0)

// entered returns the number of the system call that a thread is about to enter, or none:
// PTRACE_GET_SYSCALL_INFO of ptrace(2), Linux 5.3.
func entered(thread int) (uint64, error) {
	const getSyscallInfo, entry = 0x420e, 1
	var info [88]byte // struct ptrace_syscall_info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(thread), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 && errno != unix.ESRCH { // ESRCH: another thread has ended the process
		return none, fmt.Errorf("PTRACE_GET_SYSCALL_INFO: %w", errno)
	}
	if errno != 0 || info[0] != entry {
		return none, nil
	}
	return binary.NativeEndian.Uint64(info[24:]), nil
}
