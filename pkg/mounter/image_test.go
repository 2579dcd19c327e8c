package mounter

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// eternity is a limit that no test reaches, unless the test is stalled.
const eternity = 5 * time.Minute

// linuxFSTypes are the filesystems that an Image may have on Linux and on a Fake.
func linuxFSTypes() []string { return slices.Sorted(maps.Keys(options.Image)) }

// fakeImage creates the file of an image of a fake, with a filesystem unless fsType is "".
func (b *bench) fakeImage(name, fsType string) Mount {
	b.t.Helper()
	m := Mount{Kind: Image, Source: filepath.Join(b.storage, name), FSType: fsType, Sector: 512}
	if fsType == "" {
		m.Kind = Disk
	}
	if err := b.MakeImage(context.Background(), m.Source, 1<<20, fsType); err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *bench) unmount(paths ...string) {
	b.t.Helper()
	for _, path := range paths {
		if err := b.Unmount(context.Background(), path); err != nil {
			b.t.Fatalf("Unmount(%s): %v", path, err)
		}
	}
}

// copyImage copies the current content of an image to a new file, without its holes.
func (b *bench) copyImage(m Mount, name string) Mount {
	b.t.Helper()
	copied := m
	copied.Source = filepath.Join(b.storage, name)
	if err := sparseCopy(m.Source, copied.Source); err != nil {
		b.t.Fatal(err)
	}
	return copied
}

