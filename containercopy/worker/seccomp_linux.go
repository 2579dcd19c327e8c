package worker

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// permittedCalls are the system calls of a copy, of its messages, and of the Go runtime. The kernel
// answers all others with EPERM: the worker parses the stream of a tenant, and as root of a user
// namespace it could reach more of the kernel than a copy needs. seccomp(2).
var permittedCalls = []string{
	"close", "copy_file_range", "faccessat", "faccessat2", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
	"fchownat", "fcntl", "fstat", "fstatfs", "fsync", "ftruncate", "getdents64", "linkat", "lseek", "mkdirat", "openat",
	"openat2", "pread64", "pwrite64", "read", "readlinkat", "renameat", "renameat2", "sendfile", "splice", "statx",
	"symlinkat", "syncfs", "unlinkat", "utimensat", "write",

	"ppoll", "recvmsg", "sendto",

	"brk", "clock_gettime", "clock_nanosleep", "epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "exit",
	"exit_group", "futex", "getcwd", "getegid", "geteuid", "getgid", "getpid", "getrandom", "gettid", "getuid",
	"madvise", "membarrier", "mincore", "mmap", "mprotect", "munmap", "nanosleep", "pipe2", "restart_syscall",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "setitimer",
	"sigaltstack", "tgkill", "timer_create", "timer_delete", "timer_settime", "uname",
}

// callsOf are those that an architecture has, or that have another name there.
var callsOf = map[string][]string{"amd64": {"newfstatat", "poll", "arch_prctl"}, "arm64": {"fstatat"}}

// threadsOnly permits clone(2) for threads: neither processes nor namespaces.
var threadsOnly = seccomp.NameWithConditions{Name: "clone", Conditions: seccomp.ArgumentConditions{
	{Argument: 0, Operation: seccomp.BitsSet, Value: unix.CLONE_THREAD},
	{Argument: 0, Operation: seccomp.BitsNotSet, Value: unix.CLONE_NEWCGROUP | unix.CLONE_NEWIPC | unix.CLONE_NEWNET |
		unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWUTS},
}}

// filterCalls permits only the system calls of a copy to all threads, for good.
func filterCalls() error {
	policy := seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{{
		Names:              slices.Concat(permittedCalls, callsOf[runtime.GOARCH]),
		NamesWithCondtions: []seccomp.NameWithConditions{threadsOnly}, Action: seccomp.ActionAllow,
	}}}
	err := seccomp.LoadFilter(seccomp.Filter{Flag: seccomp.FilterFlagTSync, Policy: policy})
	if err == nil {
		err = checkFiltered()
	}
	if err != nil {
		return fmt.Errorf("filter the system calls: %w", err)
	}
	return nil
}

// checkFiltered returns an error if this thread has no filter: the kernel reports a thread that cannot
// have it by a result that the library takes for success. The filter does not permit the question.
func checkFiltered() error {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if !errors.Is(err, unix.EPERM) {
		return errors.Join(err, fmt.Errorf("a thread has no filter: PR_GET_SECCOMP is answered with %d", mode))
	}
	return nil
}
