// Package pod makes containers for tests: processes of the test's own program in namespaces of
// their own, which need root and no container runtime.
package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/internal/namespace"
)

// role is the environment variable that makes this program the first process of a container.
const role = "CAUSEWAY_TEST_CONTAINER"

// Main is the main function of a test with containers: it builds the program of workers, and calls
// run with a directory that has only this program, "worker".
func Main(run func(workers string) int) {
	if text := os.Getenv(role); text != "" {
		if err := first([]byte(text)); err != nil {
			fmt.Fprintln(os.Stderr, "container:", err)
			os.Exit(1)
		}
		return
	}
	dir, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := run(dir)
	os.RemoveAll(dir)
	os.Exit(code)
}

// build builds the program of workers. Without cgo it needs no library in its empty root.
func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "worker"); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	p := gobuild.Program{Package: "github.com/causeway-csi/causeway/containercopy/cmd/worker"}
	return dir, p.Copy(context.Background(), filepath.Join(dir, "worker"))
}

// Pod describes a container.
type Pod struct {
	UID      int  // of its first process
	First    int  // outside ID of root, in a user namespace; 0: the container has none
	ReadOnly bool // its root

	Root string // set by Start
}

// first is the first process of a container: it makes its root, becomes its user, and waits.
func first(text []byte) error {
	var p Pod
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(p.Root, name) }
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", p.Root, "tmpfs", 0, "size=64m"))
	for _, dir := range []string{"etc", "home", "tmp", "proc", "var", "srv/site/uploads", "srv/data"} {
		err = errors.Join(err, os.MkdirAll(in(dir), 0o755))
	}
	for _, volume := range []string{"srv/site/uploads", "srv/data"} {
		err = errors.Join(err, unix.Mount("none", in(volume), "tmpfs", 0, "size=1m"),
			os.WriteFile(in(volume)+"/precious", []byte("of the volume"), 0o644))
	}
	err = errors.Join(err, os.WriteFile(in("etc/hostname"), []byte("of the container"), 0o644),
		os.WriteFile(in("etc/shadow"), []byte("secret of the container"), 0o600),
		os.WriteFile(in("srv/site/old"), []byte("old"), 0o644), os.WriteFile(in("srv/hosts"), nil, 0o644),
		unix.Mount(in("etc/hostname"), in("srv/hosts"), "", unix.MS_BIND, ""), os.Symlink("/tmp", in("var/tmp")),
		os.Chmod(in("tmp"), 0o777|fs.ModeSticky), os.Chown(in("home"), 1000, 1000),
		unix.Mount("proc", in("proc"), "proc", 0, ""), unix.Chroot(p.Root), os.Chdir("/"))
	if p.ReadOnly {
		err = errors.Join(err, unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}
	if p.UID != 0 {
		err = errors.Join(err, syscall.Setgroups(nil), syscall.Setgid(p.UID), syscall.Setuid(p.UID))
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// isRoot reports whether the process is root, with all users: not in a user namespace.
func isRoot() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	all := []string{"0", "0", "4294967295"}
	return err == nil && os.Getuid() == 0 && slices.Equal(strings.Fields(string(text)), all)
}

// Running is a running container.
type Running struct {
	PID int
	End func() // ends the first process
}

// Start starts a container until the end of the test. It skips the test without root.
func Start(t testing.TB, p Pod) Running {
	t.Helper()
	if !isRoot() {
		t.Skip("needs root of the first user namespace")
	}
	p.Root = t.TempDir()
	for dir := p.Root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = []string{role + "=" + string(text), "GORACE=atexit_sleep_ms=0"}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	if p.First != 0 {
		m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: p.First, Size: 65536}}
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = m, m
		cmd.SysProcAttr.GidMappingsEnableSetgroups, cmd.SysProcAttr.Credential = true, &syscall.Credential{}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, unix.EPERM) {
		namespace.Skip(t, err)
	} else if err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			stdin.Close()
			cmd.Wait()
		}
	}
	t.Cleanup(end)
	if line, err := io.ReadAll(io.LimitReader(stdout, 6)); string(line) != "ready\n" {
		t.Fatalf("the container says %q, %v", line, err)
	}
	return Running{cmd.Process.Pid, end}
}
