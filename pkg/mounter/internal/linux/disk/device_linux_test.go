package disk_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/disk"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

const diskSize = 320 << 20

// attachDisk makes a loop device with a new file of the bench, which plays a disk, until the test
// is over.
func attachDisk(b *linuxtest.Bench, name, fsType string, size int64) mounter.Mount {
	b.T.Helper()
	file := filepath.Join(b.Storage, name)
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		b.T.Fatal(err)
	}
	if _, err := exec.LookPath("mkfs." + fsType); fsType != "" && err != nil {
		b.T.Skip(err)
	}
	device := strings.TrimSpace(linuxtest.RunTool(b.T, "losetup", "--show", "--find", file))
	b.T.Cleanup(func() {
		b.Unmount(context.Background(), b.Path("staging"))    // if the test has failed
		linuxtest.RunTool(b.T, "blockdev", "--setrw", device) // the kernel keeps that for the next file
		linuxtest.RunTool(b.T, "losetup", "--detach", device)
	})
	return mounter.Mount{Kind: mounter.BlockDevice, Source: device, FSType: fsType, Serial: "serial of " + name}
}

// sumOf returns the SHA-256 of all blocks of a disk that are not zero, with their places.
func sumOf(b *linuxtest.Bench, name string) [32]byte {
	b.T.Helper()
	testdisk.Flush(b.T, filepath.Join(b.Storage, name))
	f, err := os.Open(filepath.Join(b.Storage, name))
	if err != nil {
		b.T.Fatal(err)
	}
	defer f.Close()
	sum, zeros := sha256.New(), make([]byte, 4096)
	for end := int64(0); ; {
		start, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return [32]byte(sum.Sum(nil))
		}
		if err == nil {
			end, err = f.Seek(start, unix.SEEK_HOLE)
		}
		if err != nil {
			b.T.Fatal(err)
		}
		for block, at := make([]byte, 4096), start; at < end; at += int64(len(block)) {
			n, err := f.ReadAt(block, at)
			if err != nil && err != io.EOF {
				b.T.Fatal(err)
			}
			if !bytes.Equal(block[:n], zeros[:n]) {
				fmt.Fprintln(sum, at)
				sum.Write(block[:n])
			}
		}
	}
}

// records returns the records of formats.
func records(b *linuxtest.Bench) []string {
	b.T.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(b.Kubelet), "frozen", disk.FormatsDir, "*"))
	if err != nil {
		b.T.Fatal(err)
	}
	return all
}

func idOnDisk(t *testing.T, device string) string {
	t.Helper()
	return strings.TrimSpace(linuxtest.RunTool(t, "blkid", "-p", "-o", "value", "-s", "UUID", device))
}

func TestABlankDeviceIsFormattedOnce(t *testing.T) {
	for _, old := range []bool{false, true} {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				b.Host.(*linux.Host).Tree.Legacy.Store(old)
				m, staging, target := attachDisk(b, "disk", fsType, diskSize), b.Path("staging"), b.Path("target")
				m.Options = []string{"noatime"}
				b.MustMount(m, staging)
				if left := records(b); len(left) > 0 {
					t.Errorf("it is mounted, and a record would let it be formatted again: %q", left)
				}
				id := idOnDisk(t, m.Source)
				linuxtest.Write(t, filepath.Join(staging, "file"), "data")
				b.MustMount(m, staging) // again
				b.MustMount(m.BindFrom(staging), target)
				for _, path := range []string{staging, target} {
					if !b.IsMounted(m, path) {
						t.Errorf("Mounted(%s) = false", path)
					}
				}
				if got, err := b.OtherTargets(context.Background(), staging); err != nil ||
					!slices.Equal(got, []string{target}) {
					t.Errorf("OtherTargets = %q, %v", got, err)
				}
				b.Host = linuxtest.RealMounter(t)(b.Kubelet) // a new process
				if !b.IsMounted(m, staging) || !b.IsMounted(m, target) ||
					b.IsMounted(attachDisk(b, "other", fsType, diskSize), staging) {
					t.Error("a new process sees another disk")
				}
				b.MustUnmount(target)
				b.MustUnmount(staging)
				b.MustMount(m, staging)
				if got := linuxtest.Read(t, filepath.Join(staging, "file")); got != "data" || idOnDisk(t, m.Source) != id {
					t.Errorf("the disk was formatted again: the file has %q, the UUIDs are %s and %s", got, id,
						idOnDisk(t, m.Source))
				}
				if u, err := b.Usage(context.Background(), staging); err != nil || u.TotalBytes < diskSize/2 {
					t.Errorf("Usage = %+v, %v", u, err)
				}
				b.MustUnmount(staging)
				if left := records(b); len(left) > 0 {
					t.Errorf("records are left: %q", left)
				}
			})
		}
	}
}

