package helper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
)

var errSentinel = errors.New("a sentinel of the task")

// echo returns its request and its process ID.
var echo = Task{Name: "echo", Run: func(j *Job) (any, error) {
	var text string
	err := j.Request(&text)
	return reply{text, os.Getpid()}, err
}}

type reply struct {
	Text string
	PID  int
}

// sum adds up the numbers that the caller sends until one is 0, and reports each total.
var sum = Task{Name: "sum", Run: func(j *Job) (any, error) {
	total := 0
	for {
		n := 0
		if _, err := j.Receive(&n); err != nil {
			return nil, err
		}
		if n == 0 {
			return total, nil
		}
		if total += n; j.Send(total) != nil {
			return nil, errors.New("the caller is gone")
		}
	}
}}

// fail fails as its request describes.
var fail = Task{Name: "fail", Errors: []error{io.ErrNoProgress, errSentinel}, Run: func(j *Job) (any, error) {
	var how string
	if err := j.Request(&how); err != nil {
		return nil, err
	}
	switch how {
	case "errno":
		return nil, fmt.Errorf("first: %w",
			errors.Join(errors.New("x"), &fs.PathError{Op: "open", Path: "/f", Err: syscall.ENOSPC}))
	case "sentinel":
		return nil, fmt.Errorf("second: %w", errSentinel)
	case "unsupported":
		return nil, fmt.Errorf("third: %w", errors.ErrUnsupported)
	case "panic":
		panic("on purpose")
	case "death":
		fmt.Fprintln(os.Stderr, "my last words")
		os.Exit(7)
	}
	return nil, nil
}}

// files returns the content of the files, and the number of descriptors of the process.
var files = Task{Name: "files", Run: func(j *Job) (any, error) {
	var all []string
	for _, f := range j.Files {
		text, err := io.ReadAll(f)
		if err != nil {
			return nil, err
		}
		all = append(all, string(text))
	}
	return all, nil
}}

// descriptors returns the descriptors of the process and the files behind them.
var descriptors = Task{Name: "descriptors", Run: func(j *Job) (any, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	var all []string
	for _, e := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		all = append(all, target)
	}
	return all, err
}}

// wait reports that it has begun, and then writes to its first file after its second was closed
// by the other end. It waits outside of the runtime's poller, as a system call does.
func wait(j *Job) (any, error) {
	if err := j.Send(os.Getpid()); err != nil {
		return nil, err
	}
	syscall.Read(int(j.Files[1].Fd()), make([]byte, 1))
	_, err := j.Files[0].WriteString("done")
	return nil, err
}

var (
	waitKilled = Task{Name: "wait", Run: wait}
	waitLasts  = Task{Name: "wait and last", Run: wait, Outlives: true}
)

// niceness returns the niceness of the process's threads.
var niceness = Task{Name: "niceness", Background: true, Run: reportNiceness}

// normalNiceness is the same for a task that is not in the background.
var normalNiceness = Task{Name: "normal niceness", Run: reportNiceness}

func reportNiceness(*Job) (any, error) {
	var all []int
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		raw, _, errno := syscall.Syscall(syscall.SYS_GETPRIORITY, unix.PRIO_PROCESS, uintptr(id), 0)
		if errno != 0 {
			return nil, errno
		}
		all = append(all, 20-int(raw)) // as the system call has it
	}
	return all, err
}

var tasks = []Task{echo, sum, niceness, normalNiceness, fail, files, descriptors, waitKilled, waitLasts}

// driverEnv names, in the environment, the task that a second process of the test starts in the
// role of a driver.
const driverEnv = "CAUSEWAY_TEST_DRIVER"

func TestMain(m *testing.M) {
	Main(tasks)
	if name := os.Getenv(driverEnv); name != "" {
		os.Exit(playDriver(name))
	}
	os.Exit(m.Run())
}

