package linux_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

func TestRemoveRemovesOnlyTargetFiles(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	path := b.Path("target")
	for name, make := range map[string]func() error{
		"an empty file": func() error { return os.WriteFile(path, nil, 0o640) },
		"a file with the mark, not empty": func() error {
			return errors.Join(os.WriteFile(path, []byte("x"), 0o640), unix.Chmod(path, tree.TargetMode))
		},
		"a file with the mark of a user": func() error {
			return errors.Join(os.WriteFile(path, nil, 0o640), os.Chown(path, 1000, 1000), unix.Chmod(path, tree.TargetMode))
		},
		"a FIFO": func() error { return unix.Mkfifo(path, tree.TargetMode) },
		"a device that is not mounted here": func() error {
			return unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loop.Major, 250)))
		},
		"a link": func() error { return os.Symlink(b.Storage, path) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Remove(ctx, path); !errors.Is(err, mounter.ErrPath) {
				t.Errorf("Remove of %s = %v, want ErrPath", name, err)
			}
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
			t.Errorf("%s was %v and is %v, %v", name, before, after, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRemoveRecognizesTargetFiles of every release of the driver, and after a crash at any point.
func TestRemoveRecognizesTargetFiles(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	b.MustMount(m, b.Path("staging"))
	device := m.BindFrom(b.Path("staging"))
	path := b.Path("target")
	old := func() { // mounts as a release without the mark did
		t.Helper()
		if err := os.WriteFile(path, nil, 0o640); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(device.Source, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	killed := func() { // killed after the unmount, before the removal of the file
		t.Helper()
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	for name, begin := range map[string]func(){
		"mounted": func() { b.MustMount(device, path) },
		"mounted, and killed in the middle of Remove": func() { b.MustMount(device, path); killed() },
		"mounted by an old release":                   old,
		"mounted by an old release, and killed after the update": func() {
			old()
			b.Host = linuxtest.RealMounter(t)(b.Kubelet)
			killed()
		},
		"mounted on an old release's file, and killed": func() {
			if err := os.WriteFile(path, nil, 0o640); err != nil {
				t.Fatal(err)
			}
			b.MustMount(device, path)
			killed()
		},
		"made, and killed before the mount": func() { b.Hold(device, path) },
	} {
		begin()
		for range 2 {
			if err := b.Remove(ctx, path); err != nil || linuxtest.Exists(path) {
				t.Errorf("%s: Remove = %v, the file is there: %v", name, err, linuxtest.Exists(path))
				os.Remove(path)
			}
		}
	}
	b.MustUnmount(b.Path("staging"))
}

// TestFailedMountMarksNoFile: NodeUnpublishVolume follows a failed mount, and must not remove a
// foreign file.
func TestFailedMountMarksNoFile(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	b.MustMount(m, b.Path("staging"))
	b.MustMount(m.BindFrom(b.Path("staging")), b.Path("target"))
	readOnly := m
	readOnly.ReadOnly = true
	if err := os.WriteFile(b.Path("other"), nil, 0o640); err != nil {
		t.Fatal(err)
	}
	b.Refused(readOnly.BindFrom(b.Path("staging")), b.Path("other"), mounter.ErrReadOnly)
	if err := b.Remove(ctx, b.Path("other")); !errors.Is(err, mounter.ErrPath) || !linuxtest.Exists(b.Path("other")) {
		t.Errorf("Remove = %v, want ErrPath; the file is there: %v", err, linuxtest.Exists(b.Path("other")))
	}
	b.MustUnmount(b.Path("target"), b.Path("staging"))
}

func TestTargetFileIsCreatedWithTheMark(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	p, err := b.Host.(*linux.Host).Tree.Open(b.Path("target"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Create(unix.S_IFREG); err != nil {
		t.Fatal(err)
	}
	if at, err := p.Stat(); err != nil || !at.IsTarget() {
		t.Errorf("%+v, %v has no mark", at, err)
	}
}

// TestForeignFilesInAStagingDirectoryStay: only the two files of a Disk belong to the driver.
func TestForeignFilesInAStagingDirectoryStay(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	write := func(path, content string) func() error {
		return func() error { return os.WriteFile(path, []byte(content), 0o640) }
	}
	staging := b.Path("staging")
	device, backing := filepath.Join(staging, mounter.DeviceName), filepath.Join(staging, tree.BackingName)
	for name, make := range map[string]func() error{
		"device":       write(device, ""),
		"full device":  write(device, "precious"),
		"backing":      write(backing, "precious"),
		"long backing": write(backing, fmt.Sprintf("1 2 %100d", 3)),
		"link":         func() error { return os.Symlink("/etc/passwd", backing) },
		"FIFO":         func() error { return unix.Mkfifo(backing, 0o600) },
		"both": func() error {
			return errors.Join(write(device, "precious")(), write(backing, "precious")())
		},
		"device, a FIFO": func() error { return unix.Mkfifo(device, 0o600) },
		"device, a link": func() error { return os.Symlink("/etc/passwd", device) },
	} {
		linuxtest.Mkdir(t, staging)
		if err := make(); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadDir(staging)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Unmount(ctx, staging); err != nil {
			t.Errorf("%s: Unmount = %v", name, err)
		}
		if err := b.Remove(ctx, staging); !errors.Is(err, mounter.ErrNotEmpty) {
			t.Errorf("%s: Remove = %v, want ErrNotEmpty", name, err)
		}
		if name != "device" { // a device can be mounted on an empty file
			if err := b.Mount(ctx, m, staging); err == nil {
				t.Errorf("%s: Mount = nil", name)
			}
		}
		after, err := os.ReadDir(staging)
		if err != nil ||
			!slices.EqualFunc(before, after, func(a, b os.DirEntry) bool {
				return a.Name() == b.Name() && a.Type() == b.Type()
			}) {
			t.Errorf("%s: the entries were %v and are %v, %v", name, before, after, err)
		}
		for _, entry := range after {
			if entry.Type().IsRegular() && name != "device" {
				if content, err := os.ReadFile(filepath.Join(staging, entry.Name())); err != nil || len(content) == 0 {
					t.Errorf("%s: %s was emptied, %v", name, entry.Name(), err)
				}
			}
			os.Remove(filepath.Join(staging, entry.Name()))
		}
	}
}

// TestRemoveRemovesDisksOfEarlierReleases: a Disk whose files have no mark, or of which only one
// file is left.
func TestRemoveRemovesDisksOfEarlierReleases(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	staging := b.Path("staging")
	for name, files := range map[string]map[string]os.FileMode{
		"both":                  {mounter.DeviceName: 0o640, tree.BackingName: 0o640},
		"backing alone":         {tree.BackingName: 0o640},
		"device with the mark":  {mounter.DeviceName: 0o640 | os.ModeSticky},
		"a torn backing, alone": {tree.BackingName: 0o641},
	} {
		linuxtest.Mkdir(t, staging)
		for file, mode := range files {
			content := ""
			if file == tree.BackingName && mode == 0o640 {
				content = "64768 1234567"
			}
			if err := errors.Join(
				os.WriteFile(filepath.Join(staging, file), []byte(content), 0o640),
				os.Chmod(filepath.Join(staging, file), mode),
			); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := b.Unmount(ctx, staging); err != nil {
				t.Errorf("%s: Unmount = %v", name, err)
			}
		}
		if err := b.Remove(ctx, staging); err != nil || linuxtest.Exists(staging) {
			t.Errorf("%s: Remove = %v, the directory is there: %v", name, err, linuxtest.Exists(staging))
		}
	}
}
