package copier

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/testdisk"
)

// writeParts writes a file of a size with data at some offsets, and returns the file, open.
func writeParts(t testing.TB, path string, size int64, parts map[int64]int) *os.File {
	t.Helper()
	f := open(t, path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	must(t, f.Truncate(size))
	for at, n := range parts {
		_, err := f.WriteAt(pattern(n, byte(at>>12)), at)
		must(t, err)
	}
	must(t, f.Sync())
	return f
}

// images are files to be copied.
var images = map[string]struct {
	size  int64
	parts map[int64]int
}{
	"empty":                   {0, nil},
	"one byte":                {1, map[int64]int{0: 1}},
	"a small hole":            {64 << 10, nil},
	"small, with a hole":      {100_000, map[int64]int{0: 5000, 70_000: 100}},
	"small, ends with data":   {100_000, map[int64]int{99_000: 1000}},
	"dense":                   {3<<20 + 17, map[int64]int{0: 3<<20 + 17}},
	"only a hole":             {10 << 20, nil},
	"holes":                   {30<<20 + 1, map[int64]int{0: 4096, 8 << 20: 17 << 20, 30 << 20: 1}},
	"data ends before a hole": {10 << 20, map[int64]int{5000: 10_000}},
}

func TestFileIsTheSame(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		for _, w := range ways {
			for name, image := range images {
				t.Run(w.name+"/"+name, func(t *testing.T) {
					sub := filepath.Join(dir, w.name+name)
					must(t, os.Mkdir(sub, 0o700))
					src := writeParts(t, filepath.Join(sub, "src"), image.size, image.parts)
					dst := open(t, filepath.Join(sub, "dst"), os.O_RDWR|os.O_CREATE)
					var p Progress
					c := content{progress: &p}
					w.set(&c)
					must(t, c.copy(context.Background(), &worksite{}, int(src.Fd()), int(dst.Fd()), image.size))
					if p.Bytes() != image.size {
						t.Errorf("%d bytes are counted, want %d", p.Bytes(), image.size)
					}
					sameContent(t, dst.Name(), src.Name())
					want := Copied
					if image.size == 0 || f.clones && !w.noClone {
						want = Cloned
					}
					if c.how() != want {
						t.Errorf("%v, want %v", c.how(), want)
					}
				})
			}
		}
	})
}

// sameContent checks that two files have the same bytes, and that got has at least the holes of
// want.
func sameContent(t *testing.T, got, want string) {
	t.Helper()
	a, err := os.ReadFile(got)
	must(t, err)
	b, err := os.ReadFile(want)
	must(t, err)
	if string(a) != string(b) {
		t.Errorf("%d bytes of other content, want %d", len(a), len(b))
	}
	if a, b := allocated(t, got), allocated(t, want); a > b {
		t.Errorf("%d bytes are allocated, %d in the source", a, b)
	}
}

func TestFileSharesItsBlocks(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		src := writeParts(t, filepath.Join(dir, "src"), 8<<20, map[int64]int{0: 4 << 20})
		for name, attribute := range map[string]func(t *testing.T, f *os.File){
			"plain":  func(*testing.T, *os.File) {},
			"no cow": setNoCow,
		} {
			t.Run(name, func(t *testing.T) {
				src := src
				if name != "plain" {
					if f.name != "btrfs" {
						t.Skip("only btrfs has this flag")
					}
					src = open(t, filepath.Join(dir, name), os.O_RDWR|os.O_CREATE)
					attribute(t, src)
					_, err := src.Write(pattern(4<<20, 1))
					must(t, err)
				}
				dst := open(t, filepath.Join(dir, name+".copy"), os.O_RDWR|os.O_CREATE)
				how, err := File(context.Background(), src, dst, Options{})
				must(t, err)
				if cloned := how == Cloned; cloned != f.clones {
					t.Errorf("%v on %s", how, f.name)
				}
				if f.clones && !shared(t, dst) {
					t.Error("the blocks are not shared")
				}
				sameContent(t, dst.Name(), src.Name())
			})
		}
	})
}

func setNoCow(t *testing.T, f *os.File) {
	t.Helper()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags|noCow)))
}

// shared reports whether every extent of a file is shared.
func shared(t *testing.T, f *os.File) bool {
	t.Helper()
	type extent struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
	var m struct { // struct fiemap of linux/fiemap.h
		start, length              uint64
		flags, mapped, count, _pad uint32
		extents                    [64]extent
	}
	m.length, m.flags, m.count = ^uint64(0), 1 /* sync */, uint32(len(m.extents))
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0xC020660B, uintptr(unsafe.Pointer(&m))); err != 0 {
		t.Fatal(err)
	}
	for _, e := range m.extents[:m.mapped] {
		if e.flags&0x2000 == 0 {
			return false
		}
	}
	return m.mapped > 0
}