func sparseCopy(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	block, zeros, size := make([]byte, 64<<10), make([]byte, 64<<10), int64(0)
	for {
		n, err := src.Read(block)
		if string(block[:n]) != string(zeros[:n]) {
			if _, err := dst.WriteAt(block[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		if err == io.EOF {
			return dst.Truncate(size)
		}
		if err != nil {
			return err
		}
	}
}

// newUUID calls NewUUID on an image.
func (b *bench) newUUID(m Mount) error {
	b.t.Helper()
	f, err := os.OpenFile(m.Source, os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	return b.NewUUID(context.Background(), f, m.FSType, m.Sector)
}

func TestFakeKeepsTheContractOfImages(t *testing.T) {
	testImageContract(t, func(t *testing.T) *bench {
		return newBench(t, func(dir string) Host { return NewFake(dir) })
	}, (*bench).fakeImage)
}

// testImageContract tests the contract for images, which every Host has to keep, the fake too.
func testImageContract(
	t *testing.T, newBench func(t *testing.T) *bench, image func(b *bench, name, fsType string) Mount,
) {
	ctx := context.Background()
	run := func(name string, test func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) { test(t, newBench(t)) })
	}

	run("a freeze calls copyData once and returns its error", func(t *testing.T, b *bench) {
		mounted, idle, disk := image(b, "mounted", "ext4"), image(b, "idle", "ext4"), image(b, "disk", "")
		b.mount(mounted, b.path("mounted"))
		b.mount(disk, b.path("disk"))
		for _, images := range [][]string{
			{}, {mounted.Source}, {idle.Source}, {disk.Source}, {mounted.Source, mounted.Source},
			{idle.Source, mounted.Source, disk.Source},
		} {
			for _, want := range []error{nil, errors.New("on demand")} {
				calls := 0
				err := b.Freeze(ctx, "", images, eternity, func(ctx context.Context) error {
					if _, ok := ctx.Deadline(); !ok {
						t.Error("copyData has no deadline")
					}
					calls++
					return want
				})
				if !errors.Is(err, want) || calls != 1 {
					t.Errorf("%v: Freeze = %v, want %v; copyData was called %d times", images, err, want, calls)
				}
			}
		}
		b.unmount(b.path("mounted"), b.path("disk"))
	})

	run("a freeze of a path that is no image does not call copyData", func(t *testing.T, b *bench) {
		m, link := image(b, "image", "ext4"), filepath.Join(b.storage, "link")
		if err := winetest.Symlink(m.Source, link); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		for path, want := range map[string]error{
			filepath.Join(b.storage, "none"): fs.ErrNotExist, link: ErrFormat, b.storage: ErrFormat,
		} {
			err := b.Freeze(ctx, "", []string{m.Source, path}, eternity, func(context.Context) error {
				t.Error("copyData was called")
				return nil
			})
			if !errors.Is(err, want) {
				t.Errorf("Freeze of %s = %v, want %v", path, err, want)
			}
		}
	})

	run("a copy that takes longer than the limit is no point in time", func(t *testing.T, b *bench) {
		m, idle := image(b, "mounted", "ext4"), image(b, "idle", "ext4")
		b.mount(m, b.path("mounted"))
		onDemand := errors.New("on demand")
		for _, want := range []error{nil, onDemand} {
			copyData := func(ctx context.Context) error {
				<-ctx.Done()
				return want
			}
			if err := b.Freeze(ctx, "", []string{m.Source}, time.Millisecond, copyData); !errors.Is(err, ErrThawed) {
				t.Errorf("Freeze = %v, want ErrThawed", err)
			}
			if err := b.Freeze(ctx, "", []string{idle.Source}, time.Millisecond, copyData); !errors.Is(err, want) {
				t.Errorf("Freeze of an unused image = %v, want %v", err, want)
			}
		}
		b.unmount(b.path("mounted"))
	})

	run("other calls for an image wait while the image is frozen", func(t *testing.T, b *bench) {
		m, idle := image(b, "mounted", "ext4"), image(b, "idle", "ext4")
		b.mount(m, b.path("mounted"))
		b.mount(m.BindFrom(b.path("mounted")), b.path("again"))
		for name, call := range map[string]func(ctx context.Context) error{
			"Unmount":       func(ctx context.Context) error { return b.Unmount(ctx, b.path("mounted")) },
			"Remove":        func(ctx context.Context) error { return b.Remove(ctx, b.path("again")) },
			"Mount":         func(ctx context.Context) error { return b.Mount(ctx, m, b.path("other")) },
			"Mount of idle": func(ctx context.Context) error { return b.Mount(ctx, idle, b.path("idle")) },
			"Mount once more": func(ctx context.Context) error {
				return b.Mount(ctx, m.BindFrom(b.path("mounted")), b.path("more"))
			},
			"Grow": func(ctx context.Context) error { return b.Grow(ctx, m, b.path("mounted")) },
			"Tune": func(ctx context.Context) error { return b.Tune(ctx, m) },
			"another Freeze": func(ctx context.Context) error {
				return b.Freeze(ctx, "", []string{idle.Source}, eternity, nothing)
			},
			"a Freeze of others": func(ctx context.Context) error {
				return b.Freeze(ctx, "", []string{m.Source}, eternity, nothing)
			},
		} {
			done := make(chan error, 1)
			err := b.Freeze(ctx, "", []string{m.Source, idle.Source}, eternity, func(context.Context) error {
				short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				defer cancel()
				if err := call(short); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s during a freeze = %v, want DeadlineExceeded", name, err)
				}
				go func() { done <- call(ctx) }()
				return nil
			})
			if err := errors.Join(err, <-done); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			b.unmount(b.path("idle"), b.path("more"), b.path("other"), b.path("again"), b.path("mounted"))
			b.mount(m, b.path("mounted"))
			b.mount(m.BindFrom(b.path("mounted")), b.path("again"))
		}
		b.unmount(b.path("again"), b.path("mounted"))
	})

	run("a copy that panics leaves nothing behind", func(t *testing.T, b *bench) {
		m := image(b, "mounted", "ext4")
		b.mount(m, b.path("mounted"))
		func() {
			defer func() {
				if got := recover(); got != "on demand" {
					t.Errorf("recovered %v", got)
				}
			}()
			b.Freeze(ctx, "", []string{m.Source}, eternity, func(context.Context) error { panic("on demand") })
		}()
		if err := b.Freeze(ctx, "", []string{m.Source}, eternity, nothing); err != nil {
			t.Error(err)
		}
		b.unmount(b.path("mounted"))
	})

	run("a copy with another UUID is mounted beside its source", func(t *testing.T, b *bench) {
		for _, fsType := range linuxFSTypes() {
			m := image(b, fsType, fsType)
			copied := b.copyImage(m, fsType+"-copy")
			b.mount(m, b.path(fsType))
			if fsType == "xfs" {
				b.refused(copied, b.path(fsType+"-copy"), ErrFormat)
			}
			if err := b.newUUID(m); !errors.Is(err, ErrBusy) {
				t.Errorf("NewUUID of a mounted image = %v, want ErrBusy", err)
			}
			for range 2 {
				if err := b.newUUID(copied); err != nil {
					t.Fatalf("NewUUID: %v", err)
				}
				b.mount(copied, b.path(fsType+"-copy"))
				b.unmount(b.path(fsType + "-copy"))
			}
			other := copied
			for _, other.FSType = range append(linuxFSTypes(), "minix") {
				if err := b.newUUID(other); other.FSType != fsType && !errors.Is(err, ErrFormat) {
					t.Errorf("NewUUID of a %s as %s = %v, want ErrFormat", fsType, other.FSType, err)
				}
			}
			b.mount(copied, b.path(fsType+"-copy"))
			b.unmount(b.path(fsType+"-copy"), b.path(fsType))
		}
	})

	run("Tune changes attached images only", func(t *testing.T, b *bench) {
		m := image(b, "mounted", "ext4")
		m.Buffered, m.ReadAhead = true, 1<<20
		if err := b.Tune(ctx, m); err != nil {
			t.Errorf("Tune of an image that is not attached = %v", err)
		}
		if err := b.Tune(ctx, b.volume("v")); err != nil {
			t.Errorf("Tune of a directory = %v", err)
		}
		missing := Mount{Kind: Image, Source: filepath.Join(b.storage, "none")}
		if err := b.Tune(ctx, missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Tune of a missing image = %v, want ErrNotExist", err)
		}
		b.mount(m, b.path("mounted"))
		m.Buffered, m.ReadAhead = false, 0
		b.mount(m, b.path("mounted")) // no conflict
		for range 2 {
			if err := b.Tune(ctx, m); err != nil {
				t.Error(err)
			}
		}
		b.unmount(b.path("mounted"))
	})
}

func nothing(context.Context) error { return nil }

func TestFakeRecordsTuning(t *testing.T) {
	fake := NewFake(t.TempDir())
	b := newBench(t, func(dir string) Host { fake.dir = dir; return fake })
	m := b.fakeImage("image", "xfs")
	b.mount(m, b.path("staging"))
	m.Buffered, m.ReadAhead = true, 4096
	if err := b.Tune(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	if got := fake.Mounts()[b.path("staging")]; !got.Buffered || got.ReadAhead != 4096 {
		t.Errorf("the image is mounted as %+v", got)
	}
}
