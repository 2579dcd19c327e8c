package mounter

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
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

const diskSize = 320 << 20

// attachDisk makes a loop device with a new file of the bench, which plays a disk, until the test
// is over.
func (b *bench) attachDisk(name, fsType string, size int64) Mount {
	b.t.Helper()
	file := filepath.Join(b.storage, name)
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := exec.LookPath("mkfs." + fsType); fsType != "" && err != nil {
		b.t.Skip(err)
	}
	device := strings.TrimSpace(runTool(b.t, "losetup", "--show", "--find", file))
	b.t.Cleanup(func() {
		b.Unmount(context.Background(), b.path("staging")) // if the test has failed
		runTool(b.t, "blockdev", "--setrw", device)        // the kernel keeps that for the next file
		runTool(b.t, "losetup", "--detach", device)
	})
	return Mount{Kind: BlockDevice, Source: device, FSType: fsType, Serial: "serial of " + name}
}

// lastLoop is the number of the last device of ownLoop, less an offset.
var lastLoop atomic.Int32

// ownLoop returns the path of a free loop device, whose number no other process knows. Another process
// gets it from LOOP_CTL_GET_FREE, which returns the lowest number, only while it is free and all lower
// numbers are in use: see attachTo.
func ownLoop(t *testing.T) string {
	t.Helper()
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close() })
	number := 1000 + os.Getpid()%100_000*8 + int(lastLoop.Add(1))%8
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number); err != nil {
		t.Fatalf("LOOP_CTL_ADD %d: %v", number, err)
	}
	t.Cleanup(func() {
		untilIdle(t, func() error { return unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number) })
	})
	return fmt.Sprintf("/dev/loop%d", number)
}

// attachTo attaches a file to a loop device, as soon as no other process uses the device, and returns
// the identity of the file.
func attachTo(t *testing.T, device, file string) backing {
	t.Helper()
	untilIdle(t, func() error {
		out, err := exec.Command("losetup", device, file).CombinedOutput()
		if strings.Contains(string(out), "Device or resource busy") {
			return unix.EBUSY
		}
		return err
	})
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return backing{st.Dev, st.Ino}
}

// untilDetached waits until a loop device has no file: another process may have it open for a moment.
func untilDetached(t *testing.T, device string) {
	t.Helper()
	n, _ := loopNumber(device)
	await.True(t, device+" is detached", func() bool {
		_, err := fileOfLoop(n)
		return errors.Is(err, unix.ENXIO)
	})
}

// untilIdle repeats do while it returns EBUSY: other drivers of this machine look at all loop
// devices.
func untilIdle(t *testing.T, do func() error) {
	t.Helper()
	await.NoError(t, "a loop device is idle", func() error {
		err := do()
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err
	})
}

func runTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// sumOf returns the SHA-256 of all blocks of a disk that are not zero, with their places.
func (b *bench) sumOf(name string) [32]byte {
	b.t.Helper()
	testdisk.Flush(b.t, filepath.Join(b.storage, name))
	f, err := os.Open(filepath.Join(b.storage, name))
	if err != nil {
		b.t.Fatal(err)
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
			b.t.Fatal(err)
		}
		for block, at := make([]byte, 4096), start; at < end; at += int64(len(block)) {
			n, err := f.ReadAt(block, at)
			if err != nil && err != io.EOF {
				b.t.Fatal(err)
			}
			if !bytes.Equal(block[:n], zeros[:n]) {
				fmt.Fprintln(sum, at)
				sum.Write(block[:n])
			}
		}
	}
}

// records returns the records of formats.
func (b *bench) records() []string {
	b.t.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(b.kubelet), "frozen", formatsDir, "*"))
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

func idOnDisk(t *testing.T, device string) string {
	t.Helper()
	return strings.TrimSpace(runTool(t, "blkid", "-p", "-o", "value", "-s", "UUID", device))
}

