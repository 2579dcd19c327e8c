package freeze_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/freeze"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// restart makes a Mounter as a new process does.
func restart(b *linuxtest.Bench) {
	b.T.Helper()
	b.Host = linuxtest.RealMounter(b.T)(b.Kubelet)
}

// isFrozen reports whether the filesystem at path is frozen.
func isFrozen(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := freeze.Ioctl(f, freeze.FreezeFS); errors.Is(err, unix.EBUSY) {
		return true
	} else if err != nil {
		t.Fatal(err)
	}
	if err := freeze.Ioctl(f, freeze.ThawFS); err != nil {
		t.Fatal(err)
	}
	return false
}

func TestAFreezeIsAPointInTime(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m := b.Image("image", fsType)
			b.MustMount(m, b.Path("staging"))
			w := b.NewWriter(b.Path("staging", "f"))
			w.GoesOn(t)
			copied := b.CopyImage(m, "copy") // torn, to be written over
			var before, after uint64
			err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, func(context.Context) error {
				if len(b.Freezers()) != 1 || !isFrozen(t, b.Path("staging")) {
					t.Errorf("in the middle there are the helpers %v", b.Freezers())
				}
				before = w.Last.Load()
				err := linuxtest.SparseCopy(m.Source, copied.Source)
				after = w.Last.Load()
				return err
			})
			if err != nil || after > before+1 { // a number was durable, and not reported yet
				t.Errorf("Freeze = %v; from %d, %d was written in the middle", err, before, after)
			}
			w.GoesOn(t)
			if fsType == "ext4" {
				if out, err := exec.Command("e2fsck", "-fn", copied.Source).CombinedOutput(); err != nil {
					t.Errorf("e2fsck: %v, %s", err, out)
				}
			}
			if fsType == tree.Btrfs {
				f, err := os.Open(copied.Source)
				if err != nil {
					t.Fatal(err)
				}
				if super, err := filesystem.ReadBtrfs(f); err != nil || super.Log != 0 {
					t.Errorf("the copy's superblock is %+v, %v: it has a log", super, err)
				}
				f.Close()
			}
			if err := b.RenewUUID(copied); err != nil {
				t.Fatal(err)
			}
			b.MustMount(copied, b.Path("copy"))
			if got := linuxtest.LastOf(t, b.Path("copy", "f")); got < before || got > after+1 {
				t.Errorf("the copy has %d, and was made at %d to %d", got, before, after)
			}
			w.End()
			b.MustUnmount(b.Path("copy"), b.Path("staging"))
		})
	}
}

