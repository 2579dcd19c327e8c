package image_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

func TestLinuxKeepsTheContractOfImages(t *testing.T) {
	linuxtest.ImageContract(t, linuxtest.NewLoopBench, (*linuxtest.Bench).Image)
}

func TestLinuxKeepsTheContractOfImagesWithoutTheNewSystemCalls(t *testing.T) {
	linuxtest.ImageContract(t, func(t *testing.T) *linuxtest.Bench {
		b := linuxtest.NewLoopBench(t)
		b.Host.(*linux.Host).Tree.Legacy.Store(true)
		return b
	}, (*linuxtest.Bench).Image)
}

// TestOldAndNewMountCallsFailWithTheSameClass: the class of an error shows whether the image is the
// cause. mount(2) and the new system calls must return the same class.
func TestOldAndNewMountCallsFailWithTheSameClass(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	l := b.Host.(*linux.Host)
	spoils := map[string]func(m mounter.Mount) error{
		"blank": func(m mounter.Mount) error {
			return errors.Join(os.Truncate(m.Source, 0), os.Truncate(m.Source, 320<<20))
		},
		"cut":                func(m mounter.Mount) error { return os.Truncate(m.Source, 100<<20) },
		"start overwritten":  func(m mounter.Mount) error { return overwrite(m.Source, 0, 64<<10) },
		"larger part":        func(m mounter.Mount) error { return overwrite(m.Source, 1<<10, 8<<20) },
		"second 64 KiB gone": func(m mounter.Mount) error { return overwrite(m.Source, 64<<10, 64<<10) },
		"whole":              func(mounter.Mount) error { return nil },
	}
	for _, fsType := range linuxtest.LinuxFSTypes() {
		for _, as := range linuxtest.LinuxFSTypes() {
			for name, spoil := range spoils {
				m := b.Image("image", fsType)
				if err := spoil(m); err != nil {
					t.Fatal(err)
				}
				if m.FSType = as; as == fsType && name == "whole" {
					continue
				}
				linuxtest.Mkdir(t, b.Path("target"))
				var errs []error
				for _, old := range []bool{false, true} {
					l.Tree.Legacy.Store(old)
					r, release := b.Recipe(m)
					held := b.Hold(mounter.Mount{Kind: mounter.Image}, b.Path("target"))
					errs = append(errs, l.Tree.Attach(held, r))
					held.Close()
					held.Handle.Close()
					release()
					b.MustUnmount(b.Path("target"))
				}
				alike := func(class error) bool { return errors.Is(errs[0], class) == errors.Is(errs[1], class) }
				if (errs[0] == nil) != (errs[1] == nil) || !alike(mounter.ErrFormat) || !alike(unix.EINVAL) ||
					!alike(unix.EUCLEAN) || !alike(unix.EIO) {
					t.Errorf("%s of %s as %s: %v, and by mount(2) %v", name, fsType, as, errs[0], errs[1])
				}
				if as != fsType && !errors.Is(errs[0], mounter.ErrFormat) {
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
	for _, fsType := range linuxtest.LinuxFSTypes() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				b.Host.(*linux.Host).Tree.Legacy.Store(old)
				m := b.Image("image", fsType)
				for _, o := range options.Image[fsType] {
					m.Options = []string{o, "noatime", "noexec"}
					b.MustMount(m, b.Path("target"))
					b.MustMount(m, b.Path("target"))
					infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(b.Path("target")))
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
					b.MustUnmount(b.Path("target"))
				}
				m.Options, m.ReadOnly = nil, true
				b.MustMount(m, b.Path("target"))
				infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(b.Path("target")))
				if err != nil || len(infos) != 1 || !strings.HasPrefix(infos[0].Options, "ro,") ||
					!strings.HasPrefix(infos[0].VFSOptions, "ro") {
					t.Errorf("read-only: %+v, %v", infos, err)
				}
				b.MustUnmount(b.Path("target"))
				if b.Host.(*linux.Host).Tree.Legacy.Load() != old {
					t.Error("the new system calls were not used")
				}
			})
		}
	}
}

func TestMountErrorsContainTheKernelMessage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "btrfs")
	_, release := b.Recipe(m)
	defer release()
	fd, err := tree.NewFilesystem(linuxtest.LoopOf(t, m), "ext4", []string{"no-such-option"}, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err == nil || !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("newFilesystem = %v, without the kernel's reason", err)
	}
}

