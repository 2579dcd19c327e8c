package mounter

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
)

func TestRemoveRemovesOnlyTargetFiles(t *testing.T) {
	ctx := context.Background()
	b := newLoopBench(t)
	path := b.path("target")
	for name, make := range map[string]func() error{
		"an empty file": func() error { return os.WriteFile(path, nil, 0o640) },
		"a file with the mark, not empty": func() error {
			return errors.Join(os.WriteFile(path, []byte("x"), 0o640), unix.Chmod(path, targetMode))
		},
		"a file with the mark of a user": func() error {
			return errors.Join(os.WriteFile(path, nil, 0o640), os.Chown(path, 1000, 1000), unix.Chmod(path, targetMode))
		},
		"a FIFO": func() error { return unix.Mkfifo(path, targetMode) },
		"a device that is not mounted here": func() error {
			return unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, 250)))
		},
		"a link": func() error { return os.Symlink(b.storage, path) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Remove(ctx, path); !errors.Is(err, ErrPath) {
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
	b := newLoopBench(t)
	m := b.image("image", "")
	b.mount(m, b.path("staging"))
	device := m.BindFrom(b.path("staging"))
	path := b.path("target")
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
		"mounted": func() { b.mount(device, path) },
		"mounted, and killed in the middle of Remove": func() { b.mount(device, path); killed() },
		"mounted by an old release":                   old,
		"mounted by an old release, and killed after the update": func() {
			old()
			b.Host = realMounter(t)(b.kubelet)
			killed()
		},
		"mounted on an old release's file, and killed": func() {
			if err := os.WriteFile(path, nil, 0o640); err != nil {
				t.Fatal(err)
			}
			b.mount(device, path)
			killed()
		},
		"made, and killed before the mount": func() { b.hold(device, path) },
	} {
		begin()
		for range 2 {
			if err := b.Remove(ctx, path); err != nil || exists(path) {
				t.Errorf("%s: Remove = %v, the file is there: %v", name, err, exists(path))
				os.Remove(path)
			}
		}
	}
	b.unmount(b.path("staging"))
}

// TestFailedMountMarksNoFile: NodeUnpublishVolume follows a failed mount, and must not remove a
// foreign file.
func TestFailedMountMarksNoFile(t *testing.T) {
	ctx := context.Background()
	b := newLoopBench(t)
	m := b.image("image", "")
	b.mount(m, b.path("staging"))
	b.mount(m.BindFrom(b.path("staging")), b.path("target"))
	readOnly := m
	readOnly.ReadOnly = true
	if err := os.WriteFile(b.path("other"), nil, 0o640); err != nil {
		t.Fatal(err)
	}
	b.refused(readOnly.BindFrom(b.path("staging")), b.path("other"), ErrReadOnly)
	if err := b.Remove(ctx, b.path("other")); !errors.Is(err, ErrPath) || !exists(b.path("other")) {
		t.Errorf("Remove = %v, want ErrPath; the file is there: %v", err, exists(b.path("other")))
	}
	b.unmount(b.path("target"), b.path("staging"))
}

func TestTargetFileIsCreatedWithTheMark(t *testing.T) {
	b := newRealBench(t)
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	p, err := b.Host.(*linux).open(b.path("target"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := p.make(unix.S_IFREG); err != nil {
		t.Fatal(err)
	}
	if at, err := p.stat(); err != nil || !at.isTarget() {
		t.Errorf("%+v, %v has no mark", at, err)
	}
}

// TestForeignFilesInAStagingDirectoryStay: only the two files of a Disk belong to the driver.
func TestForeignFilesInAStagingDirectoryStay(t *testing.T) {
	ctx := context.Background()
	b := newLoopBench(t)
	m := b.image("image", "")
	write := func(path, content string) func() error {
		return func() error { return os.WriteFile(path, []byte(content), 0o640) }
	}
	staging := b.path("staging")
	device, backing := filepath.Join(staging, DeviceName), filepath.Join(staging, backingName)
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
		mkdir(t, staging)
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
		if err := b.Remove(ctx, staging); !errors.Is(err, ErrNotEmpty) {
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
	b := newLoopBench(t)
	staging := b.path("staging")
	for name, files := range map[string]map[string]os.FileMode{
		"both":                  {DeviceName: 0o640, backingName: 0o640},
		"backing alone":         {backingName: 0o640},
		"device with the mark":  {DeviceName: 0o640 | os.ModeSticky},
		"a torn backing, alone": {backingName: 0o641},
	} {
		mkdir(t, staging)
		for file, mode := range files {
			content := ""
			if file == backingName && mode == 0o640 {
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
		if err := b.Remove(ctx, staging); err != nil || exists(staging) {
			t.Errorf("%s: Remove = %v, the directory is there: %v", name, err, exists(staging))
		}
	}
}
