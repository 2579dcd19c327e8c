package mounter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/hang"
)

// patient is the limit for an expected event.
const patient = time.Minute

// newFreezeBench is a bench on which images can be frozen. After each test all images are thawed: a
// process that writes to a frozen image cannot be killed.
func newFreezeBench(t *testing.T) *bench {
	b := newLoopBench(t)
	t.Cleanup(func() {
		b.thaw()
		await.True(t, "the helpers end", func() bool { return len(b.freezers()) == 0 })
		if left, err := os.ReadDir(b.state()); err != nil || len(left) > 0 {
			t.Errorf("records are left: %v, %v", left, err)
		}
	})
	return b
}

// thaw thaws the images that are still frozen, mounted or not.
func (b *bench) thaw() {
	b.t.Helper()
	for _, file := range b.loops() {
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))
		for _, fsType := range linuxFSTypes() {
			m, err := mountDetached(device, fsType)
			if err != nil {
				continue
			}
			if fsIoctl(m, thawFS) == nil {
				b.t.Errorf("%s was left frozen", device)
			}
			m.Close()
		}
	}
}

func (b *bench) state() string { return filepath.Join(filepath.Dir(b.kubelet), "frozen") }

// restart makes a Mounter as a new process does.
func (b *bench) restart() {
	b.t.Helper()
	b.Host = realMounter(b.t)(b.kubelet)
}

// freezers returns the helper processes that have a mount of this bench open.
func (b *bench) freezers() []int {
	b.t.Helper()
	return slices.DeleteFunc(helperProcesses(b.t), func(pid int) bool {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		open, _ := os.ReadDir(dir)
		return !slices.ContainsFunc(open, func(fd os.DirEntry) bool {
			target, _ := os.Readlink(filepath.Join(dir, fd.Name()))
			return strings.HasPrefix(target, b.kubelet)
		})
	})
}

// helperProcesses returns all helper processes of this machine.
func helperProcesses(t testing.TB) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if line, _ := os.ReadFile(file); string(line) != "causeway-helper\x00" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// isFrozen reports whether the filesystem at path is frozen.
func isFrozen(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := fsIoctl(f, freezeFS); errors.Is(err, unix.EBUSY) {
		return true
	} else if err != nil {
		t.Fatal(err)
	}
	if err := fsIoctl(f, thawFS); err != nil {
		t.Fatal(err)
	}
	return false
}

// writer writes 1, 2, 3… to files, to each when the number is durable in the file before, until the
// end of the test.
type writer struct {
	files []string
	last  atomic.Uint64 // that is durable in all files
	stop  chan struct{}
	done  chan error
}

func (b *bench) newWriter(files ...string) *writer {
	w := &writer{files: files, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { w.done <- w.write() }()
	b.t.Cleanup(func() {
		b.thaw() // else it would never end
		if err := w.end(); err != nil {
			b.t.Errorf("the writer: %v", err)
		}
	})
	return w
}

func (w *writer) write() error {
	var open []*os.File
	for _, name := range w.files {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		open = append(open, f)
	}
	for n := uint64(1); ; n++ {
		for _, f := range open {
			if _, err := f.Write(binary.LittleEndian.AppendUint64(nil, n)); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
		}
		w.last.Store(n)
		select {
		case <-w.stop:
			return nil
		default:
		}
	}
}

// goesOn waits until something new is durable.
func (w *writer) goesOn(t testing.TB) {
	t.Helper()
	before := w.last.Load()
	await.True(t, "the writer goes on", func() bool { return w.last.Load() > before+1 })
}

// end ends the writer and returns its error. A second call has no effect.
func (w *writer) end() error {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	err := <-w.done
	w.done <- err
	return err
}

// lastOf returns the last number in such a file.
func lastOf(t testing.TB, file string) uint64 {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data = data[:len(data)/8*8]
	for n := range len(data) / 8 {
		if got := binary.LittleEndian.Uint64(data[8*n:]); got != uint64(n+1) {
			t.Fatalf("%s: number %d of %d is %d", file, n+1, len(data)/8, got)
		}
	}
	return uint64(len(data) / 8)
}

func TestAFreezeIsAPointInTime(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newFreezeBench(t)
			m := b.image("image", fsType)
			b.mount(m, b.path("staging"))
			w := b.newWriter(b.path("staging", "f"))
			w.goesOn(t)
			copied := b.copyImage(m, "copy") // torn, to be written over
			var before, after uint64
			err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, func(context.Context) error {
				if len(b.freezers()) != 1 || !isFrozen(t, b.path("staging")) {
					t.Errorf("in the middle there are the helpers %v", b.freezers())
				}
				before = w.last.Load()
				err := sparseCopy(m.Source, copied.Source)
				after = w.last.Load()
				return err
			})
			if err != nil || after > before+1 { // a number was durable, and not reported yet
				t.Errorf("Freeze = %v; from %d, %d was written in the middle", err, before, after)
			}
			w.goesOn(t)
			if fsType == "ext4" {
				if out, err := exec.Command("e2fsck", "-fn", copied.Source).CombinedOutput(); err != nil {
					t.Errorf("e2fsck: %v, %s", err, out)
				}
			}
			if fsType == btrfs {
				f, err := os.Open(copied.Source)
				if err != nil {
					t.Fatal(err)
				}
				if super, err := readBtrfs(f); err != nil || super.log != 0 {
					t.Errorf("the copy's superblock is %+v, %v: it has a log", super, err)
				}
				f.Close()
			}
			if err := b.newUUID(copied); err != nil {
				t.Fatal(err)
			}
			b.mount(copied, b.path("copy"))
			if got := lastOf(t, b.path("copy", "f")); got < before || got > after+1 {
				t.Errorf("the copy has %d, and was made at %d to %d", got, before, after)
			}
			w.end()
			b.unmount(b.path("copy"), b.path("staging"))
		})
	}
}