// TestNoCowDiffers: the target gets the flag of the source: otherwise both could not share blocks.
func TestNoCowDiffers(t *testing.T) {
	f := filesystems[3]
	dir := f.mount(t)
	src := writeParts(t, filepath.Join(dir, "src"), 1<<20, map[int64]int{0: 1 << 20})
	dst := open(t, filepath.Join(dir, "dst"), os.O_RDWR|os.O_CREATE)
	setNoCow(t, dst)
	if how, err := File(context.Background(), src, dst, Options{}); err != nil || how != Cloned {
		t.Errorf("File = %v, %v", how, err)
	}
}

func TestCloneOrUnsupported(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		src := writeParts(t, filepath.Join(dir, "src"), 1<<20, map[int64]int{0: 1 << 20})
		dst := open(t, filepath.Join(dir, "dst"), os.O_RDWR|os.O_CREATE)
		err := Clone(src, dst)
		if !f.clones {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Clone = %v, want ErrUnsupported", err)
			}
			return
		}
		must(t, err)
		sameContent(t, dst.Name(), src.Name())
	})
}

// TestLargeFilesAreSharedInSteps: a file of a tree is shared step by step, so that its copy ends
// with the context. Steps without data are skipped: a file may be 8 EiB long.
func TestLargeFilesAreSharedInSteps(t *testing.T) {
	for _, f := range filesystems {
		if !f.clones {
			continue
		}
		dir := f.mount(t)
		for name, size := range map[string]int64{
			"up to a step": 2 * step, "data at the end": 2*step + 4321, "a hole at the end": 5 * step,
			"the longest": math.MaxInt64,
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				src := writeParts(t, dir+"/"+name, size,
					map[int64]int{0: 10_000, step - 5000: 10_000, 2*step - 5000: 5000})
				if name == "data at the end" {
					_, err := src.WriteAt(pattern(4321, 9), 2*step)
					must(t, err)
				}
				dst := open(t, dir+"/"+name+".copy", os.O_RDWR|os.O_CREATE)
				var p Progress
				c := content{progress: &p}
				must(t, c.copy(context.Background(), &worksite{}, int(src.Fd()), int(dst.Fd()), size))
				if c.how() != Cloned || !shared(t, dst) || p.Bytes() != size {
					t.Errorf("%v, %d bytes", c.how(), p.Bytes())
				}
				info, err := dst.Stat()
				must(t, err)
				if info.Size() != size {
					t.Errorf("the copy has %d bytes, want %d", info.Size(), size)
				}
				sameParts(t, dst, src)
				must(t, dst.Truncate(0))
				ctx := &countdown{Context: context.Background()}
				ctx.n.Store(1)
				if err := c.copy(ctx, &worksite{}, int(src.Fd()), int(dst.Fd()), size); !errors.Is(err,
					context.Canceled) {
					t.Errorf("after one step: %v, want the end of the context", err)
				}
			})
		}
	}
}

// sameParts checks that two files have the same data at the same offsets.
func sameParts(t *testing.T, got, want *os.File) {
	t.Helper()
	for at := int64(0); ; {
		data, err := want.Seek(at, unix.SEEK_DATA)
		other, err2 := got.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) && errors.Is(err2, unix.ENXIO) {
			return
		}
		if must(t, errors.Join(err, err2)); data != other {
			t.Fatalf("data is at %d, want %d", other, data)
		}
		hole, err := want.Seek(data, unix.SEEK_HOLE)
		must(t, err)
		a, b := make([]byte, hole-data), make([]byte, hole-data)
		_, err = want.ReadAt(a, data)
		_, err2 = got.ReadAt(b, data)
		if must(t, errors.Join(err, err2)); !bytes.Equal(a, b) {
			t.Errorf("other data from %d to %d", data, hole)
		}
		at = hole
	}
}

// TestLargeFileThatShrinks: a step beyond the end ends the sharing of blocks, but not the copy.
func TestLargeFileThatShrinks(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		src := writeParts(t, dir+"/src", step+5000, map[int64]int{0: 10_000, step: 5000})
		dst := open(t, dir+"/dst", os.O_RDWR|os.O_CREATE)
		var p Progress
		c := content{progress: &p}
		if f.clones {
			f := transfer{&c, &worksite{}, int(src.Fd()), int(dst.Fd()), 3 * step}
			cloned, err := f.clone(context.Background())
			if info, _ := dst.Stat(); cloned || err != nil || info.Size() != 0 {
				t.Fatalf("clone = %v, %v, and leaves %d bytes", cloned, err, info.Size())
			}
		}
		must(t, c.copy(context.Background(), &worksite{}, int(src.Fd()), int(dst.Fd()), 3*step))
		info, err := dst.Stat()
		must(t, err)
		if info.Size() != step+5000 {
			t.Errorf("the copy has %d bytes, want %d", info.Size(), step+5000)
		}
		sameParts(t, dst, src)
	})
}

func TestFileToAnotherFilesystem(t *testing.T) {
	src := writeParts(t, filepath.Join(filesystems[0].mount(t), "src"), 40<<20, map[int64]int{20 << 20: 18 << 20})
	for _, f := range filesystems[1:] {
		t.Run(f.name, func(t *testing.T) {
			dst := open(t, filepath.Join(f.mount(t), "dst"), os.O_RDWR|os.O_CREATE)
			if how, err := File(context.Background(), src, dst, Options{}); err != nil || how != Copied {
				t.Errorf("File = %v, %v", how, err)
			}
			sameContent(t, dst.Name(), src.Name())
		})
	}
}

