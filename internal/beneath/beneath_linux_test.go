package beneath

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// An open without O_NONBLOCK would wait for the FIFO's other side for ever: the test's own deadline
// ends it then.
func TestAnotherTypeOfFileIsAnErrorThatNamesIt(t *testing.T) {
	d, path := open(t)
	must(t, unix.Mkfifo(filepath.Join(path, "fifo"), 0o600), d.Mkdir("dir", 0o700))
	if l, err := net.Listen("unix", filepath.Join(path, "socket")); err == nil {
		defer l.Close()
	}
	for name, what := range map[string]string{"fifo": "a FIFO", "dir": "a directory", "socket": "a socket"} {
		for _, flag := range []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE,
			os.O_WRONLY | os.O_TRUNC} {
			if _, err := d.OpenFile(name, flag, 0o600); !errors.Is(err, ErrType) ||
				!strings.Contains(err.Error(), what) {
				t.Errorf("OpenFile(%s, %#x) = %v, want ErrType that names %s", name, flag, err, what)
			}
		}
		if name == "dir" {
			continue
		}
		for call, err := range map[string]error{"OpenDir": second(d.OpenDir(name)), "Names": second(d.Names(name)),
			"Lstat": second(d.Lstat(name + "/x"))} {
			if !errors.Is(err, ErrType) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s(%s) = %v, want ErrType that names %s", call, name, err, what)
			}
		}
	}
	must(t, d.Rename("fifo", "dir/fifo"), d.Remove("dir/fifo"))
	if _, err := Open(filepath.Join(path, "socket")); !errors.Is(err, ErrType) {
		t.Errorf("Open of a socket = %v, want ErrType", err)
	}
}

func TestAFileIsOpenedWithItsFlags(t *testing.T) {
	d, path := open(t)
	must(t, write(d, "file", "old"))
	for _, flag := range []int{os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND} {
		file, err := d.OpenFile("file", flag, 0)
		must(t, err)
		got, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
		const asked = unix.O_ACCMODE | unix.O_APPEND | unix.O_NONBLOCK
		if err != nil || got&asked != flag {
			t.Errorf("opened with %#x, asked for %#x, %v", got&asked, flag, err)
		}
		if got, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0); err != nil || got&unix.FD_CLOEXEC == 0 {
			t.Errorf("a child process inherits the file: %#x, %v", got, err)
		}
		if file.Name() != filepath.Join(path, "file") {
			t.Errorf("the file is called %s", file.Name())
		}
		file.Close()
	}
	info, err := d.Lstat("file")
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v, %v, want the one that was asked for", info, err)
	}
	must(t, d.Mkdir("dir", 0o700), d.Chmod("dir", 0o777))
	if info, err := d.Lstat("dir"); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the directory's mode is %v, %v", info, err)
	}
}

// TestALinkThatIsSwappedInIsNotFollowed exchanges a directory and a link to another directory while
// files are opened.
func TestALinkThatIsSwappedInIsNotFollowed(t *testing.T) {
	d, path := open(t)
	must(t, d.Mkdir("mine", 0o700), d.Mkdir("others", 0o700), write(d, "mine/file", "mine"),
		write(d, "others/file", "others"), os.Symlink("others", filepath.Join(path, "link")))
	var swapping sync.WaitGroup
	stop := make(chan struct{})
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(path, "mine"), unix.AT_FDCWD,
					filepath.Join(path, "link"), unix.RENAME_EXCHANGE)
			}
		}
	})
	seen := map[string]int{}
	for n := 0; n < 20_000 || n < 10_000_000 && (seen["mine"] == 0 || seen["refused"] == 0); n++ {
		got, err := d.ReadFile("mine/file", 10)
		switch {
		case err == nil:
			seen[string(got)]++
		case errors.Is(err, ErrType):
			seen["refused"]++
		default:
			t.Fatal(err)
		}
	}
	close(stop)
	swapping.Wait()
	if t.Log(seen); seen["others"] > 0 || seen["mine"] == 0 || seen["refused"] == 0 {
		t.Errorf("read were %v, want mine and refusals only", seen)
	}
}

func TestAClosedDirectoryHasNoDescriptor(t *testing.T) {
	d, _ := open(t)
	must(t, d.Close())
	for call, err := range map[string]error{"OpenFile": second(d.OpenFile("x", os.O_RDONLY, 0)),
		"Mkdir": d.Mkdir("x", 0o700), "Sync": d.Sync("."), "Rename": d.Rename("x", "y")} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s = %v, want ErrClosed", call, err)
		}
	}
}

func BenchmarkReadFile(b *testing.B) {
	d, _ := open(b)
	must(b, d.Mkdir("volumes", 0o700), d.Mkdir("volumes/id", 0o700),
		write(d, "volumes/id/record.json", strings.Repeat("x", 400)))
	for b.Loop() {
		if _, err := d.ReadFile("volumes/id/record.json", 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRename(b *testing.B) {
	d, _ := open(b)
	must(b, d.Mkdir("volumes", 0o700), d.Mkdir("staging", 0o700), d.Mkdir("staging/id", 0o700))
	for b.Loop() {
		must(b, d.Rename("staging/id", "volumes/id"), d.Rename("volumes/id", "staging/id"))
	}
}

// The same with os.Root, to compare.
func BenchmarkRoot(b *testing.B) {
	root, err := os.OpenRoot(b.TempDir())
	must(b, err)
	defer root.Close()
	must(b, root.Mkdir("volumes", 0o700), root.Mkdir("staging", 0o700), root.Mkdir("staging/id", 0o700),
		root.WriteFile("staging/file", []byte(strings.Repeat("x", 400)), 0o600))
	b.Run("ReadFile", func(b *testing.B) {
		for b.Loop() {
			if _, err := root.ReadFile("staging/file"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Rename", func(b *testing.B) {
		for b.Loop() {
			must(b, root.Rename("staging/id", "volumes/id"), root.Rename("volumes/id", "staging/id"))
		}
	})
}