func TestTwoImagesAreFrozenAtOnce(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	first, second := b.Image("first", "ext4"), b.Image("second", "xfs")
	b.MustMount(first, b.Path("first"))
	b.MustMount(second, b.Path("second"))
	w := b.NewWriter(b.Path("first", "f"), b.Path("second", "f"))
	w.GoesOn(t)
	var one, two mounter.Mount
	err := b.Freeze(context.Background(), "", []string{first.Source, second.Source}, linuxtest.Eternity,
		func(context.Context) error {
			one, two = b.CopyImage(first, "one"), b.CopyImage(second, "two")
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	w.GoesOn(t)
	w.End()
	b.MustUnmount(b.Path("first"), b.Path("second"))
	b.MustMount(one, b.Path("one"))
	b.MustMount(two, b.Path("two"))
	early, late := linuxtest.LastOf(t, b.Path("one", "f")), linuxtest.LastOf(t, b.Path("two", "f"))
	if late > early || early > late+1 {
		t.Errorf("the copy of the first has %d, that of the second, which is written later, %d", early, late)
	}
	b.MustUnmount(b.Path("one"), b.Path("two"))
}

func TestAFreezeDoesNotOutlastItsLimit(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "xfs")
	b.MustMount(m, b.Path("staging"))
	w := b.NewWriter(b.Path("staging", "f"))
	w.GoesOn(t)
	err := b.Freeze(context.Background(), "", []string{m.Source}, time.Second, func(context.Context) error {
		w.GoesOn(t) // and a process that hangs in here blocks no other
		w.GoesOn(t)
		return nil
	})
	if !errors.Is(err, mounter.ErrThawed) {
		t.Errorf("Freeze = %v, want ErrThawed", err)
	}
	await.True(t, "the image is no longer stalled", func() bool { // a slow write can make a short freeze hang
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	w.End()
	b.MustUnmount(b.Path("staging"))
}

func TestAFreezeThatAnotherProcessEndsIsReported(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m, other := b.Image("image", "ext4"), b.Image("other", "ext4")
	b.MustMount(m, b.Path("staging"))
	b.MustMount(other, b.Path("other"))
	onDemand := errors.New("on demand")
	for _, want := range []error{nil, onDemand} {
		err := b.Freeze(context.Background(), "", []string{m.Source, other.Source}, linuxtest.Eternity,
			func(context.Context) error {
				f, err := os.Open(b.Path("staging"))
				if err != nil {
					return err
				}
				defer f.Close()
				return errors.Join(freeze.Ioctl(f, freeze.ThawFS), want)
			})
		if !errors.Is(err, mounter.ErrThawed) || !errors.Is(err, want) && want != nil ||
			!strings.Contains(err.Error(), m.Source) {
			t.Errorf("Freeze = %v, want ErrThawed that says of what, and %v", err, want)
		}
		if isFrozen(t, b.Path("staging")) || isFrozen(t, b.Path("other")) {
			t.Error("it is frozen still")
		}
	}
	b.MustUnmount(b.Path("staging"), b.Path("other"))
}

func TestAFilesystemFrozenByAnotherProcessStaysFrozen(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	paths := map[string]string{} // of mounts, by image
	for _, name := range []string{"one", "two"} {
		m := b.Image(name, "ext4")
		b.MustMount(m, b.Path(name))
		paths[m.Source] = b.Path(name)
	}
	images, err := freeze.ImagesAt([]string{filepath.Join(b.Storage, "one"), filepath.Join(b.Storage, "two")})
	if err != nil {
		t.Fatal(err)
	}
	first, second := images[0].Path, images[1].Path
	f, err := os.Open(paths[second])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := freeze.Ioctl(f, freeze.FreezeFS); err != nil {
		t.Fatal(err)
	}
	defer freeze.Ioctl(f, freeze.ThawFS)
	err = b.Freeze(context.Background(), "", []string{first, second}, linuxtest.Eternity, func(context.Context) error {
		t.Error("copyData was called")
		return nil
	})
	if !errors.Is(err, mounter.ErrBusy) || !strings.Contains(err.Error(), second) {
		t.Errorf("Freeze = %v, want ErrBusy that names %s", err, second)
	}
	if isFrozen(t, paths[first]) || !isFrozen(t, paths[second]) {
		t.Error("ours is frozen still, or the stranger's is not")
	}
	if err := freeze.Ioctl(f, freeze.ThawFS); err != nil {
		t.Error(err)
	}
	f.Close()
	b.MustUnmount(b.Path("one"), b.Path("two"))
}

func TestAPanicInTheMiddleOfAFreeze(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "btrfs")
	b.MustMount(m, b.Path("staging"))
	w := b.NewWriter(b.Path("staging", "f"))
	w.GoesOn(t)
	func() {
		defer func() { recover() }()
		b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity,
			func(context.Context) error { panic("on demand") })
	}()
	w.GoesOn(t)
	w.End()
	b.MustUnmount(b.Path("staging"))
}

func TestAnImageThatIsMountedByHandIsFrozen(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	outside := filepath.Join(b.Storage, "by hand")
	linuxtest.Mkdir(t, outside)
	if out, err := exec.Command("mount", "-o", "loop", m.Source, outside).CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	defer unix.Unmount(outside, 0)
	// The mount is hidden by another mount; then there is a second mount, of a directory.
	inner := filepath.Join(b.Storage, "inner")
	linuxtest.Mkdir(t, inner)
	linuxtest.Mkdir(t, filepath.Join(outside, "sub"))
	for _, hidden := range []bool{false, true} {
		if hidden {
			if err := errors.Join(
				unix.Mount(filepath.Join(outside, "sub"), inner, "", unix.MS_BIND, ""),
				unix.Mount("none", outside, "tmpfs", 0, "size=1m"),
			); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(inner, 0)
			defer unix.Unmount(outside, 0)
		}
		err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, func(context.Context) error {
			if path := map[bool]string{false: outside, true: inner}[hidden]; !isFrozen(t, path) {
				t.Errorf("hidden %v: it is not frozen", hidden)
			}
			return nil
		})
		if err != nil {
			t.Errorf("hidden %v: Freeze = %v", hidden, err)
		}
	}
}

