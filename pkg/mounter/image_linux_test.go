package mounter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// newLoopBench returns a bench on which images can be mounted.
func newLoopBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, realMounter(t))
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"}) {
		t.Skip("loop devices need root of the machine, and this is a user namespace")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		namespace.Skip(t, err)
	}
	t.Cleanup(func() {
		await.True(t, "nothing is attached any more", func() bool { return len(b.loops()) == 0 })
	})
	return b
}

// loops returns the loop devices whose backing file is in this bench.
func (b *bench) loops() []string {
	b.t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(file string) bool {
		name, _ := os.ReadFile(file) // fails if the device was just detached
		return !strings.HasPrefix(string(name), b.storage)
	})
}

// image creates the file of an image, with a filesystem unless fsType is "".
func (b *bench) image(name, fsType string) Mount {
	b.t.Helper()
	m := Mount{Kind: Image, Source: filepath.Join(b.storage, name), FSType: fsType, Sector: 512}
	if fsType == "" {
		m.Kind = Disk
	} else if _, err := exec.LookPath("mkfs." + fsType); err != nil {
		b.t.Skip(err)
	}
	if err := os.Remove(m.Source); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier part of the test
		b.t.Fatal(err)
	}
	if err := b.MakeImage(context.Background(), m.Source, 320<<20, fsType); err != nil {
		b.t.Fatal(err)
	}
	return m
}

func TestLinuxKeepsTheContractOfImages(t *testing.T) {
	testImageContract(t, newLoopBench, (*bench).image)
}

func TestLinuxKeepsTheContractOfImagesWithoutTheNewSystemCalls(t *testing.T) {
	testImageContract(t, func(t *testing.T) *bench {
		b := newLoopBench(t)
		b.Host.(*linux).legacy.Store(true)
		return b
	}, (*bench).image)
}

// TestOldAndNewMountCallsFailWithTheSameClass: the class of an error shows whether the image is the
// cause. mount(2) and the new system calls must return the same class.
func TestOldAndNewMountCallsFailWithTheSameClass(t *testing.T) {
	b := newLoopBench(t)
	l := b.Host.(*linux)
	spoils := map[string]func(m Mount) error{
		"blank": func(m Mount) error {
			return errors.Join(os.Truncate(m.Source, 0), os.Truncate(m.Source, 320<<20))
		},
		"cut":                func(m Mount) error { return os.Truncate(m.Source, 100<<20) },
		"start overwritten":  func(m Mount) error { return overwrite(m.Source, 0, 64<<10) },
		"larger part":        func(m Mount) error { return overwrite(m.Source, 1<<10, 8<<20) },
		"second 64 KiB gone": func(m Mount) error { return overwrite(m.Source, 64<<10, 64<<10) },
		"whole":              func(Mount) error { return nil },
	}
	for _, fsType := range linuxFSTypes() {
		for _, as := range linuxFSTypes() {
			for name, spoil := range spoils {
				m := b.image("image", fsType)
				if err := spoil(m); err != nil {
					t.Fatal(err)
				}
				if m.FSType = as; as == fsType && name == "whole" {
					continue
				}
				mkdir(t, b.path("target"))
				var errs []error
				for _, old := range []bool{false, true} {
					l.legacy.Store(old)
					r, release := b.recipe(m)
					held := b.hold(Mount{Kind: Image}, b.path("target"))
					errs = append(errs, l.attach(held, r))
					held.close()
					held.pathHandle.close()
					release()
					b.unmount(b.path("target"))
				}
				alike := func(class error) bool { return errors.Is(errs[0], class) == errors.Is(errs[1], class) }
				if (errs[0] == nil) != (errs[1] == nil) || !alike(ErrFormat) || !alike(unix.EINVAL) ||
					!alike(unix.EUCLEAN) || !alike(unix.EIO) {
					t.Errorf("%s of %s as %s: %v, and by mount(2) %v", name, fsType, as, errs[0], errs[1])
				}
				if as != fsType && !errors.Is(errs[0], ErrFormat) {
					t.Errorf("%s of %s as %s: %v, want ErrFormat", name, fsType, as, errs[0])
				}
			}
		}
	}
}

// overwrite overwrites n bytes of a file.
func overwrite(path string, offset, n int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte{0x5a}, int(n)), offset)
	return err
}