func call(t *testing.T, p *Pool, task Task, request, result any, passed ...*os.File) error {
	t.Helper()
	s, err := p.Start(task, request, passed...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.Result(t.Context(), result, nil)
}

func newPool(t *testing.T) *Pool {
	p := &Pool{}
	t.Cleanup(func() {
		p.Close()
		await.True(t, "no helper is left", func() bool { return p.Alive() == 0 })
	})
	return p
}

func TestAHelperIsUsedAgain(t *testing.T) {
	p := newPool(t)
	var first, second reply
	for _, r := range []*reply{&first, &second} {
		if err := call(t, p, echo, "hello", r); err != nil || r.Text != "hello" {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
	if first.PID != second.PID || first.PID == os.Getpid() {
		t.Errorf("the helpers were processes %d and %d, this is %d", first.PID, second.PID, os.Getpid())
	}
}

func TestMessagesGoBothWays(t *testing.T) {
	s, err := newPool(t).Start(sum, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, n := range []int{3, 4} {
		if err := s.Send(n); err != nil {
			t.Fatal(err)
		}
		total := 0
		if err := s.Receive(t.Context(), &total); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Send(0); err != nil {
		t.Fatal(err)
	}
	total := 0
	if err := s.Result(t.Context(), &total, nil); err != nil || total != 7 {
		t.Errorf("Result = %d, %v, want 7", total, err)
	}
}

func TestErrorsKeepTheirIdentity(t *testing.T) {
	p := newPool(t)
	for how, want := range map[string]error{"errno": syscall.ENOSPC, "sentinel": errSentinel,
		"unsupported": errors.ErrUnsupported} {
		err := call(t, p, fail, how, nil)
		if !errors.Is(err, want) || errors.Is(err, io.ErrNoProgress) {
			t.Errorf("%s: %v, want %v and no other", how, err, want)
		}
	}
	if err := call(t, p, fail, "panic", nil); err == nil || !strings.Contains(err.Error(), "on purpose") {
		t.Errorf("panic: %v", err)
	}
	if err := call(t, p, fail, "", nil); err != nil {
		t.Errorf("after a panic: %v", err)
	}
	await.NoError(t, "an error has the last words of a helper", func() error { // they are not worth a long wait
		err := call(t, p, fail, "death", nil)
		if !errors.Is(err, ErrDied) {
			t.Fatalf("death: %v", err)
		}
		if !strings.Contains(err.Error(), "my last words") {
			return err
		}
		return nil
	})
	if err := call(t, p, echo, "", nil); err != nil {
		t.Errorf("after a death: %v", err)
	}
}

func TestAnIdleHelperThatWasKilledIsReplaced(t *testing.T) {
	p := newPool(t)
	var r reply
	if err := call(t, p, echo, "", &r); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the helper has ended", func() bool { return p.Alive() == 0 })
	before := r.PID
	if err := call(t, p, echo, "", &r); err != nil || r.PID == before {
		t.Errorf("got process %d again, %v", r.PID, err)
	}
}

func TestFilesArePassed(t *testing.T) {
	const many = 600 // more than one message takes
	var passed []*os.File
	for i := range many {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprint(f, i)
		f.Seek(0, io.SeekStart)
		passed = append(passed, f)
	}
	var got []string
	if err := call(t, newPool(t), files, nil, &got, passed...); err != nil || len(got) != many {
		t.Fatalf("%d files, %v, want %d", len(got), err, many)
	}
	for i, text := range got {
		if text != strconv.Itoa(i) {
			t.Fatalf("file %d holds %q", i, text)
		}
	}
}

// TestAHelperHasNoDescriptorOfTheDriver: a helper that hangs would keep the driver's listeners and
// locks from its successor.
func TestAHelperHasNoDescriptorOfTheDriver(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := net.Listen("unix", filepath.Join(dir.Name(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got []string
	if err := call(t, newPool(t), descriptors, nil, &got); err != nil {
		t.Fatal(err)
	}
	sockets := 0
	for _, name := range got {
		if name == dir.Name() {
			t.Errorf("the helper has %s open", name)
		}
		if strings.HasPrefix(name, "socket:") {
			sockets++
		}
	}
	if sockets != 1 {
		t.Errorf("%d sockets in %q, want the link only", sockets, got)
	}
}

// TestATaskThatHangsIsGivenUp: the caller goes on at its deadline, and the helper ends when it can.
func TestATaskThatHangsIsGivenUp(t *testing.T) {
	for _, task := range []Task{waitKilled, waitLasts} {
		t.Run(task.Name, func(t *testing.T) {
			p := newPool(t)
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			theirs, ours, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			s, err := p.Start(task, nil, out, theirs)
			if err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			if err := s.Receive(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := s.Result(ctx, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Result = %v, want DeadlineExceeded", err)
			}
			s.Close()
			want := ""
			if task.Outlives {
				want = "done"
				ours.Close()
			}
			<-s.Gone()
			if got, err := os.ReadFile(out.Name()); err != nil || string(got) != want {
				t.Errorf("the task wrote %q, %v, want %q", got, err, want)
			}
		})
	}
}

func TestResultGivesMessagesToEachAndStopsAtItsError(t *testing.T) {
	s, err := newPool(t).Start(sum, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, n := range []int{1, 2} {
		if err := s.Send(n); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	err = s.Result(t.Context(), nil, func(m json.RawMessage) error {
		got = append(got, string(m))
		if len(got) == 2 {
			return errSentinel
		}
		return nil
	})
	if !errors.Is(err, errSentinel) || strings.Join(got, ",") != "1,3" {
		t.Errorf("Result = %v after %q", err, got)
	}
}

func TestABackgroundTaskIsNice(t *testing.T) {
	p := newPool(t)
	for _, tc := range []struct {
		task Task
		want int
	}{{normalNiceness, 0}, {niceness, backgroundNice}, {normalNiceness, 0}} {
		var got []int
		if err := call(t, p, tc.task, nil, &got); err != nil {
			t.Fatal(err)
		}
		for _, nice := range got {
			if nice != tc.want {
				t.Errorf("%s: the threads have the niceness %v, want %d", tc.task.Name, got, tc.want)
				break
			}
		}
	}
}

func TestTheNumberOfHelpersIsBounded(t *testing.T) {
	p := newPool(t)
	p.Max = 1
	s, err := p.Start(sum, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Start(sum, nil); !errors.Is(err, ErrTooMany) {
		t.Errorf("a second helper: %v, want ErrTooMany", err)
	}
	s.Close()
	<-s.Gone()
	await.True(t, "there is room for a helper", func() bool { return p.Alive() == 0 })
	if err := call(t, p, echo, "", nil); err != nil {
		t.Error(err)
	}
}

// playDriver starts a task that hangs, tells the helper's process ID, and hangs too.
func playDriver(name string) int {
	task, _ := find([][]Task{tasks}, name)
	out, in := os.NewFile(3, "out"), os.NewFile(4, "in")
	s, err := new(Pool).Start(task, nil, out, in)
	pid := 0
	if err == nil {
		err = s.Receive(context.Background(), &pid)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(pid)
	select {}
}

// TestTheDriverDies: a helper ends with its driver, unless its task outlives that.
func TestTheDriverDies(t *testing.T) {
	for _, task := range []Task{waitKilled, waitLasts} {
		t.Run(task.Name, func(t *testing.T) {
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			theirs, ours, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			driver := exec.Command("/proc/self/exe")
			driver.Env = append(os.Environ(), driverEnv+"="+task.Name)
			driver.ExtraFiles = []*os.File{out, theirs}
			driver.Stderr = os.Stderr
			stdout, err := driver.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := driver.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			helper, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				t.Fatal(err)
			}
			driver.Process.Kill()
			driver.Wait()
			want := ""
			if task.Outlives {
				want = "done"
				ours.Close()
			}
			await.True(t, "the helper has ended", func() bool { return ended(helper) })
			if got, err := os.ReadFile(out.Name()); err != nil || string(got) != want {
				t.Errorf("the task wrote %q, %v, want %q", got, err, want)
			}
		})
	}
}

// ended reports whether a process has ended, reaped or not.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}

func BenchmarkIdleHelper(b *testing.B) {
	p := &Pool{}
	defer p.Close()
	for b.Loop() {
		s, err := p.Start(echo, "")
		if err == nil {
			err = s.Result(b.Context(), nil, nil)
			s.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
