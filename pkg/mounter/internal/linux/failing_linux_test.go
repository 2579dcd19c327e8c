package linux_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

func TestFailuresOfFilesystemsAreReported(t *testing.T) {
	for name, tc := range map[string]struct {
		fsType string
		fail   func(t *testing.T, device, path string)
		want   mounter.FailureKind
	}{
		"ext4 has found an error":     {"ext4", triggerError("errors=continue"), mounter.Erroneous},
		"ext4 makes itself read-only": {"ext4", triggerError("errors=remount-ro"), mounter.TurnedReadOnly},
		"xfs is shut down": {"xfs", func(t *testing.T, _, path string) { linuxtest.ShutDown(t, path) },
			mounter.Down},
		"ext4 is shut down": {"ext4", shutDownExt4, mounter.Down},
	} {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m, well := b.Image("image", tc.fsType), b.Image("well", tc.fsType)
			b.MustMount(m, b.Path("staging"))
			b.MustMount(well, b.Path("other"))
			readOnly := b.Image("read-only", tc.fsType)
			readOnly.ReadOnly = true
			b.MustMount(readOnly, b.Path("third"))
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Errorf("Failing = %v, %v, want none", all, err)
			}
			device := ""
			for _, file := range b.Loops() {
				if name, _ := os.ReadFile(file); string(name) == m.Source+"\n" {
					device = filepath.Base(filepath.Dir(filepath.Dir(file)))
				}
			}
			tc.fail(t, device, b.Path("staging"))
			await.True(t, "the kernel counts the failure, which ext4 does in the background", func() bool {
				all, err := b.Failing()
				return err != nil || len(all) > 0
			})
			if all, err := b.Failing(); err != nil || len(all) != 1 || all[m.Source].Kind != tc.want {
				t.Errorf("Failing = %v, %v, want %d of %s", all, err, tc.want, m.Source)
			}
			b.MustUnmount(b.Path("staging"))
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Errorf("Failing of what is not mounted = %v, %v", all, err)
			}
			b.MustMount(m, b.Path("staging")) // which repairs it
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Errorf("Failing of what was mended = %v, %v", all, err)
			}
			for _, at := range []string{"staging", "other", "third"} {
				b.MustUnmount(b.Path(at))
			}
		})
	}
}

// TestAnImageThatCannotBeMountedIsReported until it is mounted, or deleted.
func TestAnImageThatCannotBeMountedIsReported(t *testing.T) {
	ctx := t.Context()
	b := linuxtest.NewLoopBench(t)
	staging := b.Path("staging")
	damaged, blank := b.Image("damaged", "ext4"), b.Image("blank", "")
	blank.Kind, blank.FSType = mounter.Image, "xfs"
	good, err := os.ReadFile(damaged.Source)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"clri <2>", "set_super_value state 2"} { // the root directory is lost
		if out, err := exec.Command("debugfs", "-w", "-R", command, damaged.Source).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	reported := func(when string, want map[string]string) {
		t.Helper()
		all, err := b.Failing()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []mounter.Mount{damaged, blank} {
			f := all[m.Source]
			switch text := want[m.Source]; {
			case text == "" && f != mounter.Failure{}, text != "" && f.Kind != mounter.Unmountable,
				!strings.Contains(f.Message, text), strings.Contains(f.Message, "\n"):
				t.Errorf("%s: Failing has %+v for %s, want %q", when, f, m.Source, text)
			}
		}
	}
	reported("before the first mount", nil)
	for range 2 {
		b.Refused(damaged, staging, mounter.ErrFormat)
		b.Refused(blank, staging, mounter.ErrFormat)
	}
	reported("after the mounts", map[string]string{damaged.Source: "UNEXPECTED INCONSISTENCY", blank.Source: "filesystem"})
	if err := errors.Join(os.WriteFile(damaged.Source, good, 0o600), os.Remove(blank.Source)); err != nil {
		t.Fatal(err)
	}
	if err := b.Mount(ctx, damaged, staging); err != nil {
		t.Fatal(err)
	}
	reported("after the repair and the removal", nil)
	b.MustUnmount(staging)
}