func TestWritesToADeviceAreInItsImageAtThePointInTime(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "")
	m.Buffered = true
	b.MustMount(m, b.Path("staging"))
	b.MustMount(m.BindFrom(b.Path("staging")), b.Path("target"))
	dev, err := os.OpenFile(b.Path("target"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	want := bytes.Repeat([]byte("hello"), 1<<20)
	if _, err := dev.WriteAt(want, 4096); err != nil {
		t.Fatal(err)
	}
	err = b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, func(context.Context) error {
		got := make([]byte, len(want))
		image, err := os.Open(m.Source)
		if err != nil {
			return err
		}
		defer image.Close()
		if _, err := image.ReadAt(got, 4096); err != nil || !bytes.Equal(got, want) {
			t.Errorf("what was written is not in the image, %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	dev.Close()
	b.MustUnmount(b.Path("target"), b.Path("staging"))
}

// elsewhere mounts an image in another mount namespace, until the result is called.
func elsewhere(b *linuxtest.Bench, m mounter.Mount) (end func()) {
	b.T.Helper()
	dir := filepath.Join(b.Storage, "elsewhere")
	linuxtest.Mkdir(b.T, dir)
	cmd := exec.Command("unshare", "-m", "sh", "-c", `mount -o loop "$1" "$2" && echo mounted && read line`, "sh",
		m.Source, dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.T.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.T.Skip(err)
	}
	end = sync.OnceFunc(func() {
		stdin.Close()
		cmd.Wait() // its read fails
		b.WaitForLoops(0)
	})
	b.T.Cleanup(end)
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		b.T.Fatal(err)
	}
	return end
}

func TestAnImageThatIsUsedWhereItIsNotSeenIsNotCut(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	end := elsewhere(b, m)
	err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, func(context.Context) error {
		t.Error("copyData was called")
		return nil
	})
	if !errors.Is(err, mounter.ErrBusy) {
		t.Errorf("Freeze = %v, want ErrBusy", err)
	}
	end()
}

func TestManyFreezesAtOnce(t *testing.T) {
	const many = 6
	b := linuxtest.NewFreezeBench(t)
	images := make([]string, many)
	for i := range images {
		name := fmt.Sprint("image", i)
		m := b.Image(name, "ext4")
		b.MustMount(m, b.Path(name))
		images[i] = m.Source
	}
	var inside atomic.Int64
	all := make(chan struct{})
	allInside := sync.OnceFunc(func() { close(all) })
	together := func(context.Context) error {
		if inside.Add(1) == many {
			allInside()
		}
		<-all
		return nil
	}
	var wg sync.WaitGroup
	for i := range images {
		wg.Go(func() {
			if err := b.Freeze(context.Background(), "", images[i:i+1], linuxtest.Eternity, together); err != nil {
				t.Error(err)
			}
			for range 3 { // each with its neighbor, in any order
				pair := []string{images[i], images[(i+1)%len(images)]}
				if err := b.Freeze(context.Background(), "", pair, linuxtest.Eternity, linuxtest.Nothing); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range images {
		b.MustUnmount(b.Path(fmt.Sprint("image", i)))
	}
}

// TestTheDataIsWrittenOutBeforeTheLock: a call that waits for the image's lock waits only for the
// freeze.
func TestTheDataIsWrittenOutBeforeTheLock(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	l := b.Host.(*linux.Host)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	images, err := freeze.ImagesAt([]string{m.Source})
	if err != nil {
		t.Fatal(err)
	}
	release, err := l.Locks.ImageLocks.Lock(context.Background(), freeze.Backing(images[0]))
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("this is not written out by itself so soon")
	if err := os.WriteFile(b.Path("staging", "f"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	frozen := make(chan error, 1)
	go func() {
		frozen <- b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, linuxtest.Nothing)
	}()
	await.True(t, "the data is in the image, whose lock is held", func() bool {
		data, err := os.ReadFile(m.Source)
		return err != nil || bytes.Contains(data, text)
	})
	select {
	case err := <-frozen:
		t.Errorf("Freeze did without the lock: %v", err)
	default:
	}
	release()
	if err := <-frozen; err != nil {
		t.Error(err)
	}
	b.MustUnmount(b.Path("staging"))
}

// TestTheDriverThawsWhenTheHelperDies: the helper is killed in the middle of the freeze.
func TestTheDriverThawsWhenTheHelperDies(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	w := b.NewWriter(b.Path("staging", "f"))
	w.GoesOn(t)
	err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, func(context.Context) error {
		for _, pid := range b.Freezers() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, mounter.ErrFrozen) || !strings.Contains(err.Error(), m.Source) {
		t.Errorf("Freeze = %v, want ErrFrozen that names the image", err)
	}
	w.GoesOn(t)
	await.True(t, "the image is no longer stalled", func() bool {
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	if err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, linuxtest.Nothing); err != nil {
		t.Errorf("the next Freeze = %v", err)
	}
	w.End()
	b.MustUnmount(b.Path("staging"))
}

func TestAFilesystemThatCannotBeThawedIsReportedAsFrozen(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	good, err := os.Open(b.Path("staging"))
	if err != nil {
		t.Fatal(err)
	}
	bad, err := os.Open(b.Path("staging"))
	if err != nil {
		t.Fatal(err)
	}
	bad.Close() // FITHAW fails
	w := freeze.NewWindow([]string{"good", "bad"}, good, bad)
	if err := freeze.Ioctl(good, freeze.FreezeFS); err != nil {
		t.Fatal(err)
	}
	outcome, left := freeze.Thaw(w)
	if len(outcome.Stuck) != 1 || !strings.HasPrefix(outcome.Stuck[0], "bad:") || !slices.Equal(left, []int{1}) {
		t.Errorf("thaw = %+v, %v left, want bad only", outcome, left)
	}
	if isFrozen(t, b.Path("staging")) {
		t.Error("good is still frozen")
	}
	good.Close()
	b.MustUnmount(b.Path("staging"))
}

// TestAWriteThatDoesNotEnd: the image's own freeze is given up at its limit; calls for other images
// go on as ever, and the filesystem is not frozen when the write ends.
func TestAWriteThatDoesNotEnd(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m, other := b.Image("image", fsType), b.Image("other", fsType)
			b.MustMount(m, b.Path("staging"))
			b.MustMount(other, b.Path("other"))
			write := hang.Write(t, b.Path("staging", "hangs"))
			w := b.NewWriter(b.Path("other", "f"))
			untilAFreezeHangs(b, "", m.Source, other.Source)
			w.GoesOn(t)
			if failing, err := b.Failing(); err != nil || failing[m.Source].Kind != mounter.Stalled || len(failing) != 1 {
				t.Errorf("Failing = %+v, %v, want Stalled for the image only", failing, err)
			}
			if err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity,
				linuxtest.Nothing); !errors.Is(err,
				mounter.ErrStalled) {
				t.Errorf("the next Freeze = %v, want ErrStalled", err)
			}
			if err := b.Grow(context.Background(), m, b.Path("staging")); !errors.Is(err, mounter.ErrStalled) {
				t.Errorf("Grow = %v, want ErrStalled", err)
			}
			if err := b.Freeze(context.Background(), "", []string{other.Source}, linuxtest.Eternity,
				linuxtest.Nothing); err != nil {
				t.Errorf("Freeze of the other image = %v", err)
			}
			if err := b.Grow(context.Background(), other, b.Path("other")); err != nil {
				t.Errorf("Grow of the other image = %v", err)
			}
			write.Release()
			await.True(t, "the image is no longer stalled", func() bool {
				failing, err := b.Failing()
				return err == nil && len(failing) == 0
			})
			if isFrozen(t, b.Path("staging")) {
				t.Error("it is frozen now")
			}
			if err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, linuxtest.Nothing); err != nil {
				t.Errorf("Freeze after the write has ended = %v", err)
			}
			w.End()
			b.MustUnmount(b.Path("staging"), b.Path("other"))
		})
	}
}

// untilAFreezeHangs freezes images until a freeze hangs, at its limit, in a write to one of them.
// On a slow machine the limit passes before that, and the next freeze gets twice the time.
func untilAFreezeHangs(b *linuxtest.Bench, tenant string, images ...string) {
	b.T.Helper()
	limit := time.Second
	await.True(b.T, "a freeze hangs in the write", func() bool {
		err := b.Freeze(context.Background(), tenant, images, limit, func(context.Context) error {
			b.T.Error("copyData was called")
			return nil
		})
		names := func(image string) bool { return err != nil && strings.Contains(err.Error(), image) }
		if !errors.Is(err, mounter.ErrThawed) || !slices.ContainsFunc(images, names) {
			b.T.Fatalf("Freeze = %v, want ErrThawed that names an image", err)
		}
		limit *= 2
		return strings.Contains(err.Error(), "has not ended for")
	})
}

// TestATenantWhoseFreezesHang: each freeze that hangs keeps a helper. A tenant gets a few of them;
// the others freeze and grow their images as before.
func TestATenantWhoseFreezesHang(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	l := b.Host.(*linux.Host)
	hostile, innocent := b.Image("image", "ext4"), b.Image("other", "ext4")
	hostile.Tenant, innocent.Tenant = "a", "b"
	b.MustMount(hostile, b.Path("staging"))
	b.MustMount(innocent, b.Path("other"))
	var done []func()
	for i := range tool.MaxStalled {
		if err := b.Freeze(context.Background(), "a", []string{hostile.Source}, linuxtest.Eternity,
			linuxtest.Nothing); err != nil {
			t.Fatalf("with %d images that hang: %v", i, err)
		}
		done = append(done, l.Tools.Stalls.Add(fmt.Sprint(i), tree.Backing{Ino: uint64(i)}, "a", "a write hangs"))
	}
	for what, call := range map[string]func() error{
		"Freeze": func() error {
			return b.Freeze(context.Background(), "a", []string{hostile.Source}, linuxtest.Eternity, linuxtest.Nothing)
		},
		"Grow": func() error { return b.Grow(context.Background(), hostile, b.Path("staging")) },
	} {
		if err := call(); !errors.Is(err, mounter.ErrStalled) || !strings.Contains(err.Error(), "namespace a") {
			t.Errorf("%s of the tenant = %v, want ErrStalled with the namespace", what, err)
		}
	}
	for _, tenant := range []string{"b", ""} {
		if err := b.Freeze(context.Background(), tenant, []string{innocent.Source}, linuxtest.Eternity,
			linuxtest.Nothing); err != nil {
			t.Errorf("Freeze of tenant %q = %v", tenant, err)
		}
	}
	if err := b.Grow(context.Background(), innocent, b.Path("other")); err != nil {
		t.Errorf("Grow of another tenant = %v", err)
	}
	done[0]()
	if err := b.Freeze(context.Background(), "a", []string{hostile.Source}, linuxtest.Eternity,
		linuxtest.Nothing); err != nil {
		t.Errorf("Freeze after one of them has ended = %v", err)
	}
	b.MustUnmount(b.Path("staging"), b.Path("other"))
}

// TestFreezesNeverKeepAHelperFromAThaw: their helpers are their own.
func TestFreezesNeverKeepAHelperFromAThaw(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	l := b.Host.(*linux.Host)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	write := hang.Write(t, b.Path("staging", "hangs"))
	untilAFreezeHangs(b, "a", m.Source)
	l.Freezer.Freezers.Max = 1
	if got, want := fmt.Sprint(l.Helpers()), "[{freeze 1 1} {mount 0 64} {share 0 64}]"; got != want {
		t.Errorf("Helpers = %s, want %s", got, want)
	}
	other := b.Image("other", "ext4")
	b.MustMount(other, b.Path("other"))
	if err := b.Freeze(context.Background(), "b", []string{other.Source}, linuxtest.Eternity,
		linuxtest.Nothing); !errors.Is(err,
		mounter.ErrStalled) {
		t.Errorf("Freeze without a helper = %v, want ErrStalled", err)
	}
	if err := b.Grow(context.Background(), other, b.Path("other")); err != nil {
		t.Errorf("Grow, which has helpers, = %v", err)
	}
	write.Release()
	await.True(t, "the image is no longer stalled", func() bool {
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	if isFrozen(t, b.Path("staging")) {
		t.Error("it is frozen now")
	}
	b.MustUnmount(b.Path("staging"), b.Path("other"))
}

// TestAListingThatDoesNotEnd: on btrfs a process that lists a directory can keep others from
// opening it. The calls for its image are given up, those for others are not delayed.
func TestAListingThatDoesNotEnd(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m, other := b.Image("image", fsType), b.Image("other", fsType)
			b.MustMount(m, b.Path("staging"))
			b.MustMount(other, b.Path("other"))
			listing := hang.Readdir(t, b.Path("staging"))
			maker := exec.Command("touch", b.Path("staging", "f")) // waits for the lock, and makes readers wait
			if err := maker.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				listing.Kill()
				maker.Wait()
			})
			for _, call := range []func() error{
				func() error {
					return b.Freeze(context.Background(), "", []string{m.Source}, time.Second, linuxtest.Nothing)
				},
				func() error { return b.Grow(context.Background(), m, b.Path("staging")) },
			} {
				if err := call(); err != nil && !errors.Is(err, mounter.ErrStalled) && !errors.Is(err, mounter.ErrThawed) {
					t.Errorf("the image: %v, want ErrStalled, ErrThawed or none", err)
				}
			}
			if err := b.Freeze(context.Background(), "", []string{other.Source}, linuxtest.Eternity,
				linuxtest.Nothing); err != nil {
				t.Errorf("Freeze of the other image = %v", err)
			}
			listing.Release()
			if err := maker.Wait(); err != nil {
				t.Error(err)
			}
			await.True(t, "the image is no longer stalled", func() bool {
				failing, err := b.Failing()
				return err == nil && len(failing) == 0
			})
			if err := b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, linuxtest.Nothing); err != nil {
				t.Errorf("Freeze after the listing has ended = %v", err)
			}
			b.MustUnmount(b.Path("staging"), b.Path("other"))
		})
	}
}