func TestABlankDeviceIsFormattedOnce(t *testing.T) {
	for _, old := range []bool{false, true} {
		for _, fsType := range linuxFSTypes() {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := newLoopBench(t)
				b.Host.(*linux).legacy.Store(old)
				m, staging, target := b.attachDisk("disk", fsType, diskSize), b.path("staging"), b.path("target")
				m.Options = []string{"noatime"}
				b.mount(m, staging)
				if left := b.records(); len(left) > 0 {
					t.Errorf("it is mounted, and a record would let it be formatted again: %q", left)
				}
				id := idOnDisk(t, m.Source)
				write(t, filepath.Join(staging, "file"), "data")
				b.mount(m, staging) // again
				b.mount(m.BindFrom(staging), target)
				for _, path := range []string{staging, target} {
					if !b.mounted(m, path) {
						t.Errorf("Mounted(%s) = false", path)
					}
				}
				if got, err := b.OtherTargets(context.Background(), staging); err != nil ||
					!slices.Equal(got, []string{target}) {
					t.Errorf("OtherTargets = %q, %v", got, err)
				}
				b.Host = realMounter(t)(b.kubelet) // a new process
				if !b.mounted(m, staging) || !b.mounted(m, target) ||
					b.mounted(b.attachDisk("other", fsType, diskSize), staging) {
					t.Error("a new process sees another disk")
				}
				b.unmount(target)
				b.unmount(staging)
				b.mount(m, staging)
				if got := read(t, filepath.Join(staging, "file")); got != "data" || idOnDisk(t, m.Source) != id {
					t.Errorf("the disk was formatted again: the file has %q, the UUIDs are %s and %s", got, id,
						idOnDisk(t, m.Source))
				}
				if u, err := b.Usage(context.Background(), staging); err != nil || u.TotalBytes < diskSize/2 {
					t.Errorf("Usage = %+v, %v", u, err)
				}
				b.unmount(staging)
				if left := b.records(); len(left) > 0 {
					t.Errorf("records are left: %q", left)
				}
			})
		}
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
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
	runTool(t, mkfs[0], append(mkfs[1:], device)...)
	runTool(t, "dd", "if=/dev/zero", "of="+device, "bs=1M", fmt.Sprintf("count=%d", before>>20), "conv=notrunc,fsync",
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
		runTool(t, "mkfs.ext4", "-q", device)
		put(t, device, 446, "\x00\x00\x02\x00\x83\x00\x00\x00\x08\x00\x00\x00\x00\x08\x00\x00")
		put(t, device, 510, "\x55\xaa")
	}, "partitions"},
}

func made(mkfs ...string) func(t *testing.T, device string) {
	return func(t *testing.T, device string) { runTool(t, mkfs[0], append(mkfs[1:], device)...) }
}

func bytesAt(offset int64, data string) func(t *testing.T, device string) {
	return func(t *testing.T, device string) { put(t, device, offset, data) }
}

func TestADeviceWithOtherDataStaysAsItIs(t *testing.T) {
	for name, tc := range spoils {
		t.Run(name, func(t *testing.T) {
			b := newLoopBench(t)
			m := b.attachDisk("disk", "ext4", diskSize)
			if tc.fsType != "" {
				m.FSType = tc.fsType
			}
			tc.spoil(t, m.Source)
			before := b.sumOf("disk")
			for range 2 {
				err := b.Mount(context.Background(), m, b.path("staging"))
				if !errors.Is(err, ErrDevice) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("Mount = %v, want ErrDevice that names %s", err, tc.want)
				}
			}
			if exists(b.path("staging")) || len(b.records()) > 0 {
				t.Errorf("something is left: %v, %q", exists(b.path("staging")), b.records())
			}
			if b.sumOf("disk") != before {
				t.Error("the disk was changed")
			}
		})
	}
}

