package disk_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/disk"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// TestMountRejectsAReplacedDisk: the disk that the backend has found is detached before Mount or
// Grow opens the disk.
func TestMountRejectsAReplacedDisk(t *testing.T) {
	for _, fsType := range []string{"ext4", ""} {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			staging := b.Path("staging")
			m := mounter.Mount{Kind: mounter.BlockDevice, Source: linuxtest.OwnLoop(t), FSType: fsType, Serial: "serial"}
			t.Cleanup(func() {
				b.Unmount(context.Background(), staging) // if the test has failed
				exec.Command("losetup", "--detach", m.Source).Run()
			})
			attach := func(name string) {
				file := filepath.Join(b.Storage, name)
				linuxtest.Write(t, file, "")
				if err := os.Truncate(file, diskSize); err != nil {
					t.Fatal(err)
				}
				linuxtest.AttachTo(t, m.Source, file)
			}
			attach("disk")
			find := func() uint64 {
				sequence, err := disk.SequenceIn(filepath.Join("/sys/block", filepath.Base(m.Source)))
				if err != nil || sequence == 0 {
					t.Skipf("the sequence number of %s is %d, %v", m.Source, sequence, err)
				}
				return sequence
			}
			m.Sequence = find()
			b.MustMount(m, staging)
			if err := b.Grow(context.Background(), m, staging); err != nil {
				t.Error(err)
			}
			b.MustUnmount(staging)
			linuxtest.RunTool(t, "losetup", "--detach", m.Source)
			attach("other")
			before := sumOf(b, "other")
			b.Refused(m, staging, mounter.ErrDevice)
			if sumOf(b, "other") != before {
				t.Error("the other disk was changed")
			}
			now := m
			now.Sequence = find()
			b.MustMount(now, staging)
			if err := b.Grow(context.Background(), m, staging); !errors.Is(err, mounter.ErrDevice) {
				t.Errorf("Grow = %v, want ErrDevice", err)
			}
			b.MustUnmount(staging)
		})
	}
}

// TestAnAttachedDiskIsFoundAndFormatted needs blank disks, whose serial numbers are in the
// environment. The guest of test/vm has a virtio, an NVMe and a SCSI disk.
func TestAnAttachedDiskIsFoundAndFormatted(t *testing.T) {
	serials := strings.Fields(os.Getenv("CAUSEWAY_TEST_DISKS"))
	if len(serials) == 0 {
		t.Skip("this machine has no disks for tests: make test-vm has some")
	}
	for _, serial := range serials {
		t.Run("ext4 on "+serial, func(t *testing.T) {
			b := linuxtest.NewBench(t, linuxtest.RealMounter(t))
			path, sequence := "", uint64(0)
			await.True(t, "the kernel finds "+serial, func() bool {
				var err error
				path, sequence, err = disk.Find(context.Background(), serial)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				return err == nil
			})
			t.Logf("%s is %s", serial, path)
			if sequence == 0 {
				t.Error("the disk has no sequence number")
			}
			m := mounter.Mount{
				Kind: mounter.BlockDevice, Source: path, FSType: "ext4", Serial: serial, Size: 64 << 20, Sequence: sequence,
			}
			for range 2 {
				b.MustMount(m, b.Path("staging"))
				if _, err := os.Stat(b.Path("staging", "file")); errors.Is(err, fs.ErrNotExist) {
					linuxtest.Write(t, b.Path("staging", "file"), "data")
				}
				if err := b.Grow(context.Background(), m, b.Path("staging")); err != nil {
					t.Error(err)
				}
				b.MustUnmount(b.Path("staging"))
			}
			rescan := filepath.Join("/sys/block", filepath.Base(path), "device/rescan")
			if scsi := strings.HasPrefix(filepath.Base(path), "sd"); scsi != linuxtest.Exists(rescan) {
				t.Errorf("%s exists: %v; only a SCSI disk has this file, which rescans the size", rescan, !scsi)
			}
			m.ReadOnly = true
			b.MustMount(m, b.Path("staging"))
			if got := linuxtest.Read(t, b.Path("staging", "file")); got != "data" {
				t.Errorf("the file has %q", got)
			}
			b.MustUnmount(b.Path("staging"))
		})
	}
}