// TestADriverDiesWhileAFreezeHangs: its successor starts, and thaws when the write has ended, also
// if the helper was killed with the driver: the kernel completes the freeze before the helper dies.
func TestADriverDiesWhileAFreezeHangs(t *testing.T) {
	for _, helperToo := range []bool{false, true} {
		t.Run(fmt.Sprintf("the helper too: %v", helperToo), func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m := b.Image("image", "ext4")
			b.MustMount(m, b.Path("staging"))
			write := hang.Write(t, b.Path("staging", "hangs"))
			cmd, _ := startFreezer(b, "", m.Source)
			var pids []int
			await.True(t, "the helper hangs", func() bool {
				pids = b.Freezers()
				return len(pids) == 1 &&
					linuxtest.WaitsIn(pids[0], "freeze_super", "percpu_down_write", "sb_wait_write")
			})
			cmd.Process.Kill()
			cmd.Wait()
			if helperToo {
				if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			restart(b)
			await.True(t, "the image is stalled", func() bool { // a start does not wait for that
				failing, err := b.Failing()
				return err == nil && failing[m.Source].Kind == mounter.Stalled
			})
			write.Release()
			await.True(t, "the image is no longer stalled", func() bool {
				failing, err := b.Failing()
				return err == nil && len(failing) == 0
			})
			if isFrozen(t, b.Path("staging")) {
				t.Error("it is frozen now")
			}
			b.MustUnmount(b.Path("staging"))
		})
	}
}