// put writes bytes to a device, at an offset that counts from its end if it is negative.
func put(t *testing.T, device string, offset int64, data string) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if offset < 0 {
		offset += diskSize
	}
	if _, err := f.WriteAt([]byte(data), offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// onlyCopy makes a filesystem and removes all that lies before a copy of its superblock.
func onlyCopy(t *testing.T, device string, before int64, mkfs ...string) {
	t.Helper()
	linuxtest.RunTool(t, mkfs[0], append(mkfs[1:], device)...)
	linuxtest.RunTool(t, "dd", "if=/dev/zero", "of="+device, "bs=1M", fmt.Sprintf("count=%d", before>>20),
		"conv=notrunc,fsync",
		"status=none")
}

// spoils put a content on a disk that must never be formatted, and return its name in the error.
var spoils = map[string]struct {
	fsType string // which is wanted; "" is ext4
	spoil  func(t *testing.T, device string)
	want   string
}{
	"xfs":                 {"", made("mkfs.xfs", "-q"), "xfs"},
	"btrfs":               {"", made("mkfs.btrfs", "-q"), "btrfs"},
	"ext4":                {"xfs", made("mkfs.ext4", "-q"), "ext4"},
	"ext3":                {"", made("mke2fs", "-q", "-t", "ext3"), "ext3"},
	"swap":                {"", made("mkswap"), "swap"},
	"LUKS":                {"", bytesAt(0, "LUKS\xba\xbe\x00\x02"), "LUKS"},
	"LUKS, second header": {"", bytesAt(4<<20, "SKUL\xba\xbe\x00\x02"), "LUKS"},
	"LVM2": {"", bytesAt(512,
		"LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001"), "LVM2"},
	"GPT":                  {"", bytesAt(512, "EFI PART"), "GPT"},
	"GPT, 4096":            {"", bytesAt(4096, "EFI PART"), "GPT"},
	"GPT, copy":            {"", bytesAt(-512, "EFI PART"), "GPT"},
	"GPT, copy, 4096":      {"", bytesAt(-4096, "EFI PART"), "GPT"},
	"MBR":                  {"", bytesAt(510, "\x55\xaa"), "MBR"},
	"f2fs":                 {"", bytesAt(1024, "\x10\x20\xf5\xf2"), "f2fs"},
	"zfs":                  {"", bytesAt(132<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"), "zfs"},
	"zfs, last label":      {"", bytesAt(-256<<10, "\x01\x01"), signature.Unknown},
	"mdraid 1.0":           {"", bytesAt(-8<<10, "\xfc\x4e\x2b\xa9"), "mdraid"},
	"mdraid 0.90":          {"", bytesAt(-64<<10, "\xfc\x4e\x2b\xa9"), "mdraid"},
	"mdraid 1.2":           {"", bytesAt(4096, "\xfc\x4e\x2b\xa9"), "mdraid"},
	"one bit at the start": {"", bytesAt(0, "\x01"), signature.Unknown},
	"one bit at the end":   {"", bytesAt(-1, "\x80"), signature.Unknown},
	"btrfs, only a copy": {"", func(t *testing.T, device string) {
		onlyCopy(t, device, 8<<20, "mkfs.btrfs", "-q")
	}, signature.Unknown},
	"ext4, only a copy": {"", func(t *testing.T, device string) {
		onlyCopy(t, device, 127<<20, "mkfs.ext4", "-q", "-b", "4096")
	}, signature.Unknown},
	"ext4 with blocks of 1024, only a copy": {"", func(t *testing.T, device string) {
		onlyCopy(t, device, 7<<20, "mkfs.ext4", "-q", "-b", "1024")
	}, signature.Unknown},
	"xfs, only a copy": {"", func(t *testing.T, device string) {
		onlyCopy(t, device, 16<<20, "mkfs.xfs", "-q")
	}, signature.Unknown},
	"ext4 beside a partition table": {"", func(t *testing.T, device string) {
		linuxtest.RunTool(t, "mkfs.ext4", "-q", device)
		put(t, device, 446, "\x00\x00\x02\x00\x83\x00\x00\x00\x08\x00\x00\x00\x00\x08\x00\x00")
		put(t, device, 510, "\x55\xaa")
	}, "partitions"},
}

func made(mkfs ...string) func(t *testing.T, device string) {
	return func(t *testing.T, device string) { linuxtest.RunTool(t, mkfs[0], append(mkfs[1:], device)...) }
}

func bytesAt(offset int64, data string) func(t *testing.T, device string) {
	return func(t *testing.T, device string) { put(t, device, offset, data) }
}

func TestADeviceWithOtherDataStaysAsItIs(t *testing.T) {
	for name, tc := range spoils {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := attachDisk(b, "disk", "ext4", diskSize)
			if tc.fsType != "" {
				m.FSType = tc.fsType
			}
			tc.spoil(t, m.Source)
			before := sumOf(b, "disk")
			for range 2 {
				err := b.Mount(context.Background(), m, b.Path("staging"))
				if !errors.Is(err, mounter.ErrDevice) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("Mount = %v, want ErrDevice that names %s", err, tc.want)
				}
			}
			if linuxtest.Exists(b.Path("staging")) || len(records(b)) > 0 {
				t.Errorf("something is left: %v, %q", linuxtest.Exists(b.Path("staging")), records(b))
			}
			if sumOf(b, "disk") != before {
				t.Error("the disk was changed")
			}
		})
	}
}

