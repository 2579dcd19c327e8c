package extents

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

// outside is the reason why this process has no mount namespace of its own, or nil.
var outside error

func TestMain(m *testing.M) {
	outside = namespace.Enter()
	os.Exit(m.Run())
}

// filesystem is a filesystem for the files of a test.
type filesystem struct {
	name    string
	kind    string
	size    int64    // of an image, in bytes: about the smallest that mkfs accepts; 0 without an image
	mkfs    []string // arguments
	options string   // for mount
	reflink bool
}

var filesystems = []filesystem{
	{"xfs", "xfs", 300 << 20, []string{"-m", "reflink=1"}, "", true},
	{"xfs in blocks of 1 KiB", "xfs", 300 << 20, []string{"-m", "reflink=1", "-b", "size=1024"}, "", true},
	{"xfs without reflink", "xfs", 300 << 20, []string{"-m", "reflink=0"}, "", false},
	{"btrfs", "btrfs", 256 << 20, nil, "", true},
	{"btrfs, compressed", "btrfs", 256 << 20, nil, "compress-force=zstd", true},
	{"ext4", "ext4", 64 << 20, nil, "", false},
	{"ext4 in blocks of 1 KiB, small files inline", "ext4", 64 << 20, []string{"-b", "1024", "-O", "inline_data"}, "",
		false},
	{"tmpfs", "tmpfs", 0, nil, "size=64m", false},
}

// mount makes a filesystem and mounts it until the end of the test. mount skips the test if that is
// impossible.
func (f filesystem) mount(t testing.TB) (dir string) {
	t.Helper()
	if outside != nil {
		namespace.Skip(t, outside)
	}
	dir = t.TempDir()
	if f.size > 0 {
		testdisk.Filesystem{Type: f.kind, Size: f.size, Make: f.mkfs, Options: f.options}.Mount(t, dir)
		return dir
	}
	run(t, "mount", "-t", f.kind, "-o", f.options, "none", dir)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// volume is a file that changes, with snapshots.
type volume struct {
	*os.File
	*rand.Rand
	t       testing.TB
	reflink bool
	made    int
}

func newVolume(t testing.TB, dir string, reflink bool, seed uint64) *volume {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("volume-%d", seed)))
	if err != nil {
		t.Fatal(err)
	}
	v := &volume{File: f, Rand: rand.New(rand.NewPCG(seed, 1)), t: t, reflink: reflink}
	t.Cleanup(func() { v.remove(f) })
	return v
}

func (v *volume) remove(f *os.File) {
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		v.t.Error(err)
	}
}

// sizeOf returns the size of a file.
func sizeOf(t testing.TB, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// snapshot returns a copy of the current file.
func (v *volume) snapshot() *os.File {
	v.t.Helper()
	v.made++
	s, err := os.Create(fmt.Sprintf("%s-snapshot-%d", v.Name(), v.made))
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { v.remove(s) })
	if v.reflink {
		err = unix.IoctlFileClone(int(s.Fd()), int(v.Fd()))
	} else {
		_, err = s.Write(content(v.t, v.File))
	}
	if err != nil {
		v.t.Fatal(err)
	}
	return s
}

// change changes the file as an image is changed in use.
func (v *volume) change() {
	v.t.Helper()
	size := sizeOf(v.t, v.File)
	at := v.Int64N(size)
	length := min(1+v.Int64N(20*Block), size-at)
	if v.IntN(2) == 0 { // whole blocks
		at, length = floor(at), min(ceil(length), size-floor(at))
	}
	var err error
	switch v.IntN(8) {
	case 0, 1:
		_, err = v.WriteAt(v.random(length), at)
	case 2:
		_, err = v.WriteAt(v.random(min(length, 200)), at)
	case 3: // the same data again
		data := content(v.t, v.File)
		_, err = v.WriteAt(data[at:at+length], at)
	case 4:
		err = unix.Fallocate(int(v.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, length)
	case 5:
		err = unix.Fallocate(int(v.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, at, length)
	case 6:
		err = unix.Fallocate(int(v.Fd()), 0, at, length)
	case 7:
		_, err = v.WriteAt(make([]byte, length), at)
		if v.reflink {
			from, to := floor(v.Int64N(size)), floor(v.Int64N(size))
			if n := floor(min(length, size-max(from, to), max(from, to)-min(from, to))); n > 0 {
				err = unix.IoctlFileCloneRange(int(v.Fd()),
					&unix.FileCloneRange{Src_fd: int64(v.Fd()), Src_offset: uint64(from), Src_length: uint64(n),
						Dest_offset: uint64(to)})
			}
		}
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) { // tmpfs has no FALLOC_FL_ZERO_RANGE
		v.t.Fatal(err)
	}
}

// random returns bytes, of which some can be compressed.
func (v *volume) random(n int64) []byte {
	data := make([]byte, n)
	letters := 1 << v.IntN(9)
	for i := range data {
		data[i] = byte(v.IntN(letters))
	}
	return data
}

func TestSnapshotsOfAnImage(t *testing.T) {
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			dir := f.mount(t)
			for seed := range uint64(2) {
				playWith(t, newVolume(t, dir, f.reflink, seed))
			}
		})
	}
}