// startFreezer starts a program that freezes images and dies at a crash point if there is any. It
// returns the output.
func startFreezer(b *linuxtest.Bench, crashAt string, images ...string) (cmd *exec.Cmd, said io.Reader) {
	b.T.Helper()
	return startFreezerAs(b, &syscall.SysProcAttr{}, crashAt, images...)
}

func startFreezerAs(b *linuxtest.Bench, attr *syscall.SysProcAttr, crashAt string,
	images ...string) (cmd *exec.Cmd, said io.Reader) {
	b.T.Helper()
	bin, err := os.Executable()
	if crashAt != "" {
		bin, err = linuxtest.BuildFreezer()
	}
	if err != nil {
		b.T.Fatal(err)
	}
	cmd = exec.Command(bin)
	cmd.SysProcAttr = attr
	cmd.Env = append(os.Environ(), crashpoint.Env+"="+crashAt,
		linuxtest.AsFreezer+"="+strings.Join(append([]string{b.Kubelet}, images...), "\n"))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, stdout
}

func TestTheHelperThawsWhenItsDriverDies(t *testing.T) {
	for _, point := range []string{"freeze:recorded", "freeze:frozen", "freeze:cut", "freeze:thawed"} {
		t.Run(point, func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m, other := b.Image("image", "xfs"), b.Image("other", "ext4")
			b.MustMount(m, b.Path("staging"))
			b.MustMount(other, b.Path("other"))
			w := b.NewWriter(b.Path("staging", "f"), b.Path("other", "f"))
			w.GoesOn(t)
			cmd, said := startFreezer(b, point, m.Source, other.Source)
			if text, err := io.ReadAll(said); err != nil || strings.Trim(string(text), "frozen\n") != "" {
				t.Errorf("it said %s, %v", text, err)
			}
			cmd.Wait()
			if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
				t.Errorf("it ended with %v", cmd.ProcessState)
			}
			w.GoesOn(t)
			if records, err := os.ReadDir(b.State()); err != nil || len(records) != 1 {
				t.Errorf("the records are %v, %v", records, err)
			}
			await.True(t, "the helper ends", func() bool { return len(b.Freezers()) == 0 })
			restart(b)
			w.End()
			b.MustUnmount(b.Path("staging"), b.Path("other"))
		})
	}
}