// TestADeviceThatCannotBeUsedStaysAsItIs is about disks that are blank, or have their filesystem.
func TestADeviceThatCannotBeUsedStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(b *linuxtest.Bench, m *mounter.Mount)
		want   error
	}{
		"the end cannot be read": {func(b *linuxtest.Bench, m *mounter.Mount) {
			if err := os.Truncate(filepath.Join(b.Storage, "disk"), diskSize-512<<10); err != nil {
				b.T.Fatal(err)
			}
		}, unix.EIO},
		"smaller than the volume": {func(_ *linuxtest.Bench, m *mounter.Mount) { m.Size = diskSize + 1 }, mounter.ErrDevice},
		"read-only and blank":     {func(_ *linuxtest.Bench, m *mounter.Mount) { m.ReadOnly = true }, mounter.ErrDevice},
		"without a serial number": {func(_ *linuxtest.Bench, m *mounter.Mount) { m.Serial = "" }, mounter.ErrDevice},
		"an option of mkfs": {func(_ *linuxtest.Bench, m *mounter.Mount) { m.Format = []string{"-d", "/etc"} },
			mounter.ErrOption},
		"a mount option": {func(_ *linuxtest.Bench, m *mounter.Mount) { m.Options = []string{"nobarrier"} },
			mounter.ErrOption},
		"in use": {func(b *linuxtest.Bench, m *mounter.Mount) {
			f, err := os.OpenFile(m.Source, os.O_RDONLY|unix.O_EXCL, 0)
			if err != nil {
				b.T.Fatal(err)
			}
			b.T.Cleanup(func() { f.Close() })
		}, mounter.ErrBusy},
		"a device for reading only": {func(b *linuxtest.Bench, m *mounter.Mount) {
			linuxtest.RunTool(b.T, "blockdev",
				"--setro", m.Source)
		},
			mounter.ErrReadOnly},
		"a damaged record": {func(b *linuxtest.Bench, m *mounter.Mount) {
			l := b.Host.(*linux.Host)
			if err := disk.WriteFormatting(l.Disks, disk.NewFormatting(*m, diskSize)); err != nil {
				b.T.Fatal(err)
			}
			linuxtest.Write(b.T, disk.FormatPath(l.Disks, m.Serial), "{")
		}, mounter.ErrDevice},
		"a target that is a link": {func(b *linuxtest.Bench, _ *mounter.Mount) {
			if err := os.Symlink(b.Storage, b.Path("staging")); err != nil {
				b.T.Fatal(err)
			}
		}, mounter.ErrPath},
		"a source that is a link": {func(b *linuxtest.Bench, m *mounter.Mount) {
			link := filepath.Join(b.Storage, "link")
			if err := os.Symlink(m.Source, link); err != nil {
				b.T.Fatal(err)
			}
			m.Source = link
		}, mounter.ErrPath},
	} {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := attachDisk(b, "disk", "ext4", diskSize)
			tc.change(b, &m)
			before := sumOf(b, "disk")
			b.Refused(m, b.Path("staging"), tc.want)
			if sumOf(b, "disk") != before {
				t.Error("the disk was changed")
			}
		})
	}
	t.Run("no device", func(t *testing.T) {
		b := linuxtest.NewLoopBench(t)
		b.Image("file", "")
		b.Refused(mounter.Mount{Kind: mounter.BlockDevice, Source: filepath.Join(b.Storage, "file"), FSType: "ext4",
			Serial: "s"},
			b.Path("staging"), mounter.ErrDevice)
		b.Refused(mounter.Mount{Kind: mounter.BlockDevice, Source: b.Storage, Serial: "s"}, b.Path("staging"),
			mounter.ErrDevice)
	})
}

func TestADeviceThatIsMountedElsewhereIsRefused(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := attachDisk(b, "disk", fsType, diskSize)
			b.MustMount(m, b.Path("staging"))
			b.Refused(m, b.Path("other"), mounter.ErrBusy)
			raw := m
			raw.FSType = ""
			b.Refused(raw, b.Path("raw"), mounter.ErrBusy)
			if linuxtest.Exists(b.Path("other")) || linuxtest.Exists(b.Path("raw")) {
				t.Error("a target is left")
			}
			b.MustUnmount(b.Path("staging"))
			b.MustMount(m, b.Path("other"))
			b.MustUnmount(b.Path("other"))
		})
	}
}

