package process_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

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

// child locks a file and sleeps: a process that gets this lock knows that the child has ended,
// independent of its PID.
func child(path string) {
	f, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	if got, err := flock.Try(f); !got {
		panic(fmt.Sprint("locked by somebody else: ", err))
	}
	fmt.Println("locked")
	time.Sleep(time.Minute)
	runtime.KeepAlive(f)
}

// parent starts a child and sleeps.
func parent(path string) {
	if _, err := process.Start(childCommand(path)); err != nil {
		panic(err)
	}
	if err := awaitLocked(path); err != nil {
		panic(err)
	}
	fmt.Println("child runs")
	time.Sleep(time.Minute)
}

func childCommand(path string) process.Command {
	return process.Command{Name: "child", Argv: []string{os.Args[0], "child", path}, Dir: filepath.Dir(path),
		Log: path + ".log"}
}

// awaitLocked waits for the child that locks path.
func awaitLocked(path string) error {
	return await(path+" locked", func() bool { return process.Tail(path+".log", 1) == "locked" })
}

// await waits up to 10 s until something is so.
func await(what string, so func() bool) error {
	for range 1000 {
		if so() {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("not so after 10 s: %s", what)
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
	if err := awaitLocked(path); err != nil {
		t.Fatal(err)
	}
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
	said, err := bufio.NewReader(out).ReadString('\n')
	p.Process.Kill()
	p.Wait() // it was killed
	if err != nil || said != "child runs\n" {
		t.Fatalf("the parent said %q, %v", said, err)
	}
	if err := await("child gone", func() bool { return free(t, path) }); err != nil {
		t.Error(err)
	}
}

// A thread ends with a goroutine that is locked to it and does not unlock it. A child that the
// thread had started itself would go with it.
func TestAChildOutlivesTheThreadThatStartedIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var p process.Process
	var err error
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		runtime.LockOSThread()
		p, err = process.Start(childCommand(path))
	}()
	<-asked
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if err := awaitLocked(path); err != nil {
		t.Fatalf("%v: %v", err, p.Err())
	}
	time.Sleep(200 * time.Millisecond)
	if free(t, path) {
		t.Errorf("the child is gone: %v", p.Err())
	}
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
