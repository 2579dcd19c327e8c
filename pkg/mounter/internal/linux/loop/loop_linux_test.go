package loop_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/freeze"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
)

// stalledDevice returns a bench with a Disk whose device does not answer: a call of Tune waits for
// a write that does not end, as the file of the disk is on a frozen filesystem. end ends the stall.
func stalledDevice(t *testing.T) (b *linuxtest.Bench, device string, end func()) {
	b = linuxtest.NewFreezeBench(t)
	outer := b.Image("outer", "ext4")
	b.MustMount(outer, b.Path("outer"))
	m := mounter.Mount{Kind: mounter.Disk, Source: b.Path("outer", "image"), Sector: 512, Buffered: true}
	if err := errors.Join(os.WriteFile(m.Source, nil, 0o600), os.Truncate(m.Source, 16<<20)); err != nil {
		t.Fatal(err)
	}
	b.MustMount(m, b.Path("staging"))
	root, err := os.Open(b.Path("outer"))
	if err != nil {
		t.Fatal(err)
	}
	if err := freeze.Ioctl(root, freeze.FreezeFS); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	end = sync.OnceFunc(func() {
		if err := freeze.Ioctl(root, freeze.ThawFS); err != nil {
			t.Error(err)
		}
		root.Close()
		calls.Wait()
		b.MustUnmount(b.Path("staging"))
		testdisk.Detached(t, m.Source) // another process may have the device open for a moment
		b.MustUnmount(b.Path("outer"))
	})
	t.Cleanup(end)
	device = linuxtest.LoopOf(t, m)
	calls.Go(func() {
		if err := os.WriteFile(device, []byte("written"), 0); err != nil {
			t.Error(err)
		}
		if err := syncFile(device); err != nil {
			t.Error(err)
		}
	})
	await.True(t, "the write is under way", func() bool {
		inflight, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "inflight"))
		counts := strings.Fields(string(inflight)) // of reads and of writes; a read of the block ends
		return len(counts) == 2 && counts[1] != "0"
	})
	direct := m
	direct.Buffered = false
	calls.Go(func() {
		if err := b.Tune(context.Background(), direct); err != nil {
			t.Error(err)
		}
	})
	await.True(t, "the change of the device waits for the write", func() bool {
		return linuxtest.WaitsIn(os.Getpid(), "blk_mq_freeze_queue_wait")
	})
	return b, device, end
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func TestStalledDeviceDelaysNoOtherImage(t *testing.T) {
	ctx := context.Background()
	b, device, end := stalledDevice(t)
	m := b.Image("other", "xfs")
	for name, call := range map[string]func() error{
		"Mount":         func() error { return b.Mount(ctx, m, b.Path("other")) },
		"MountPointsOf": func() error { _, err := b.MountPointsOf(m.Source); return err },
		"Tune":          func() error { return b.Tune(ctx, m) },
		"Mounted": func() error {
			if yes, err := b.Mounted(ctx, m, b.Path("other")); err != nil || !yes {
				return fmt.Errorf("%v, %w", yes, err)
			}
			return nil
		},
		"Failing": func() error {
			if all, err := b.Failing(); err != nil || len(all) > 0 {
				return fmt.Errorf("%v, %w", all, err)
			}
			return nil
		},
		"Unmount": func() error { return b.Unmount(ctx, b.Path("other")) },
	} {
		if name != "Mount" {
			b.MustMount(m, b.Path("other"))
		}
		if err := linuxtest.Returns(t, name, call); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := linuxtest.Returns(t, "Unmount", func() error { return b.Unmount(ctx, b.Path("other")) }); err != nil {
			t.Error(err)
		}
	}
	// A new process does not know the file of the device. An image that no process has open is not
	// that file.
	again := linuxtest.RealMounter(t)(b.Kubelet)
	unanswered := func(image string) {
		t.Helper()
		if _, err := again.MountPointsOf(image); !errors.Is(err, mounter.ErrNoAnswer) || !strings.Contains(err.Error(),
			device) {
			t.Errorf("MountPointsOf(%s) of a new Mounter = %v, want ErrNoAnswer that names the device", image, err)
		}
	}
	await.True(t, "the image is known to have no device", func() bool { // soon: its last device is being detached
		users, err := again.MountPointsOf(m.Source)
		return err == nil && len(users) == 0
	})
	unanswered(b.Path("outer", "image"))
	open, err := os.Open(m.Source)
	if err != nil {
		t.Fatal(err)
	}
	unanswered(m.Source)
	if err := again.Mount(ctx, m, b.Path("other")); !errors.Is(err, mounter.ErrNoAnswer) {
		t.Errorf("Mount of an open image = %v, want ErrNoAnswer", err)
	}
	open.Close()
	if err := again.Mount(ctx, m, b.Path("other")); err != nil {
		t.Errorf("Mount of an image that is not open: %v", err)
	}
	// The search continues past the device that does not answer.
	found, err := linuxtest.RealMounter(t)(b.Kubelet).MountPointsOf(m.Source)
	if err != nil || !slices.Equal(found, []string{b.Path("other")}) {
		t.Errorf("MountPointsOf a mounted image = %v, %v", found, err)
	}
	b.MustUnmount(b.Path("other"))
	end()
	if users, err := again.MountPointsOf(m.Source); err != nil || len(users) > 0 {
		t.Errorf("MountPointsOf when the device answers again = %v, %v", users, err)
	}
}