func TestTheNextMounterThawsWhenTheHelperDiedToo(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		for _, unmounted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unmounted %v", fsType, unmounted), func(t *testing.T) {
				b := linuxtest.NewFreezeBench(t)
				m := b.Image("image", fsType)
				b.MustMount(m, b.Path("staging"))
				if err := os.WriteFile(b.Path("staging", "f"), []byte("hello"), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd, said := startFreezer(b, "", m.Source)
				if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "frozen\n" {
					t.Fatalf("it said %s, %v", line, err)
				}
				for _, pid := range b.Freezers() {
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				await.True(t, "the helper ends", func() bool { return len(b.Freezers()) == 0 })
				cmd.Process.Kill()
				cmd.Wait()
				if !isFrozen(t, b.Path("staging")) {
					t.Fatal("nothing is frozen: that proves nothing")
				}
				var w *linuxtest.Writer
				if unmounted {
					await.True(t, "somebody unmounts it", func() bool { return unix.Unmount(b.Path("staging"), 0) == nil })
					if len(b.Loops()) != 1 {
						t.Fatalf("attached: %v: that proves nothing", b.Loops())
					}
				} else {
					w = b.NewWriter(b.Path("staging", "w"))
				}
				restart(b)
				restart(b)
				if unmounted {
					b.WaitForLoops(0)
					b.MustMount(m, b.Path("staging"))
				} else {
					w.GoesOn(t)
					w.End()
				}
				if got, err := os.ReadFile(b.Path("staging", "f")); string(got) != "hello" {
					t.Errorf("it shows %q, %v", got, err)
				}
				b.MustUnmount(b.Path("staging"))
			})
		}
	}
}