// TestADeviceThatCannotBeUsedStaysAsItIs is about disks that are blank, or have their filesystem.
func TestADeviceThatCannotBeUsedStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(b *bench, m *Mount)
		want   error
	}{
		"the end cannot be read": {func(b *bench, m *Mount) {
			if err := os.Truncate(filepath.Join(b.storage, "disk"), diskSize-512<<10); err != nil {
				b.t.Fatal(err)
			}
		}, unix.EIO},
		"smaller than the volume": {func(_ *bench, m *Mount) { m.Size = diskSize + 1 }, ErrDevice},
		"read-only and blank":     {func(_ *bench, m *Mount) { m.ReadOnly = true }, ErrDevice},
		"without a serial number": {func(_ *bench, m *Mount) { m.Serial = "" }, ErrDevice},
		"an option of mkfs":       {func(_ *bench, m *Mount) { m.Format = []string{"-d", "/etc"} }, ErrOption},
		"a mount option":          {func(_ *bench, m *Mount) { m.Options = []string{"nobarrier"} }, ErrOption},
		"in use": {func(b *bench, m *Mount) {
			f, err := os.OpenFile(m.Source, os.O_RDONLY|unix.O_EXCL, 0)
			if err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { f.Close() })
		}, ErrBusy},
		"a device for reading only": {func(b *bench, m *Mount) { runTool(b.t, "blockdev", "--setro", m.Source) },
			ErrReadOnly},
		"a damaged record": {func(b *bench, m *Mount) {
			l := b.Host.(*linux)
			if err := l.writeFormatting(newFormatting(*m, diskSize)); err != nil {
				b.t.Fatal(err)
			}
			write(b.t, l.formatPath(m.Serial), "{")
		}, ErrDevice},
		"a target that is a link": {func(b *bench, _ *Mount) {
			if err := os.Symlink(b.storage, b.path("staging")); err != nil {
				b.t.Fatal(err)
			}
		}, ErrPath},
		"a source that is a link": {func(b *bench, m *Mount) {
			link := filepath.Join(b.storage, "link")
			if err := os.Symlink(m.Source, link); err != nil {
				b.t.Fatal(err)
			}
			m.Source = link
		}, ErrPath},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLoopBench(t)
			m := b.attachDisk("disk", "ext4", diskSize)
			tc.change(b, &m)
			before := b.sumOf("disk")
			b.refused(m, b.path("staging"), tc.want)
			if b.sumOf("disk") != before {
				t.Error("the disk was changed")
			}
		})
	}
	t.Run("no device", func(t *testing.T) {
		b := newLoopBench(t)
		b.image("file", "")
		b.refused(Mount{Kind: BlockDevice, Source: filepath.Join(b.storage, "file"), FSType: "ext4", Serial: "s"},
			b.path("staging"), ErrDevice)
		b.refused(Mount{Kind: BlockDevice, Source: b.storage, Serial: "s"}, b.path("staging"), ErrDevice)
	})
}

func TestADeviceThatIsMountedElsewhereIsRefused(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			m := b.attachDisk("disk", fsType, diskSize)
			b.mount(m, b.path("staging"))
			b.refused(m, b.path("other"), ErrBusy)
			raw := m
			raw.FSType = ""
			b.refused(raw, b.path("raw"), ErrBusy)
			if exists(b.path("other")) || exists(b.path("raw")) {
				t.Error("a target is left")
			}
			b.unmount(b.path("staging"))
			b.mount(m, b.path("other"))
			b.unmount(b.path("other"))
		})
	}
}

// TestACopyOfADiskIsMountedBesideIt is about disks that are made from snapshots.
func TestACopyOfADiskIsMountedBesideIt(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			m, staging, other := b.attachDisk("disk", fsType, diskSize), b.path("staging"), b.path("other")
			b.mount(m, staging)
			write(t, filepath.Join(staging, "file"), "data")
			b.unmount(staging)
			clone := b.attachDisk("clone", fsType, diskSize)
			runTool(t, "dd", "if="+m.Source, "of="+clone.Source, "bs=1M", "conv=fsync", "status=none")
			b.mount(m, staging)
			if fsType == btrfs {
				b.refused(clone, other, ErrBusy)
				b.unmount(staging)
			}
			b.mount(clone, other)
			write(t, filepath.Join(other, "file"), "changed")
			if fsType != btrfs && read(t, filepath.Join(staging, "file")) != "data" {
				t.Error("the disk shows what was written to its copy")
			}
			b.unmount(staging, other)
			b.mount(m, staging)
			if read(t, filepath.Join(staging, "file")) != "data" {
				t.Error("the disk has what was written to its copy")
			}
			b.unmount(staging)
		})
	}
}