func TestTwoImagesAreFrozenAtOnce(t *testing.T) {
	b := newFreezeBench(t)
	first, second := b.image("first", "ext4"), b.image("second", "xfs")
	b.mount(first, b.path("first"))
	b.mount(second, b.path("second"))
	w := b.newWriter(b.path("first", "f"), b.path("second", "f"))
	w.goesOn(t)
	var one, two Mount
	err := b.Freeze(context.Background(), "", []string{first.Source, second.Source}, eternity,
		func(context.Context) error {
			one, two = b.copyImage(first, "one"), b.copyImage(second, "two")
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	w.goesOn(t)
	w.end()
	b.unmount(b.path("first"), b.path("second"))
	b.mount(one, b.path("one"))
	b.mount(two, b.path("two"))
	early, late := lastOf(t, b.path("one", "f")), lastOf(t, b.path("two", "f"))
	if late > early || early > late+1 {
		t.Errorf("the copy of the first has %d, that of the second, which is written later, %d", early, late)
	}
	b.unmount(b.path("one"), b.path("two"))
}

func TestAFreezeDoesNotOutlastItsLimit(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "xfs")
	b.mount(m, b.path("staging"))
	w := b.newWriter(b.path("staging", "f"))
	w.goesOn(t)
	err := b.Freeze(context.Background(), "", []string{m.Source}, time.Second, func(context.Context) error {
		w.goesOn(t) // and a process that hangs in here blocks no other
		w.goesOn(t)
		return nil
	})
	if !errors.Is(err, ErrThawed) {
		t.Errorf("Freeze = %v, want ErrThawed", err)
	}
	w.end()
	b.unmount(b.path("staging"))
}

func TestAFreezeThatAnotherProcessEndsIsReported(t *testing.T) {
	b := newFreezeBench(t)
	m, other := b.image("image", "ext4"), b.image("other", "ext4")
	b.mount(m, b.path("staging"))
	b.mount(other, b.path("other"))
	onDemand := errors.New("on demand")
	for _, want := range []error{nil, onDemand} {
		err := b.Freeze(context.Background(), "", []string{m.Source, other.Source}, eternity,
			func(context.Context) error {
				f, err := os.Open(b.path("staging"))
				if err != nil {
					return err
				}
				defer f.Close()
				return errors.Join(fsIoctl(f, thawFS), want)
			})
		if !errors.Is(err, ErrThawed) || !errors.Is(err, want) && want != nil ||
			!strings.Contains(err.Error(), m.Source) {
			t.Errorf("Freeze = %v, want ErrThawed that says of what, and %v", err, want)
		}
		if isFrozen(t, b.path("staging")) || isFrozen(t, b.path("other")) {
			t.Error("it is frozen still")
		}
	}
	b.unmount(b.path("staging"), b.path("other"))
}

func TestAFilesystemFrozenByAnotherProcessStaysFrozen(t *testing.T) {
	b := newFreezeBench(t)
	paths := map[string]string{} // of mounts, by image
	for _, name := range []string{"one", "two"} {
		m := b.image(name, "ext4")
		b.mount(m, b.path(name))
		paths[m.Source] = b.path(name)
	}
	images, err := imagesAt([]string{filepath.Join(b.storage, "one"), filepath.Join(b.storage, "two")})
	if err != nil {
		t.Fatal(err)
	}
	first, second := images[0].Path, images[1].Path
	f, err := os.Open(paths[second])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := fsIoctl(f, freezeFS); err != nil {
		t.Fatal(err)
	}
	defer fsIoctl(f, thawFS)
	err = b.Freeze(context.Background(), "", []string{first, second}, eternity, func(context.Context) error {
		t.Error("copyData was called")
		return nil
	})
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), second) {
		t.Errorf("Freeze = %v, want ErrBusy that names %s", err, second)
	}
	if isFrozen(t, paths[first]) || !isFrozen(t, paths[second]) {
		t.Error("ours is frozen still, or the stranger's is not")
	}
	if err := fsIoctl(f, thawFS); err != nil {
		t.Error(err)
	}
	f.Close()
	b.unmount(b.path("one"), b.path("two"))
}