// TestADriverThatIsTheFirstProcessOfItsContainer: the kernel ends the helper with it, perhaps
// before the helper has thawed.
func TestADriverThatIsTheFirstProcessOfItsContainer(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	w := b.NewWriter(b.Path("staging", "f"))
	cmd, said := startFreezerAs(b, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "", m.Source)
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "frozen\n" {
		t.Fatalf("it said %s, %v", line, err)
	}
	if len(b.Freezers()) != 1 || !isFrozen(t, b.Path("staging")) {
		t.Errorf("there are the helpers %v", b.Freezers())
	}
	cmd.Process.Kill()
	cmd.Wait()
	t.Logf("without a new Mounter it is frozen: %v", isFrozen(t, b.Path("staging")))
	restart(b)
	w.GoesOn(t)
	w.End()
	b.MustUnmount(b.Path("staging"))
}

// leave writes a record as of a process that died.
func leave(b *linuxtest.Bench, images ...freeze.Frozen) string {
	b.T.Helper()
	data, err := json.Marshal(images)
	if err != nil {
		b.T.Fatal(err)
	}
	return leaveRaw(b, data)
}

func leaveRaw(b *linuxtest.Bench, data []byte) string {
	b.T.Helper()
	path := filepath.Join(b.State(), "1.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.T.Fatal(err)
	}
	return path
}

