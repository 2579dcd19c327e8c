package worker

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
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

	"brk", "clock_gettime", "clock_nanosleep", "clone", "epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "exit",
	"exit_group", "futex", "getcwd", "getegid", "geteuid", "getgid", "getpid", "getrandom", "gettid", "getuid", "madvise",
	"membarrier", "mincore", "mmap", "mprotect", "munmap", "nanosleep", "pipe2", "restart_syscall", "rt_sigaction",
	"rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "setitimer", "sigaltstack", "tgkill",
	"timer_create", "timer_delete", "timer_settime", "uname",
}

// callsOf are those that an architecture has, or that have another name there.
var callsOf = map[string][]string{"amd64": {"newfstatat", "poll", "arch_prctl"}, "arm64": {"fstatat"}}

// filterCalls permits only the system calls of a copy to all threads, for good.
func filterCalls() error {
	group := seccomp.SyscallGroup{Names: slices.Concat(permittedCalls, callsOf[runtime.GOARCH]),
		Action: seccomp.ActionAllow}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{group}}
	err := seccomp.LoadFilter(seccomp.Filter{Flag: seccomp.FilterFlagTSync, Policy: policy})
	if err != nil {
		return fmt.Errorf("filter the system calls: %w", err)
	}
	return nil
}
