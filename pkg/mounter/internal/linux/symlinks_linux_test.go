package linux_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	rand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// mountTable returns the sorted lines of the mount table of this namespace. A mount that comes and
// goes can change the order of the table, but not the sorted lines.
func mountTable(t testing.TB) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(strings.Lines(string(table)))
}

// subject is a kind of mount on a bench.
type subject struct {
	name   string
	mount  func(b *linuxtest.Bench) mounter.Mount
	isFile bool // the target is a file
	races  int  // default number of races for each swap
}

func subjects() []subject {
	all := []subject{
		{"directory", func(b *linuxtest.Bench) mounter.Mount { return b.Volume("v") }, false, 200},
		{"disk", func(b *linuxtest.Bench) mounter.Mount { return b.Image("image", "") }, false, 20},
		{"device", func(b *linuxtest.Bench) mounter.Mount {
			m := b.Image("image", "")
			b.MustMount(m, b.Path("staging"))
			return m.BindFrom(b.Path("staging"))
		}, true, 100},
	}
	for _, fsType := range linuxtest.LinuxFSTypes() {
		all = append(all, subject{fsType, func(b *linuxtest.Bench) mounter.Mount { return b.Image("image", fsType) },
			false, 12})
	}
	return all
}

// forEachSubject runs a test for every kind of mount, with and without the new system calls. dir is
// a directory outside the kubelet directory, on the same filesystem.
func forEachSubject(t *testing.T, test func(t *testing.T, b *linuxtest.Bench, s subject, m mounter.Mount,
	outside string)) {
	for _, s := range subjects() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", s.name, old), func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				b.Host.(*linux.Host).Tree.Legacy.Store(old)
				outside := filepath.Join(filepath.Dir(b.Kubelet), "outside")
				linuxtest.Mkdir(t, outside)
				linuxtest.Mkdir(t, b.Path("pod"))
				test(t, b, s, s.mount(b), outside)
				if b.Host.(*linux.Host).Tree.Legacy.Load() != old {
					t.Error("the new system calls were not used: the test proves nothing")
				}
				if s.isFile {
					b.MustUnmount(b.Path("staging"))
				}
			})
		}
	}
}

// make creates an empty file or directory, as s needs.
func (s subject) make(path string) error {
	if s.isFile {
		return os.WriteFile(path, nil, 0o600)
	}
	return os.Mkdir(path, 0o700)
}

// swaps are the changes that a process can make to the target, pod/target, between two steps of a
// mount. Each returns a function that undoes the change.
var swaps = map[string]func(b *linuxtest.Bench, s subject, outside string) (undo func() error, err error){
	"a link replaces the target": func(b *linuxtest.Bench, s subject, outside string) (func() error, error) {
		target, aside, lure := b.Path("pod", "target"), b.Path("pod", "aside"), filepath.Join(outside, "lure")
		s.make(lure)
		err := errors.Join(os.Rename(target, aside), os.Symlink(lure, target))
		return func() error { return errors.Join(os.Remove(target), os.Rename(aside, target)) }, err
	},
	"the target is moved out": func(b *linuxtest.Bench, s subject, outside string) (func() error, error) {
		target, moved := b.Path("pod", "target"), filepath.Join(outside, "moved")
		err := errors.Join(os.Rename(target, moved), s.make(target))
		return func() error { return errors.Join(os.Remove(target), os.Rename(moved, target)) }, err
	},
	"a link replaces the parent": func(b *linuxtest.Bench, s subject, outside string) (func() error, error) {
		pod, moved := b.Path("pod"), filepath.Join(outside, "pod")
		err := errors.Join(os.Rename(pod, moved), os.Symlink(moved, pod))
		return func() error { return errors.Join(os.Remove(pod), os.Rename(moved, pod)) }, err
	},
	"the target is removed": func(b *linuxtest.Bench, s subject, outside string) (func() error, error) {
		target := b.Path("pod", "target")
		return func() error { return s.make(target) }, os.Remove(target)
	},
}