func TestImagesAreMounted(t *testing.T) {
	ctx := context.Background()
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m := b.Image("image", fsType)
			m.Options = []string{"noatime", "discard"}
			other := b.Image("other", fsType)
			staging, one, two := b.Path("staging"), b.Path("one"), b.Path("two")
			for range 2 {
				b.MustMount(m, staging)
			}
			if len(b.Loops()) != 1 {
				t.Errorf("attached: %v, want one device", b.Loops())
			}
			b.MustMount(m.BindFrom(staging), one)
			readOnly := m
			readOnly.ReadOnly = true
			b.MustMount(readOnly.BindFrom(staging), two)
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
					b.Host = linuxtest.RealMounter(t)(b.Kubelet)
				}
				for _, path := range []string{staging, one, two} {
					if !b.IsMounted(m, path) || b.IsMounted(other, path) {
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
				b.Refused(other, staging, mounter.ErrConflict)
				b.Refused(mounter.Mount{Kind: mounter.Image, Source: m.Source, FSType: fsType, Sector: 512}, staging,
					mounter.ErrConflict)
				b.MustMount(m, staging)
			}
			if u, err := b.Usage(ctx, one); err != nil || u.TotalBytes > 320<<20 || u.TotalBytes < 100<<20 {
				t.Errorf("Usage = %+v, %v", u, err)
			}
			b.MustUnmount(one, two, staging)
			if got, err := b.MountPointsOf(m.Source); err != nil || len(got) != 0 {
				t.Errorf("MountPointsOf = %v, %v after all that", got, err)
			}
			b.MustMount(m, staging)
			if got, err := os.ReadFile(filepath.Join(staging, "f")); string(got) != "hello" {
				t.Errorf("after another mount the image shows %q, %v", got, err)
			}
			b.MustUnmount(staging)
		})
	}
}

func TestMountNeverFormatsAnImage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	for name, spoil := range map[string]func(f *os.File) error{
		"blank":   func(f *os.File) error { return errors.Join(f.Truncate(0), f.Truncate(64<<20)) },
		"damaged": func(f *os.File) error { _, err := f.WriteAt(make([]byte, 4096), 0); return err },
	} {
		m := b.Image(name, "ext4")
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
		if err := b.Mount(context.Background(), m, b.Path(name)); err == nil && name == "blank" {
			t.Errorf("%s: Mount = nil", name)
		} else if err != nil && (!errors.Is(err, mounter.ErrFormat) || linuxtest.Exists(b.Path(name))) {
			t.Errorf("%s: Mount = %v, target there: %v", name, err, linuxtest.Exists(b.Path(name)))
		}
		b.MustUnmount(b.Path(name))
		if name == "blank" && head() != before {
			t.Errorf("%s: the image was written to", name)
		}
		f.Close()
	}
}