func TestAPanicInTheMiddleOfAFreeze(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "btrfs")
	b.mount(m, b.path("staging"))
	w := b.newWriter(b.path("staging", "f"))
	w.goesOn(t)
	func() {
		defer func() { recover() }()
		b.Freeze(context.Background(), "", []string{m.Source}, eternity,
			func(context.Context) error { panic("on demand") })
	}()
	w.goesOn(t)
	w.end()
	b.unmount(b.path("staging"))
}

func TestAnImageThatIsMountedByHandIsFrozen(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	outside := filepath.Join(b.storage, "by hand")
	mkdir(t, outside)
	if out, err := exec.Command("mount", "-o", "loop", m.Source, outside).CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	defer unix.Unmount(outside, 0)
	// The mount is hidden by another mount; then there is a second mount, of a directory.
	inner := filepath.Join(b.storage, "inner")
	mkdir(t, inner)
	mkdir(t, filepath.Join(outside, "sub"))
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
		err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, func(context.Context) error {
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
	b := newFreezeBench(t)
	m := b.image("image", "")
	m.Buffered = true
	b.mount(m, b.path("staging"))
	b.mount(m.BindFrom(b.path("staging")), b.path("target"))
	dev, err := os.OpenFile(b.path("target"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	want := bytes.Repeat([]byte("hello"), 1<<20)
	if _, err := dev.WriteAt(want, 4096); err != nil {
		t.Fatal(err)
	}
	err = b.Freeze(context.Background(), "", []string{m.Source}, eternity, func(context.Context) error {
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
	b.unmount(b.path("target"), b.path("staging"))
}

// elsewhere mounts an image in another mount namespace, until the result is called.
func (b *bench) elsewhere(m Mount) (end func()) {
	b.t.Helper()
	dir := filepath.Join(b.storage, "elsewhere")
	mkdir(b.t, dir)
	cmd := exec.Command("unshare", "-m", "sh", "-c", `mount -o loop "$1" "$2" && echo mounted && read line`, "sh",
		m.Source, dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Skip(err)
	}
	end = sync.OnceFunc(func() {
		stdin.Close()
		cmd.Wait() // its read fails
		await.True(b.t, "the device goes", func() bool { return len(b.loops()) == 0 })
	})
	b.t.Cleanup(end)
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		b.t.Fatal(err)
	}
	return end
}

func TestAnImageThatIsUsedWhereItIsNotSeenIsNotCut(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	end := b.elsewhere(m)
	err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, func(context.Context) error {
		t.Error("copyData was called")
		return nil
	})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("Freeze = %v, want ErrBusy", err)
	}
	end()
}

func TestManyFreezesAtOnce(t *testing.T) {
	const many = 6
	b := newFreezeBench(t)
	images := make([]string, many)
	for i := range images {
		name := fmt.Sprint("image", i)
		m := b.image(name, "ext4")
		b.mount(m, b.path(name))
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
			if err := b.Freeze(context.Background(), "", images[i:i+1], eternity, together); err != nil {
				t.Error(err)
			}
			for range 3 { // each with its neighbor, in any order
				pair := []string{images[i], images[(i+1)%len(images)]}
				if err := b.Freeze(context.Background(), "", pair, eternity, nothing); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range images {
		b.unmount(b.path(fmt.Sprint("image", i)))
	}
}

// TestTheDataIsWrittenOutBeforeTheLock: a call that waits for the image's lock waits only for the
// freeze.
func TestTheDataIsWrittenOutBeforeTheLock(t *testing.T) {
	b := newFreezeBench(t)
	l := b.Host.(*linux)
	m := b.image("image", "ext4")
	b.mount(m, b.path("staging"))
	images, err := imagesAt([]string{m.Source})
	if err != nil {
		t.Fatal(err)
	}
	release, err := l.images.Lock(context.Background(), images[0].backing())
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("this is not written out by itself so soon")
	if err := os.WriteFile(b.path("staging", "f"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	frozen := make(chan error, 1)
	go func() { frozen <- b.Freeze(context.Background(), "", []string{m.Source}, eternity, nothing) }()
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
	b.unmount(b.path("staging"))
}

// TestTheDriverThawsWhenTheHelperDies: the helper is killed in the middle of the freeze.
func TestTheDriverThawsWhenTheHelperDies(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	b.mount(m, b.path("staging"))
	w := b.newWriter(b.path("staging", "f"))
	w.goesOn(t)
	err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, func(context.Context) error {
		for _, pid := range b.freezers() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, ErrFrozen) || !strings.Contains(err.Error(), m.Source) {
		t.Errorf("Freeze = %v, want ErrFrozen that names the image", err)
	}
	w.goesOn(t)
	await.True(t, "the image is no longer stalled", func() bool {
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	if err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, nothing); err != nil {
		t.Errorf("the next Freeze = %v", err)
	}
	w.end()
	b.unmount(b.path("staging"))
}

func TestAFilesystemThatCannotBeThawedIsReportedAsFrozen(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	b.mount(m, b.path("staging"))
	good, err := os.Open(b.path("staging"))
	if err != nil {
		t.Fatal(err)
	}
	bad, err := os.Open(b.path("staging"))
	if err != nil {
		t.Fatal(err)
	}
	bad.Close() // FITHAW fails
	w := newWindow([]string{"good", "bad"}, good, bad)
	if err := fsIoctl(good, freezeFS); err != nil {
		t.Fatal(err)
	}
	outcome, left := w.thaw()
	if len(outcome.Stuck) != 1 || !strings.HasPrefix(outcome.Stuck[0], "bad:") || !slices.Equal(left, []int{1}) {
		t.Errorf("thaw = %+v, %v left, want bad only", outcome, left)
	}
	if isFrozen(t, b.path("staging")) {
		t.Error("good is still frozen")
	}
	good.Close()
	b.unmount(b.path("staging"))
}

// newWindow returns a window whose filesystems are all frozen.
func newWindow(paths []string, mounts ...*os.File) *window {
	w := &window{paths: paths, mounts: mounts}
	for i := range mounts {
		w.frozen = append(w.frozen, i)
	}
	return w
}

// TestAWriteThatDoesNotEnd: the image's own freeze is given up at its limit; calls for other images
// go on as ever, and the filesystem is not frozen when the write ends.
func TestAWriteThatDoesNotEnd(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newFreezeBench(t)
			m, other := b.image("image", fsType), b.image("other", fsType)
			b.mount(m, b.path("staging"))
			b.mount(other, b.path("other"))
			write := hang.Write(t, b.path("staging", "hangs"))
			w := b.newWriter(b.path("other", "f"))
			const limit = 200 * time.Millisecond
			await.True(t, "a freeze hangs in the write", func() bool { // on a slow machine the limit passes before it begins
				err := b.Freeze(context.Background(), "", []string{m.Source, other.Source}, limit,
					func(context.Context) error {
						t.Error("copyData was called")
						return nil
					})
				if !errors.Is(err, ErrThawed) || !strings.Contains(err.Error(), m.Source) &&
					!strings.Contains(err.Error(), other.Source) {
					t.Fatalf("Freeze = %v, want ErrThawed that names an image", err)
				}
				return strings.Contains(err.Error(), "has not ended for")
			})
			w.goesOn(t)
			if failing, err := b.Failing(); err != nil || failing[m.Source].Kind != Stalled || len(failing) != 1 {
				t.Errorf("Failing = %+v, %v, want Stalled for the image only", failing, err)
			}
			if err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, nothing); !errors.Is(err,
				ErrStalled) {
				t.Errorf("the next Freeze = %v, want ErrStalled", err)
			}
			if err := b.Grow(context.Background(), m, b.path("staging")); !errors.Is(err, ErrStalled) {
				t.Errorf("Grow = %v, want ErrStalled", err)
			}
			if err := b.Freeze(context.Background(), "", []string{other.Source}, eternity, nothing); err != nil {
				t.Errorf("Freeze of the other image = %v", err)
			}
			if err := b.Grow(context.Background(), other, b.path("other")); err != nil {
				t.Errorf("Grow of the other image = %v", err)
			}
			write.Release()
			await.True(t, "the image is no longer stalled", func() bool {
				failing, err := b.Failing()
				return err == nil && len(failing) == 0
			})
			if isFrozen(t, b.path("staging")) {
				t.Error("it is frozen now")
			}
			if err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, nothing); err != nil {
				t.Errorf("Freeze after the write has ended = %v", err)
			}
			w.end()
			b.unmount(b.path("staging"), b.path("other"))
		})
	}
}

// TestATenantWhoseFreezesHang: each freeze that hangs keeps a helper. A tenant gets a few of them;
// the others freeze and grow their images as before.
func TestATenantWhoseFreezesHang(t *testing.T) {
	b := newFreezeBench(t)
	l := b.Host.(*linux)
	hostile, innocent := b.image("image", "ext4"), b.image("other", "ext4")
	hostile.Tenant, innocent.Tenant = "a", "b"
	b.mount(hostile, b.path("staging"))
	b.mount(innocent, b.path("other"))
	var done []func()
	for i := range maxStalled {
		if err := b.Freeze(context.Background(), "a", []string{hostile.Source}, eternity, nothing); err != nil {
			t.Fatalf("with %d images that hang: %v", i, err)
		}
		done = append(done, l.stalls.add(fmt.Sprint(i), backing{ino: uint64(i)}, "a", "a write hangs"))
	}
	for what, call := range map[string]func() error{
		"Freeze": func() error {
			return b.Freeze(context.Background(), "a", []string{hostile.Source}, eternity, nothing)
		},
		"Grow": func() error { return b.Grow(context.Background(), hostile, b.path("staging")) },
	} {
		if err := call(); !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "namespace a") {
			t.Errorf("%s of the tenant = %v, want ErrStalled with the namespace", what, err)
		}
	}
	for _, tenant := range []string{"b", ""} {
		if err := b.Freeze(context.Background(), tenant, []string{innocent.Source}, eternity, nothing); err != nil {
			t.Errorf("Freeze of tenant %q = %v", tenant, err)
		}
	}
	if err := b.Grow(context.Background(), innocent, b.path("other")); err != nil {
		t.Errorf("Grow of another tenant = %v", err)
	}
	done[0]()
	if err := b.Freeze(context.Background(), "a", []string{hostile.Source}, eternity, nothing); err != nil {
		t.Errorf("Freeze after one of them has ended = %v", err)
	}
	b.unmount(b.path("staging"), b.path("other"))
}

// TestNoTenantGrowsInAllHelpers: growths that begin at the same time are not yet known to hang.
func TestNoTenantGrowsInAllHelpers(t *testing.T) {
	b := newFreezeBench(t)
	l := b.Host.(*linux)
	m := b.image("image", "ext4")
	b.mount(m, b.path("staging"))
	for i := range growSlots.Tenant {
		leave, err := l.growths.Acquire(t.Context(), fair.Request{Kind: "grow", Tenant: "a", Volume: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	for tenant, want := range map[string]error{"a": context.DeadlineExceeded, "b": nil, "": nil} {
		ctx := t.Context()
		if want != nil {
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			ctx = short
		}
		m.Tenant = tenant
		if err := b.Grow(ctx, m, b.path("staging")); !errors.Is(err, want) {
			t.Errorf("Grow of tenant %q = %v, want %v", tenant, err, want)
		}
	}
	b.unmount(b.path("staging"))
}

// TestFreezesNeverKeepAHelperFromAThaw: their helpers are their own.
func TestFreezesNeverKeepAHelperFromAThaw(t *testing.T) {
	b := newFreezeBench(t)
	l := b.Host.(*linux)
	m := b.image("image", "ext4")
	b.mount(m, b.path("staging"))
	write := hang.Write(t, b.path("staging", "hangs"))
	l.freezers.Max = 1
	if err := b.Freeze(context.Background(), "a", []string{m.Source}, 200*time.Millisecond, nothing); !errors.Is(err,
		ErrThawed) {
		t.Fatalf("Freeze = %v, want ErrThawed", err)
	}
	if got, want := fmt.Sprint(l.Helpers()), "[{freeze 1 1} {mount 0 64} {share 0 64}]"; got != want {
		t.Errorf("Helpers = %s, want %s", got, want)
	}
	other := b.image("other", "ext4")
	b.mount(other, b.path("other"))
	if err := b.Freeze(context.Background(), "b", []string{other.Source}, eternity, nothing); !errors.Is(err,
		ErrStalled) {
		t.Errorf("Freeze without a helper = %v, want ErrStalled", err)
	}
	if err := b.Grow(context.Background(), other, b.path("other")); err != nil {
		t.Errorf("Grow, which has helpers, = %v", err)
	}
	write.Release()
	await.True(t, "the image is no longer stalled", func() bool {
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	if isFrozen(t, b.path("staging")) {
		t.Error("it is frozen now")
	}
	b.unmount(b.path("staging"), b.path("other"))
}

// TestAListingThatDoesNotEnd: on btrfs a process that lists a directory can keep others from
// opening it. The calls for its image are given up, those for others are not delayed.
func TestAListingThatDoesNotEnd(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newFreezeBench(t)
			m, other := b.image("image", fsType), b.image("other", fsType)
			b.mount(m, b.path("staging"))
			b.mount(other, b.path("other"))
			listing := hang.Readdir(t, b.path("staging"))
			maker := exec.Command("touch", b.path("staging", "f")) // waits for the lock, and makes readers wait
			if err := maker.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				listing.Kill()
				maker.Wait()
			})
			for _, call := range []func() error{
				func() error {
					return b.Freeze(context.Background(), "", []string{m.Source}, 200*time.Millisecond, nothing)
				},
				func() error { return b.Grow(context.Background(), m, b.path("staging")) },
			} {
				if err := call(); err != nil && !errors.Is(err, ErrStalled) && !errors.Is(err, ErrThawed) {
					t.Errorf("the image: %v, want ErrStalled, ErrThawed or none", err)
				}
			}
			if err := b.Freeze(context.Background(), "", []string{other.Source}, eternity, nothing); err != nil {
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
			if err := b.Freeze(context.Background(), "", []string{m.Source}, eternity, nothing); err != nil {
				t.Errorf("Freeze after the listing has ended = %v", err)
			}
			b.unmount(b.path("staging"), b.path("other"))
		})
	}
}

// TestADriverDiesWhileAFreezeHangs: its successor starts, and thaws when the write has ended, also
// if the helper was killed with the driver: the kernel completes the freeze before the helper dies.
func TestADriverDiesWhileAFreezeHangs(t *testing.T) {
	for _, helperToo := range []bool{false, true} {
		t.Run(fmt.Sprintf("the helper too: %v", helperToo), func(t *testing.T) {
			b := newFreezeBench(t)
			m := b.image("image", "ext4")
			b.mount(m, b.path("staging"))
			write := hang.Write(t, b.path("staging", "hangs"))
			cmd, _ := b.startFreezer("", m.Source)
			var pids []int
			await.True(t, "the helper hangs", func() bool {
				pids = b.freezers()
				return len(pids) == 1 && waitsIn(pids[0], "freeze_super", "percpu_down_write", "sb_wait_write")
			})
			cmd.Process.Kill()
			cmd.Wait()
			if helperToo {
				if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			b.restart()
			if failing, err := b.Failing(); err != nil || failing[m.Source].Kind != Stalled {
				t.Errorf("Failing = %+v, %v, want Stalled", failing, err)
			}
			write.Release()
			await.True(t, "the image is no longer stalled", func() bool {
				failing, err := b.Failing()
				return err == nil && len(failing) == 0
			})
			if isFrozen(t, b.path("staging")) {
				t.Error("it is frozen now")
			}
			b.unmount(b.path("staging"))
		})
	}
}

// waitsIn reports whether a thread of a process waits in any of these functions of the kernel.
func waitsIn(pid int, functions ...string) bool {
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", pid))
	for _, file := range stacks {
		stack, _ := os.ReadFile(file)
		for _, f := range functions {
			if bytes.Contains(stack, []byte(f)) {
				return true
			}
		}
	}
	return false
}

// asFreezer is set in the environment where this test binary is the program below: the bench's
// kubelet directory, and the images, a line for each.
const asFreezer = "CAUSEWAY_TEST_FREEZER"

// freezer freezes images and never lets go.
func freezer() int {
	args := strings.Split(os.Getenv(asFreezer), "\n")
	m, err := New(args[0], filepath.Join(filepath.Dir(args[0]), "frozen"))
	if err == nil {
		err = m.Freeze(context.Background(), "", args[1:], eternity, func(context.Context) error {
			fmt.Println("frozen")
			if os.Getenv(crashpoint.Env) == "" {
				select {}
			}
			return nil
		})
	}
	fmt.Println(err)
	return 1
}

// buildFreezer builds this test's program so that it knows crash points.
var buildFreezer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "freezer")
	if err != nil {
		return "", err
	}
	freezerDir = dir
	bin := filepath.Join(dir, "freezer")
	cmd := exec.Command("go", "test", "-c", "-tags", "crashpoints", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as in an image
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c: %w: %s", err, out)
	}
	return bin, nil
})

