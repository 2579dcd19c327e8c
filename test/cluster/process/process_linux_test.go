package process_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/flock"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// TestMain makes this test's binary the programs that the tests start, too.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "child":
		child(os.Args[2])
	case "parent":
		parent(os.Args[2])
	case "fail":
		fmt.Println("why it fails")
		os.Exit(3)
	default:
		os.Exit(m.Run())
	}
}

// child locks a file and answers SIGUSR1 until it is killed: a process that gets this lock knows
// that the child has ended, independent of its PID.
func child(path string) {
	f, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	if got, err := flock.Try(f); !got {
		panic(fmt.Sprint("locked by somebody else: ", err))
	}
	questions := make(chan os.Signal, 1)
	signal.Notify(questions, syscall.SIGUSR1)
	time.AfterFunc(time.Hour, func() { os.Exit(1) })
	fmt.Println("locked by", os.Getpid())
	for range questions {
		fmt.Println("alive")
	}
	runtime.KeepAlive(f)
}

// parent starts a child and waits to be killed.
func parent(path string) {
	if _, err := process.Start(childCommand(path)); err != nil {
		panic(err)
	}
	fmt.Println("child started")
	<-time.After(time.Hour)
}

func childCommand(path string) process.Command {
	return process.Command{Name: "child", Argv: []string{os.Args[0], "child", path}, Dir: filepath.Dir(path),
		Log: path + ".log"}
}

// awaitLocked waits for the child that locks path, and returns its PID.
func awaitLocked(t *testing.T, path string) (pid int) {
	t.Helper()
	await.NoError(t, path+" is locked", func() error {
		_, err := fmt.Sscanf(process.Tail(path+".log", 1), "locked by %d", &pid)
		return err
	})
	return pid
}

// free reports whether the child that locked path is gone.
func free(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := flock.Try(f)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// startChild starts a child that has locked the returned path.
func startChild(t *testing.T) (process.Process, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	p, err := process.Start(childCommand(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	awaitLocked(t, path)
	return p, path
}

func TestAChildDiesWithAParentThatIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	p := exec.Command(os.Args[0], "parent", path)
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Process.Kill()
		p.Wait()
	})
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil || said != "child started\n" {
		t.Fatalf("the parent said %q, %v", said, err)
	}
	awaitLocked(t, path)
	p.Process.Kill()
	await.True(t, "the child is gone", func() bool { return free(t, path) })
}

// onThreadThatEnds calls f on a thread that ends then, as a goroutine is locked to it and does not
// unlock it. The main thread never ends.
func onThreadThatEnds(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			defer runtime.UnlockOSThread()
			onThreadThatEnds(f)
			return
		}
		f()
	}()
	<-done
}

// A child that the thread had started itself would go with it, as mortal does.
func TestAChildOutlivesTheThreadThatStartedIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	mortal := exec.Command("sleep", "infinity")
	mortal.SysProcAttr = process.DieWithThread()
	var p process.Process
	var err error
	onThreadThatEnds(func() {
		if err = mortal.Start(); err == nil {
			p, err = process.Start(childCommand(path))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	pid := awaitLocked(t, path)
	ended := make(chan error, 1)
	go func() { ended <- mortal.Wait() }()
	await.Receive(t, "the thread has ended, and its child with it", ended)
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the child answers", func() bool {
		if free(t, path) {
			t.Fatalf("the child is gone: %v", p.Err())
		}
		return process.Tail(path+".log", 1) == "alive"
	})
}

func TestKill(t *testing.T) {
	p, path := startChild(t)
	if err := p.Err(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	for range 2 { // repeating it is fine
		p.Kill()
	}
	if !free(t, path) {
		t.Error("the child runs after Kill")
	}
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want that it was killed", err)
	}
}

func TestTheEndOfAProgramIsReportedWithItsLog(t *testing.T) {
	dir := t.TempDir()
	p, err := process.Start(process.Command{Name: "failing", Argv: []string{os.Args[0], "fail", ""}, Dir: dir,
		Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	got := fmt.Sprint(p.Err())
	for _, want := range []string{"failing", "exit status 3", "why it fails"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}

func TestAProgramThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	_, err := process.Start(process.Command{Name: "none", Argv: []string{filepath.Join(dir, "none")},
		Log: filepath.Join(dir, "log")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}

func TestTail(t *testing.T) {
	for _, test := range []struct {
		name, file, want string
		n                int
	}{
		{"fewer lines than asked for", "a\nb\n", "a\nb", 3},
		{"just as many", "a\nb\n", "a\nb", 2},
		{"more", "a\nb\nc\n", "b\nc", 2},
		{"a last line without an end", "a\nb", "b", 1},
		{"none", "", "", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := process.Tail(path, test.n); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