// TestDeadDiskAffectsNoOtherImage also tests that a pod on the dead disk can end.
func TestDeadDiskAffectsNoOtherImage(t *testing.T) {
	ctx := context.Background()
	for _, restarted := range []bool{false, true} {
		b := linuxtest.NewLoopBench(t)
		disk := b.Image("disk", "xfs")
		b.MustMount(disk, b.Path("disk"))
		m := mounter.Mount{Kind: mounter.Disk, Source: b.Path("disk", "image"), Sector: 512}
		if err := os.WriteFile(m.Source, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		b.MustMount(m, b.Path("staging"))
		b.MustMount(m.BindFrom(b.Path("staging")), b.Path("target"))
		device := linuxtest.LoopOf(t, m)
		linuxtest.ShutDown(t, b.Path("disk"))
		if restarted {
			b.Host = linuxtest.RealMounter(t)(b.Kubelet)
		}
		other := b.Image("other", "ext4")
		b.MustMount(other, b.Path("other"))
		if users, err := b.MountPointsOf(other.Source); err != nil || len(users) != 1 {
			t.Errorf("MountPointsOf = %v, %v", users, err)
		}
		b.MustUnmount(b.Path("other"))
		for _, path := range []string{b.Path("target"), b.Path("staging")} {
			if err := b.Remove(ctx, path); err != nil || linuxtest.Exists(path) {
				t.Errorf("restarted %v: Remove(%s) = %v", restarted, path, err)
			}
		}
		if restarted { // the new process does not know the image of the device
			b.Run(mounter.Mount{Source: device}, "losetup", "-d")
		}
		testdisk.Detached(t, m.Source) // another process may have the device open for a moment
		b.MustUnmount(b.Path("disk"))
	}
}

// TestConcurrentMountsAttachAnImageOnce mounts each image with many calls at once, at many paths.
func TestConcurrentMountsAttachAnImageOnce(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	images := []mounter.Mount{b.Image("one", ""), b.Image("two", "ext4"), b.Image("three", "xfs")}
	for range 5 {
		var calls sync.WaitGroup
		for i, m := range images {
			for j := range 4 {
				calls.Go(func() {
					if err := b.Mount(context.Background(), m, b.Path(fmt.Sprint(i, "-", j))); err != nil {
						t.Error(err)
					}
				})
			}
		}
		calls.Wait()
		if loops := b.Loops(); len(loops) != len(images) {
			t.Errorf("attached: %v, want one device for each of %d images", loops, len(images))
		}
		for i := range images {
			for j := range 4 {
				b.MustUnmount(b.Path(fmt.Sprint(i, "-", j)))
			}
		}
		b.WaitForLoops(0)
	}
}

// TestConfigureFreeDoesNotFailAFasterMount: if the kernel has offered the same free device to the
// driver and to another program, the mount of the program must not fail. mount(2) rejects a device
// that is open exclusively.
func TestConfigureFreeDoesNotFailAFasterMount(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	theirs, ours := b.Image("theirs", "ext4"), b.Image("ours", "")
	file, err := os.Open(ours.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out, err := exec.Command("losetup", "-f", "--show", theirs.Source).Output()
	if err != nil {
		t.Fatal(err)
	}
	device := strings.TrimSpace(string(out))
	defer b.Run(mounter.Mount{Source: device}, "losetup", "-d")
	n, _ := loop.Number(device)
	over := make(chan struct{})
	var late sync.WaitGroup
	late.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: 512}
			if dev, err := loop.ConfigureFree(n, &config, loop.Options{Sector: 512}); !errors.Is(err, unix.EBUSY) {
				t.Errorf("configureFree = %v, %v, want EBUSY", dev, err)
				return
			}
		}
	})
	dir := b.Path("theirs")
	linuxtest.Mkdir(t, dir)
	for range 200 {
		if err := unix.Mount(device, dir, "ext4", 0, ""); err != nil {
			t.Errorf("mount: %v", err)
			break
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	close(over)
	late.Wait()
}

// TestFileOfNoticesANewBackingFile: the kernel has attached another file to the same device.
func TestFileOfNoticesANewBackingFile(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	l := b.Host.(*linux.Host).Loops
	one, two := b.Image("one", ""), b.Image("two", "")
	device := linuxtest.OwnLoop(t)
	linuxtest.AttachTo(t, device, one.Source)
	n, _ := loop.Number(device)
	first, err := l.FileOf(n)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := loop.LastFile(l, n); !ok || a.File != first || a.Sequence == "" {
		t.Fatalf("the file is not remembered: %+v, %v: the test proves nothing", a, ok)
	}
	linuxtest.RunTool(t, "losetup", "-d", device)
	linuxtest.UntilDetached(t, device)
	second := linuxtest.AttachTo(t, device, two.Source)
	if has, err := l.FileOf(n); err != nil || has != second || has == first {
		t.Errorf("fileOf = %v, %v, want %v", has, err, second)
	}
	if _, found, err := l.DeviceFor(first); found || err != nil {
		t.Errorf("the first image is still found: %v, %v", found, err)
	}
	linuxtest.RunTool(t, "losetup", "-d", device)
	await.True(t, "the device is free again", func() bool { _, err := l.FileOf(n); return errors.Is(err, unix.ENXIO) })
}

// TestUnmountLeavesTheDeviceOfAnotherImage: a driver died in the middle of an unmount, and the
// device is detached after the next driver has found its file, and before that driver opens the
// device. The number is soon that of another image, whose device must stay attached.
func TestUnmountLeavesTheDeviceOfAnotherImage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	l := b.Host.(*linux.Host).Loops
	m, other := b.Image("image", ""), b.Image("other", "")
	device := linuxtest.OwnLoop(t)
	first := linuxtest.AttachTo(t, device, m.Source)
	b.MustMount(m, b.Path("staging"))
	n, _ := loop.Number(device)
	dev, err := loop.Open(n, true)
	if err == nil {
		err = errors.Join(loop.SetAutoclear(dev, true), dev.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	linuxtest.UntilDetached(t, device)
	second := linuxtest.AttachTo(t, device, other.Source)
	loop.NoteFile(l, n, loop.Attached{File: first, Sequence: loop.SequenceOf(n)}) // what FileOf returns for a device that is being detached
	b.MustUnmount(b.Path("staging"))
	if has, err := loop.FileOfDevice(n); err != nil || has != second {
		t.Errorf("the device of the other image has %v, %v, want %v", has, err, second)
	}
	linuxtest.RunTool(t, "losetup", "-d", device)
}