// freezerDir holds the binary once it is built.
var freezerDir string

// startFreezer starts a program that freezes images and dies at a crash point if there is any. It
// returns the output.
func (b *bench) startFreezer(crashAt string, images ...string) (cmd *exec.Cmd, said io.Reader) {
	b.t.Helper()
	return b.startFreezerAs(&syscall.SysProcAttr{}, crashAt, images...)
}

func (b *bench) startFreezerAs(attr *syscall.SysProcAttr, crashAt string,
	images ...string) (cmd *exec.Cmd, said io.Reader) {
	b.t.Helper()
	bin, err := os.Executable()
	if crashAt != "" {
		bin, err = buildFreezer()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	cmd = exec.Command(bin)
	cmd.SysProcAttr = attr
	cmd.Env = append(os.Environ(), crashpoint.Env+"="+crashAt,
		asFreezer+"="+strings.Join(append([]string{b.kubelet}, images...), "\n"))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, stdout
}

func TestTheHelperThawsWhenItsDriverDies(t *testing.T) {
	for _, point := range []string{"freeze:recorded", "freeze:frozen", "freeze:cut", "freeze:thawed"} {
		t.Run(point, func(t *testing.T) {
			b := newFreezeBench(t)
			m, other := b.image("image", "xfs"), b.image("other", "ext4")
			b.mount(m, b.path("staging"))
			b.mount(other, b.path("other"))
			w := b.newWriter(b.path("staging", "f"), b.path("other", "f"))
			w.goesOn(t)
			cmd, said := b.startFreezer(point, m.Source, other.Source)
			if text, err := io.ReadAll(said); err != nil || strings.Trim(string(text), "frozen\n") != "" {
				t.Errorf("it said %s, %v", text, err)
			}
			cmd.Wait()
			if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
				t.Errorf("it ended with %v", cmd.ProcessState)
			}
			w.goesOn(t)
			if records, err := os.ReadDir(b.state()); err != nil || len(records) != 1 {
				t.Errorf("the records are %v, %v", records, err)
			}
			await.True(t, "the helper ends", func() bool { return len(b.freezers()) == 0 })
			b.restart()
			w.end()
			b.unmount(b.path("staging"), b.path("other"))
		})
	}
}