// playWith changes a volume, and compares each snapshot with the snapshot before and with the
// first.
func playWith(t *testing.T, v *volume) {
	size := int64(300<<10 + 4*Block)
	if v.IntN(2) == 0 {
		size += 777
	}
	if err := v.Truncate(size); err != nil {
		t.Fatal(err)
	}
	first := v.snapshot()
	for last := first; v.made < 6; {
		if v.IntN(4) == 0 {
			size += v.Int64N(10 * Block)
			if err := v.Truncate(size); err != nil {
				t.Fatal(err)
			}
		}
		for range v.IntN(30) {
			v.change()
		}
		now := v.snapshot()
		for _, base := range []*os.File{last, first} {
			from := v.Int64N(size)
			holds(t, base, now, v.reflink, 0)
			holds(t, base, now, true, from) // related is wrong on filesystems without reflinks
			holds(t, now, base, v.reflink, min(from, sizeOf(t, base)))
		}
		last = now
	}
	if err := v.Truncate(0); err != nil { // the snapshots do not depend on the source
		t.Fatal(err)
	}
	holds(t, first, v.snapshot(), v.reflink, 0)
}

func TestUnwrittenExtentsAreNotData(t *testing.T) {
	for _, f := range filesystems {
		if f.kind == "tmpfs" { // tmpfs writes zeros
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			v := newVolume(t, f.mount(t), f.reflink, 0)
			err := errors.Join(v.Truncate(1<<20), unix.Fallocate(int(v.Fd()), 0, 256<<10, 256<<10))
			if _, failed := v.WriteAt(fill(64<<10, 'a'), 64<<10); errors.Join(err, failed) != nil {
				t.Fatal(err, failed)
			}
			files := map[string]*os.File{"the file": v.File}
			if f.reflink { // without a reflink the copy has no holes
				files["its snapshot"] = v.snapshot()
			}
			for name, file := range files {
				var got []span
				if err := Allocated(context.Background(), file, 0, collect(&got)); err != nil ||
					!slices.Equal(got, []span{{64 << 10, 64 << 10}}) {
					t.Errorf("%s: %v, %v", name, got, err)
				}
			}
		})
	}
}

// TestRewrittenBlocksAreReported: a block that was rewritten with the same data has a new address.
// If it is reported, Delta compared addresses. Otherwise Delta read the data.
func TestRewrittenBlocksAreReported(t *testing.T) {
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			v := newVolume(t, f.mount(t), f.reflink, 0)
			data := v.random(1 << 20)
			write := func(at, n int64) {
				if _, err := v.WriteAt(data[at:at+n], at); err != nil {
					t.Fatal(err)
				}
			}
			write(0, 1<<20)
			base := v.snapshot()
			write(256<<10, 64<<10)
			target := v.snapshot()
			var asked, read, exact []span
			err := errors.Join(
				Delta(context.Background(), base, target, true, 0, collect(&asked)),
				Delta(context.Background(), base, target, false, 0, collect(&read)),
				Delta(context.Background(), base, target, true, 0,
					verified(context.Background(), base, target, collect(&exact))))
			if err != nil || read != nil || exact != nil {
				t.Errorf("by reading: %v and %v, %v", read, exact, err)
			}
			if f.name != "xfs" && f.name != "btrfs" {
				return
			}
			for from, want := range map[int64][]span{0: {{256 << 10, 64 << 10}}, 100 << 10: {{256 << 10, 64 << 10}},
				300 << 10: {{300 << 10, 20 << 10}}, 320 << 10: nil, 400 << 10: nil} {
				asked = nil
				if err := Delta(context.Background(), base, target, true, from, collect(&asked)); err != nil ||
					!slices.Equal(asked, want) {
					t.Errorf("by extents from %d: %v, %v, want %v", from, asked, err, want)
				}
			}
		})
	}
}

// TestDataThatIsNotOnTheDiskYet: until the data is written, its blocks are unwritten extents.
func TestDataThatIsNotOnTheDiskYet(t *testing.T) {
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			v := newVolume(t, f.mount(t), f.reflink, 0)
			empty := v.snapshot()
			if err := unix.Fallocate(int(v.Fd()), 0, 0, 1<<20); err != nil {
				t.Fatal(err)
			}
			for _, at := range []int64{100 << 10, 500<<10 + 1, 1<<20 - 1} {
				if _, err := v.WriteAt([]byte{1}, at); err != nil {
					t.Fatal(err)
				}
				holds(t, empty, v.File, true, 0)
			}
		})
	}
}