// TestACopyOfADiskIsMountedBesideIt is about disks that are made from snapshots.
func TestACopyOfADiskIsMountedBesideIt(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m, staging, other := attachDisk(b, "disk", fsType, diskSize), b.Path("staging"), b.Path("other")
			b.MustMount(m, staging)
			linuxtest.Write(t, filepath.Join(staging, "file"), "data")
			b.MustUnmount(staging)
			clone := attachDisk(b, "clone", fsType, diskSize)
			linuxtest.RunTool(t, "dd", "if="+m.Source, "of="+clone.Source, "bs=1M", "conv=fsync", "status=none")
			b.MustMount(m, staging)
			if fsType == tree.Btrfs {
				b.Refused(clone, other, mounter.ErrBusy)
				b.MustUnmount(staging)
			}
			b.MustMount(clone, other)
			linuxtest.Write(t, filepath.Join(other, "file"), "changed")
			if fsType != tree.Btrfs && linuxtest.Read(t, filepath.Join(staging, "file")) != "data" {
				t.Error("the disk shows what was written to its copy")
			}
			b.MustUnmount(staging, other)
			b.MustMount(m, staging)
			if linuxtest.Read(t, filepath.Join(staging, "file")) != "data" {
				t.Error("the disk has what was written to its copy")
			}
			b.MustUnmount(staging)
		})
	}
}

