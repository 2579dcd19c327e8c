package copier

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
)

// otherUser is the user of processes that play a tenant.
const otherUser = 65534

// again returns a command that runs a single test of this program in another process, with a
// variable in its environment. If the test runs as root of the machine, the process runs as
// otherUser, who may use dir.
func again(t *testing.T, dir, test, variable string) *exec.Cmd {
	t.Helper()
	binary, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	self := dir + "/self"
	must(t, os.WriteFile(self, binary, 0o755))
	cmd := exec.Command(self, "-test.run=^"+test+"$", "-test.v")
	cmd.Env, cmd.Dir = append(os.Environ(), variable), dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if inInitialNamespace(t) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: otherUser, Gid: otherUser}
	}
	return cmd
}

// publicDir returns a directory that every user may use, until the end of the test.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "copier")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, unix.Chmod(dir, 0o755))
	return dir
}

// asHolder is set in the environment of a process that holds leases: "keep" or "release", a space,
// and the directory of the files.
const asHolder = "CAUSEWAY_TEST_AS_LEASE_HOLDER"

// TestAsLeaseHolder is the main function of that process, and does nothing otherwise. The process
// ends with its standard input.
func TestAsLeaseHolder(t *testing.T) {
	mode, dir, ok := strings.Cut(os.Getenv(asHolder), " ")
	if !ok {
		return
	}
	breaks := make(chan os.Signal, 1)
	signal.Notify(breaks, unix.SIGIO) // otherwise SIGIO would end the process
	paths, err := filepath.Glob(dir + "/held*")
	must(t, err)
	var files []*os.File
	for _, path := range paths {
		f := open(t, path, os.O_RDWR)
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			t.Fatalf("F_SETLEASE of %s: %v", path, err)
		}
		files = append(files, f)
	}
	if mode == "release" {
		go func() {
			for range breaks {
				for _, f := range files {
					// the lease is being broken
					if lease, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0); err == nil && lease != unix.F_WRLCK {
						_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
					}
				}
			}
		}()
	}
	fmt.Println("holds", len(files))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// plantLeases makes a tree with n files on which a process of its owner holds leases until the end
// of the test. plantLeases returns the top.
func plantLeases(t *testing.T, mode string, n int) string {
	t.Helper()
	dir := publicDir(t)
	src := dir + "/src/sub"
	must(t, os.MkdirAll(src, 0o755))
	for i := range 20 {
		must(t, os.WriteFile(fmt.Sprint(src, "/free", i), []byte("mine"), 0o600))
	}
	for i := range n {
		path := fmt.Sprint(src, "/held", i)
		must(t, os.WriteFile(path, []byte("mine"), 0o600))
		if inInitialNamespace(t) {
			must(t, os.Chown(path, otherUser, otherUser))
		}
	}
	cmd := again(t, dir, "TestAsLeaseHolder", asHolder+"="+mode+" "+src)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	for lines, said := bufio.NewScanner(stdout), ""; ; {
		if !lines.Scan() {
			t.Fatalf("the process with the leases has ended: %s", said)
		}
		if lines.Text() == fmt.Sprint("holds ", n) {
			go io.Copy(io.Discard, stdout)
			return dir + "/src"
		}
		said += lines.Text() + "\n"
	}
}

// TestLeasesThatAreKept: a tenant who releases no lease ends only the copy of their own tree, soon
// and with the name of the file. The time limit holds for the whole tree.
func TestLeasesThatAreKept(t *testing.T) {
	src := plantLeases(t, "keep", 50)
	// The kernel ends a lease after /proc/sys/fs/lease-break-time, by default 45 s: a copy that
	// waits for that succeeds.
	_, err := copyTree(context.Background(), t, src, src+".copy", ways[0])
	if !errors.Is(err, ErrLease) || !strings.Contains(err.Error(), `"sub/held`) {
		t.Errorf("Tree = %v, want ErrLease and the name of a file", err)
	}
}

// TestLeasesHaveOneBudget: once a copy has used up its budget, it does not wait for other files.
func TestLeasesHaveOneBudget(t *testing.T) {
	src := plantLeases(t, "keep", 4)
	var budget leases
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range 4 {
		fd, err := unix.Open(fmt.Sprint(src, "/sub/held", i), openPath, 0)
		must(t, err)
		if _, err := budget.open(ctx, fd); !errors.Is(err, ErrLease) {
			t.Errorf("file %d: %v, want ErrLease", i, err)
		}
		unix.Close(fd)
		cancel() // from now on each wait is an error
	}
	if waited := time.Duration(budget.waited.Load()); waited < leaseBudget || waited > leaseBudget+4*leaseMost {
		t.Errorf("the waits add up to %v, the limit is %v", waited, leaseBudget)
	}
}

func TestLeasesThatAreReleased(t *testing.T) {
	src := plantLeases(t, "release", 10) // few: on a busy machine their waits must not exceed leaseBudget
	_, err := copyTree(context.Background(), t, src, src+".copy", ways[0])
	must(t, err)
	equal(t, describe(t, src+".copy"), describe(t, src))
}

// TestLeaseEndsWithTheContext: a copy that waits for a lease ends with its context.
func TestLeaseEndsWithTheContext(t *testing.T) {
	src := plantLeases(t, "keep", 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fd, err := unix.Open(src+"/sub/held0", openPath, 0)
	must(t, err)
	defer unix.Close(fd)
	var budget leases
	if _, err := budget.open(ctx, fd); !errors.Is(err, context.Canceled) {
		t.Errorf("open = %v, want the end of the context", err)
	}
}

// TestProgressNamesTheEntry: a copy that waits reports the entry for which it waits.
func TestProgressNamesTheEntry(t *testing.T) {
	src := plantLeases(t, "keep", 1)
	must(t, os.Mkdir(src+".copy", 0o700))
	var p Progress
	before := time.Now()
	result := make(chan error, 1)
	from, to := open(t, src, os.O_RDONLY), open(t, src+".copy", os.O_RDONLY)
	go func() {
		_, err := Tree(context.Background(), from, to, Options{Workers: 2, Progress: &p})
		result <- err
	}()
	await.True(t, "the file is the entry with the oldest progress, or the copy has ended", func() bool {
		path, since := p.Oldest()
		return len(result) > 0 || path == "sub/held0" && since.After(before) && since.Before(time.Now())
	})
	if len(result) > 0 {
		t.Error("the file was never the entry with the oldest progress")
	}
	if err := <-result; !errors.Is(err, ErrLease) {
		t.Errorf("Tree = %v, want ErrLease", err)
	}
	if path, _ := p.Oldest(); path != "" {
		t.Errorf("%q is being copied after the end", path)
	}
}
