//go:build !windows

package unprivileged

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// User is the user and group of the images.
const User = 65532

// Credential makes a command run as User.
func Credential() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: User, Gid: User}}
}

// Self is the path of the test's own binary. Only root can search its directory, so User needs the
// kernel's link to it.
func Self(t testing.TB) string {
	t.Helper()
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

// Again runs the test a second time as User if this process is root, and reports whether it did.
// The caller then returns.
func Again(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	cmd := exec.CommandContext(t.Context(), Self(t), "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", append(os.Environ(), "TMPDIR=/tmp"), Credential()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as user %d: %v\n%s", User, err, out)
	}
	return true
}