func TestFileTakesAnEmptyRegularFile(t *testing.T) {
	dir := t.TempDir()
	src := writeParts(t, filepath.Join(dir, "src"), 10, map[int64]int{0: 10})
	full := writeParts(t, filepath.Join(dir, "full"), 10, nil)
	empty := open(t, filepath.Join(dir, "empty"), os.O_RDWR|os.O_CREATE)
	for name, pair := range map[string][2]*os.File{
		"a target with content": {src, full},
		"a directory":           {open(t, dir, os.O_RDONLY), empty},
		"a device":              {open(t, "/dev/null", os.O_RDONLY), empty},
	} {
		if _, err := File(context.Background(), pair[0], pair[1], Options{}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
}

func TestFileThatShrinks(t *testing.T) {
	for _, w := range ways[1:] {
		for _, size := range []int64{5000, 40 << 20} { // as it was when the copy began
			t.Run(w.name, func(t *testing.T) {
				dir := t.TempDir()
				src := writeParts(t, filepath.Join(dir, "src"), 4999, map[int64]int{0: 4999})
				dst := open(t, filepath.Join(dir, "dst"), os.O_RDWR|os.O_CREATE)
				var c content
				w.set(&c)
				must(t, c.copy(context.Background(), &worksite{}, int(src.Fd()), int(dst.Fd()), size))
				sameContent(t, dst.Name(), src.Name())
			})
		}
	}
}

func TestFileIsCanceled(t *testing.T) {
	for _, w := range ways[1:] {
		t.Run(w.name, func(t *testing.T) {
			dir := t.TempDir()
			src := writeParts(t, filepath.Join(dir, "src"), 64<<20, map[int64]int{0: 64 << 20})
			dst := open(t, filepath.Join(dir, "dst"), os.O_RDWR|os.O_CREATE)
			ctx, cancel := context.WithCancel(context.Background())
			c := content{progress: new(Progress)}
			w.set(&c)
			defer cancel()
			go func() {
				for ctx.Err() == nil && c.progress.Bytes() == 0 {
					runtime.Gosched()
				}
				cancel()
			}()
			err := c.copy(ctx, &worksite{}, int(src.Fd()), int(dst.Fd()), 64<<20)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("copy = %v", err)
			}
			if err == nil {
				t.Log("it was done before it was canceled")
			}
		})
	}
}

func TestFileOnAFullDisk(t *testing.T) {
	src := writeParts(t, filepath.Join(t.TempDir(), "src"), 8<<20, map[int64]int{0: 8 << 20})
	small := filesystem{name: "tmpfs", options: "size=2m"}
	for _, w := range ways[1:] {
		t.Run(w.name, func(t *testing.T) {
			dst := open(t, filepath.Join(small.mount(t), "dst"), os.O_RDWR|os.O_CREATE)
			var c content
			w.set(&c)
			if err := c.copy(context.Background(), &worksite{}, int(src.Fd()), int(dst.Fd()), 8<<20); !errors.Is(err,
				unix.ENOSPC) {
				t.Errorf("copy = %v, want ENOSPC", err)
			}
		})
	}
}

// TestLargeFileMakesProgress: a file that takes long does not count as stalled.
func TestLargeFileMakesProgress(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, _ filesystem) {
		src := writeParts(t, dir+"/src", 40<<20, map[int64]int{0: 40 << 20})
		for _, w := range ways {
			dst := open(t, dir+"/dst", os.O_RDWR|os.O_CREATE|os.O_TRUNC)
			c := content{progress: &Progress{}}
			w.set(&c)
			var site worksite
			site.beginEntry(image("src"), "")
			long := time.Now().Add(-time.Hour)
			site.since = long
			must(t, c.copy(context.Background(), &site, int(src.Fd()), int(dst.Fd()), 40<<20))
			if site.since.Equal(long) {
				t.Errorf("%s: no progress was recorded", w.name)
			}
		}
	})
}

// TestFlushReturnsTheErrorOfAWrite: the disk below the filesystem has less space than a chunk. The
// filesystem cannot find out, so only the write to the disk fails.
func TestFlushReturnsTheErrorOfAWrite(t *testing.T) {
	fs := testdisk.Filesystem{Type: "ext4"}
	fs.Need(t)
	below, on := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, "size=12m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(below, unix.MNT_DETACH) })
	image := filepath.Join(below, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("mkfs.ext4", "-q", "-O", "^has_journal", image).CombinedOutput()
	if err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	fs.Attach(t, image, on)
	f, err := os.Create(filepath.Join(on, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte("data"), chunk/4)
	for at := int64(0); at < 4*chunk && err == nil; at += chunk {
		if _, err := f.WriteAt(data, at); err != nil {
			t.Fatal(err)
		}
		err = flush(int(f.Fd()), at, chunk)
	}
	if err == nil {
		t.Errorf("flush did not return the error of the full disk; fsync returns %v", f.Sync())
	}
}
