package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
)

// openPath opens an O_PATH descriptor until the end of the test.
func openPath(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// resolved returns the Entry of a path in a container.
func resolved(t testing.TB, root int, path string) (Entry, error) {
	t.Helper()
	fd, err := Resolve(root, path)
	if err != nil {
		return nil, err
	}
	return FromDescriptor(fd, openPath(t, "/proc/self/fd"))
}

// TestSourcesAreEqual: the stream does not depend on the kind of source.
func TestSourcesAreEqual(t *testing.T) {
	top := source(t)
	if err := unix.Mknod(filepath.Join(top, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Log("without a device:", err)
	}
	e, err := resolved(t, openPath(t, filepath.Dir(top)), "/top")
	if err != nil {
		t.Fatal(err)
	}
	data, skipped, err := pack(t, e, DefaultLimits())
	want, alsoSkipped, other := pack(t, openLocal(t, top), DefaultLimits())
	if err := errors.Join(err, other); err != nil || !bytes.Equal(data, want) || !slices.Equal(skipped, alsoSkipped) {
		t.Errorf("%d and %d bytes, skipped %q and %q, %v", len(data), len(want), skipped, alsoSkipped, err)
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	err := errors.Join(os.MkdirAll(filepath.Join(root, "run/app"), 0o755), os.Mkdir(filepath.Join(root, "var"), 0o755),
		os.Symlink("/run", filepath.Join(root, "var/run")), os.Symlink("../../../../etc", filepath.Join(root, "up")),
		os.WriteFile(filepath.Join(root, "run/app/f"), []byte("in the container"), 0o600),
		os.WriteFile(filepath.Join(dir, "outside"), []byte("of the host"), 0o600),
		os.Symlink("/proc/self/root", filepath.Join(root, "magic")), os.Symlink("loop", filepath.Join(root, "loop")))
	if err != nil {
		t.Fatal(err)
	}
	fd := openPath(t, root)
	for _, path := range []string{"/run/app/f", "/var/run/app/f", "/../../run/app/f", "/var/../run/app/f", "//run/./app/f"} {
		e, err := resolved(t, fd, path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if data, _, err := pack(t, e, DefaultLimits()); err != nil || content(t, data) != "top in the container" {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
	for path, want := range map[string]error{
		"/outside": fs.ErrNotExist, "/../outside": fs.ErrNotExist, "/up/passwd": fs.ErrNotExist, "/magic/etc": fs.ErrNotExist,
		"/run/app/f/x": unix.ENOTDIR, "/loop": unix.ELOOP, "run/app/f": ErrRefused, "": ErrRefused, "/run\x00": ErrRefused,
	} {
		if e, err := resolved(t, fd, path); !errors.Is(err, want) {
			t.Errorf("%q = %v, %v, want %v", path, e, err, want)
		}
	}
	host := openPath(t, "/")
	for path, want := range map[string]error{
		"/proc": ErrKernelFilesystem, "/proc/self/status": ErrKernelFilesystem, "/proc/self/root/etc": unix.ELOOP,
		"/proc/self/fd/0": unix.ELOOP, "/sys/kernel": ErrKernelFilesystem,
	} {
		if e, err := resolved(t, host, path); !errors.Is(err, want) {
			t.Errorf("%q of the host = %v, %v, want %v", path, e, err, want)
		}
	}
}

// TestAFileWithALease is opened when its holder has released the lease, as a file server does. A holder
// that keeps it does not block the copy: the kernel would wait for 45 s.
func TestAFileWithALease(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lease := func(kind int) error {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGIO)
	defer signal.Stop(asked)
	for _, releases := range []bool{true, false} {
		await.NoError(t, "the open has the result", func() error { // the kernel breaks a lease after 45 s
			if err := lease(unix.F_WRLCK); err != nil { // a child of this process has the file open
				return err
			}
			e, err := resolved(t, openPath(t, dir), "/f")
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			ended := make(chan struct{})
			defer close(ended)
			go func() {
				select {
				case <-asked:
				case <-ended:
					return
				}
				if releases {
					lease(unix.F_UNLCK)
				}
			}()
			r, err := e.Open()
			if r != nil {
				r.Close()
			}
			if releases {
				return err
			}
			if !errors.Is(err, ErrLease) {
				return errors.Join(errors.New("want ErrLease"), err)
			}
			return nil
		})
	}
}

// TestKernelFilesystemsAreSkipped below the source, and are an error as the source.
func TestKernelFilesystemsAreSkipped(t *testing.T) {
	root, err := resolved(t, openPath(t, "/"), "/")
	if err != nil {
		t.Fatal(err)
	}
	data, skipped, err := pack(t, only{root, "proc"}, DefaultLimits())
	if err != nil || len(skipped) != 1 || skipped[0] != "top/proc: not copied: a filesystem of the kernel: proc" {
		t.Errorf("skipped %q, %v", skipped, err)
	}
	if got := content(t, data); got != "top/" {
		t.Errorf("the copy has %q", got)
	}
}

// only is a directory with a single entry.
type only struct {
	Entry
	name string
}

func (o only) Names(int) ([]string, error) { return []string{o.name}, nil }

// exchange exchanges a directory with a link to a directory outside, again and again, until stop.
func exchange(t *testing.T, dir, link string) (stop func()) {
	t.Helper()
	end, ended := make(chan struct{}), sync.WaitGroup{}
	ended.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	return func() { close(end); ended.Wait() }
}

// enough is the number of times for which an attack must succeed against careless code, and for
// which the code with care must reach the container, so that the test proves something.
const enough = 50

// race runs a careless and a careful function side by side with an attack. It ends when the
// careless one was outside often and the careful one was inside often: the goroutine of the attack
// can stand still for any number of tries.
func race(t *testing.T, careless func() (outside bool), careful func() (outside, inside bool)) {
	t.Helper()
	ctx := await.Context(t)
	for escapes, successes, tries := 0, 0, 0; escapes < enough || successes < enough || tries < 20*enough; tries++ {
		if careless() {
			escapes++
		}
		outside, inside := careful()
		if outside {
			t.Fatalf("try %d reached a directory outside", tries)
		}
		if inside {
			successes++
		}
		if ctx.Err() != nil {
			t.Fatalf("of %d tries, careless code was outside in %d and careful code inside in %d: too few to prove anything",
				tries, escapes, successes)
		}
	}
}

// swapped makes a container with a directory and a link that lead to files of one name.
func swapped(t *testing.T) (container, outside string) {
	t.Helper()
	dir := t.TempDir()
	container, outside = filepath.Join(dir, "container"), filepath.Join(dir, "outside")
	err := errors.Join(os.MkdirAll(filepath.Join(container, "d"), 0o755), os.Mkdir(outside, 0o755),
		os.WriteFile(filepath.Join(container, "d/f"), []byte("in the container"), 0o600),
		os.WriteFile(filepath.Join(outside, "f"), []byte("secret of the host"), 0o600),
		os.Symlink(outside, filepath.Join(container, "link")))
	if err != nil {
		t.Fatal(err)
	}
	return container, outside
}

// TestASwappedDirectoryIsNotRead: the container exchanges a directory of the path, and one below
// the source, with a link to the host.
func TestASwappedDirectoryIsNotRead(t *testing.T) {
	container, _ := swapped(t)
	root, self := openPath(t, container), openPath(t, "/proc/self/fd")
	stop := exchange(t, filepath.Join(container, "d"), filepath.Join(container, "link"))
	defer stop()
	isSecret := func(data []byte) bool { return bytes.Contains(data, []byte("secret")) }
	careless := func() bool {
		data, _ := os.ReadFile(filepath.Join(container, "d/f"))
		return isSecret(data)
	}
	for _, path := range []string{"/d/f", "/d", "/"} {
		t.Run(path, func(t *testing.T) {
			race(t, careless, func() (outside, inside bool) {
				fd, err := Resolve(root, path)
				if err != nil {
					return false, false
				}
				e, err := FromDescriptor(fd, self)
				if err != nil {
					return false, false
				}
				data, _, _ := pack(t, e, DefaultLimits())
				return isSecret(data), bytes.Contains(data, []byte("in the container"))
			})
		})
	}
}

// TestASwappedDirectoryIsNotWritten: the container exchanges a directory of an unfinished copy.
func TestASwappedDirectoryIsNotWritten(t *testing.T) {
	container, outside := swapped(t)
	root, err := os.OpenRoot(container)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stop := exchange(t, filepath.Join(container, "d"), filepath.Join(container, "link"))
	defer stop()
	n := 0
	reached := func() bool {
		names, err := os.ReadDir(outside)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range names[1:] { // f is the first
			os.Remove(filepath.Join(outside, e.Name()))
		}
		return len(names) > 1
	}
	race(t, func() bool {
		n++
		os.WriteFile(filepath.Join(container, fmt.Sprint("d/g", n)), nil, 0o600)
		return reached()
	}, func() (_, inside bool) {
		n++
		u := &unpacker{ctx: context.Background(), root: root, budget: budget{limits: DefaultLimits()},
			links: nil, dirs: map[string]*tar.Header{"": nil, "d": nil}}
		defer u.leave()
		if err := u.enter("d"); err == nil {
			if f, err := u.current.OpenFile(fmt.Sprint("g", n), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				f.Close()
				inside = true
			}
		}
		return reached(), inside
	})
}

// TestAManyNamedDirectory: the list of a directory ends at the limit of entries.
func TestAManyNamedDirectory(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("n", 100)+fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := resolved(t, openPath(t, dir), "/")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for limit, want := range map[int]int{0: 1, 10: 11, 299: 300, 300: 300, 1000: 300} {
		if names, err := e.Names(limit); len(names) != want || err != nil {
			t.Errorf("Names(%d): %d, %v, want %d", limit, len(names), err, want)
		}
	}
}
