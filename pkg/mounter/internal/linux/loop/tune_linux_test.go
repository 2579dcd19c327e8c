package loop_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
)

// tuned returns the settings of the only device of the bench: whether it is buffered, and its
// read-ahead in bytes.
func tuned(b *linuxtest.Bench) (buffered bool, readAhead int) {
	b.T.Helper()
	attached := b.WaitForLoops(1)[0]
	dev, err := os.Open("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(attached))))
	if err != nil {
		b.T.Fatal(err)
	}
	defer dev.Close()
	if buffered, err = loop.IsBuffered(dev); err == nil {
		readAhead, err = loop.ReadAheadOf(dev)
	}
	if err != nil {
		b.T.Fatal(err)
	}
	return buffered, readAhead * loop.SectorSize
}

func wantTuned(b *linuxtest.Bench, what string, buffered bool, readAhead int) {
	b.T.Helper()
	if gotBuffered, gotReadAhead := tuned(b); gotBuffered != buffered || gotReadAhead != readAhead {
		b.T.Errorf("%s: buffered %v, read-ahead %d, want %v, %d", what, gotBuffered, gotReadAhead, buffered, readAhead)
	}
}

func TestDevicesAreTuned(t *testing.T) {
	ctx := context.Background()
	for _, fsType := range []string{"ext4", ""} {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewLoopBench(t)
			b.Storage = t.TempDir() // a tmpfs has no direct I/O
			m := b.Image("image", fsType)
			b.MustMount(m, b.Path("staging"))
			must, standard := tuned(b) // a tmpfs or a disk may not support direct I/O
			if standard < loop.OldReadAhead*loop.SectorSize {
				t.Fatalf("the default read-ahead is %d bytes", standard)
			}
			tune := func(what string, buffered bool, readAhead, want int) {
				t.Helper()
				m.Buffered, m.ReadAhead = buffered, readAhead
				for range 2 {
					if err := b.Tune(ctx, m); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					wantTuned(b, what, buffered || must, want)
				}
			}
			tune("both", true, 1<<20, 1<<20)
			tune("back", false, 0, standard)
			tune("rounded down to a page", false, 1<<20+1000, 1<<20)
			b.Host = linuxtest.RealMounter(t)(b.Kubelet)
			tune("back, by another process", false, 0, standard)
			tune("to be left", true, 8<<20, 8<<20)
			b.MustUnmount(b.Path("staging"))
			m.Buffered, m.ReadAhead = false, 0
			b.MustMount(m, b.Path("staging"))
			wantTuned(b, "attached again", must, standard)
			b.MustUnmount(b.Path("staging"))
			m.Buffered, m.ReadAhead = true, 64<<10
			b.MustMount(m, b.Path("staging"))
			wantTuned(b, "attached so", true, 64<<10)
			b.MustUnmount(b.Path("staging"))
			m.ReadAhead = -1
			b.Refused(m, b.Path("staging"), fs.ErrInvalid)
		})
	}
}

// TestDeviceWithoutDirectIOStaysBuffered tests an image on a disk with larger sectors.
func TestDeviceWithoutDirectIOStaysBuffered(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	disk := b.Image("disk", "")
	out, err := exec.Command("losetup", "--show", "-f", "-b", "4096", disk.Source).CombinedOutput()
	device := strings.TrimSpace(string(out))
	if err != nil {
		t.Fatalf("losetup: %v, %s", err, out)
	}
	detach := func() { exec.Command("losetup", "-d", device).Run() }
	defer detach()
	below := filepath.Join(b.Storage, "below")
	linuxtest.Mkdir(t, below)
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-b", "4096", device}, {"mount", device, below}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v, %s", command, err, out)
		}
	}
	detach()           // together with the mount
	t.Cleanup(func() { // another process may have the device of the image open for a moment
		await.True(t, "it is unmounted", func() bool { return exec.Command("umount", below).Run() == nil })
	})
	m := mounter.Mount{Kind: mounter.Disk, Source: filepath.Join(below, "image"), Sector: 512}
	if err := os.WriteFile(m.Source, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	b.MustMount(m, b.Path("staging"))
	if err := b.Tune(context.Background(), m); err != nil {
		t.Error(err)
	}
	info, err := os.ReadFile("/sys/block/" + filepath.Base(linuxtest.LoopOf(t, m)) + "/loop/dio")
	if err != nil || strings.TrimSpace(string(info)) != "0" {
		t.Errorf("dio is %s, %v: the test proves nothing", info, err)
	}
	b.MustUnmount(b.Path("staging"))
}

func TestTuneDuringWrites(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	b.Storage = t.TempDir() // a tmpfs has no direct I/O
	m := b.Image("image", "xfs")
	b.MustMount(m, b.Path("staging"))
	w := b.NewWriter(b.Path("staging", "f"))
	for i := range 20 {
		m.Buffered = i%2 == 0
		if err := b.Tune(context.Background(), m); err != nil {
			t.Error(err)
		}
		w.GoesOn(t)
	}
	w.End()
	linuxtest.LastOf(t, b.Path("staging", "f"))
	b.MustUnmount(b.Path("staging"))
}
