package disk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/disk"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// damage overwrites the first superblock of a disk.
func damage(t *testing.T, device, with string) {
	t.Helper()
	put(t, device, 0, strings.Repeat(with, 128<<10))
}

// TestFormatRecordDestroysNoDamagedFilesystem: a node recorded a format and died. Another node has
// used the disk since. Then the first superblock is damaged.
func TestFormatRecordDestroysNoDamagedFilesystem(t *testing.T) {
	for _, name := range []string{"before it begins", "when it is done"} {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			for _, with := range []string{"\x00", "x"} {
				t.Run(fsType+", "+name+", "+map[string]string{"\x00": "zeroes", "x": "data"}[with], func(t *testing.T) {
					b := linuxtest.NewLoopBench(t)
					m := attachDisk(b, "disk", fsType, diskSize)
					dieIn(b, m, dying[name].script)
					other := linuxtest.NewBench(t, linuxtest.RealMounter(t)) // has no record
					other.MustMount(m, other.Path("staging"))
					linuxtest.Write(t, other.Path("staging", "file"), "data")
					other.MustUnmount(other.Path("staging"))
					id := idOnDisk(t, m.Source)
					damage(t, m.Source, with)
					before := sumOf(b, "disk")
					err := b.Mount(context.Background(), m, b.Path("staging"))
					if !errors.Is(err, mounter.ErrDevice) || !strings.Contains(err.Error(), id) {
						t.Errorf("Mount = %v, want ErrDevice that names the UUID %s", err, id)
					}
					if sumOf(b, "disk") != before {
						t.Error("the disk was changed")
					}
				})
			}
		}
	}
}

// interrupted are formats of several sizes that ended before the write of the first superblock.
var interrupted = map[string]struct {
	fsType string
	size   int64
	format []string
}{
	"ext4":                             {"ext4", diskSize, nil},
	"ext4, blocks of 1024":             {"ext4", diskSize, []string{"-b", "1024"}},
	"ext4, blocks of 2048":             {"ext4", diskSize, []string{"-b", "2048"}},
	"ext4, 1 GiB and a half":           {"ext4", 3 << 29, []string{"-b", "4096"}},
	"xfs":                              {"xfs", diskSize, nil},
	"xfs, blocks of 1024":              {"xfs", diskSize, []string{"-b", "size=1024"}},
	"xfs, blocks of 1024, an odd size": {"xfs", 1000003 << 10, []string{"-b", "size=1024"}},
	"xfs, blocks of 2048":              {"xfs", 1000006 << 10, []string{"-b", "size=2048"}},
	"btrfs":                            {tree.Btrfs, diskSize, nil},
	"btrfs, 1 GiB, nodes of 4096":      {tree.Btrfs, 1 << 30, []string{"-n", "4096"}},
}

func TestInterruptedFormatIsRecognizedByItsCopies(t *testing.T) {
	for name, tc := range interrupted {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := attachDisk(b, "disk", tc.fsType, tc.size)
			m.Format = tc.format
			dieIn(b, m, dying["when it is done"].script)
			damage(t, m.Source, "\x00")
			put(t, m.Source, 0, "x") // no superblock, and not blank
			if tc.fsType == tree.Btrfs {
				put(t, m.Source, 64<<20+64, "!BHRfS_M")
			}
			dev, err := os.Open(m.Source)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			f, err := disk.ReadFormatting(b.Host.(*linux.Host).Disks, m.Serial)
			if err != nil || f == nil {
				t.Fatalf("the record is %v, %v", f, err)
			}
			c, err := signature.Examine(dev, tc.size)
			if err != nil || len(c.Copies) == 0 {
				t.Fatalf("examine = %+v, %v, want copies of superblocks", c, err)
			}
			for _, s := range c.Copies {
				if s.Name != tc.fsType || s.ID != f.UUID || !s.Fresh {
					t.Errorf("the copy at %d is %+v, want %s, %s, fresh", s.Offset, s, tc.fsType, f.UUID)
				}
			}
			b.MustMount(m, b.Path("staging"))
			if id := strings.ReplaceAll(idOnDisk(t, m.Source), "-", ""); id != f.UUID {
				t.Errorf("the new filesystem has the UUID %s, want %s, that of the interrupted format:"+
					" otherwise a second interruption would leave copies with two UUIDs", id, f.UUID)
			}
			b.MustUnmount(b.Path("staging"))
		})
	}
}

// TestReadCopiesFindsTheCopiesOfALargeXFS: from 4 TiB on, allocation groups have another size.
func TestReadCopiesFindsTheCopiesOfALargeXFS(t *testing.T) {
	for _, block := range []string{"1024", "4096"} {
		file := filepath.Join(t.TempDir(), "xfs")
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		const size = 5 << 40
		if err := f.Truncate(size); err != nil {
			t.Skip(err)
		}
		linuxtest.RunTool(t, "mkfs.xfs", "-q", "-f", "-b", "size="+block, file)
		all, err := signature.ReadCopies(f, size)
		if err != nil || len(all) < 4 { // the first one, too
			t.Errorf("blocks of %s: the copies are %+v, %v, want 4 or more", block, all, err)
		}
	}
}

// TestFailedFormatOfABlankDiskLeavesNoRecord: another node may use the disk next.
func TestFailedFormatOfABlankDiskLeavesNoRecord(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		left   int
	}{
		"mkfs writes nothing": {"exit 1", 0},
		"mkfs writes something": {"for device; do :; done;" +
			" dd if=/dev/urandom of=$device bs=64k count=3 conv=notrunc status=none; exit 1", 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m, dir, path := attachDisk(b, "disk", "ext4", diskSize), t.TempDir(), os.Getenv("PATH")
			script := []byte("#!/bin/sh\n" + tc.script + "\n")
			if err := os.WriteFile(filepath.Join(dir, "mkfs.ext4"), script, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+path)
			b.Refused(m, b.Path("staging"), mounter.ErrFormat)
			if left := records(b); len(left) != tc.left {
				t.Errorf("the records are %q, want %d", left, tc.left)
			}
			t.Setenv("PATH", path)
			b.MustMount(m, b.Path("staging"))
			b.MustUnmount(b.Path("staging"))
		})
	}
}