// TestHalfAnExtentIsClonedOverTheOther: the filesystem reports the same address for both halves of
// a compressed extent.
func TestHalfAnExtentIsClonedOverTheOther(t *testing.T) {
	for _, f := range filesystems {
		if !f.reflink {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			v := newVolume(t, f.mount(t), true, 0)
			const half = 64 << 10
			if _, err := v.WriteAt(append(fill(half, 'a'), fill(half, 'b')...), 0); err != nil {
				t.Fatal(err)
			}
			base := v.snapshot()
			if err := unix.IoctlFileCloneRange(int(v.Fd()),
				&unix.FileCloneRange{Src_fd: int64(v.Fd()), Src_offset: half, Src_length: half}); err != nil {
				t.Fatal(err)
			}
			target := v.snapshot()
			holds(t, base, target, true, 0)
			holds(t, target, base, true, half/2)
		})
	}
}

// TestSmallFiles: a filesystem may store small files inline, without addresses.
func TestSmallFiles(t *testing.T) {
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			v := newVolume(t, f.mount(t), f.reflink, 0)
			last := v.snapshot()
			for i, size := 0, 1; size < 3000; i++ {
				if i%2 == 0 { // alternately larger and with other content
					size = size*3/2 + 1
				}
				if _, err := v.WriteAt(v.random(int64(size)), 0); err != nil {
					t.Fatal(err)
				}
				now := v.snapshot()
				for _, from := range []int64{0, v.Int64N(int64(size))} {
					holds(t, last, now, true, from)
					holds(t, now, last, true, min(from, sizeOf(t, last)))
				}
				last = now
			}
		})
	}
}

// TestManySmallExtents has files that take several windows with different ends.
func TestManySmallExtents(t *testing.T) {
	for _, f := range filesystems {
		if f.name != f.kind { // the others take long
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			v := newVolume(t, f.mount(t), f.reflink, 0)
			const blocks = 2*atOnce + 300
			if err := v.Truncate(blocks * Block); err != nil {
				t.Fatal(err)
			}
			write := func(at int) {
				if _, err := v.WriteAt([]byte{byte(1 + v.IntN(255))}, int64(at)*Block); err != nil {
					t.Fatal(err)
				}
			}
			for at := 0; at < blocks; at += 2 {
				write(at)
			}
			base := v.snapshot()
			for at := 0; at < blocks; at += 1 + v.IntN(9) {
				write(at)
			}
			if err := unix.Fallocate(int(v.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 100*Block,
				700*Block); err != nil {
				t.Fatal(err)
			}
			target := v.snapshot()
			holds(t, base, target, true, 0)
			holds(t, target, base, true, v.Int64N(blocks*Block))
		})
	}
}

// TestTwoDisksWithTheSameAddresses: related is wrong, but no difference is missed.
func TestTwoDisksWithTheSameAddresses(t *testing.T) {
	for _, f := range filesystems {
		if !f.reflink {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			var files [2]*os.File
			for i := range files {
				v := newVolume(t, f.mount(t), true, 0)
				if _, err := v.WriteAt(fill(1<<20, byte('a'+i)), 0); err != nil {
					t.Fatal(err)
				}
				files[i] = v.snapshot()
			}
			holds(t, files[0], files[1], true, 0)
		})
	}
}

