package hostpath

import (
	"runtime"
	"testing"
)

// notOnWindows skips a test that does not apply there, for a reason.
func notOnWindows(t *testing.T, reason string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip(reason)
	}
}
