package mounter

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
)

// tuned returns the settings of the only device of the bench: whether it is buffered, and its
// read-ahead in bytes.
func (b *bench) tuned() (buffered bool, readAhead int) {
	b.t.Helper()
	loops := b.loops()
	if len(loops) != 1 {
		b.t.Fatalf("attached: %v, want one device", loops)
	}
	dev, err := os.Open("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(loops[0]))))
	if err != nil {
		b.t.Fatal(err)
	}
	defer dev.Close()
	if buffered, err = isBuffered(dev); err == nil {
		readAhead, err = readAheadOf(dev)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return buffered, readAhead * sectorSize
}

func (b *bench) wantTuned(what string, buffered bool, readAhead int) {
	b.t.Helper()
	if gotBuffered, gotReadAhead := b.tuned(); gotBuffered != buffered || gotReadAhead != readAhead {
		b.t.Errorf("%s: buffered %v, read-ahead %d, want %v, %d", what, gotBuffered, gotReadAhead, buffered, readAhead)
	}
}

func TestDevicesAreTuned(t *testing.T) {
	ctx := context.Background()
	for _, fsType := range []string{"ext4", ""} {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			m := b.image("image", fsType)
			b.mount(m, b.path("staging"))
			must, standard := b.tuned() // a tmpfs or a disk may not support direct I/O
			if standard < oldReadAhead*sectorSize {
				t.Fatalf("the default read-ahead is %d bytes", standard)
			}
			tune := func(what string, buffered bool, readAhead, want int) {
				t.Helper()
				m.Buffered, m.ReadAhead = buffered, readAhead
				for range 2 {
					if err := b.Tune(ctx, m); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					b.wantTuned(what, buffered || must, want)
				}
			}
			tune("both", true, 1<<20, 1<<20)
			tune("back", false, 0, standard)
			tune("rounded down to a page", false, 1<<20+1000, 1<<20)
			b.Host = realMounter(t)(b.kubelet)
			tune("back, by another process", false, 0, standard)
			tune("to be left", true, 8<<20, 8<<20)
			b.unmount(b.path("staging"))
			m.Buffered, m.ReadAhead = false, 0
			b.mount(m, b.path("staging"))
			b.wantTuned("attached again", must, standard)
			b.unmount(b.path("staging"))
			m.Buffered, m.ReadAhead = true, 64<<10
			b.mount(m, b.path("staging"))
			b.wantTuned("attached so", true, 64<<10)
			b.unmount(b.path("staging"))
			m.ReadAhead = -1
			b.refused(m, b.path("staging"), fs.ErrInvalid)
		})
	}
}

// TestDeviceWithoutDirectIOStaysBuffered tests an image on a disk with larger sectors.
func TestDeviceWithoutDirectIOStaysBuffered(t *testing.T) {
	b := newLoopBench(t)
	disk := b.image("disk", "")
	out, err := exec.Command("losetup", "--show", "-f", "-b", "4096", disk.Source).CombinedOutput()
	device := strings.TrimSpace(string(out))
	if err != nil {
		t.Fatalf("losetup: %v, %s", err, out)
	}
	detach := func() { exec.Command("losetup", "-d", device).Run() }
	defer detach()
	below := filepath.Join(b.storage, "below")
	mkdir(t, below)
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-b", "4096", device}, {"mount", device, below}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v, %s", command, err, out)
		}
	}
	detach()           // together with the mount
	t.Cleanup(func() { // another process may have the device of the image open for a moment
		await.True(t, "it is unmounted", func() bool { return exec.Command("umount", below).Run() == nil })
	})
	m := Mount{Kind: Disk, Source: filepath.Join(below, "image"), Sector: 512}
	if err := os.WriteFile(m.Source, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	b.mount(m, b.path("staging"))
	if err := b.Tune(context.Background(), m); err != nil {
		t.Error(err)
	}
	info, err := os.ReadFile("/sys/block/" + filepath.Base(loopOf(t, m)) + "/loop/dio")
	if err != nil || strings.TrimSpace(string(info)) != "0" {
		t.Errorf("dio is %s, %v: the test proves nothing", info, err)
	}
	b.unmount(b.path("staging"))
}

// loopOf returns the path of the device of an image.
func loopOf(t *testing.T, m Mount) string {
	t.Helper()
	out, err := exec.Command("losetup", "-j", m.Source, "-O", "NAME", "-n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestTuneDuringWrites(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "xfs")
	b.mount(m, b.path("staging"))
	w := b.newWriter(b.path("staging", "f"))
	for i := range 20 {
		m.Buffered = i%2 == 0
		if err := b.Tune(context.Background(), m); err != nil {
			t.Error(err)
		}
		w.goesOn(t)
	}
	w.end()
	lastOf(t, b.path("staging", "f"))
	b.unmount(b.path("staging"))
}