func TestDiskIsMountedAsABlockDevice(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	m, other := b.Image("image", ""), b.Image("other", "")
	staging, one, two := b.Path("staging"), b.Path("one"), b.Path("two")
	for range 2 {
		b.MustMount(m, staging)
		b.MustMount(m.BindFrom(staging), one)
	}
	if len(b.Loops()) != 1 {
		t.Errorf("attached: %v, want one device", b.Loops())
	}
	dev, err := os.OpenFile(one, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.WriteAt([]byte("hello"), 4096); err != nil || dev.Sync() != nil {
		t.Fatal(err)
	}
	if err := b.Unmount(ctx, one); !errors.Is(err, mounter.ErrBusy) {
		t.Errorf("Unmount of a device in use = %v", err)
	}
	dev.Close()
	if data, err := os.ReadFile(m.Source); err != nil || string(data[4096:4101]) != "hello" {
		t.Errorf("the image holds %q, %v", data[4096:4101], err)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			b.Host = linuxtest.RealMounter(t)(b.Kubelet)
		}
		for _, path := range []string{staging, one} {
			if !b.IsMounted(m, path) || b.IsMounted(other, path) {
				t.Errorf("restarted %v: Mounted does not distinguish disks at %s", restarted, path)
			}
			if yes, err := b.Occupied(ctx, path); !yes || err != nil {
				t.Errorf("restarted %v: Occupied(%s) = %v, %v", restarted, path, yes, err)
			}
			if u, err := b.Usage(ctx, path); err != nil || (u != mounter.Usage{TotalBytes: 320 << 20}) {
				t.Errorf("restarted %v: Usage(%s) = %+v, %v", restarted, path, u, err)
			}
		}
		if got, err := b.MountPointsOf(m.Source); err != nil ||
			!slices.Equal(got, []string{one, filepath.Join(staging, mounter.DeviceName)}) {
			t.Errorf("restarted %v: MountPointsOf = %v, %v", restarted, got, err)
		}
		if got, err := b.OtherTargets(ctx, m.BindFrom(staging).Source); err != nil ||
			!slices.Equal(got, []string{one}) {
			t.Errorf("restarted %v: OtherTargets = %v, %v", restarted, got, err)
		}
	}
	readOnly := m
	readOnly.ReadOnly = true
	b.Refused(readOnly.BindFrom(staging), two, mounter.ErrReadOnly)
	b.Refused(readOnly.BindFrom(staging), one, mounter.ErrConflict)
	if linuxtest.Exists(two) {
		t.Error("a refused target is left")
	}
	if err := b.Remove(ctx, one); err != nil || linuxtest.Exists(one) {
		t.Errorf("Remove = %v, target there: %v", err, linuxtest.Exists(one))
	}
	b.MustMount(readOnly.BindFrom(staging), two)
	if dev, err = os.OpenFile(two, os.O_RDWR, 0); err == nil { // the kernel permits the open
		if _, err := dev.WriteAt([]byte("no"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("write to a read-only device: %v, want EPERM", err)
		}
		dev.Close()
	}
	b.MustUnmount(two)
	b.MustMount(m.BindFrom(staging), one) // the device is writable again
	if dev, err = os.OpenFile(one, os.O_RDWR, 0); err != nil {
		t.Error(err)
	}
	dev.Close()
	b.MustUnmount(one, staging)
	if got, err := b.MountPointsOf(m.Source); err != nil || len(got) != 0 ||
		linuxtest.Exists(filepath.Join(staging, mounter.DeviceName)) {
		t.Errorf("MountPointsOf = %v, %v after all that", got, err)
	}
	if err := b.Remove(ctx, staging); err != nil || linuxtest.Exists(staging) {
		t.Errorf("Remove(staging) = %v", err)
	}
}

func TestImagesGrow(t *testing.T) {
	ctx := context.Background()
	const larger = 512 << 20
	for _, fsType := range append(linuxtest.LinuxFSTypes(), "") {
		t.Run(cmp.Or(fsType, "device"), func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m, path := b.Image("image", fsType), b.Path("staging")
			b.MustMount(m, path)
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
				if fsType == "ext4" && errors.Is(err, mounter.ErrBusy) &&
					!linuxtest.MayGrowExt4(t) { // in test/vm root may grow an ext4
					b.MustUnmount(path)
					b.MustMount(m, path)
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
				b.MustUnmount(path)
				return
			}
			if got, err := os.ReadFile(filepath.Join(path, "f")); string(got) != "hello" {
				t.Errorf("the file holds %q, %v", got, err)
			}
			if err := os.WriteFile(filepath.Join(path, "large"), make([]byte, 350<<20), 0o600); err != nil {
				t.Errorf("the new space cannot be used: %v", err)
			}
			b.MustUnmount(path)
			b.MustMount(m, path)
			b.MustUnmount(path)
		})
	}
}

// TestGrowLeavesATooSmallLastGroup: a filesystem does not use the rest of a device that is too
// small for another group.
func TestGrowLeavesATooSmallLastGroup(t *testing.T) {
	ctx := context.Background()
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			m, path := b.Image("image", fsType), b.Path("staging")
			if err := os.Truncate(m.Source, 384<<20+128<<10); err != nil { // whole groups of ext4 and xfs, and a rest
				t.Fatal(err)
			}
			for range 2 {
				b.MustMount(m, path)
				for range 2 {
					if err := b.Grow(ctx, m, path); err != nil {
						t.Error(err)
					}
				}
				b.MustUnmount(path)
			}
		})
	}
}