// TestFilesystemOptionsReachTheKernel compares each option with the options that the kernel
// reports.
func TestFilesystemOptionsReachTheKernel(t *testing.T) {
	shows := map[string]string{
		"lazytime": "lazytime", "sync": "sync", "dirsync": "dirsync", "discard": "discard", "largeio": "largeio",
		"autodefrag": "autodefrag",
	}
	for _, fsType := range linuxFSTypes() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := newLoopBench(t)
				b.Host.(*linux).legacy.Store(old)
				m := b.image("image", fsType)
				for _, o := range options.Image[fsType] {
					m.Options = []string{o, "noatime", "noexec"}
					b.mount(m, b.path("target"))
					b.mount(m, b.path("target"))
					infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(b.path("target")))
					if err != nil || len(infos) != 1 {
						t.Fatal(infos, err)
					}
					want := cmp.Or(shows[o], o)
					super := strings.Split(infos[0].VFSOptions, ",")
					if !slices.ContainsFunc(super, func(s string) bool {
						return s == want || strings.HasPrefix(s, want+":")
					}) {
						t.Errorf("%s: the kernel shows %v", o, super)
					}
					if own := strings.Split(infos[0].Options, ","); !slices.Contains(own, "noatime") ||
						!slices.Contains(own, "noexec") || !slices.Contains(own, "nodev") {
						t.Errorf("%s: the mount has %v", o, own)
					}
					b.unmount(b.path("target"))
				}
				m.Options, m.ReadOnly = nil, true
				b.mount(m, b.path("target"))
				infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(b.path("target")))
				if err != nil || len(infos) != 1 || !strings.HasPrefix(infos[0].Options, "ro,") ||
					!strings.HasPrefix(infos[0].VFSOptions, "ro") {
					t.Errorf("read-only: %+v, %v", infos, err)
				}
				b.unmount(b.path("target"))
				if b.Host.(*linux).legacy.Load() != old {
					t.Error("the new system calls were not used")
				}
			})
		}
	}
}

func TestMountErrorsContainTheKernelMessage(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "btrfs")
	_, release := b.recipe(m)
	defer release()
	fd, err := newFilesystem(loopOf(t, m), "ext4", []string{"no-such-option"}, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err == nil || !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("newFilesystem = %v, without the kernel's reason", err)
	}
}

func TestImagesAreMounted(t *testing.T) {
	ctx := context.Background()
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			m := b.image("image", fsType)
			m.Options = []string{"noatime", "discard"}
			other := b.image("other", fsType)
			staging, one, two := b.path("staging"), b.path("one"), b.path("two")
			for range 2 {
				b.mount(m, staging)
			}
			if len(b.loops()) != 1 {
				t.Errorf("attached: %v, want one device", b.loops())
			}
			b.mount(m.BindFrom(staging), one)
			readOnly := m
			readOnly.ReadOnly = true
			b.mount(readOnly.BindFrom(staging), two)
			if err := os.WriteFile(filepath.Join(one, "f"), []byte("hello"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(two, "f")); string(got) != "hello" {
				t.Errorf("two shows %q, %v", got, err)
			}
			if err := os.WriteFile(filepath.Join(two, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("write to a read-only mount: %v", err)
			}
			for _, restarted := range []bool{false, true} {
				if restarted {
					b.Host = realMounter(t)(b.kubelet)
				}
				for _, path := range []string{staging, one, two} {
					if !b.mounted(m, path) || b.mounted(other, path) {
						t.Errorf("restarted %v: Mounted does not distinguish images at %s", restarted, path)
					}
				}
				if got, err := b.MountPointsOf(m.Source); err != nil ||
					!slices.Equal(got, []string{one, staging, two}) {
					t.Errorf("restarted %v: MountPointsOf = %v, %v", restarted, got, err)
				}
				if got, err := b.OtherTargets(ctx, staging); err != nil || !slices.Equal(got, []string{one, two}) {
					t.Errorf("restarted %v: OtherTargets = %v, %v", restarted, got, err)
				}
				b.refused(other, staging, ErrConflict)
				b.refused(Mount{Kind: Image, Source: m.Source, FSType: fsType, Sector: 512}, staging, ErrConflict)
				b.mount(m, staging)
			}
			if u, err := b.Usage(ctx, one); err != nil || u.TotalBytes > 320<<20 || u.TotalBytes < 100<<20 {
				t.Errorf("Usage = %+v, %v", u, err)
			}
			b.unmount(one, two, staging)
			if got, err := b.MountPointsOf(m.Source); err != nil || len(got) != 0 {
				t.Errorf("MountPointsOf = %v, %v after all that", got, err)
			}
			b.mount(m, staging)
			if got, err := os.ReadFile(filepath.Join(staging, "f")); string(got) != "hello" {
				t.Errorf("after another mount the image shows %q, %v", got, err)
			}
			b.unmount(staging)
		})
	}
}

