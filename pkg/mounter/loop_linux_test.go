package mounter

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
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
)

// returns fails the test if call does not return.
func returns(t *testing.T, what string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patient):
		t.Fatalf("%s has not returned in %s", what, patient)
		return nil
	}
}

// stalledDevice returns a bench with a Disk whose device does not answer: a call of Tune waits for
// a write that does not end, as the file of the disk is on a frozen filesystem. end ends the stall.
func stalledDevice(t *testing.T) (b *bench, device string, end func()) {
	b = newFreezeBench(t)
	outer := b.image("outer", "ext4")
	b.mount(outer, b.path("outer"))
	m := Mount{Kind: Disk, Source: b.path("outer", "image"), Sector: 512, Buffered: true}
	if err := errors.Join(os.WriteFile(m.Source, nil, 0o600), os.Truncate(m.Source, 16<<20)); err != nil {
		t.Fatal(err)
	}
	b.mount(m, b.path("staging"))
	root, err := os.Open(b.path("outer"))
	if err != nil {
		t.Fatal(err)
	}
	if err := fsIoctl(root, freezeFS); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	end = sync.OnceFunc(func() {
		if err := fsIoctl(root, thawFS); err != nil {
			t.Error(err)
		}
		root.Close()
		calls.Wait()
		b.unmount(b.path("staging"), b.path("outer"))
	})
	t.Cleanup(end)
	device = loopOf(t, m)
	n, _ := loopNumber(device)
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
	await.True(t, "the device answers nothing", func() bool {
		var asks inflight.Group[int, backing]
		r, _ := asks.Start(n, func() (backing, error) { return fileOfLoop(n) })
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := r.Wait(ctx)
		return errors.Is(err, inflight.ErrNoAnswer)
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
	m := b.image("other", "xfs")
	for name, call := range map[string]func() error{
		"Mount":         func() error { return b.Mount(ctx, m, b.path("other")) },
		"MountPointsOf": func() error { _, err := b.MountPointsOf(m.Source); return err },
		"Tune":          func() error { return b.Tune(ctx, m) },
		"Mounted": func() error {
			if yes, err := b.Mounted(ctx, m, b.path("other")); err != nil || !yes {
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
		"Unmount": func() error { return b.Unmount(ctx, b.path("other")) },
	} {
		if name != "Mount" {
			b.mount(m, b.path("other"))
		}
		if err := returns(t, name, call); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := returns(t, "Unmount", func() error { return b.Unmount(ctx, b.path("other")) }); err != nil {
			t.Error(err)
		}
	}
	// A new process does not know the file of the device. An image that no process has open is not
	// that file.
	again := realMounter(t)(b.kubelet)
	unanswered := func(image string) {
		t.Helper()
		if _, err := again.MountPointsOf(image); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), device) {
			t.Errorf("MountPointsOf(%s) of a new Mounter = %v, want ErrNoAnswer that names the device", image, err)
		}
	}
	await.True(t, "the image is known to have no device", func() bool { // soon: its last device is being detached
		users, err := again.MountPointsOf(m.Source)
		return err == nil && len(users) == 0
	})
	unanswered(b.path("outer", "image"))
	open, err := os.Open(m.Source)
	if err != nil {
		t.Fatal(err)
	}
	unanswered(m.Source)
	if err := again.Mount(ctx, m, b.path("other")); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("Mount of an open image = %v, want ErrNoAnswer", err)
	}
	open.Close()
	if err := again.Mount(ctx, m, b.path("other")); err != nil {
		t.Errorf("Mount of an image that is not open: %v", err)
	}
	// The search continues past the device that does not answer.
	found, err := realMounter(t)(b.kubelet).MountPointsOf(m.Source)
	if err != nil || !slices.Equal(found, []string{b.path("other")}) {
		t.Errorf("MountPointsOf a mounted image = %v, %v", found, err)
	}
	b.unmount(b.path("other"))
	end()
	if users, err := again.MountPointsOf(m.Source); err != nil || len(users) > 0 {
		t.Errorf("MountPointsOf when the device answers again = %v, %v", users, err)
	}
}

// TestDeadDiskAffectsNoOtherImage also tests that a pod on the dead disk can end.
func TestDeadDiskAffectsNoOtherImage(t *testing.T) {
	ctx := context.Background()
	for _, restarted := range []bool{false, true} {
		b := newLoopBench(t)
		disk := b.image("disk", "xfs")
		b.mount(disk, b.path("disk"))
		m := Mount{Kind: Disk, Source: b.path("disk", "image"), Sector: 512}
		if err := os.WriteFile(m.Source, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		b.mount(m, b.path("staging"))
		b.mount(m.BindFrom(b.path("staging")), b.path("target"))
		device := loopOf(t, m)
		shutDown(t, b.path("disk"))
		if restarted {
			b.Host = realMounter(t)(b.kubelet)
		}
		other := b.image("other", "ext4")
		b.mount(other, b.path("other"))
		if users, err := b.MountPointsOf(other.Source); err != nil || len(users) != 1 {
			t.Errorf("MountPointsOf = %v, %v", users, err)
		}
		b.unmount(b.path("other"))
		for _, path := range []string{b.path("target"), b.path("staging")} {
			if err := b.Remove(ctx, path); err != nil || exists(path) {
				t.Errorf("restarted %v: Remove(%s) = %v", restarted, path, err)
			}
		}
		if restarted { // the new process does not know the image of the device
			b.run(Mount{Source: device}, "losetup", "-d")
		}
		b.unmount(b.path("disk"))
	}
}

// TestConcurrentMountsAttachAnImageOnce mounts each image with many calls at once, at many paths.
func TestConcurrentMountsAttachAnImageOnce(t *testing.T) {
	b := newLoopBench(t)
	images := []Mount{b.image("one", ""), b.image("two", "ext4"), b.image("three", "xfs")}
	for range 5 {
		var calls sync.WaitGroup
		for i, m := range images {
			for j := range 4 {
				calls.Go(func() {
					if err := b.Mount(context.Background(), m, b.path(fmt.Sprint(i, "-", j))); err != nil {
						t.Error(err)
					}
				})
			}
		}
		calls.Wait()
		if loops := b.loops(); len(loops) != len(images) {
			t.Errorf("attached: %v, want one device for each of %d images", loops, len(images))
		}
		for i := range images {
			for j := range 4 {
				b.unmount(b.path(fmt.Sprint(i, "-", j)))
			}
		}
		await.True(t, "nothing is attached any more", func() bool { return len(b.loops()) == 0 })
	}
}

// TestConfigureFreeDoesNotFailAFasterMount: if the kernel has offered the same free device to the
// driver and to another program, the mount of the program must not fail. mount(2) rejects a device
// that is open exclusively.
func TestConfigureFreeDoesNotFailAFasterMount(t *testing.T) {
	b := newLoopBench(t)
	theirs, ours := b.image("theirs", "ext4"), b.image("ours", "")
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
	defer b.run(Mount{Source: device}, "losetup", "-d")
	n, _ := loopNumber(device)
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
			if dev, err := configureFree(n, &config, loopOptions{sector: 512}); !errors.Is(err, unix.EBUSY) {
				t.Errorf("configureFree = %v, %v, want EBUSY", dev, err)
				return
			}
		}
	})
	dir := b.path("theirs")
	mkdir(t, dir)
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
	b := newLoopBench(t)
	l := &b.Host.(*linux).loops
	one, two := b.image("one", ""), b.image("two", "")
	device := ownLoop(t)
	attachTo(t, device, one.Source)
	n, _ := loopNumber(device)
	first, err := l.fileOf(n)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := l.lastFile(n); !ok || a.file != first || a.sequence == "" {
		t.Fatalf("the file is not remembered: %+v, %v: the test proves nothing", a, ok)
	}
	runTool(t, "losetup", "-d", device)
	untilDetached(t, device)
	second := attachTo(t, device, two.Source)
	if has, err := l.fileOf(n); err != nil || has != second || has == first {
		t.Errorf("fileOf = %v, %v, want %v", has, err, second)
	}
	if _, found, err := l.of(first); found || err != nil {
		t.Errorf("the first image is still found: %v, %v", found, err)
	}
	runTool(t, "losetup", "-d", device)
	await.True(t, "the device is free again", func() bool { _, err := l.fileOf(n); return errors.Is(err, unix.ENXIO) })
}