func TestADeviceWhoseSizeChangesIsNotFormatted(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := attachDisk(b, "disk", "ext4", diskSize)
	dev, err := os.Open(m.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	resizeDisk(b, m, "disk", 2*diskSize)
	l := b.Host.(*linux.Host)
	before := sumOf(b, "disk")
	if err := disk.BeginFormat(l.Disks, m, dev, diskSize); !errors.Is(err, mounter.ErrDevice) {
		t.Errorf("begin = %v, want ErrDevice", err)
	}
	if len(records(b)) > 0 || sumOf(b, "disk") != before {
		t.Error("something was written")
	}
}

// resizeDisk gives the file of a disk another size.
func resizeDisk(b *linuxtest.Bench, m mounter.Mount, name string, size int64) {
	b.T.Helper()
	if err := os.Truncate(filepath.Join(b.Storage, name), size); err != nil {
		b.T.Fatal(err)
	}
	linuxtest.RunTool(b.T, "losetup", "--set-capacity", m.Source)
}

func TestAMountedDeviceGrows(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			ctx := context.Background()
			m, staging, target := attachDisk(b, "disk", fsType, diskSize), b.Path("staging"), b.Path("target")
			b.MustMount(m, staging)
			b.MustMount(m.BindFrom(staging), target)
			linuxtest.Write(t, filepath.Join(target, "file"), "data")
			f, err := os.OpenFile(filepath.Join(target, "open"), os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := b.Grow(ctx, m, staging); err != nil { // there is nothing to grow
				t.Fatal(err)
			}
			before, err := b.Usage(ctx, staging)
			if err != nil {
				t.Fatal(err)
			}
			resizeDisk(b, m, "disk", 2*diskSize)
			for _, path := range []string{staging, target} {
				err := b.Grow(ctx, m, path)
				// test/vm is a machine where root may
				if fsType == "ext4" && errors.Is(err, mounter.ErrBusy) && !linuxtest.MayGrowExt4(t) {
					t.Log("this kernel lets us grow an ext4 only when it is mounted the next time")
					f.Close()
					b.MustUnmount(target, staging)
					b.MustMount(m, staging)
					b.MustMount(m.BindFrom(staging), target)
					if f, err = os.OpenFile(filepath.Join(target, "open"), os.O_WRONLY, 0); err != nil {
						t.Fatal(err)
					}
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			after, err := b.Usage(ctx, target)
			if err != nil || after.TotalBytes < before.TotalBytes+diskSize*9/10 {
				t.Errorf("the filesystem had %d bytes and has %d, %v", before.TotalBytes, after.TotalBytes, err)
			}
			t.Logf("%d bytes, then %d", before.TotalBytes, after.TotalBytes)
			if _, err := f.WriteString("more"); err != nil || linuxtest.Read(t, filepath.Join(staging, "file")) != "data" {
				t.Errorf("the data are gone: %v", err)
			}
			f.Close()
			b.MustUnmount(target)
			b.MustUnmount(staging)
			m.ReadOnly = true
			b.MustMount(m, staging)
			if err := b.Grow(ctx, m, staging); !errors.Is(err, mounter.ErrReadOnly) {
				t.Errorf("Grow of a read-only mount = %v, want ErrReadOnly", err)
			}
			b.MustUnmount(staging)
		})
	}
}

// TestAnExt4GrowsBeforeItIsMountedOnlyWhereItMust: resize2fs that is killed can leave a damaged
// ext4.
func TestAnExt4GrowsBeforeItIsMountedOnlyWhereItMust(t *testing.T) {
	t.Run("ext4", func(t *testing.T) {
		b := linuxtest.NewLoopBench(t)
		m, staging := attachDisk(b, "disk", "ext4", diskSize), b.Path("staging")
		b.MustMount(m, staging)
		before, err := b.Usage(context.Background(), staging)
		if err != nil {
			t.Fatal(err)
		}
		b.MustUnmount(staging)
		resizeDisk(b, m, "disk", 2*diskSize)
		b.MustMount(m, staging)
		mounted, err := b.Usage(context.Background(), staging)
		if grown := mounted.TotalBytes > before.TotalBytes; err != nil || grown == linuxtest.MayGrowExt4(t) {
			t.Errorf("it had %d bytes and has %d when it is mounted, %v", before.TotalBytes, mounted.TotalBytes, err)
		}
		if err := b.Grow(context.Background(), m, staging); err != nil {
			t.Error(err)
		}
		after, err := b.Usage(context.Background(), staging)
		if err != nil || after.TotalBytes < before.TotalBytes+diskSize*9/10 {
			t.Errorf("it had %d bytes and has %d, %v", before.TotalBytes, after.TotalBytes, err)
		}
		b.MustUnmount(staging)
	})
}

func TestADeviceWithoutAFilesystemIsMountedAsItIs(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	ctx := context.Background()
	m, staging, target := attachDisk(b, "disk", "", diskSize), b.Path("staging"), b.Path("target")
	linuxtest.RunTool(t, "mkfs.ext4", "-q", m.Source)
	before := sumOf(b, "disk")
	b.MustMount(m, staging)
	b.MustMount(m, staging)
	b.MustMount(m.BindFrom(staging), target)
	for _, path := range []string{staging, target} {
		if u, err := b.Usage(ctx, path); err != nil || u.TotalBytes != diskSize || !b.IsMounted(m, path) {
			t.Errorf("at %s: Usage = %+v, %v, mounted: %v", path, u, err, b.IsMounted(m, path))
		}
	}
	if sumOf(b, "disk") != before {
		t.Error("the disk was changed")
	}
	b.Host = linuxtest.RealMounter(t)(b.Kubelet)
	if !b.IsMounted(m, staging) || !b.IsMounted(m, target) {
		t.Error("a new process does not see it")
	}
	linuxtest.Write(t, target, "written by a pod")
	if err := b.Grow(ctx, m, staging); err != nil {
		t.Error(err)
	}
	readOnly := m.BindFrom(staging)
	readOnly.ReadOnly = true
	b.Refused(readOnly, b.Path("other"), mounter.ErrReadOnly)
	if err := b.Remove(ctx, target); err != nil || linuxtest.Exists(target) {
		t.Errorf("Remove = %v", err)
	}
	b.MustMount(readOnly, target)
	if err := os.WriteFile(target, []byte("x"), 0o600); !errors.Is(err, unix.EPERM) {
		t.Errorf("a write to the device that is mounted read-only: %v", err)
	}
	if err := b.Remove(ctx, target); err != nil {
		t.Error(err)
	}
	if err := b.Remove(ctx, staging); err != nil || linuxtest.Exists(staging) {
		t.Errorf("Remove = %v", err)
	}
	if ro := strings.TrimSpace(linuxtest.RunTool(t, "blockdev", "--getro", m.Source)); ro != "0" {
		t.Error("the disk is left read-only")
	}
	testdisk.Flush(t, filepath.Join(b.Storage, "disk"))
	if start := linuxtest.ReadAt(t, filepath.Join(b.Storage, "disk"), 0, 16); start != "written by a pod" {
		t.Errorf("the disk starts with %q: what was written is not on it", start)
	}
}

// TestANodeOfAnotherDiskIsReplaced: the number of a disk that was detached by force is soon
// another's.
func TestANodeOfAnotherDiskIsReplaced(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	disk, other := filepath.Join(b.Storage, "disk"), filepath.Join(b.Storage, "other")
	for _, file := range []string{disk, other} {
		if err := errors.Join(os.WriteFile(file, []byte(file), 0o600), os.Truncate(file, diskSize)); err != nil {
			t.Fatal(err)
		}
	}
	m, staging := mounter.Mount{Kind: mounter.BlockDevice, Source: linuxtest.OwnLoop(t),
		Serial: "serial"}, b.Path("staging")
	linuxtest.AttachTo(t, m.Source, disk)
	t.Cleanup(func() { linuxtest.RunTool(t, "losetup", "--detach", m.Source) })
	b.MustMount(m, staging)
	linuxtest.RunTool(t, "losetup", "--detach", m.Source)
	linuxtest.AttachTo(t, m.Source, other)
	if b.IsMounted(m, staging) {
		t.Fatal("the node of the disk before counts as mounted")
	}
	b.MustMount(m, staging)
	if !b.IsMounted(m, staging) {
		t.Error("the disk is not mounted")
	}
	b.MustUnmount(staging)
}

// dieIn mounts a disk in another process, in which script runs in place of mkfs. $real is the
// program, $device the disk, and $PPID the driver.
func dieIn(b *linuxtest.Bench, m mounter.Mount, script string) {
	b.T.Helper()
	resolved, err := exec.LookPath("mkfs." + m.FSType)
	if err != nil {
		b.T.Fatal(err)
	}
	dir := b.T.TempDir()
	script = "#!/bin/sh\nreal=" + resolved + "\nfor device; do :; done\n" + script + "\nkill -9 $PPID\n"
	if err := os.WriteFile(filepath.Join(dir, "mkfs."+m.FSType), []byte(script), 0o755); err != nil {
		b.T.Fatal(err)
	}
	order, err := json.Marshal(linuxtest.MountProcess{Kubelet: b.Kubelet,
		State: filepath.Join(filepath.Dir(b.Kubelet), "frozen"), Path: b.Path("staging"), Mount: m})
	if err != nil {
		b.T.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), linuxtest.AsMounter+"="+string(order), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		b.T.Fatalf("the process ended with %v and said %s", err, out)
	}
	// The script, and the format that it has killed, have the disk open until they have really
	// ended.
	await.NoError(b.T, "no process has the disk open", func() error {
		f, err := os.OpenFile(m.Source, os.O_RDONLY|unix.O_EXCL, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	})
}

// dying are scripts in which a format dies, and whether the disk has its filesystem then.
var dying = map[string]struct {
	script string
	done   bool
}{
	"before it begins": {":", false},
	"when it has written what no filesystem has": {
		"dd if=/dev/urandom of=$device bs=64k count=3 conv=notrunc status=none; dd if=/dev/urandom of=$device bs=64k " +
			"seek=5119 count=1 conv=notrunc status=none", false},
	"after 1 ms":      {`"$real" "$@" & sleep 0.001; kill -9 $!`, false},
	"after 5 ms":      {`"$real" "$@" & sleep 0.005; kill -9 $!`, false},
	"after 20 ms":     {`"$real" "$@" & sleep 0.02; kill -9 $!`, false},
	"when it is done": {`"$real" "$@"`, true},
}

func TestAFormatThatDiedIsBegunAnewByItsRecord(t *testing.T) {
	for name, tc := range dying {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			t.Run(fsType+", "+name, func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				m := attachDisk(b, "disk", fsType, diskSize)
				dieIn(b, m, tc.script)
				if all := records(b); len(all) != 1 {
					t.Fatalf("the records are %q", all)
				}
				f, err := disk.ReadFormatting(b.Host.(*linux.Host).Disks, m.Serial)
				if err != nil {
					t.Fatal(err)
				}
				b.MustMount(m, b.Path("staging"))
				if left := records(b); len(left) > 0 {
					t.Errorf("records are left: %q", left)
				}
				if id := strings.ReplaceAll(idOnDisk(t, m.Source), "-", ""); tc.done && fsType == tree.Btrfs &&
					id != f.UUID {
					t.Error("a filesystem that was complete was made anew")
				}
				linuxtest.Write(t, b.Path("staging", "file"), "data")
				b.MustUnmount(b.Path("staging"))
				b.MustMount(m, b.Path("staging"))
				if linuxtest.Read(t, b.Path("staging", "file")) != "data" {
					t.Error("the data are gone")
				}
				b.MustUnmount(b.Path("staging"))
			})
		}
	}
}