// TestAnExt4IsRepairedWhileItsDeviceIsOpen: another process, such as udev's, keeps the image
// attached after its last unmount.
func TestAnExt4IsRepairedWhileItsDeviceIsOpen(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	device := linuxtest.LoopOf(t, m)
	open, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	triggerError("errors=continue")(t, filepath.Base(device), b.Path("staging"))
	await.True(t, "the kernel counts the failure", func() bool {
		all, err := b.Failing()
		return err != nil || len(all) > 0
	})
	b.MustUnmount(b.Path("staging"))
	b.MustMount(m, b.Path("staging"))
	if again := linuxtest.LoopOf(t, m); again != device {
		t.Fatalf("the image is attached to %s, not to %s: the test proves nothing", again, device)
	}
	if all, err := b.Failing(); err != nil || len(all) > 0 {
		t.Errorf("Failing of what was mended = %v, %v", all, err)
	}
	b.MustUnmount(b.Path("staging"))
}

// shutDownExt4 skips the test where the kernel does not show that an ext4 is shut down: before
// Linux 6.15 only an open of a file would, and files are tenants'.
func shutDownExt4(t *testing.T, device, path string) {
	t.Helper()
	linuxtest.ShutDown(t, path)
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " /dev/"+device+" ") && strings.Contains(line, ",shutdown") {
			return
		}
	}
	t.Skip("this kernel does not show that an ext4 is shut down")
}

// TestADeadDiskShows when a filesystem next writes to it.
func TestADeadDiskShows(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			disk := b.Image("disk", "xfs")
			b.MustMount(disk, b.Path("disk"))
			m := b.Image("image", fsType)
			inner := m
			inner.Source = b.Path("disk", "image")
			if err := linuxtest.SparseCopy(m.Source, inner.Source); err != nil {
				t.Fatal(err)
			}
			b.MustMount(inner, b.Path("staging"))
			b.WriteFile("hello", "staging", "f")
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Fatalf("Failing = %v, %v, want none", all, err)
			}
			linuxtest.ShutDown(t, b.Path("disk"))
			f, err := os.Create(b.Path("staging", "new"))
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Sync(); err == nil {
				t.Error("a file on a dead disk is durable")
			}
			f.Close()
			await.True(t, "the filesystem has noticed", func() bool {
				all, err := b.Failing()
				return err != nil || all[inner.Source].Kind != 0
			})
			all, err := b.Failing()
			if err != nil || len(all) != 2 || all[disk.Source].Kind != mounter.Down {
				t.Errorf("Failing = %v, %v, want the disk and the image on it", all, err)
			}
			b.MustUnmount(b.Path("staging"))
			testdisk.Detached(t, inner.Source) // another process may have the device open for a moment
			b.MustUnmount(b.Path("disk"))
		})
	}
}

// TestATenantDoesNotHoldUpFailing, who has a FIFO mounted as a part of a volume, or holds the lock
// of the volume's directory.
func TestATenantDoesNotHoldUpFailing(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := b.Image("image", fsType)
			b.MustMount(m, b.Path("staging"))
			fifo := b.Path("staging", "fifo")
			linuxtest.Mkdir(t, b.Path("staging", "sub"))
			if err := errors.Join(unix.Mkfifo(fifo, 0o600),
				os.WriteFile(b.Path("mounted fifo"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			for from, to := range map[string]string{fifo: b.Path("mounted fifo"),
				b.Path("staging", "sub"): b.Path("mounted")} {
				if to == b.Path("mounted") {
					linuxtest.Mkdir(t, to)
				}
				if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
					t.Fatal(err)
				}
				defer unix.Unmount(to, 0)
			}
			release := holdDirectory(t, b.Path("staging"))
			defer release()
			var all map[string]mounter.Failure
			if err := linuxtest.Returns(t, "Failing", func() (err error) { all, err = b.Failing(); return err }); err != nil ||
				len(all) > 0 {
				t.Errorf("Failing = %v, %v, want none", all, err)
			}
			release()
			for _, path := range []string{b.Path("mounted fifo"), b.Path("mounted")} {
				if err := unix.Unmount(path, 0); err != nil {
					t.Error(err)
				}
			}
			b.MustUnmount(b.Path("staging"))
		})
	}
}

