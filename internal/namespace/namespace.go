// Package namespace runs a program of this project in a mount namespace of its own. Other processes
// do not see the mounts of the program, and the mounts end with it. The demo, the benchmarks and
// the tests use it.
package namespace

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// mustMount is set in the environment, as by the Makefile, where a test that cannot mount, or whose
// programs are missing, must fail.
const mustMount = "CAUSEWAY_MUST_MOUNT"

// Skip skips a test that cannot mount here, with a reason. Where CAUSEWAY_MUST_MOUNT is set, the
// test fails: otherwise CI on a machine without namespaces would pass with few tests.
func Skip(t testing.TB, why any) {
	t.Helper()
	if os.Getenv(mustMount) != "" {
		t.Fatalf("%v, and %s is set", why, mustMount)
	}
	t.Skip(why)
}

// Need skips a test if a program is missing. Where CAUSEWAY_MUST_MOUNT is set, the test fails:
// hack/packages installs the programs of all tests.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			Skip(t, err)
		}
	}
}

// SignalContext returns a context that ends when a signal asks the program to end, or when no process
// reads its output. The program catches these signals until its exit: the second of two signals from
// a terminal may arrive after the program has cleaned up, and must not change its exit code. See
// Enter.
func SignalContext() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), append(signals(), syscall.SIGPIPE)...)
	return ctx
}

// signals returns the signals that ask a program to end. Under nohup, SIGHUP is not among them.
func signals() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
}