// TestBlocksThatAreMovedMeanwhile: the filesystem moves blocks during Delta.
func TestBlocksThatAreMovedMeanwhile(t *testing.T) {
	namespace.Need(t, "btrfs")
	f := filesystem{"btrfs", "btrfs", 512 << 20, nil, "", true}
	dir := f.mount(t)
	v := newVolume(t, dir, true, 0)
	if _, err := v.WriteAt(v.random(4<<20), 0); err != nil {
		t.Fatal(err)
	}
	base := v.snapshot()
	for range 200 {
		v.change()
	}
	target := v.snapshot()
	stop := make(chan struct{})
	moved := 0
	var group sync.WaitGroup
	group.Go(func() {
		for {
			if out, err := exec.Command("btrfs", "balance", "start", "--full-balance",
				dir).CombinedOutput(); err != nil {
				t.Logf("%v: %s", err, out)
				return
			}
			moved++
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 15 {
		holds(t, base, target, true, 0)
		holds(t, target, base, true, v.Int64N(4<<20))
	}
	close(stop)
	group.Wait()
	if moved == 0 {
		t.Error("no extent was moved: the test proves nothing")
	}
}

// TestMovingExtentsOnXFSChangesTheirNumber: Delta relies on that.
func TestMovingExtentsOnXFSChangesTheirNumber(t *testing.T) {
	namespace.Need(t, "xfs_fsr")
	v := newVolume(t, filesystems[0].mount(t), true, 0)
	const blocks = 200
	// backwards, with a sync each time: otherwise the file would have a single extent
	for at := int64(blocks - 1); at >= 0; at-- {
		if _, err := v.WriteAt(fill(Block, byte(1+at)), 2*at*Block); err != nil {
			t.Fatal(err)
		}
		if err := v.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Fallocate(int(v.Fd()), 0, 0, 2*blocks*Block); err != nil {
		t.Fatal(err)
	}
	if _, err := v.WriteAt(fill(2*blocks*Block, 'x'), 0); err != nil {
		t.Fatal(err)
	}
	base := v.snapshot()
	if _, err := v.WriteAt(fill(Block, 'y'), 7*Block); err != nil {
		t.Fatal(err)
	}
	target := v.snapshot()
	before, err := counts(base, target)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "xfs_fsr", "-v", base.Name())
	after, err := counts(base, target)
	if err != nil || after == before || after[1] != before[1] {
		t.Errorf("%d extents before, %d after, %v", before, after, err)
	}
	holds(t, base, target, true, 0)
}

func TestConcurrentRequestsAreSerialized(t *testing.T) {
	v := newVolume(t, filesystems[0].mount(t), true, 0)
	if _, err := v.WriteAt(v.random(1<<20), 0); err != nil {
		t.Fatal(err)
	}
	base := v.snapshot()
	v.change()
	target := v.snapshot()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := Delta(context.Background(), base, target, true, 0,
				func(int64, int64) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	turn <- struct{}{}
	defer func() { <-turn }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := Allocated(endsWhenAwaited{ctx, cancel}, base, 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("while another request runs: %v", err)
	}
}

// endsWhenAwaited is a context that ends when a call begins to wait for its end.
type endsWhenAwaited struct {
	context.Context
	cancel context.CancelFunc
}

func (c endsWhenAwaited) Done() <-chan struct{} {
	c.cancel()
	return c.Context.Done()
}

var benchMiB = flag.Int64("image-mib", 256, "size of the image in BenchmarkDelta")

// BenchmarkDelta finds the 1 % of an image that was changed in pieces of 4 KiB. For comparison it
// also reads both images.
func BenchmarkDelta(b *testing.B) {
	for _, f := range filesystems {
		if !f.reflink || (f.name != "xfs" && f.name != "btrfs") {
			continue
		}
		f.size = *benchMiB<<20*3/2 + 512<<20
		b.Run(f.name, func(b *testing.B) {
			dir := f.mount(b)
			v := newVolume(b, dir, true, 0)
			data := v.random(1 << 20)
			for at := range *benchMiB {
				data[0] = byte(at)
				if _, err := v.WriteAt(data, at<<20); err != nil {
					b.Fatal(err)
				}
			}
			base := v.snapshot()
			for range *benchMiB << 20 / Block / 100 {
				if _, err := v.WriteAt(v.random(Block), v.Int64N(*benchMiB<<20/Block)*Block); err != nil {
					b.Fatal(err)
				}
			}
			target := v.snapshot()
			unix.Sync()
			measure(b, dir, base, target)
		})
	}
}

// measure runs each way to find the differences, with cold and with warm caches.
func measure(b *testing.B, dir string, base, target *os.File) {
	ctx := context.Background()
	ways := []struct {
		name string
		find func(each Each) error
	}{
		{"extents", func(each Each) error { return Delta(ctx, base, target, true, 0, each) }},
		{"extents, verified", func(each Each) error {
			return Delta(ctx, base, target, true, 0,
				verified(ctx, base, target, each))
		}},
		{"reading both", func(each Each) error { return Delta(ctx, base, target, false, 0, each) }},
	}
	for _, way := range ways {
		for _, cache := range []string{"cold", "warm"} {
			b.Run(way.name+", "+cache, func(b *testing.B) {
				ranges := 0
				for range b.N {
					if cache == "cold" {
						b.StopTimer()
						forget(b, dir, base, target)
						b.StartTimer()
					}
					ranges = 0
					if err := way.find(func(int64, int64) error { ranges++; return nil }); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(ranges), "ranges")
			})
		}
	}
}

// forget drops the page cache of files, and of the image of their filesystem.
func forget(b *testing.B, dir string, files ...*os.File) {
	b.Helper()
	source, err := exec.Command("findmnt", "-no", "SOURCE", dir).Output()
	if err != nil {
		b.Fatal(err)
	}
	name, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(strings.TrimSpace(string(source))),
		"loop/backing_file"))
	if err != nil {
		b.Fatal(err)
	}
	image, err := os.Open(strings.TrimSpace(string(name)))
	if err != nil {
		b.Fatal(err)
	}
	defer image.Close()
	for _, f := range append(files, image) {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			b.Fatal(err)
		}
	}
}