func TestADeviceWhoseSizeChangesIsNotFormatted(t *testing.T) {
	b := newLoopBench(t)
	m := b.attachDisk("disk", "ext4", diskSize)
	dev, err := os.Open(m.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	b.resizeDisk(m, "disk", 2*diskSize)
	l := b.Host.(*linux)
	before := b.sumOf("disk")
	if err := l.beginFormat(m, dev, diskSize); !errors.Is(err, ErrDevice) {
		t.Errorf("begin = %v, want ErrDevice", err)
	}
	if len(b.records()) > 0 || b.sumOf("disk") != before {
		t.Error("something was written")
	}
}

// resizeDisk gives the file of a disk another size.
func (b *bench) resizeDisk(m Mount, name string, size int64) {
	b.t.Helper()
	if err := os.Truncate(filepath.Join(b.storage, name), size); err != nil {
		b.t.Fatal(err)
	}
	runTool(b.t, "losetup", "--set-capacity", m.Source)
}

func TestAMountedDeviceGrows(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			ctx := context.Background()
			m, staging, target := b.attachDisk("disk", fsType, diskSize), b.path("staging"), b.path("target")
			b.mount(m, staging)
			b.mount(m.BindFrom(staging), target)
			write(t, filepath.Join(target, "file"), "data")
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
			b.resizeDisk(m, "disk", 2*diskSize)
			for _, path := range []string{staging, target} {
				err := b.Grow(ctx, m, path)
				// test/vm is a machine where root may
				if fsType == "ext4" && errors.Is(err, ErrBusy) && !mayGrowExt4(t) {
					t.Log("this kernel lets us grow an ext4 only when it is mounted the next time")
					f.Close()
					b.unmount(target, staging)
					b.mount(m, staging)
					b.mount(m.BindFrom(staging), target)
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
			if _, err := f.WriteString("more"); err != nil || read(t, filepath.Join(staging, "file")) != "data" {
				t.Errorf("the data are gone: %v", err)
			}
			f.Close()
			b.unmount(target)
			b.unmount(staging)
			m.ReadOnly = true
			b.mount(m, staging)
			if err := b.Grow(ctx, m, staging); !errors.Is(err, ErrReadOnly) {
				t.Errorf("Grow of a read-only mount = %v, want ErrReadOnly", err)
			}
			b.unmount(staging)
		})
	}
}

// TestAnExt4GrowsBeforeItIsMountedOnlyWhereItMust: resize2fs that is killed can leave a damaged
// ext4.
func TestAnExt4GrowsBeforeItIsMountedOnlyWhereItMust(t *testing.T) {
	t.Run("ext4", func(t *testing.T) {
		b := newLoopBench(t)
		m, staging := b.attachDisk("disk", "ext4", diskSize), b.path("staging")
		b.mount(m, staging)
		before, err := b.Usage(context.Background(), staging)
		if err != nil {
			t.Fatal(err)
		}
		b.unmount(staging)
		b.resizeDisk(m, "disk", 2*diskSize)
		b.mount(m, staging)
		mounted, err := b.Usage(context.Background(), staging)
		if grown := mounted.TotalBytes > before.TotalBytes; err != nil || grown == mayGrowExt4(t) {
			t.Errorf("it had %d bytes and has %d when it is mounted, %v", before.TotalBytes, mounted.TotalBytes, err)
		}
		if err := b.Grow(context.Background(), m, staging); err != nil {
			t.Error(err)
		}
		after, err := b.Usage(context.Background(), staging)
		if err != nil || after.TotalBytes < before.TotalBytes+diskSize*9/10 {
			t.Errorf("it had %d bytes and has %d, %v", before.TotalBytes, after.TotalBytes, err)
		}
		b.unmount(staging)
	})
}

