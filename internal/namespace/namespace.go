// Package namespace runs a program of this project in a mount namespace of its own, so that whatever it mounts is
// seen by nobody else and is gone when it ends, however it ends. The demo, the benchmarks and the tests use it.
package namespace

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// mustMount is set in the environment where a test that can't mount has failed: .ci/run does it.
const mustMount = "CAUSEWAY_MUST_MOUNT"

// Skip skips a test that can't mount here, because of why. Where CAUSEWAY_MUST_MOUNT is set it fails the test, or a
// CI machine without namespaces would be green and have tested little.
func Skip(t testing.TB, why any) {
	t.Helper()
	if os.Getenv(mustMount) != "" {
		t.Fatalf("%v, and %s is set", why, mustMount)
	}
	t.Skip(why)
}

// Signals returns the signals that ask a program to end. SIGHUP isn't one of them under nohup.
func Signals() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
}
