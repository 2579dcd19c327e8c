package mounter

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// goingDown is XFS_IOC_GOINGDOWN of fs/xfs/libxfs/xfs_fs.h of Linux, with what isn't to be written first: the log, too.
const goingDown, withoutLog = 0x8004587d, 2

func TestFailuresOfFilesystemsAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		fsType string
		fail   func(t *testing.T, device, path string)
		want   FailureKind
	}{
		"ext4 has found an error":     {"ext4", triggerError("errors=continue"), Erroneous},
		"ext4 makes itself read-only": {"ext4", triggerError("errors=remount-ro"), TurnedReadOnly},
		"xfs is shut down": {"xfs", func(t *testing.T, _, path string) {
			dir, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			defer runtime.KeepAlive(dir)
			flags := uint32(withoutLog)
			if err := ioctl(int(dir.Fd()), goingDown, unsafe.Pointer(&flags)); err != nil {
				t.Fatal(err)
			}
		}, Down},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLoopBench(t)
			m, well := b.image("image", tc.fsType), b.image("well", tc.fsType)
			b.mount(m, b.path("staging"))
			b.mount(well, b.path("other"))
			readOnly := b.image("read-only", tc.fsType)
			readOnly.ReadOnly = true
			b.mount(readOnly, b.path("third"))
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Errorf("Failing = %v, %v, want none", all, err)
			}
			device := ""
			for _, file := range b.loops() {
				if name, _ := os.ReadFile(file); string(name) == m.Source+"\n" {
					device = filepath.Base(filepath.Dir(filepath.Dir(file)))
				}
			}
			tc.fail(t, device, b.path("staging"))
			await(t, "the kernel counts the failure, which ext4 does in the background", func() bool {
				all, err := b.Failing()
				return err != nil || len(all) > 0
			})
			if all, err := b.Failing(); err != nil || len(all) != 1 || all[m.Source].Kind != tc.want {
				t.Errorf("Failing = %v, %v, want %d of %s", all, err, tc.want, m.Source)
			}
			b.unmount(b.path("staging"))
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Errorf("Failing of what isn't mounted = %v, %v", all, err)
			}
			b.mount(m, b.path("staging")) // which mends it
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				t.Errorf("Failing of what was mended = %v, %v", all, err)
			}
			for _, at := range []string{"staging", "other", "third"} {
				b.unmount(b.path(at))
			}
		})
	}
}

// triggerError makes ext4 find an error: fs/ext4/sysfs.c of Linux.
func triggerError(option string) func(t *testing.T, device, path string) {
	return func(t *testing.T, device, path string) {
		t.Helper()
		if err := unix.Mount("", path, "", unix.MS_REMOUNT, option); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("a test"), 0o200); err != nil {
			t.Fatal(err)
		}
	}
}