func TestADeviceWithoutAFilesystemIsMountedAsItIs(t *testing.T) {
	b := newLoopBench(t)
	ctx := context.Background()
	m, staging, target := b.attachDisk("disk", "", diskSize), b.path("staging"), b.path("target")
	runTool(t, "mkfs.ext4", "-q", m.Source)
	before := b.sumOf("disk")
	b.mount(m, staging)
	b.mount(m, staging)
	b.mount(m.BindFrom(staging), target)
	for _, path := range []string{staging, target} {
		if u, err := b.Usage(ctx, path); err != nil || u.TotalBytes != diskSize || !b.mounted(m, path) {
			t.Errorf("at %s: Usage = %+v, %v, mounted: %v", path, u, err, b.mounted(m, path))
		}
	}
	if b.sumOf("disk") != before {
		t.Error("the disk was changed")
	}
	b.Host = realMounter(t)(b.kubelet)
	if !b.mounted(m, staging) || !b.mounted(m, target) {
		t.Error("a new process does not see it")
	}
	write(t, target, "written by a pod")
	if err := b.Grow(ctx, m, staging); err != nil {
		t.Error(err)
	}
	readOnly := m.BindFrom(staging)
	readOnly.ReadOnly = true
	b.refused(readOnly, b.path("other"), ErrReadOnly)
	if err := b.Remove(ctx, target); err != nil || exists(target) {
		t.Errorf("Remove = %v", err)
	}
	b.mount(readOnly, target)
	if err := os.WriteFile(target, []byte("x"), 0o600); !errors.Is(err, unix.EPERM) {
		t.Errorf("a write to the device that is mounted read-only: %v", err)
	}
	if err := b.Remove(ctx, target); err != nil {
		t.Error(err)
	}
	if err := b.Remove(ctx, staging); err != nil || exists(staging) {
		t.Errorf("Remove = %v", err)
	}
	if ro := strings.TrimSpace(runTool(t, "blockdev", "--getro", m.Source)); ro != "0" {
		t.Error("the disk is left read-only")
	}
	testdisk.Flush(t, filepath.Join(b.storage, "disk"))
	if start := readAt(t, filepath.Join(b.storage, "disk"), 0, 16); start != "written by a pod" {
		t.Errorf("the disk starts with %q: what was written is not on it", start)
	}
}

// TestANodeOfAnotherDiskIsReplaced: the number of a disk that was detached by force is soon
// another's.
func TestANodeOfAnotherDiskIsReplaced(t *testing.T) {
	b := newLoopBench(t)
	disk, other := filepath.Join(b.storage, "disk"), filepath.Join(b.storage, "other")
	for _, file := range []string{disk, other} {
		if err := errors.Join(os.WriteFile(file, []byte(file), 0o600), os.Truncate(file, diskSize)); err != nil {
			t.Fatal(err)
		}
	}
	m, staging := Mount{Kind: BlockDevice, Source: ownLoop(t), Serial: "serial"}, b.path("staging")
	attachTo(t, m.Source, disk)
	t.Cleanup(func() { runTool(t, "losetup", "--detach", m.Source) })
	b.mount(m, staging)
	runTool(t, "losetup", "--detach", m.Source)
	attachTo(t, m.Source, other)
	if b.mounted(m, staging) {
		t.Fatal("the node of the disk before counts as mounted")
	}
	b.mount(m, staging)
	if !b.mounted(m, staging) {
		t.Error("the disk is not mounted")
	}
	b.unmount(staging)
}

// asMounter makes a process of this test mount a disk and die: see mountAndDie.
const asMounter = "CAUSEWAY_TEST_MOUNT"

// mountProcess has the mounts of such a process.
type mountProcess struct {
	Kubelet, State, Path string
	Mount                Mount
}

// mountAndDie mounts the device of the environment.
func mountAndDie() int {
	var p mountProcess
	err := json.Unmarshal([]byte(os.Getenv(asMounter)), &p)
	if err == nil {
		var h Host
		if h, err = New(p.Kubelet, p.State); err == nil {
			err = h.Mount(context.Background(), p.Mount, p.Path)
		}
	}
	fmt.Println(err)
	return 3
}

