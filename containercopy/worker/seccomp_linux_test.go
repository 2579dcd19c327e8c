package worker

import (
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// TestNamesOfPermittedCalls: the kernel of each architecture has them, and none of them leads out of a
// copy.
func TestNamesOfPermittedCalls(t *testing.T) {
	for name, more := range callsOf {
		info, err := arch.GetInfo(name)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(permittedCalls, more)
		for _, call := range all {
			if _, ok := info.SyscallNames[call]; !ok {
				t.Errorf("%s has no system call %q", name, call)
			}
		}
		for _, call := range []string{"bpf", "clone", "clone3", "execve", "execveat", "io_uring_setup", "keyctl", "mount", "prctl",
			"ptrace", "setns", "socket", "unshare", "userfaultfd"} {
			if _, ok := info.SyscallNames[call]; !ok || slices.Contains(all, call) {
				t.Errorf("%s: %q is permitted, or no system call", name, call)
			}
		}
	}
}