func TestTheNextMounterThawsWhenTheHelperDiedToo(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		for _, unmounted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unmounted %v", fsType, unmounted), func(t *testing.T) {
				b := newFreezeBench(t)
				m := b.image("image", fsType)
				b.mount(m, b.path("staging"))
				if err := os.WriteFile(b.path("staging", "f"), []byte("hello"), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd, said := b.startFreezer("", m.Source)
				if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "frozen\n" {
					t.Fatalf("it said %s, %v", line, err)
				}
				for _, pid := range b.freezers() {
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				await.True(t, "the helper ends", func() bool { return len(b.freezers()) == 0 })
				cmd.Process.Kill()
				cmd.Wait()
				if !isFrozen(t, b.path("staging")) {
					t.Fatal("nothing is frozen: that proves nothing")
				}
				var w *writer
				if unmounted {
					await.True(t, "somebody unmounts it", func() bool { return unix.Unmount(b.path("staging"), 0) == nil })
					if len(b.loops()) != 1 {
						t.Fatalf("attached: %v: that proves nothing", b.loops())
					}
				} else {
					w = b.newWriter(b.path("staging", "w"))
				}
				b.restart()
				b.restart()
				if unmounted {
					await.True(t, "the device goes", func() bool { return len(b.loops()) == 0 })
					b.mount(m, b.path("staging"))
				} else {
					w.goesOn(t)
					w.end()
				}
				if got, err := os.ReadFile(b.path("staging", "f")); string(got) != "hello" {
					t.Errorf("it shows %q, %v", got, err)
				}
				b.unmount(b.path("staging"))
			})
		}
	}
}