// dieIn mounts a disk in another process, in which script runs in place of mkfs. $real is the
// program, $device the disk, and $PPID the driver.
func (b *bench) dieIn(m Mount, script string) {
	b.t.Helper()
	resolved, err := exec.LookPath("mkfs." + m.FSType)
	if err != nil {
		b.t.Fatal(err)
	}
	dir := b.t.TempDir()
	script = "#!/bin/sh\nreal=" + resolved + "\nfor device; do :; done\n" + script + "\nkill -9 $PPID\n"
	if err := os.WriteFile(filepath.Join(dir, "mkfs."+m.FSType), []byte(script), 0o755); err != nil {
		b.t.Fatal(err)
	}
	order, err := json.Marshal(mountProcess{b.kubelet, filepath.Join(filepath.Dir(b.kubelet), "frozen"),
		b.path("staging"), m})
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asMounter+"="+string(order), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		b.t.Fatalf("the process ended with %v and said %s", err, out)
	}
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
		for _, fsType := range linuxFSTypes() {
			t.Run(fsType+", "+name, func(t *testing.T) {
				b := newLoopBench(t)
				m := b.attachDisk("disk", fsType, diskSize)
				b.dieIn(m, tc.script)
				records := b.records()
				if len(records) != 1 {
					t.Fatalf("the records are %q", records)
				}
				f, err := b.Host.(*linux).readFormatting(m.Serial)
				if err != nil {
					t.Fatal(err)
				}
				b.mount(m, b.path("staging"))
				if left := b.records(); len(left) > 0 {
					t.Errorf("records are left: %q", left)
				}
				if id := strings.ReplaceAll(idOnDisk(t, m.Source), "-", ""); tc.done && fsType == btrfs &&
					id != f.UUID {
					t.Error("a filesystem that was complete was made anew")
				}
				write(t, b.path("staging", "file"), "data")
				b.unmount(b.path("staging"))
				b.mount(m, b.path("staging"))
				if read(t, b.path("staging", "file")) != "data" {
					t.Error("the data are gone")
				}
				b.unmount(b.path("staging"))
			})
		}
	}
}

// TestAFormatThatDiedElsewhereIsNotBegunAnew: this node has no record of it, or that of another
// disk.
func TestAFormatThatDiedElsewhereIsNotBegunAnew(t *testing.T) {
	b := newLoopBench(t)
	m := b.attachDisk("disk", "ext4", diskSize)
	b.dieIn(m, dying["when it has written what no filesystem has"].script)
	before := b.sumOf("disk")
	stranger := m
	stranger.Serial = "another"
	b.refused(stranger, b.path("staging"), ErrDevice)
	if err := os.Remove(b.records()[0]); err != nil {
		t.Fatal(err)
	}
	b.refused(m, b.path("staging"), ErrDevice)
	if b.sumOf("disk") != before {
		t.Error("the disk was changed")
	}
}

// TestARecordDestroysNothingThatWasUsedSince: the volume moves to another node, and comes back.
func TestARecordDestroysNothingThatWasUsedSince(t *testing.T) {
	for _, name := range []string{"before it begins", "when it is done"} {
		for _, fsType := range linuxFSTypes() {
			t.Run(fsType+", "+name, func(t *testing.T) {
				b := newLoopBench(t)
				m := b.attachDisk("disk", fsType, diskSize)
				b.dieIn(m, dying[name].script)
				other := newBench(t, realMounter(t)) // has no record
				other.mount(m, other.path("staging"))
				write(t, other.path("staging", "file"), "data")
				other.unmount(other.path("staging"))
				if len(b.records()) != 1 {
					t.Fatal("there is no record")
				}
				b.mount(m, b.path("staging"))
				if read(t, b.path("staging", "file")) != "data" || len(b.records()) > 0 {
					t.Errorf("the data are gone, or the record is left: %q", b.records())
				}
				b.unmount(b.path("staging"))
			})
		}
	}
}