// TestMountOnASwappedTargetIsUndone swaps the target while the mounter holds the target open, just
// before the mount. A race has to hit this moment.
func TestMountOnASwappedTargetIsUndone(t *testing.T) {
	forEachSubject(t, func(t *testing.T, b *linuxtest.Bench, s subject, m mounter.Mount, outside string) {
		l, path := b.Host.(*linux.Host), b.Path("pod", "target")
		r, release := b.Recipe(m)
		defer release()
		for name, swap := range swaps {
			if err := s.make(path); err != nil {
				t.Fatal(err)
			}
			before := mountTable(t)
			held := b.Hold(m, path)
			undo, err := swap(b, s, outside)
			if errors.Is(err, unix.ENOTEMPTY) { // a Disk, whose target contains the device
				unix.Unlinkat(held.Parent, held.Name, 0)
				undo, err = swap(b, s, outside)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Tree.Attach(held, r); !errors.Is(err, mounter.ErrPath) {
				t.Errorf("%s: attach = %v, want ErrPath", name, err)
			}
			if after := mountTable(t); !slices.Equal(before, after) {
				t.Errorf("%s: the mounts were\n%sand are\n%s", name, before, after)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			held.Close()
			held.Handle.Close()
			held = b.Hold(m, path)
			if err := l.Tree.Attach(held, r); err != nil {
				t.Errorf("%s: attach after the swap was undone = %v", name, err)
			}
			held.Close()
			held.Handle.Close()
			b.MustUnmount(path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// raceCount returns the number of mounts of a kind that race with each swap. test/hostile sets the
// number to thousands.
func (s subject) raceCount(t *testing.T) int {
	t.Helper()
	value := os.Getenv("CAUSEWAY_TEST_RACES")
	if value == "" {
		return s.races
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMountsRaceWithSwappedLinks mounts while a goroutine swaps the target. A mount is at the right
// path, or fails and leaves nothing. CAUSEWAY_TEST_RACES is the number of races.
func TestMountsRaceWithSwappedLinks(t *testing.T) {
	forEachSubject(t, func(t *testing.T, b *linuxtest.Bench, s subject, m mounter.Mount, outside string) {
		for name, swap := range swaps {
			race(t, b, s, m, outside, name, swap)
		}
	})
}

func race(
	t *testing.T, b *linuxtest.Bench, s subject, m mounter.Mount, outside, name string,
	swap func(*linuxtest.Bench, subject, string) (func() error, error),
) {
	t.Helper()
	ctx, target := context.Background(), b.Path("pod", "target")
	before, start := mountTable(t), time.Now()
	b.MustMount(m, target)
	took := time.Since(start)
	b.MustUnmount(target)
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	mounted, failed := 0, map[string]int{}
	for range s.raceCount(t) {
		if err := s.make(target); err != nil {
			t.Fatal(err)
		}
		stop := swapping(b, s, outside, took, swap)
		err := b.Mount(ctx, m, target)
		stop()
		if err == nil {
			mounted++
			movedBack(b, name, m, target)
		} else {
			failed[classOf(err)]++
			if after := mountTable(t); !slices.Equal(before, after) {
				t.Fatalf("%s: after %v the mounts were\n%sand are\n%s", name, err, before, after)
			}
		}
		b.MustUnmount(target)
		if s.isFile {
			err = os.Remove(target) // the test has created the file
		} else if err = b.Remove(ctx, target); errors.Is(err, mounter.ErrNotEmpty) {
			t.Fatalf("%s: something is left in the target: %v", name, err)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if after := mountTable(t); !slices.Equal(before, after) {
			t.Fatalf("%s: the mounts were\n%sand are\n%s", name, before, after)
		}
		for _, lure := range []string{"lure", "moved", "pod"} {
			os.Remove(filepath.Join(outside, lure))
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Fatalf("%s: outside there is %v, %v", name, left, err)
		}
	}
	if !s.isFile {
		b.WaitForLoops(0)
	}
	t.Logf("%s: %d mounted, failed: %v", name, mounted, failed)
	if class := failed["other"]; class > 0 {
		t.Errorf("%s: %d mounts failed with an error of no class", name, class)
	}
}

// movedBack moves the mount of m back to target. Since Linux 6.8, a rename within a directory can
// begin before a mount on the renamed directory and end after it. The rename then moves the mount.
func movedBack(b *linuxtest.Bench, name string, m mounter.Mount, target string) {
	b.T.Helper()
	if b.IsMounted(m, target) {
		return
	}
	aside := filepath.Join(filepath.Dir(target), "aside")
	if !b.IsMounted(m, aside) {
		b.T.Fatalf("%s: Mount = nil, and nothing is at the target:\n%s", name, mountTable(b.T))
	}
	b.MustUnmount(aside)
	if err := os.Remove(aside); err != nil {
		b.T.Fatal(err)
	}
}

// classOf returns the name of the class of an error that a swapped target may cause.
func classOf(err error) string {
	for _, class := range []error{mounter.ErrPath, mounter.ErrConflict, mounter.ErrNotEmpty, mounter.ErrBusy,
		fs.ErrNotExist, fs.ErrExist} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return "other"
}

// swapping repeats a swap and its undo until the caller calls stop, which restores the target. It
// swaps as fast as it can, or at random moments of a mount. took is the duration of a mount.
func swapping(
	b *linuxtest.Bench, s subject, outside string, took time.Duration,
	swap func(*linuxtest.Bench, subject, string) (func() error, error),
) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	restless := rand.N(2) == 0
	pause := func(longest time.Duration) {
		if restless {
			return
		}
		select {
		case <-time.After(rand.N(longest + 1)):
		case <-done:
		}
	}
	go func() {
		defer close(ended)
		defer repair(b, outside)
		for {
			pause(took)
			select {
			case <-done:
				return
			default:
			}
			undo, err := swap(b, s, outside)
			if err != nil {
				repair(b, outside)
				continue
			}
			pause(took / 4)
			undo()
		}
	}()
	return func() { close(done); <-ended }
}

// repair undoes a swap whose own undo a mount has prevented: a mount point cannot be renamed or
// replaced.
func repair(b *linuxtest.Bench, outside string) {
	pod, target := b.Path("pod"), b.Path("pod", "target")
	for _, path := range []string{pod, target} {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			os.Remove(path)
		}
	}
	os.Rename(filepath.Join(outside, "pod"), pod)
	for _, from := range []string{b.Path("pod", "aside"), filepath.Join(outside, "moved")} {
		if !linuxtest.Exists(target) || os.Remove(target) == nil {
			os.Rename(from, target)
		}
		os.Remove(from)
	}
}

func TestMountRejectsLinksInTheSource(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []mounter.Kind{mounter.Directory, mounter.Image, mounter.Disk} {
		t.Run(string(kind), func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			dir := filepath.Join(b.Storage, "volumes", "id")
			linuxtest.Mkdir(t, dir)
			m := b.Volume("volumes/id/data")
			if kind != mounter.Directory {
				m = b.Image("volumes/id/image", map[mounter.Kind]string{mounter.Image: "ext4"}[kind])
			}
			b.MustMount(m, b.Path("staging"))
			b.MustUnmount(b.Path("staging"))
			for link := m.Source; link != filepath.Dir(b.Storage); link = filepath.Dir(link) {
				elsewhere := filepath.Join(filepath.Dir(b.Storage), "elsewhere")
				if err := errors.Join(os.Rename(link, elsewhere), os.Symlink(elsewhere, link)); err != nil {
					t.Fatal(err)
				}
				b.Refused(m, b.Path("staging"), mounter.ErrPath)
				if linuxtest.Exists(b.Path("staging", mounter.DeviceName)) {
					t.Errorf("%s: something is left", link)
				}
				b.WaitForLoops(0)
				if _, err := b.Mounted(ctx, m, b.Path("staging")); !errors.Is(err, mounter.ErrPath) {
					t.Errorf("%s: Mounted = %v, want ErrPath", link, err)
				}
				if _, err := b.MountPointsOf(m.Source); !errors.Is(err, mounter.ErrPath) {
					t.Errorf("%s: MountPointsOf = %v, want ErrPath", link, err)
				}
				if err := b.Tune(ctx, m); kind != mounter.Directory && !errors.Is(err, mounter.ErrPath) {
					t.Errorf("%s: Tune = %v, want ErrPath", link, err)
				}
				if err := errors.Join(os.Remove(link), os.Rename(elsewhere, link)); err != nil {
					t.Fatal(err)
				}
			}
			b.MustMount(m, b.Path("staging"))
			b.MustUnmount(b.Path("staging"))
		})
	}
}

// TestPublishedSourceIsFoundBelowTheKubeletDirectory: the source of a publish is a staging path
// below the kubelet directory, whose own path may contain a link.
func TestPublishedSourceIsFoundBelowTheKubeletDirectory(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	link := filepath.Join(filepath.Dir(b.Kubelet), "link")
	if err := os.Symlink(b.Kubelet, link); err != nil {
		t.Fatal(err)
	}
	b.Host, b.Kubelet = linuxtest.RealMounter(t)(link), link
	b.MustMount(m, b.Path("staging"))
	b.MustMount(m.BindFrom(b.Path("staging")), b.Path("target"))
	if err := errors.Join(
		os.Rename(b.Path("staging"), b.Path("moved")), os.Symlink("moved", b.Path("staging")),
	); err != nil {
		t.Fatal(err)
	}
	b.Refused(m.BindFrom(b.Path("staging")), b.Path("other"), mounter.ErrPath)
	if err := errors.Join(os.Remove(b.Path("staging")), os.Rename(b.Path("moved"), b.Path("staging"))); err != nil {
		t.Fatal(err)
	}
	b.MustUnmount(b.Path("target"), b.Path("staging"))
}

func TestMountRejectsSourcesThatAreNoImage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	for name, make := range map[string]func(path string) error{
		"a FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a device":    func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) },
	} {
		m := mounter.Mount{Kind: mounter.Disk, Source: filepath.Join(b.Storage, "image"), Sector: 512}
		if err := make(m.Source); err != nil {
			t.Fatal(err)
		}
		b.Refused(m, b.Path("staging"), mounter.ErrFormat)
		m.Kind, m.FSType = mounter.Image, "ext4"
		b.Refused(m, b.Path("staging"), mounter.ErrFormat)
		if linuxtest.Exists(b.Path("staging")) {
			t.Errorf("%s: the target is left", name)
		}
		if err := os.Remove(m.Source); err != nil {
			t.Fatal(err)
		}
	}
}

// otherNamespace starts a process in another mount namespace, which receives the mounts of this
// namespace. mounts returns the mount table of the process.
func otherNamespace(t *testing.T) (mounts func() string) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var end sync.Once
	t.Cleanup(func() { end.Do(func() { cmd.Process.Kill(); cmd.Wait() }) })
	return func() string {
		t.Helper()
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return string(table)
	}
}

// TestMountsReachOtherNamespaces: the driver mounts in its container, and pods must see the mount.
func TestMountsReachOtherNamespaces(t *testing.T) {
	forEachSubject(t, func(t *testing.T, b *linuxtest.Bench, s subject, m mounter.Mount, outside string) {
		if err := unix.Mount(b.Path("pod"), b.Path("pod"), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(b.Path("pod"), unix.MNT_DETACH)
		if err := unix.Mount("", b.Path("pod"), "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		mounts, target := otherNamespace(t), b.Path("pod", "target")
		b.MustMount(m, target)
		if table := mounts(); strings.Count(table, " "+target) != 1 {
			t.Errorf("the other namespace has\n%s", table)
		}
		b.MustUnmount(target)
		if table := mounts(); strings.Contains(table, " "+target) {
			t.Errorf("after the unmount the other namespace has\n%s", table)
		}
	})
}

// TestUndoneMountsLeaveNothingInOtherNamespaces: other namespaces see a mount for a moment before
// the driver undoes the mount.
func TestUndoneMountsLeaveNothingInOtherNamespaces(t *testing.T) {
	for _, old := range []bool{false, true} {
		b := linuxtest.NewRealBench(t, legacy(old))
		l, m := b.Host.(*linux.Host), b.Volume("v")
		linuxtest.Mkdir(t, b.Path("pod", "target"))
		if err := errors.Join(
			unix.Mount(b.Kubelet, b.Kubelet, "", unix.MS_BIND, ""), unix.Mount("", b.Kubelet, "", unix.MS_SHARED, ""),
		); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(b.Kubelet, unix.MNT_DETACH)
		mounts := otherNamespace(t)
		before := mounts()
		p, err := l.Tree.Open(b.Path("pod", "target"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		held, _, err := p.Prepare(unix.S_IFDIR, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := os.Rename(b.Path("pod"), b.Path("moved")); err != nil {
			t.Fatal(err)
		}
		r, release := b.Recipe(m)
		defer release()
		if err := l.Tree.Attach(held, r); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("attach = %v", err)
		}
		if after := mounts(); after != before {
			t.Errorf("legacy=%v: the other namespace had\n%sand has\n%s", old, before, after)
		}
	}
}

// TestUndoRemovesOnlyItsOwnMount: neither the mount below, nor a later mount at the path.
func TestUndoRemovesOnlyItsOwnMount(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v := b.Volume("v")
	b.MustMount(v, b.Path("target"))
	before := mountTable(t)
	fd, err := tree.Resolve(b.Storage, unix.O_PATH)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	clone, err := tree.CloneTree(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(clone)
	at, err := tree.StatFD(clone)
	if err != nil {
		t.Fatal(err)
	}
	m := tree.OwnMount{FD: clone, ID: at.Mount}
	if err := m.Undo(); err != nil {
		t.Errorf("undo of a mount that never existed = %v", err)
	}
	if err := unix.MoveMount(clone, "", unix.AT_FDCWD, b.Path("target"), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	if err := b.Host.(*linux.Host).Tree.Confirm(m, b.Path("target")); err != nil {
		t.Errorf("confirm = %v", err)
	}
	if err := unix.Mount(v.Source, b.Path("target"), "", unix.MS_BIND, ""); err != nil { // on top
		t.Fatal(err)
	}
	if err := b.Host.(*linux.Host).Tree.Confirm(m, b.Path("target")); !errors.Is(err, mounter.ErrPath) {
		t.Errorf("confirm of a mount that is hidden = %v", err)
	}
	for range 2 {
		if err := m.Undo(); err != nil {
			t.Errorf("undo = %v", err)
		}
	}
	if after := mountTable(t); !slices.Equal(before, after) {
		t.Errorf("the mounts were\n%sand are\n%s", before, after)
	}
}