// TestAFormatThatDiedElsewhereIsNotBegunAnew: this node has no record of it, or that of another
// disk.
func TestAFormatThatDiedElsewhereIsNotBegunAnew(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := attachDisk(b, "disk", "ext4", diskSize)
	dieIn(b, m, dying["when it has written what no filesystem has"].script)
	before := sumOf(b, "disk")
	stranger := m
	stranger.Serial = "another"
	b.Refused(stranger, b.Path("staging"), mounter.ErrDevice)
	if err := os.Remove(records(b)[0]); err != nil {
		t.Fatal(err)
	}
	b.Refused(m, b.Path("staging"), mounter.ErrDevice)
	if sumOf(b, "disk") != before {
		t.Error("the disk was changed")
	}
}

// TestARecordDestroysNothingThatWasUsedSince: the volume moves to another node, and comes back.
func TestARecordDestroysNothingThatWasUsedSince(t *testing.T) {
	for _, name := range []string{"before it begins", "when it is done"} {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			t.Run(fsType+", "+name, func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				m := attachDisk(b, "disk", fsType, diskSize)
				dieIn(b, m, dying[name].script)
				other := linuxtest.NewBench(t, linuxtest.RealMounter(t)) // has no record
				other.MustMount(m, other.Path("staging"))
				linuxtest.Write(t, other.Path("staging", "file"), "data")
				other.MustUnmount(other.Path("staging"))
				if len(records(b)) != 1 {
					t.Fatal("there is no record")
				}
				b.MustMount(m, b.Path("staging"))
				if linuxtest.Read(t, b.Path("staging", "file")) != "data" || len(records(b)) > 0 {
					t.Errorf("the data are gone, or the record is left: %q", records(b))
				}
				b.MustUnmount(b.Path("staging"))
			})
		}
	}
}