// TestARecordDestroysNothingThatADeadNodeUsed: the other node dies after it has mounted the disk,
// or after it has synced a file.
func TestARecordDestroysNothingThatADeadNodeUsed(t *testing.T) {
	for _, synced := range []bool{false, true} {
		for _, fsType := range linuxFSTypes() {
			t.Run(fmt.Sprintf("%s, a file is synced: %v", fsType, synced), func(t *testing.T) {
				b := newLoopBench(t)
				m := b.attachDisk("disk", fsType, diskSize)
				b.dieIn(m, dying["when it is done"].script)
				id := idOnDisk(t, m.Source)
				other := newBench(t, realMounter(t)) // has no record
				other.mount(m, other.path("staging"))
				if synced {
					writeSynced(t, other.path("staging", "file"), "data")
				}
				file, copied := filepath.Join(b.storage, "disk"), filepath.Join(b.storage, "copy")
				runTool(t, "blockdev", "--flushbufs", m.Source)
				runTool(t, "cp", file, copied)
				other.unmount(other.path("staging"))
				// Another test could take the number of a detached device.
				runTool(t, "dd", "if="+copied, "of="+m.Source, "bs=1M", "conv=fsync", "status=none")
				b.mount(m, b.path("staging"))
				if idOnDisk(t, m.Source) != id || len(b.records()) > 0 {
					t.Errorf("the disk was formatted again, or the record is left: %q", b.records())
				}
				if synced && read(t, b.path("staging", "file")) != "data" {
					t.Error("the data are gone")
				}
				b.unmount(b.path("staging"))
			})
		}
	}
}

// writeSynced writes a file that outlives a power cut.
func writeSynced(t *testing.T, path, data string) {
	t.Helper()
	write(t, path, data)
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
	b := newLoopBench(t)
	m := b.attachDisk("disk", "ext4", diskSize)
	b.dieIn(m, dying["before it begins"].script)
	files := t.TempDir()
	write(t, filepath.Join(files, "file"), "data")
	runTool(t, "mkfs.ext4", "-q", "-d", files, m.Source)
	b.mount(m, b.path("staging"))
	if read(t, b.path("staging", "file")) != "data" {
		t.Error("the data are gone")
	}
	b.unmount(b.path("staging"))
}

// TestARecordDestroysNothingThatIsNoFormat: the disk was used since without a filesystem, has a
// format that blkid alone knows, or is smaller than the disk of the record.
func TestARecordDestroysNothingThatIsNoFormat(t *testing.T) {
	for name, use := range map[string]func(b *bench, m Mount){
		"a pod wrote to the device": func(b *bench, m Mount) {
			m.FSType = ""
			b.mount(m, b.path("raw"))
			put(b.t, m.Source, 0, "raw data of a pod")
			b.unmount(b.path("raw"))
		},
		"blkid knows it": func(b *bench, m Mount) {
			put(b.t, m.Source, 0, "\xebR\x90-FVE-FS-"+strings.Repeat("\x00",
				149)+"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01")
		},
		"it is smaller": func(b *bench, m Mount) {
			put(b.t, m.Source, 100, "data")
			b.resizeDisk(m, "disk", diskSize/2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLoopBench(t)
			m := b.attachDisk("disk", "ext4", diskSize)
			m.Size = 0
			b.dieIn(m, dying["before it begins"].script)
			use(b, m)
			before := b.sumOf("disk")
			b.refused(m, b.path("staging"), ErrDevice)
			if b.sumOf("disk") != before {
				t.Error("the disk has changed")
			}
		})
	}
}

func TestADiskThatIsNotAttachedIsRefused(t *testing.T) {
	b := newLoopBench(t)
	b.refused(Mount{Kind: BlockDevice, FSType: "ext4", Serial: "serial"}, b.path("staging"), ErrDevice)
}

// TestMkfsRunsOnlyOnABlankDevice: mount-utils would run it wherever blkid finds nothing.
func TestMkfsRunsOnlyOnABlankDevice(t *testing.T) {
	b := newLoopBench(t)
	m := b.attachDisk("disk", "ext4", diskSize)
	runTool(t, "mkfs.ext4", "-q", m.Source)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "blkid"), []byte("#!/bin/sh\nexit 2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	before := b.sumOf("disk")
	b.refused(m, b.path("staging"), ErrDevice)
	p := b.Host.(*linux).newPrograms("ext4", false)
	if _, err := p.Command("mkfs.ext4", m.Source).CombinedOutput(); !errors.Is(err, ErrDevice) {
		t.Errorf("mkfs = %v, want ErrDevice", err)
	}
	if _, err := p.Command("fsck", "-a", m.Source).CombinedOutput(); !errors.Is(err, ErrDevice) {
		t.Errorf("fsck = %v, want ErrDevice", err)
	}
	if b.sumOf("disk") != before {
		t.Error("the disk was changed")
	}
}