func TestMountNeverFormatsAnImage(t *testing.T) {
	b := newLoopBench(t)
	for name, spoil := range map[string]func(f *os.File) error{
		"blank":   func(f *os.File) error { return errors.Join(f.Truncate(0), f.Truncate(64<<20)) },
		"damaged": func(f *os.File) error { _, err := f.WriteAt(make([]byte, 4096), 0); return err },
	} {
		m := b.image(name, "ext4")
		f, err := os.OpenFile(m.Source, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := spoil(f); err != nil {
			t.Fatal(err)
		}
		head := func() string {
			head := make([]byte, 8192)
			if _, err := f.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			return string(head)
		}
		before := head()
		if err := b.Mount(context.Background(), m, b.path(name)); err == nil && name == "blank" {
			t.Errorf("%s: Mount = nil", name)
		} else if err != nil && (!errors.Is(err, ErrFormat) || exists(b.path(name))) {
			t.Errorf("%s: Mount = %v, target there: %v", name, err, exists(b.path(name)))
		}
		b.unmount(b.path(name))
		if name == "blank" && head() != before {
			t.Errorf("%s: the image was written to", name)
		}
		f.Close()
	}
}

func TestDiskIsMountedAsABlockDevice(t *testing.T) {
	ctx := context.Background()
	b := newLoopBench(t)
	m, other := b.image("image", ""), b.image("other", "")
	staging, one, two := b.path("staging"), b.path("one"), b.path("two")
	for range 2 {
		b.mount(m, staging)
		b.mount(m.BindFrom(staging), one)
	}
	if len(b.loops()) != 1 {
		t.Errorf("attached: %v, want one device", b.loops())
	}
	dev, err := os.OpenFile(one, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.WriteAt([]byte("hello"), 4096); err != nil || dev.Sync() != nil {
		t.Fatal(err)
	}
	if err := b.Unmount(ctx, one); !errors.Is(err, ErrBusy) {
		t.Errorf("Unmount of a device in use = %v", err)
	}
	dev.Close()
	if data, err := os.ReadFile(m.Source); err != nil || string(data[4096:4101]) != "hello" {
		t.Errorf("the image holds %q, %v", data[4096:4101], err)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			b.Host = realMounter(t)(b.kubelet)
		}
		for _, path := range []string{staging, one} {
			if !b.mounted(m, path) || b.mounted(other, path) {
				t.Errorf("restarted %v: Mounted does not distinguish disks at %s", restarted, path)
			}
			if yes, err := b.Occupied(ctx, path); !yes || err != nil {
				t.Errorf("restarted %v: Occupied(%s) = %v, %v", restarted, path, yes, err)
			}
			if u, err := b.Usage(ctx, path); err != nil || (u != Usage{TotalBytes: 320 << 20}) {
				t.Errorf("restarted %v: Usage(%s) = %+v, %v", restarted, path, u, err)
			}
		}
		if got, err := b.MountPointsOf(m.Source); err != nil ||
			!slices.Equal(got, []string{one, filepath.Join(staging, DeviceName)}) {
			t.Errorf("restarted %v: MountPointsOf = %v, %v", restarted, got, err)
		}
		if got, err := b.OtherTargets(ctx, m.BindFrom(staging).Source); err != nil ||
			!slices.Equal(got, []string{one}) {
			t.Errorf("restarted %v: OtherTargets = %v, %v", restarted, got, err)
		}
	}
	readOnly := m
	readOnly.ReadOnly = true
	b.refused(readOnly.BindFrom(staging), two, ErrReadOnly)
	b.refused(readOnly.BindFrom(staging), one, ErrConflict)
	if exists(two) {
		t.Error("a refused target is left")
	}
	if err := b.Remove(ctx, one); err != nil || exists(one) {
		t.Errorf("Remove = %v, target there: %v", err, exists(one))
	}
	b.mount(readOnly.BindFrom(staging), two)
	if dev, err = os.OpenFile(two, os.O_RDWR, 0); err == nil { // the kernel permits the open
		if _, err := dev.WriteAt([]byte("no"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("write to a read-only device: %v, want EPERM", err)
		}
		dev.Close()
	}
	b.unmount(two)
	b.mount(m.BindFrom(staging), one) // the device is writable again
	if dev, err = os.OpenFile(one, os.O_RDWR, 0); err != nil {
		t.Error(err)
	}
	dev.Close()
	b.unmount(one, staging)
	if got, err := b.MountPointsOf(m.Source); err != nil || len(got) != 0 ||
		exists(filepath.Join(staging, DeviceName)) {
		t.Errorf("MountPointsOf = %v, %v after all that", got, err)
	}
	if err := b.Remove(ctx, staging); err != nil || exists(staging) {
		t.Errorf("Remove(staging) = %v", err)
	}
}

func TestImagesGrow(t *testing.T) {
	ctx := context.Background()
	const larger = 512 << 20
	for _, fsType := range append(linuxFSTypes(), "") {
		t.Run(cmp.Or(fsType, "device"), func(t *testing.T) {
			b := newLoopBench(t)
			m, path := b.image("image", fsType), b.path("staging")
			b.mount(m, path)
			if fsType != "" {
				if err := os.WriteFile(filepath.Join(path, "f"), []byte("hello"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before, err := b.Usage(ctx, path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(m.Source, larger); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err := b.Grow(ctx, m, path)
				if fsType == "ext4" && errors.Is(err, ErrBusy) && !mayGrowExt4(t) { // in test/vm root may grow an ext4
					b.unmount(path)
					b.mount(m, path)
					err = b.Grow(ctx, m, path)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			after, err := b.Usage(ctx, path)
			if grown := after.TotalBytes - before.TotalBytes; err != nil || grown < 150<<20 ||
				after.TotalBytes > larger {
				t.Errorf("Usage was %+v and is %+v, %v", before, after, err)
			}
			if fsType == "" {
				b.unmount(path)
				return
			}
			if got, err := os.ReadFile(filepath.Join(path, "f")); string(got) != "hello" {
				t.Errorf("the file holds %q, %v", got, err)
			}
			if err := os.WriteFile(filepath.Join(path, "large"), make([]byte, 350<<20), 0o600); err != nil {
				t.Errorf("the new space cannot be used: %v", err)
			}
			b.unmount(path)
			b.mount(m, path)
			b.unmount(path)
		})
	}
}

// TestGrowLeavesATooSmallLastGroup: a filesystem does not use the rest of a device that is too
// small for another group.
func TestGrowLeavesATooSmallLastGroup(t *testing.T) {
	ctx := context.Background()
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			m, path := b.image("image", fsType), b.path("staging")
			if err := os.Truncate(m.Source, 384<<20+128<<10); err != nil { // whole groups of ext4 and xfs, and a rest
				t.Fatal(err)
			}
			for range 2 {
				b.mount(m, path)
				for range 2 {
					if err := b.Grow(ctx, m, path); err != nil {
						t.Error(err)
					}
				}
				b.unmount(path)
			}
		})
	}
}

// TestExt4IsFullWhenResize2fsReportsIt: otherwise each stage call would check and resize the ext4.
func TestExt4IsFullWhenResize2fsReportsIt(t *testing.T) {
	for _, name := range []string{"mkfs.ext4", "e2fsck", "resize2fs"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	for blockSize, counts := range map[uint64][]uint64{1024: {48, 49, 81}, 4096: {3, 4, 7}} {
		for _, groups := range counts {
			t.Run(fmt.Sprintf("%d groups of %d-byte blocks", groups, blockSize), func(t *testing.T) {
				f, err := os.Create(filepath.Join(t.TempDir(), "image"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				run := func(size uint64, name string, args ...string) {
					t.Helper()
					if err := f.Truncate(int64(size)); err != nil {
						t.Fatal(err)
					}
					if out, err := exec.Command(name, append(args, f.Name())...).CombinedOutput(); err != nil {
						t.Fatalf("%s: %v, %s", name, err, out)
					}
				}
				read := func() ext4Super {
					t.Helper()
					super, err := readExt4(f)
					if err != nil {
						t.Fatal(err)
					}
					return super
				}
				resize := func(size uint64) ext4Super {
					t.Helper()
					run(size, "e2fsck", "-f", "-p")
					run(size, "resize2fs")
					return read()
				}
				page := uint64(os.Getpagesize())
				size := groups * 8 * blockSize * blockSize
				run(size, "mkfs.ext4", "-q", "-b", fmt.Sprint(blockSize))
				before := resize(size + page)
				if before.blocks-before.first != groups*before.groupBlocks {
					t.Fatalf("%+v does not have %d whole groups", before, groups)
				}
				enough := ((before.blocks+before.leastLast(groups))*blockSize + page - 1) / page * page
				for _, size := range []uint64{size + page, enough - page, enough - 1, enough} {
					full := before.full(size)
					if after := resize(size); full != (after.blocks == before.blocks) {
						t.Errorf("with %d bytes %+v is full: %v, and became %+v", size, before, full, after)
					}
				}
				if before.full(enough) {
					t.Errorf("%+v is full for every size of the device", before)
				}
			})
		}
	}
}

// mayGrowExt4 reports whether this process has CAP_SYS_RESOURCE, which root of a container may
// lack.
func mayGrowExt4(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestPublishedDeviceStaysAttached(t *testing.T) {
	ctx := context.Background()
	b := newLoopBench(t)
	m, other := b.image("image", ""), b.image("other", "")
	b.mount(m, b.path("staging"))
	b.mount(m.BindFrom(b.path("staging")), b.path("target"))
	b.mount(m, b.path("again")) // at a second staging path
	for _, path := range []string{b.path("staging"), b.path("again")} {
		if err := b.Unmount(ctx, path); !errors.Is(err, ErrBusy) {
			t.Errorf("Unmount(%s) of a device that is also at another path = %v", path, err)
		}
	}
	b.mount(other, b.path("other"))
	if err := os.WriteFile(b.path("target"), []byte("mine"), 0); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{m.Source: "mine", other.Source: "\x00\x00\x00\x00"} {
		testdisk.Flush(t, file)
		if got := readAt(t, file, 0, 4); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if err := b.Remove(ctx, b.path("target")); err != nil {
		t.Error(err)
	}
	b.unmount(b.path("again"))
	if !b.mounted(m, b.path("staging")) {
		t.Error("the removal of a staging path has removed the device of the other")
	}
	b.unmount(b.path("staging"), b.path("other"))
}

func TestReusedDeviceNumberKeepsNoSettings(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	readOnly := m
	readOnly.ReadOnly = true
	b.mount(m, b.path("staging"))
	b.mount(readOnly.BindFrom(b.path("staging")), b.path("target"))
	b.unmount(b.path("target"), b.path("staging"))
	for _, fsType := range linuxFSTypes() {
		next := b.image(fsType, fsType)
		b.mount(next, b.path(fsType))
		if err := os.WriteFile(b.path(fsType, "f"), nil, 0o600); err != nil {
			t.Error(err)
		}
		b.unmount(b.path(fsType))
	}
}

func TestMountRejectsADeviceWithAPartOfTheImage(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	out, err := exec.Command("losetup", "--show", "-f", "-o", "1048576", m.Source).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v, %s", err, out)
	}
	b.refused(m, b.path("staging"), ErrConflict)
	if out, err := exec.Command("losetup", "-d", strings.TrimSpace(string(out))).CombinedOutput(); err != nil {
		t.Errorf("losetup: %v, %s", err, out)
	}
	b.mount(m, b.path("staging"))
	b.unmount(b.path("staging"))
}

func TestMountKeepsADeviceWithAutoclear(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	b.mount(m, b.path("staging"))
	dev, err := os.Open(b.path("staging", DeviceName))
	if err != nil {
		t.Fatal(err)
	}
	if err := setAutoclear(dev, true); err != nil { // the driver died midway, and another process has the device open
		t.Fatal(err)
	}
	b.mount(m, b.path("staging"))
	dev.Close()
	if !b.mounted(m, b.path("staging")) {
		t.Error("the kernel detached the device when the other process closed it")
	}
	b.unmount(b.path("staging"))
}

func TestDiskStagedReadOnly(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	m.ReadOnly = true
	b.mount(m, b.path("staging"))
	writable := m
	writable.ReadOnly = false
	b.refused(writable.BindFrom(b.path("staging")), b.path("one"), ErrReadOnly)
	b.mount(m.BindFrom(b.path("staging")), b.path("one"))
	b.unmount(b.path("one"), b.path("staging"))
}

func TestMountRepairsAnIncompleteDisk(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	staging := b.path("staging")
	mkdir(t, staging)
	if err := os.WriteFile(filepath.Join(staging, DeviceName), nil, 0o640); err != nil { // killed before the mount
		t.Fatal(err)
	}
	device := ownLoop(t)
	attachTo(t, device, m.Source)
	b.mount(m, staging)
	n, _ := loopNumber(device)
	dev, err := os.Open(filepath.Join(staging, DeviceName))
	if err != nil {
		t.Fatal(err)
	}
	err = setAutoclear(dev, true) // killed before it cleared autoclear: the device is gone, its node mounted
	dev.Close()
	if err != nil {
		t.Fatal(err)
	}
	untilDetached(t, device)
	if b.mounted(m, staging) {
		t.Fatal("a node without its device counts as mounted")
	}
	// The kernel gives the number to another image, which must stay attached.
	other := attachTo(t, device, b.image("other", "").Source)
	b.unmount(staging)
	mkdir(t, staging)
	if has, err := fileOfLoop(n); err != nil || has != other {
		t.Errorf("the device of the other image has %v, %v", has, err)
	}
	b.mount(m, staging)
	if !b.mounted(m, staging) {
		t.Error("not mounted again")
	}
	if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
		t.Errorf("losetup: %v, %s", err, out)
	}
	b.unmount(staging)
	if err := b.Remove(context.Background(), staging); err != nil {
		t.Error(err)
	}
}

// TestUnmountLeavesTheDeviceOfAnotherImage: a driver died in the middle of an unmount, and the device
// is detached after the next driver has found its file, and before that driver opens the device. The
// number is soon that of another image, whose device must stay attached.
func TestUnmountLeavesTheDeviceOfAnotherImage(t *testing.T) {
	b := newLoopBench(t)
	l := &b.Host.(*linux).loops
	m, other := b.image("image", ""), b.image("other", "")
	device := ownLoop(t)
	first := attachTo(t, device, m.Source)
	b.mount(m, b.path("staging"))
	n, _ := loopNumber(device)
	dev, err := openLoop(n, true)
	if err == nil {
		err = errors.Join(setAutoclear(dev, true), dev.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	untilDetached(t, device)
	second := attachTo(t, device, other.Source)
	l.noteFile(n, attached{file: first, sequence: sequenceOf(n)}) // what fileOf returns for a device that is being detached
	b.unmount(b.path("staging"))
	if has, err := fileOfLoop(n); err != nil || has != second {
		t.Errorf("the device of the other image has %v, %v, want %v", has, err, second)
	}
	runTool(t, "losetup", "-d", device)
}

// TestStaleNodeIsNoUseOfAnotherDisk: a driver died in the middle of an unmount, its device is gone,
// and the number of the device became that of another image.
func TestStaleNodeIsNoUseOfAnotherDisk(t *testing.T) {
	b := newLoopBench(t)
	m, other := b.image("image", ""), b.image("other", "")
	stale, staging := b.path("stale"), b.path("staging")
	device := ownLoop(t)
	attachTo(t, device, m.Source)
	b.mount(m, stale)
	dev, err := os.Open(filepath.Join(stale, DeviceName))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(setAutoclear(dev, true), dev.Close()); err != nil {
		t.Fatal(err)
	}
	untilDetached(t, device)
	attachTo(t, device, other.Source)
	b.mount(other, staging)
	if got, err := b.MountPointsOf(other.Source); err != nil ||
		!slices.Equal(got, []string{filepath.Join(staging, DeviceName)}) {
		t.Errorf("MountPointsOf = %v, %v", got, err)
	}
	b.unmount(staging)
	if got, err := b.MountPointsOf(other.Source); err != nil || len(got) != 0 {
		t.Errorf("MountPointsOf after the unmount = %v, %v", got, err)
	}
	if left := b.loops(); len(left) != 0 {
		t.Errorf("attached: %v", left)
	}
	b.unmount(stale)
}