// TestARecordDestroysNothingThatADeadNodeUsed: the other node dies after it has mounted the disk,
// or after it has synced a file.
func TestARecordDestroysNothingThatADeadNodeUsed(t *testing.T) {
	for _, synced := range []bool{false, true} {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			t.Run(fmt.Sprintf("%s, a file is synced: %v", fsType, synced), func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				m := attachDisk(b, "disk", fsType, diskSize)
				dieIn(b, m, dying["when it is done"].script)
				id := idOnDisk(t, m.Source)
				other := linuxtest.NewBench(t, linuxtest.RealMounter(t)) // has no record
				other.MustMount(m, other.Path("staging"))
				if synced {
					writeSynced(t, other.Path("staging", "file"), "data")
				}
				file, copied := filepath.Join(b.Storage, "disk"), filepath.Join(b.Storage, "copy")
				linuxtest.RunTool(t, "blockdev", "--flushbufs", m.Source)
				linuxtest.RunTool(t, "cp", file, copied)
				other.MustUnmount(other.Path("staging"))
				// Another test could take the number of a detached device.
				linuxtest.RunTool(t, "dd", "if="+copied, "of="+m.Source, "bs=1M", "conv=fsync", "status=none")
				b.MustMount(m, b.Path("staging"))
				if idOnDisk(t, m.Source) != id || len(records(b)) > 0 {
					t.Errorf("the disk was formatted again, or the record is left: %q", records(b))
				}
				if synced && linuxtest.Read(t, b.Path("staging", "file")) != "data" {
					t.Error("the data are gone")
				}
				b.MustUnmount(b.Path("staging"))
			})
		}
	}
}