func TestPublishedDeviceStaysAttached(t *testing.T) {
	ctx := context.Background()
	b := linuxtest.NewLoopBench(t)
	m, other := b.Image("image", ""), b.Image("other", "")
	b.MustMount(m, b.Path("staging"))
	b.MustMount(m.BindFrom(b.Path("staging")), b.Path("target"))
	b.MustMount(m, b.Path("again")) // at a second staging path
	for _, path := range []string{b.Path("staging"), b.Path("again")} {
		if err := b.Unmount(ctx, path); !errors.Is(err, mounter.ErrBusy) {
			t.Errorf("Unmount(%s) of a device that is also at another path = %v", path, err)
		}
	}
	b.MustMount(other, b.Path("other"))
	if err := os.WriteFile(b.Path("target"), []byte("mine"), 0); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{m.Source: "mine", other.Source: "\x00\x00\x00\x00"} {
		testdisk.Flush(t, file)
		if got := linuxtest.ReadAt(t, file, 0, 4); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if err := b.Remove(ctx, b.Path("target")); err != nil {
		t.Error(err)
	}
	b.MustUnmount(b.Path("again"))
	if !b.IsMounted(m, b.Path("staging")) {
		t.Error("the removal of a staging path has removed the device of the other")
	}
	b.MustUnmount(b.Path("staging"), b.Path("other"))
}

func TestReusedDeviceNumberKeepsNoSettings(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	readOnly := m
	readOnly.ReadOnly = true
	b.MustMount(m, b.Path("staging"))
	b.MustMount(readOnly.BindFrom(b.Path("staging")), b.Path("target"))
	b.MustUnmount(b.Path("target"), b.Path("staging"))
	for _, fsType := range linuxtest.LinuxFSTypes() {
		next := b.Image(fsType, fsType)
		b.MustMount(next, b.Path(fsType))
		if err := os.WriteFile(b.Path(fsType, "f"), nil, 0o600); err != nil {
			t.Error(err)
		}
		b.MustUnmount(b.Path(fsType))
	}
}

func TestMountRejectsADeviceWithAPartOfTheImage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	out, err := exec.Command("losetup", "--show", "-f", "-o", "1048576", m.Source).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v, %s", err, out)
	}
	b.Refused(m, b.Path("staging"), mounter.ErrConflict)
	if out, err := exec.Command("losetup", "-d", strings.TrimSpace(string(out))).CombinedOutput(); err != nil {
		t.Errorf("losetup: %v, %s", err, out)
	}
	b.MustMount(m, b.Path("staging"))
	b.MustUnmount(b.Path("staging"))
}

func TestMountKeepsADeviceWithAutoclear(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	b.MustMount(m, b.Path("staging"))
	dev, err := os.Open(b.Path("staging", mounter.DeviceName))
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.SetAutoclear(dev, true); err != nil { // the driver died midway, and another process has the device open
		t.Fatal(err)
	}
	b.MustMount(m, b.Path("staging"))
	dev.Close()
	if !b.IsMounted(m, b.Path("staging")) {
		t.Error("the kernel detached the device when the other process closed it")
	}
	b.MustUnmount(b.Path("staging"))
}

func TestDiskStagedReadOnly(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	m.ReadOnly = true
	b.MustMount(m, b.Path("staging"))
	writable := m
	writable.ReadOnly = false
	b.Refused(writable.BindFrom(b.Path("staging")), b.Path("one"), mounter.ErrReadOnly)
	b.MustMount(m.BindFrom(b.Path("staging")), b.Path("one"))
	b.MustUnmount(b.Path("one"), b.Path("staging"))
}

func TestMountRepairsAnIncompleteDisk(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	staging := b.Path("staging")
	linuxtest.Mkdir(t, staging)
	if err := os.WriteFile(filepath.Join(staging, mounter.DeviceName), nil, 0o640); err != nil { // killed before the mount
		t.Fatal(err)
	}
	device := linuxtest.OwnLoop(t)
	linuxtest.AttachTo(t, device, m.Source)
	b.MustMount(m, staging)
	n, _ := loop.Number(device)
	dev, err := os.Open(filepath.Join(staging, mounter.DeviceName))
	if err != nil {
		t.Fatal(err)
	}
	err = loop.SetAutoclear(dev, true) // killed before it cleared autoclear: the device is gone, its node mounted
	dev.Close()
	if err != nil {
		t.Fatal(err)
	}
	linuxtest.UntilDetached(t, device)
	if b.IsMounted(m, staging) {
		t.Fatal("a node without its device counts as mounted")
	}
	// The kernel gives the number to another image, which must stay attached.
	other := linuxtest.AttachTo(t, device, b.Image("other", "").Source)
	b.MustUnmount(staging)
	linuxtest.Mkdir(t, staging)
	if has, err := loop.FileOfDevice(n); err != nil || has != other {
		t.Errorf("the device of the other image has %v, %v", has, err)
	}
	b.MustMount(m, staging)
	if !b.IsMounted(m, staging) {
		t.Error("not mounted again")
	}
	if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
		t.Errorf("losetup: %v, %s", err, out)
	}
	b.MustUnmount(staging)
	if err := b.Remove(context.Background(), staging); err != nil {
		t.Error(err)
	}
}