func TestRecordsWithNothingToThawAreRemoved(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	idle, mounted, disk := b.Image("idle", "ext4"), b.Image("mounted", "ext4"), b.Image("disk", "xfs")
	// The disk has a filesystem whose log is not empty. It belongs to a pod and must not be
	// mounted.
	b.MustMount(disk, b.Path("first"))
	if err := os.WriteFile(b.Path("first", "f"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Freeze(context.Background(), "", []string{disk.Source}, linuxtest.Eternity, func(context.Context) error {
		disk = b.CopyImage(disk, "disk-copy")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b.MustUnmount(b.Path("first"))
	disk.Kind, disk.FSType = mounter.Disk, ""
	b.MustMount(disk, b.Path("disk"))
	b.MustMount(mounted, b.Path("mounted"))
	before := b.CopyImage(disk, "before")
	images, err := freeze.ImagesAt([]string{idle.Source, mounted.Source, disk.Source})
	if err != nil {
		t.Fatal(err)
	}
	for i := range images {
		images[i].FSType = "xfs"
	}
	leave(b, append(images, freeze.Frozen{Path: "gone", Dev: 1, Ino: 2, Loop: 4711, FSType: "ext4"})...)
	restart(b)
	leave(b)
	restart(b)
	for _, torn := range []string{"", "[{\"path\":", strings.Repeat("\x00", 100)} {
		leaveRaw(b, []byte(torn))
		restart(b)
	}
	b.Run(disk, "cmp", before.Source)
	b.MustUnmount(b.Path("disk"), b.Path("mounted"))
}

// TestAStartThatCannotThawServesAllTheSame: a bad image is reported and retried, and the others
// are served.
func TestAStartThatCannotThawServesAllTheSame(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	end := elsewhere(b, m)
	images, err := freeze.ImagesAt([]string{m.Source})
	if err != nil {
		t.Fatal(err)
	}
	images[0].FSType = "no-such-filesystem"
	record := leave(b, images...)
	restart(b)
	await.NoError(t, "the image is stalled", func() error { // a start does not wait for that
		failing, err := b.Failing()
		if f := failing[m.Source]; err != nil || f.Kind != mounter.Stalled || !strings.Contains(f.Message, record) {
			return fmt.Errorf("Failing = %+v, %w, want Stalled that names %s", failing, err, record)
		}
		return nil
	})
	images[0].FSType = "ext4"
	leave(b, images...) // it can be reached now, though no mount of it is visible here
	await.True(t, "the image is no longer stalled", func() bool {
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	end()
}

// TestARecordThatIsNoFile: a start does not wait for the other end of a pipe.
func TestARecordThatIsNoFile(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	fifo, dir := filepath.Join(b.State(), "1.json"), filepath.Join(b.State(), "2.json")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	restart(b)
	if err := errors.Join(os.Remove(fifo), os.Remove(dir)); err != nil {
		t.Error(err)
	}
}