// holdDirectory holds a directory's lock, as a process can that reads the directory into memory of
// which a page is missing: it gets the page (userfaultfd) when release is called. Another process
// waits to make a file, and readers wait for that.
func holdDirectory(t *testing.T, path string) (release func()) {
	t.Helper()
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("no userfaultfd: %v", errno)
	}
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	address := uint64(uintptr(unsafe.Pointer(&memory[0])))
	// From include/uapi/linux/userfaultfd.h of Linux: UFFDIO_API, UFFDIO_REGISTER.
	api := [3]uint64{0xaa}
	register := [4]uint64{address, uint64(page), 1}
	if err := errors.Join(
		tree.Ioctl(int(uffd), 0xc018aa3f, unsafe.Pointer(&api)), tree.Ioctl(int(uffd), 0xc020aa00, unsafe.Pointer(&register)),
	); err != nil {
		t.Fatal(err)
	}
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	release = sync.OnceFunc(func() {
		unix.Close(int(uffd)) // the page is there
		calls.Wait()
		unix.Close(dir)
		unix.Munmap(memory)
	})
	t.Cleanup(release)
	var blocked [3]atomic.Int64 // thread IDs
	calls.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		blocked[0].Store(int64(unix.Gettid()))
		unix.Syscall(unix.SYS_GETDENTS64, uintptr(dir), uintptr(address), uintptr(page))
	})
	isBlocked := func(i int) func() bool {
		return func() bool {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", blocked[i].Load()))
			_, rest, _ := strings.Cut(string(stat), ") ")
			return strings.HasPrefix(rest, "D") || strings.HasPrefix(rest, "S") && i == 0
		}
	}
	await.True(t, "the directory is being read", isBlocked(0))
	calls.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		blocked[1].Store(int64(unix.Gettid()))
		os.WriteFile(filepath.Join(path, "new"), nil, 0o600)
	})
	await.True(t, "a file is being made", isBlocked(1))
	calls.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		blocked[2].Store(int64(unix.Gettid()))
		os.ReadDir(path)
	})
	await.True(t, "a reader waits", isBlocked(2))
	return release
}

func TestAFilesystemThatDoesNotAnswerIsAFailure(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m, well := b.Image("image", "xfs"), b.Image("well", "xfs")
	b.MustMount(m, b.Path("staging"))
	b.MustMount(well, b.Path("well"))
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(b.Path("staging")))
	if err != nil || len(infos) != 1 {
		t.Fatal(infos, err)
	}
	hang := make(chan struct{})
	if _, err := linux.Opens(b.Host.(*linux.Host)).Start(infos[0].ID,
		func() (struct{}, error) { <-hang; return struct{}{}, nil }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		all, err := b.Failing()
		if err != nil || len(all) != 1 || all[m.Source].Kind != mounter.Stalled ||
			!strings.Contains(all[m.Source].Message, "does not answer") {
			t.Errorf("Failing = %v, %v, want that %s does not answer", all, err, m.Source)
		}
	}
	close(hang)
	await.True(t, "it answers", func() bool { all, err := b.Failing(); return err == nil && len(all) == 0 })
	b.MustUnmount(b.Path("staging"), b.Path("well"))
}

// triggerError makes ext4 find an error: fs/ext4/sysfs.c of Linux.
func triggerError(option string) func(t *testing.T, device, path string) {
	return func(t *testing.T, device, path string) {
		t.Helper()
		if err := unix.Mount("", path, "", unix.MS_REMOUNT, option); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("a test"),
			0o200); err != nil {
			t.Fatal(err)
		}
	}
}