// TestOtherProgramsDoNotRun: the image of the driver may not have them.
func TestOtherProgramsDoNotRun(t *testing.T) {
	l, err := New(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"true"}, {"mkfs.vfat"}, {"blkid"}, {"btrfs", "device", "delete"},
		{"btrfs", "filesystem"}} {
		p := l.(*linux).newPrograms("", true)
		if _, err := p.Command(command[0], command[1:]...).CombinedOutput(); !errors.Is(err, errors.ErrUnsupported) ||
			p.failure() == nil {
			t.Errorf("%q = %v, %v, want ErrUnsupported", command, err, p.failure())
		}
	}
}

// beginFormat begins the format of a device of size bytes.
func (l *linux) beginFormat(m Mount, dev *os.File, size int64) error {
	return l.begin(m, dev, plan{size: size, formatted: newFormatting(m, size)})
}

// newPrograms returns the programs of a device without a disk. change: mkfs and fsck may run.
func (l *linux) newPrograms(fsType string, change bool) *programs {
	return &programs{linux: l, ctx: context.Background(), fsType: fsType, format: change, repair: change}
}

// failure returns the first error.
func (p *programs) failure() error { return p.failed }

func TestArgumentsOfMkfsCount(t *testing.T) {
	b := newLoopBench(t)
	m := b.attachDisk("disk", "ext4", diskSize)
	m.Format = []string{"-N", "4096"}
	b.mount(m, b.path("staging"))
	if u, err := b.Usage(context.Background(), b.path("staging")); err != nil || u.TotalInodes > 8192 {
		t.Errorf("it has %d inodes, %v", u.TotalInodes, err)
	}
	b.unmount(b.path("staging"))
}

// crashes are the steps at which a driver dies, and whether the filesystem is not made anew then.
var crashes = []struct {
	point string
	kept  []string // filesystems
}{
	{"device:target-made", nil},
	{"device:recorded", nil},
	{"device:formatted", []string{btrfs}}, // the others do not tell whether all that mkfs wrote is on the disk
	{"device:synced", []string{btrfs}},
	{"device:unrecorded", linuxFSTypes()},
	{"device:mounted", linuxFSTypes()},
}

func TestADriverThatDiesAtAnyStepMountsTheDiskTheNextTime(t *testing.T) {
	for _, crash := range crashes {
		for _, fsType := range linuxFSTypes() {
			t.Run(crash.point+", "+fsType, func(t *testing.T) {
				b := newLoopBench(t)
				m, staging := b.attachDisk("disk", fsType, diskSize), b.path("staging")
				bin, err := buildFreezer()
				if err != nil {
					t.Fatal(err)
				}
				order, err := json.Marshal(mountProcess{b.kubelet, b.state(), staging, m})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(bin)
				cmd.Env = append(os.Environ(), asMounter+"="+string(order), crashpoint.Env+"="+crash.point)
				out, err := cmd.CombinedOutput()
				if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
					t.Fatalf("the process ended with %v and said %s", err, out)
				}
				id := ""
				if crash.kept != nil {
					id = idOnDisk(t, m.Source)
				}
				b.mount(m, staging)
				if slices.Contains(crash.kept, fsType) && idOnDisk(t, m.Source) != id {
					t.Error("the filesystem was made anew")
				}
				if left := b.records(); len(left) > 0 {
					t.Errorf("records are left: %q", left)
				}
				write(t, filepath.Join(staging, "file"), "data")
				b.unmount(staging)
				b.mount(m, staging)
				if read(t, filepath.Join(staging, "file")) != "data" {
					t.Error("the data are gone")
				}
				b.unmount(staging)
			})
		}
	}
}

// readAt returns a part of a file.
func readAt(t *testing.T, path string, offset int64, length int) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, length)
	if _, err := f.ReadAt(data, offset); err != nil {
		t.Fatal(err)
	}
	return string(data)
}