// writeSynced writes a file that outlives a power cut.
func writeSynced(t *testing.T, path, data string) {
	t.Helper()
	linuxtest.Write(t, path, data)
	for _, name := range []string{path, filepath.Dir(path)} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestARecordDestroysNoDataOfAnotherProgram: an ext4 can have files before it was ever
// mounted.
func TestARecordDestroysNoDataOfAnotherProgram(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := attachDisk(b, "disk", "ext4", diskSize)
	dieIn(b, m, dying["before it begins"].script)
	files := t.TempDir()
	linuxtest.Write(t, filepath.Join(files, "file"), "data")
	linuxtest.RunTool(t, "mkfs.ext4", "-q", "-d", files, m.Source)
	b.MustMount(m, b.Path("staging"))
	if linuxtest.Read(t, b.Path("staging", "file")) != "data" {
		t.Error("the data are gone")
	}
	b.MustUnmount(b.Path("staging"))
}

// TestARecordDestroysNothingThatIsNoFormat: the disk was used since without a filesystem, has a
// format that blkid alone knows, or is smaller than the disk of the record.
func TestARecordDestroysNothingThatIsNoFormat(t *testing.T) {
	for name, use := range map[string]func(b *linuxtest.Bench, m mounter.Mount){
		"a pod wrote to the device": func(b *linuxtest.Bench, m mounter.Mount) {
			m.FSType = ""
			b.MustMount(m, b.Path("raw"))
			put(b.T, m.Source, 0, "raw data of a pod")
			b.MustUnmount(b.Path("raw"))
		},
		"blkid knows it": func(b *linuxtest.Bench, m mounter.Mount) {
			put(b.T, m.Source, 0, "\xebR\x90-FVE-FS-"+strings.Repeat("\x00",
				149)+"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01")
		},
		"it is smaller": func(b *linuxtest.Bench, m mounter.Mount) {
			put(b.T, m.Source, 100, "data")
			resizeDisk(b, m, "disk", diskSize/2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := attachDisk(b, "disk", "ext4", diskSize)
			m.Size = 0
			dieIn(b, m, dying["before it begins"].script)
			use(b, m)
			before := sumOf(b, "disk")
			b.Refused(m, b.Path("staging"), mounter.ErrDevice)
			if sumOf(b, "disk") != before {
				t.Error("the disk has changed")
			}
		})
	}
}

func TestADiskThatIsNotAttachedIsRefused(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	b.Refused(mounter.Mount{Kind: mounter.BlockDevice, FSType: "ext4", Serial: "serial"}, b.Path("staging"),
		mounter.ErrDevice)
}

// TestMkfsRunsOnlyOnABlankDevice: mount-utils would run it wherever blkid finds nothing.
func TestMkfsRunsOnlyOnABlankDevice(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := attachDisk(b, "disk", "ext4", diskSize)
	linuxtest.RunTool(t, "mkfs.ext4", "-q", m.Source)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "blkid"), []byte("#!/bin/sh\nexit 2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	before := sumOf(b, "disk")
	b.Refused(m, b.Path("staging"), mounter.ErrDevice)
	p := disk.NewPrograms(b.Host.(*linux.Host).Disks, "ext4", false)
	if _, err := p.Command("mkfs.ext4", m.Source).CombinedOutput(); !errors.Is(err, mounter.ErrDevice) {
		t.Errorf("mkfs = %v, want ErrDevice", err)
	}
	if _, err := p.Command("fsck", "-a", m.Source).CombinedOutput(); !errors.Is(err, mounter.ErrDevice) {
		t.Errorf("fsck = %v, want ErrDevice", err)
	}
	if sumOf(b, "disk") != before {
		t.Error("the disk was changed")
	}
}

// TestOtherProgramsDoNotRun: the image of the driver may not have them.
func TestOtherProgramsDoNotRun(t *testing.T) {
	l, err := linuxtest.New(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"true"}, {"mkfs.vfat"}, {"blkid"}, {"btrfs", "device", "delete"},
		{"btrfs", "filesystem"}} {
		p := disk.NewPrograms(l.(*linux.Host).Disks, "", true)
		if _, err := p.Command(command[0], command[1:]...).CombinedOutput(); !errors.Is(err, errors.ErrUnsupported) ||
			disk.Failure(p) == nil {
			t.Errorf("%q = %v, %v, want ErrUnsupported", command, err, disk.Failure(p))
		}
	}
}

func TestArgumentsOfMkfsCount(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := attachDisk(b, "disk", "ext4", diskSize)
	m.Format = []string{"-N", "4096"}
	b.MustMount(m, b.Path("staging"))
	if u, err := b.Usage(context.Background(), b.Path("staging")); err != nil || u.TotalInodes > 8192 {
		t.Errorf("it has %d inodes, %v", u.TotalInodes, err)
	}
	b.MustUnmount(b.Path("staging"))
}

// crashes are the steps at which a driver dies, and whether the filesystem is not made anew then.
var crashes = []struct {
	point string
	kept  []string // filesystems
}{
	{"device:target-made", nil},
	{"device:recorded", nil},
	{"device:formatted", []string{tree.Btrfs}}, // the others do not tell whether all that mkfs wrote is on the disk
	{"device:synced", []string{tree.Btrfs}},
	{"device:unrecorded", linuxtest.LinuxFSTypes()},
	{"device:mounted", linuxtest.LinuxFSTypes()},
}

func TestADriverThatDiesAtAnyStepMountsTheDiskTheNextTime(t *testing.T) {
	for _, crash := range crashes {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			t.Run(crash.point+", "+fsType, func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				m, staging := attachDisk(b, "disk", fsType, diskSize), b.Path("staging")
				bin, err := linuxtest.BuildFreezer()
				if err != nil {
					t.Fatal(err)
				}
				order, err := json.Marshal(linuxtest.MountProcess{Kubelet: b.Kubelet, State: b.State(), Path: staging, Mount: m})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(bin)
				cmd.Env = append(os.Environ(), linuxtest.AsMounter+"="+string(order), crashpoint.Env+"="+crash.point)
				out, err := cmd.CombinedOutput()
				if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
					t.Fatalf("the process ended with %v and said %s", err, out)
				}
				id := ""
				if crash.kept != nil {
					id = idOnDisk(t, m.Source)
				}
				b.MustMount(m, staging)
				if slices.Contains(crash.kept, fsType) && idOnDisk(t, m.Source) != id {
					t.Error("the filesystem was made anew")
				}
				if left := records(b); len(left) > 0 {
					t.Errorf("records are left: %q", left)
				}
				linuxtest.Write(t, filepath.Join(staging, "file"), "data")
				b.MustUnmount(staging)
				b.MustMount(m, staging)
				if linuxtest.Read(t, filepath.Join(staging, "file")) != "data" {
					t.Error("the data are gone")
				}
				b.MustUnmount(staging)
			})
		}
	}
}