// TestADriverThatIsTheFirstProcessOfItsContainer: the kernel ends the helper with it, perhaps
// before the helper has thawed.
func TestADriverThatIsTheFirstProcessOfItsContainer(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	b.mount(m, b.path("staging"))
	w := b.newWriter(b.path("staging", "f"))
	cmd, said := b.startFreezerAs(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "", m.Source)
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "frozen\n" {
		t.Fatalf("it said %s, %v", line, err)
	}
	if len(b.freezers()) != 1 || !isFrozen(t, b.path("staging")) {
		t.Errorf("there are the helpers %v", b.freezers())
	}
	cmd.Process.Kill()
	cmd.Wait()
	t.Logf("without a new Mounter it is frozen: %v", isFrozen(t, b.path("staging")))
	b.restart()
	w.goesOn(t)
	w.end()
	b.unmount(b.path("staging"))
}

// leave writes a record as of a process that died.
func (b *bench) leave(images ...frozen) string {
	b.t.Helper()
	data, err := json.Marshal(images)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.leaveRaw(data)
}

func (b *bench) leaveRaw(data []byte) string {
	b.t.Helper()
	path := filepath.Join(b.state(), "1.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
	return path
}

func TestRecordsWithNothingToThawAreRemoved(t *testing.T) {
	b := newFreezeBench(t)
	idle, mounted, disk := b.image("idle", "ext4"), b.image("mounted", "ext4"), b.image("disk", "xfs")
	// The disk has a filesystem whose log is not empty. It belongs to a pod and must not be
	// mounted.
	b.mount(disk, b.path("first"))
	if err := os.WriteFile(b.path("first", "f"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Freeze(context.Background(), "", []string{disk.Source}, eternity, func(context.Context) error {
		disk = b.copyImage(disk, "disk-copy")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b.unmount(b.path("first"))
	disk.Kind, disk.FSType = Disk, ""
	b.mount(disk, b.path("disk"))
	b.mount(mounted, b.path("mounted"))
	before := b.copyImage(disk, "before")
	images, err := imagesAt([]string{idle.Source, mounted.Source, disk.Source})
	if err != nil {
		t.Fatal(err)
	}
	for i := range images {
		images[i].FSType = "xfs"
	}
	b.leave(append(images, frozen{Path: "gone", Dev: 1, Ino: 2, Loop: 4711, FSType: "ext4"})...)
	b.restart()
	b.leave()
	b.restart()
	for _, torn := range []string{"", "[{\"path\":", strings.Repeat("\x00", 100)} {
		b.leaveRaw([]byte(torn))
		b.restart()
	}
	b.run(disk, "cmp", before.Source)
	b.unmount(b.path("disk"), b.path("mounted"))
}

// TestAStartThatCannotThawServesAllTheSame: a bad image is reported and retried, and the others
// are served.
func TestAStartThatCannotThawServesAllTheSame(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	end := b.elsewhere(m)
	images, err := imagesAt([]string{m.Source})
	if err != nil {
		t.Fatal(err)
	}
	images[0].FSType = "no-such-filesystem"
	record := b.leave(images...)
	b.restart()
	failing, err := b.Failing()
	if f := failing[m.Source]; err != nil || f.Kind != Stalled || !strings.Contains(f.Message, record) {
		t.Errorf("Failing = %+v, %v, want Stalled that names %s", failing, err, record)
	}
	images[0].FSType = "ext4"
	b.leave(images...) // it can be reached now, though no mount of it is visible here
	await.True(t, "the image is no longer stalled", func() bool {
		failing, err := b.Failing()
		return err == nil && len(failing) == 0
	})
	end()
}

// TestARecordThatIsNoFile: a start does not wait for the other end of a pipe.
func TestARecordThatIsNoFile(t *testing.T) {
	b := newFreezeBench(t)
	fifo, dir := filepath.Join(b.state(), "1.json"), filepath.Join(b.state(), "2.json")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	b.restart()
	if err := errors.Join(os.Remove(fifo), os.Remove(dir)); err != nil {
		t.Error(err)
	}
}