// TestDetachOfADiskThatAnotherProgramUnmounted: kubernetes#121937, KEP-6058. Its device stays
// attached, as nothing but the driver's Unmount detaches it.
func TestDetachOfADiskThatAnotherProgramUnmounted(t *testing.T) {
	ctx := context.Background()
	for _, restarted := range []bool{false, true} {
		b := linuxtest.NewLoopBench(t)
		m, staging := b.Image("image", ""), b.Path("staging")
		detach := func(want string) {
			t.Helper()
			if got, err := b.Detach(ctx, m.Source); err != nil || got != want {
				t.Errorf("restarted %v: Detach = %q, %v, want %q", restarted, got, err, want)
			}
		}
		used := func(want ...string) {
			t.Helper()
			if got, err := b.MountPointsOf(m.Source); err != nil || !slices.Equal(got, want) {
				t.Errorf("restarted %v: MountPointsOf = %q, %v, want %q", restarted, got, err, want)
			}
		}
		detach("") // of an image that was never attached
		for _, open := range []bool{true, false} {
			b.MustMount(m, staging)
			node := filepath.Join(staging, mounter.DeviceName)
			detach("")
			used(node)
			device := "/dev/" + strings.Split(b.Loops()[0], "/")[3]
			dev, err := os.Open(node)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Unmount(node, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			if restarted {
				b.Host = linuxtest.RealMounter(t)(b.Kubelet)
			}
			if open {
				detach(device)
				used(device)
			}
			if err := dev.Close(); err != nil {
				t.Fatal(err)
			}
			detach("")
			used()
			b.WaitForLoops(0)
		}
	}
}

// TestDetachOfAnImageThatAProcessHasOpen: the device of a filesystem is detached with its last user, as
// before the call.
func TestDetachOfAnImageThatAProcessHasOpen(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m, staging := b.Image("image", "ext4"), b.Path("staging")
	b.MustMount(m, staging)
	device := linuxtest.LoopOf(t, m)
	dev, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	b.MustUnmount(staging)
	if got, err := b.Detach(t.Context(), m.Source); err != nil || got != device {
		t.Errorf("Detach = %q, %v, want %q", got, err, device)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	linuxtest.UntilDetached(t, device)
}

// TestStaleNodeIsNoUseOfAnotherDisk: a driver died in the middle of an unmount, its device is gone,
// and the number of the device became that of another image.
func TestStaleNodeIsNoUseOfAnotherDisk(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m, other := b.Image("image", ""), b.Image("other", "")
	stale, staging := b.Path("stale"), b.Path("staging")
	device := linuxtest.OwnLoop(t)
	linuxtest.AttachTo(t, device, m.Source)
	b.MustMount(m, stale)
	dev, err := os.Open(filepath.Join(stale, mounter.DeviceName))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(loop.SetAutoclear(dev, true), dev.Close()); err != nil {
		t.Fatal(err)
	}
	linuxtest.UntilDetached(t, device)
	linuxtest.AttachTo(t, device, other.Source)
	b.MustMount(other, staging)
	if got, err := b.MountPointsOf(other.Source); err != nil ||
		!slices.Equal(got, []string{filepath.Join(staging, mounter.DeviceName)}) {
		t.Errorf("MountPointsOf = %v, %v", got, err)
	}
	b.MustUnmount(staging)
	if got, err := b.MountPointsOf(other.Source); err != nil || len(got) != 0 {
		t.Errorf("MountPointsOf after the unmount = %v, %v", got, err)
	}
	b.WaitForLoops(0)
	b.MustUnmount(stale)
}
