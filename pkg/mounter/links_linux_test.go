package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
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

	"github.com/causeway-csi/causeway/internal/await"
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
	mount  func(b *bench) Mount
	isFile bool // the target is a file
	races  int  // default number of races for each swap
}

func subjects() []subject {
	all := []subject{
		{"directory", func(b *bench) Mount { return b.volume("v") }, false, 200},
		{"disk", func(b *bench) Mount { return b.image("image", "") }, false, 20},
		{"device", func(b *bench) Mount {
			m := b.image("image", "")
			b.mount(m, b.path("staging"))
			return m.BindFrom(b.path("staging"))
		}, true, 100},
	}
	for _, fsType := range linuxFSTypes() {
		all = append(all, subject{fsType, func(b *bench) Mount { return b.image("image", fsType) }, false, 12})
	}
	return all
}

// forEachSubject runs a test for every kind of mount, with and without the new system calls. dir is
// a directory outside the kubelet directory, on the same filesystem.
func forEachSubject(t *testing.T, test func(t *testing.T, b *bench, s subject, m Mount, outside string)) {
	for _, s := range subjects() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", s.name, old), func(t *testing.T) {
				b := newLoopBench(t)
				b.Host.(*linux).legacy.Store(old)
				outside := filepath.Join(filepath.Dir(b.kubelet), "outside")
				mkdir(t, outside)
				mkdir(t, b.path("pod"))
				test(t, b, s, s.mount(b), outside)
				if b.Host.(*linux).legacy.Load() != old {
					t.Error("the new system calls were not used: the test proves nothing")
				}
				if s.isFile {
					b.unmount(b.path("staging"))
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
var swaps = map[string]func(b *bench, s subject, outside string) (undo func() error, err error){
	"a link replaces the target": func(b *bench, s subject, outside string) (func() error, error) {
		target, aside, lure := b.path("pod", "target"), b.path("pod", "aside"), filepath.Join(outside, "lure")
		s.make(lure)
		err := errors.Join(os.Rename(target, aside), os.Symlink(lure, target))
		return func() error { return errors.Join(os.Remove(target), os.Rename(aside, target)) }, err
	},
	"the target is moved out": func(b *bench, s subject, outside string) (func() error, error) {
		target, moved := b.path("pod", "target"), filepath.Join(outside, "moved")
		err := errors.Join(os.Rename(target, moved), s.make(target))
		return func() error { return errors.Join(os.Remove(target), os.Rename(moved, target)) }, err
	},
	"a link replaces the parent": func(b *bench, s subject, outside string) (func() error, error) {
		pod, moved := b.path("pod"), filepath.Join(outside, "pod")
		err := errors.Join(os.Rename(pod, moved), os.Symlink(moved, pod))
		return func() error { return errors.Join(os.Remove(pod), os.Rename(moved, pod)) }, err
	},
	"the target is removed": func(b *bench, s subject, outside string) (func() error, error) {
		target := b.path("pod", "target")
		return func() error { return s.make(target) }, os.Remove(target)
	},
}

// TestMountOnASwappedTargetIsUndone swaps the target while the mounter holds the target open, just
// before the mount. A race has to hit this moment.
func TestMountOnASwappedTargetIsUndone(t *testing.T) {
	forEachSubject(t, func(t *testing.T, b *bench, s subject, m Mount, outside string) {
		l, path := b.Host.(*linux), b.path("pod", "target")
		r, release := b.recipe(m)
		defer release()
		for name, swap := range swaps {
			if err := s.make(path); err != nil {
				t.Fatal(err)
			}
			before := mountTable(t)
			held := b.hold(m, path)
			undo, err := swap(b, s, outside)
			if errors.Is(err, unix.ENOTEMPTY) { // a Disk, whose target contains the device
				unix.Unlinkat(held.parent, held.name, 0)
				undo, err = swap(b, s, outside)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := l.attach(held, r); !errors.Is(err, ErrPath) {
				t.Errorf("%s: attach = %v, want ErrPath", name, err)
			}
			if after := mountTable(t); !slices.Equal(before, after) {
				t.Errorf("%s: the mounts were\n%sand are\n%s", name, before, after)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			held.close()
			held.pathHandle.close()
			held = b.hold(m, path)
			if err := l.attach(held, r); err != nil {
				t.Errorf("%s: attach after the swap was undone = %v", name, err)
			}
			held.close()
			held.pathHandle.close()
			b.unmount(path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// hold opens the target of m at path, as Mount does.
func (b *bench) hold(m Mount, path string) target {
	b.t.Helper()
	p, err := b.Host.(*linux).open(path)
	if err != nil {
		b.t.Fatal(err)
	}
	mode := uint16(unix.S_IFDIR)
	switch m.Kind {
	case Device:
		mode = unix.S_IFREG
	case Disk:
		mode = unix.S_IFREG
		d, _, err := p.prepareDisk()
		if err != nil {
			b.t.Fatal(err)
		}
		p.close()
		p = d
	}
	held, _, err := p.prepare(mode, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return held
}

// recipe returns the recipe for m.
func (b *bench) recipe(m Mount) (r recipe, release func()) {
	b.t.Helper()
	l := b.Host.(*linux)
	attr, err := attributes(m)
	if err != nil {
		b.t.Fatal(err)
	}
	src, err := l.openSource(m.Source)
	if err != nil {
		b.t.Fatal(err)
	}
	switch m.Kind {
	case Directory:
		return directoryRecipe(src, attr, attr.flags|unix.ST_RELATIME), src.close
	case Device:
		return deviceNodeRecipe(src.fd, src.device), src.close
	}
	defer src.close()
	file, err := src.openImage()
	if err != nil {
		b.t.Fatal(err)
	}
	dev, _, err := l.loops.attach(file, m.loop())
	if err != nil {
		b.t.Fatal(err)
	}
	at, err := statFD(int(dev.Fd()))
	if err != nil {
		b.t.Fatal(err)
	}
	if m.Kind == Disk {
		r = deviceNodeRecipe(int(dev.Fd()), at.device)
	} else {
		r = filesystemRecipe(dev.Name(), m.FSType, attr.fresh(m.FSType, m.Options))
	}
	return r, func() { dev.Close(); file.Close() }
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
	forEachSubject(t, func(t *testing.T, b *bench, s subject, m Mount, outside string) {
		for name, swap := range swaps {
			race(t, b, s, m, outside, name, swap)
		}
	})
}

func race(
	t *testing.T, b *bench, s subject, m Mount, outside, name string,
	swap func(*bench, subject, string) (func() error, error),
) {
	t.Helper()
	ctx, target := context.Background(), b.path("pod", "target")
	before, start := mountTable(t), time.Now()
	b.mount(m, target)
	took := time.Since(start)
	b.unmount(target)
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
			b.movedBack(name, m, target)
		} else {
			failed[classOf(err)]++
			if after := mountTable(t); !slices.Equal(before, after) {
				t.Fatalf("%s: after %v the mounts were\n%sand are\n%s", name, err, before, after)
			}
		}
		b.unmount(target)
		if s.isFile {
			err = os.Remove(target) // the test has created the file
		} else if err = b.Remove(ctx, target); errors.Is(err, ErrNotEmpty) {
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
		await.True(t, "nothing is attached any more", func() bool { return len(b.loops()) == 0 })
	}
	t.Logf("%s: %d mounted, failed: %v", name, mounted, failed)
	if class := failed["other"]; class > 0 {
		t.Errorf("%s: %d mounts failed with an error of no class", name, class)
	}
}

// movedBack moves the mount of m back to target. Since Linux 6.8, a rename within a directory can
// begin before a mount on the renamed directory and end after it. The rename then moves the mount.
func (b *bench) movedBack(name string, m Mount, target string) {
	b.t.Helper()
	if b.mounted(m, target) {
		return
	}
	aside := filepath.Join(filepath.Dir(target), "aside")
	if !b.mounted(m, aside) {
		b.t.Fatalf("%s: Mount = nil, and nothing is at the target:\n%s", name, mountTable(b.t))
	}
	b.unmount(aside)
	if err := os.Remove(aside); err != nil {
		b.t.Fatal(err)
	}
}

// classOf returns the name of the class of an error that a swapped target may cause.
func classOf(err error) string {
	for _, class := range []error{ErrPath, ErrConflict, ErrNotEmpty, ErrBusy, fs.ErrNotExist, fs.ErrExist} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return "other"
}

// swapping repeats a swap and its undo until the caller calls stop, which restores the target. It
// swaps as fast as it can, or at random moments of a mount. took is the duration of a mount.
func swapping(
	b *bench, s subject, outside string, took time.Duration,
	swap func(*bench, subject, string) (func() error, error),
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
func repair(b *bench, outside string) {
	pod, target := b.path("pod"), b.path("pod", "target")
	for _, path := range []string{pod, target} {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			os.Remove(path)
		}
	}
	os.Rename(filepath.Join(outside, "pod"), pod)
	for _, from := range []string{b.path("pod", "aside"), filepath.Join(outside, "moved")} {
		if !exists(target) || os.Remove(target) == nil {
			os.Rename(from, target)
		}
		os.Remove(from)
	}
}

func TestMountRejectsLinksInTheSource(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []Kind{Directory, Image, Disk} {
		t.Run(string(kind), func(t *testing.T) {
			b := newLoopBench(t)
			dir := filepath.Join(b.storage, "volumes", "id")
			mkdir(t, dir)
			m := b.volume("volumes/id/data")
			if kind != Directory {
				m = b.image("volumes/id/image", map[Kind]string{Image: "ext4"}[kind])
			}
			b.mount(m, b.path("staging"))
			b.unmount(b.path("staging"))
			for link := m.Source; link != filepath.Dir(b.storage); link = filepath.Dir(link) {
				elsewhere := filepath.Join(filepath.Dir(b.storage), "elsewhere")
				if err := errors.Join(os.Rename(link, elsewhere), os.Symlink(elsewhere, link)); err != nil {
					t.Fatal(err)
				}
				b.refused(m, b.path("staging"), ErrPath)
				if exists(b.path("staging", DeviceName)) || len(b.loops()) > 0 {
					t.Errorf("%s: something is left", link)
				}
				if _, err := b.Mounted(ctx, m, b.path("staging")); !errors.Is(err, ErrPath) {
					t.Errorf("%s: Mounted = %v, want ErrPath", link, err)
				}
				if _, err := b.MountPointsOf(m.Source); !errors.Is(err, ErrPath) {
					t.Errorf("%s: MountPointsOf = %v, want ErrPath", link, err)
				}
				if err := b.Tune(ctx, m); kind != Directory && !errors.Is(err, ErrPath) {
					t.Errorf("%s: Tune = %v, want ErrPath", link, err)
				}
				if err := errors.Join(os.Remove(link), os.Rename(elsewhere, link)); err != nil {
					t.Fatal(err)
				}
			}
			b.mount(m, b.path("staging"))
			b.unmount(b.path("staging"))
		})
	}
}

// TestPublishedSourceIsFoundBelowTheKubeletDirectory: the source of a publish is a staging path
// below the kubelet directory, whose own path may contain a link.
func TestPublishedSourceIsFoundBelowTheKubeletDirectory(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	link := filepath.Join(filepath.Dir(b.kubelet), "link")
	if err := os.Symlink(b.kubelet, link); err != nil {
		t.Fatal(err)
	}
	b.Host, b.kubelet = realMounter(t)(link), link
	b.mount(m, b.path("staging"))
	b.mount(m.BindFrom(b.path("staging")), b.path("target"))
	if err := errors.Join(
		os.Rename(b.path("staging"), b.path("moved")), os.Symlink("moved", b.path("staging")),
	); err != nil {
		t.Fatal(err)
	}
	b.refused(m.BindFrom(b.path("staging")), b.path("other"), ErrPath)
	if err := errors.Join(os.Remove(b.path("staging")), os.Rename(b.path("moved"), b.path("staging"))); err != nil {
		t.Fatal(err)
	}
	b.unmount(b.path("target"), b.path("staging"))
}

func TestMountRejectsSourcesThatAreNoImage(t *testing.T) {
	b := newLoopBench(t)
	for name, make := range map[string]func(path string) error{
		"a FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a device":    func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) },
	} {
		m := Mount{Kind: Disk, Source: filepath.Join(b.storage, "image"), Sector: 512}
		if err := make(m.Source); err != nil {
			t.Fatal(err)
		}
		b.refused(m, b.path("staging"), ErrFormat)
		m.Kind, m.FSType = Image, "ext4"
		b.refused(m, b.path("staging"), ErrFormat)
		if exists(b.path("staging")) {
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
	forEachSubject(t, func(t *testing.T, b *bench, s subject, m Mount, outside string) {
		if err := unix.Mount(b.path("pod"), b.path("pod"), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(b.path("pod"), unix.MNT_DETACH)
		if err := unix.Mount("", b.path("pod"), "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		mounts, target := otherNamespace(t), b.path("pod", "target")
		b.mount(m, target)
		if table := mounts(); strings.Count(table, " "+target) != 1 {
			t.Errorf("the other namespace has\n%s", table)
		}
		b.unmount(target)
		if table := mounts(); strings.Contains(table, " "+target) {
			t.Errorf("after the unmount the other namespace has\n%s", table)
		}
	})
}

// TestUndoneMountsLeaveNothingInOtherNamespaces: other namespaces see a mount for a moment before
// the driver undoes the mount.
func TestUndoneMountsLeaveNothingInOtherNamespaces(t *testing.T) {
	for _, old := range []bool{false, true} {
		b := newRealBench(t, legacy(old))
		l, m := b.Host.(*linux), b.volume("v")
		mkdir(t, b.path("pod", "target"))
		if err := errors.Join(
			unix.Mount(b.kubelet, b.kubelet, "", unix.MS_BIND, ""), unix.Mount("", b.kubelet, "", unix.MS_SHARED, ""),
		); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(b.kubelet, unix.MNT_DETACH)
		mounts := otherNamespace(t)
		before := mounts()
		p, err := l.open(b.path("pod", "target"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		held, _, err := p.prepare(unix.S_IFDIR, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer held.close()
		if err := os.Rename(b.path("pod"), b.path("moved")); err != nil {
			t.Fatal(err)
		}
		r, release := b.recipe(m)
		defer release()
		if err := l.attach(held, r); !errors.Is(err, ErrPath) {
			t.Errorf("attach = %v", err)
		}
		if after := mounts(); after != before {
			t.Errorf("legacy=%v: the other namespace had\n%sand has\n%s", old, before, after)
		}
	}
}

// TestUndoRemovesOnlyItsOwnMount: neither the mount below, nor a later mount at the path.
func TestUndoRemovesOnlyItsOwnMount(t *testing.T) {
	b := newRealBench(t)
	v := b.volume("v")
	b.mount(v, b.path("target"))
	before := mountTable(t)
	fd, err := resolve(b.storage, unix.O_PATH)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	tree, err := cloneTree(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	at, err := statFD(tree)
	if err != nil {
		t.Fatal(err)
	}
	m := ownMount{tree, at.mount}
	if err := m.undo(); err != nil {
		t.Errorf("undo of a mount that never existed = %v", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, b.path("target"), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	if err := b.Host.(*linux).confirm(m, b.path("target")); err != nil {
		t.Errorf("confirm = %v", err)
	}
	if err := unix.Mount(v.Source, b.path("target"), "", unix.MS_BIND, ""); err != nil { // on top
		t.Fatal(err)
	}
	if err := b.Host.(*linux).confirm(m, b.path("target")); !errors.Is(err, ErrPath) {
		t.Errorf("confirm of a mount that is hidden = %v", err)
	}
	for range 2 {
		if err := m.undo(); err != nil {
			t.Errorf("undo = %v", err)
		}
	}
	if after := mountTable(t); !slices.Equal(before, after) {
		t.Errorf("the mounts were\n%sand are\n%s", before, after)
	}
}
