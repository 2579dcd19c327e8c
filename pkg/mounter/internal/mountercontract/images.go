package mountercontract

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

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// Eternity is a limit that no test reaches, unless the test is stalled.
const Eternity = 5 * time.Minute

// LinuxFSTypes are the filesystems that an Image may have on Linux and on a Fake.
func LinuxFSTypes() []string { return slices.Sorted(maps.Keys(options.Image)) }

// FakeImage creates the file of an image of a fake, with a filesystem unless fsType is "".
func (b *Bench) FakeImage(name, fsType string) mounter.Mount {
	b.T.Helper()
	m := mounter.Mount{Kind: mounter.Image, Source: filepath.Join(b.Storage, name), FSType: fsType, Sector: 512}
	if fsType == "" {
		m.Kind = mounter.Disk
	}
	if err := b.MakeImage(context.Background(), m.Source, 1<<20, fsType); err != nil {
		b.T.Fatal(err)
	}
	return m
}

// MustUnmount unmounts paths.
func (b *Bench) MustUnmount(paths ...string) {
	b.T.Helper()
	for _, path := range paths {
		err := b.answered(func() error { return b.Unmount(context.Background(), path) })
		if err != nil {
			b.T.Fatalf("Unmount(%s): %v", path, err)
		}
	}
}

// CopyImage copies the current content of an image to a new file, without its holes.
func (b *Bench) CopyImage(m mounter.Mount, name string) mounter.Mount {
	b.T.Helper()
	copied := m
	copied.Source = filepath.Join(b.Storage, name)
	if err := SparseCopy(m.Source, copied.Source); err != nil {
		b.T.Fatal(err)
	}
	return copied
}

// SparseCopy copies a file, and keeps its holes.
func SparseCopy(from, to string) error {
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

// RenewUUID calls NewUUID on an image.
func (b *Bench) RenewUUID(m mounter.Mount) error {
	b.T.Helper()
	f, err := os.OpenFile(m.Source, os.O_RDWR, 0)
	if err != nil {
		b.T.Fatal(err)
	}
	defer f.Close()
	return b.answered(func() error { return b.NewUUID(context.Background(), f, m.FSType, m.Sector) })
}

// answered calls again while the device of another test does not answer.
func (b *Bench) answered(call func() error) error {
	b.T.Helper()
	err := call()
	if err == nil || b.IsOfOthers == nil || !b.IsOfOthers(err) {
		return err
	}
	await.Happens(b.T, "the devices of other tests answer", func() error {
		if err = call(); err != nil && b.IsOfOthers(err) {
			return err
		}
		return nil
	})
	return err
}

// Answered calls until the error is not ErrNoAnswer, and returns it. A device of another test may
// be silent during its change, and could be that of an image that is not attached.
func Answered(t *testing.T, call func() error) (err error) {
	t.Helper()
	await.Happens(t, "the devices of other tests answer", func() error {
		if err = call(); errors.Is(err, mounter.ErrNoAnswer) {
			return err
		}
		return nil
	})
	return err
}

// TestImages tests the contract for images, which every Host has to keep, the fake too.
func TestImages(
	t *testing.T, newBench func(t *testing.T) *Bench, image func(b *Bench, name, fsType string) mounter.Mount,
) {
	for _, rule := range imageRules {
		t.Run(rule.name, func(t *testing.T) { rule.test(t, newBench(t), image) })
	}
}

// imageRules are the rules for Images.
var imageRules = []struct {
	name string
	test func(t *testing.T, b *Bench, image func(b *Bench, name, fsType string) mounter.Mount)
}{
	{"a freeze calls copyData once and returns its error", func(t *testing.T, b *Bench, image func(b *Bench, name,
		fsType string) mounter.Mount) {
		mounted, idle, disk := image(b, "mounted", "ext4"), image(b, "idle", "ext4"), image(b, "disk", "")
		b.MustMount(mounted, b.Path("mounted"))
		b.MustMount(disk, b.Path("disk"))
		for _, images := range [][]string{
			{}, {mounted.Source}, {idle.Source}, {disk.Source}, {mounted.Source, mounted.Source},
			{idle.Source, mounted.Source, disk.Source},
		} {
			for _, want := range []error{nil, errors.New("on demand")} {
				calls := 0
				err := Answered(t, func() error {
					return b.Freeze(ctx, "", images, Eternity, func(ctx context.Context) error {
						if _, ok := ctx.Deadline(); !ok {
							t.Error("copyData has no deadline")
						}
						calls++
						return want
					})
				})
				if !errors.Is(err, want) || calls != 1 {
					t.Errorf("%v: Freeze = %v, want %v; copyData was called %d times", images, err, want, calls)
				}
			}
		}
		b.MustUnmount(b.Path("mounted"), b.Path("disk"))
	}},
	{"a freeze of a path that is no image does not call copyData", func(t *testing.T, b *Bench, image func(b *Bench,
		name, fsType string) mounter.Mount) {
		m, link := image(b, "image", "ext4"), filepath.Join(b.Storage, "link")
		if err := winetest.Symlink(m.Source, link); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		for path, want := range map[string]error{
			filepath.Join(b.Storage, "none"): fs.ErrNotExist, link: mounter.ErrFormat, b.Storage: mounter.ErrFormat,
		} {
			err := b.Freeze(ctx, "", []string{m.Source, path}, Eternity, func(context.Context) error {
				t.Error("copyData was called")
				return nil
			})
			if !errors.Is(err, want) {
				t.Errorf("Freeze of %s = %v, want %v", path, err, want)
			}
		}
	}},
	{"a copy that takes longer than the limit is no point in time", func(t *testing.T, b *Bench, image func(b *Bench,
		name, fsType string) mounter.Mount) {
		m, idle := image(b, "mounted", "ext4"), image(b, "idle", "ext4")
		b.MustMount(m, b.Path("mounted"))
		onDemand := errors.New("on demand")
		for _, want := range []error{nil, onDemand} {
			copyData := func(ctx context.Context) error {
				<-ctx.Done()
				return want
			}
			if err := b.Freeze(ctx, "", []string{m.Source}, time.Millisecond, copyData); !errors.Is(err,
				mounter.ErrThawed) {
				t.Errorf("Freeze = %v, want ErrThawed", err)
			}
			if err := Answered(t, func() error {
				return b.Freeze(ctx, "", []string{idle.Source}, time.Millisecond, copyData)
			}); !errors.Is(err, want) {
				t.Errorf("Freeze of an unused image = %v, want %v", err, want)
			}
		}
		b.MustUnmount(b.Path("mounted"))
	}},
	{"other calls for an image wait while the image is frozen", func(t *testing.T, b *Bench, image func(b *Bench, name,
		fsType string) mounter.Mount) {
		m, idle := image(b, "mounted", "ext4"), image(b, "idle", "ext4")
		b.MustMount(m, b.Path("mounted"))
		b.MustMount(m.BindFrom(b.Path("mounted")), b.Path("again"))
		for name, call := range map[string]func(ctx context.Context) error{
			"Unmount":       func(ctx context.Context) error { return b.Unmount(ctx, b.Path("mounted")) },
			"Remove":        func(ctx context.Context) error { return b.Remove(ctx, b.Path("again")) },
			"Mount":         func(ctx context.Context) error { return b.Mount(ctx, m, b.Path("other")) },
			"Mount of idle": func(ctx context.Context) error { return b.Mount(ctx, idle, b.Path("idle")) },
			"Mount once more": func(ctx context.Context) error {
				return b.Mount(ctx, m.BindFrom(b.Path("mounted")), b.Path("more"))
			},
			"Grow": func(ctx context.Context) error { return b.Grow(ctx, m, b.Path("mounted")) },
			"Tune": func(ctx context.Context) error { return b.Tune(ctx, m) },
			"another Freeze": func(ctx context.Context) error {
				return Answered(t, func() error { return b.Freeze(ctx, "", []string{idle.Source}, Eternity, nothing) })
			},
			"a Freeze of others": func(ctx context.Context) error {
				return b.Freeze(ctx, "", []string{m.Source}, Eternity, nothing)
			},
		} {
			done := make(chan error, 1)
			err := Answered(t, func() error {
				return b.Freeze(ctx, "", []string{m.Source, idle.Source}, Eternity, func(context.Context) error {
					short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
					defer cancel()
					if err := call(short); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s during a freeze = %v, want DeadlineExceeded", name, err)
					}
					go func() { done <- call(ctx) }()
					return nil
				})
			})
			if err := errors.Join(err, <-done); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			b.MustUnmount(b.Path("idle"), b.Path("more"), b.Path("other"), b.Path("again"), b.Path("mounted"))
			b.MustMount(m, b.Path("mounted"))
			b.MustMount(m.BindFrom(b.Path("mounted")), b.Path("again"))
		}
		b.MustUnmount(b.Path("again"), b.Path("mounted"))
	}},
	{"a copy that panics leaves nothing behind", func(t *testing.T, b *Bench, image func(b *Bench, name,
		fsType string) mounter.Mount) {
		m := image(b, "mounted", "ext4")
		b.MustMount(m, b.Path("mounted"))
		func() {
			defer func() {
				if got := recover(); got != "on demand" {
					t.Errorf("recovered %v", got)
				}
			}()
			b.Freeze(ctx, "", []string{m.Source}, Eternity, func(context.Context) error { panic("on demand") })
		}()
		if err := b.Freeze(ctx, "", []string{m.Source}, Eternity, nothing); err != nil {
			t.Error(err)
		}
		b.MustUnmount(b.Path("mounted"))
	}},
	{"a copy with another UUID is mounted beside its source", func(t *testing.T, b *Bench, image func(b *Bench, name,
		fsType string) mounter.Mount) {
		for _, fsType := range LinuxFSTypes() {
			m := image(b, fsType, fsType)
			copied := b.CopyImage(m, fsType+"-copy")
			b.MustMount(m, b.Path(fsType))
			if fsType == "xfs" {
				b.Refused(copied, b.Path(fsType+"-copy"), mounter.ErrFormat)
			}
			if err := b.RenewUUID(m); !errors.Is(err, mounter.ErrBusy) {
				t.Errorf("NewUUID of a mounted image = %v, want ErrBusy", err)
			}
			for range 2 {
				if err := b.RenewUUID(copied); err != nil {
					t.Fatalf("NewUUID: %v", err)
				}
				b.MustMount(copied, b.Path(fsType+"-copy"))
				b.MustUnmount(b.Path(fsType + "-copy"))
			}
			other := copied
			for _, other.FSType = range append(LinuxFSTypes(), "minix") {
				if err := b.RenewUUID(other); other.FSType != fsType && !errors.Is(err, mounter.ErrFormat) {
					t.Errorf("NewUUID of a %s as %s = %v, want ErrFormat", fsType, other.FSType, err)
				}
			}
			b.MustMount(copied, b.Path(fsType+"-copy"))
			b.MustUnmount(b.Path(fsType+"-copy"), b.Path(fsType))
		}
	}},
	{"Tune changes attached images only", func(t *testing.T, b *Bench, image func(b *Bench, name,
		fsType string) mounter.Mount) {
		m := image(b, "mounted", "ext4")
		m.Buffered, m.ReadAhead = true, 1<<20
		if err := b.Tune(ctx, m); err != nil {
			t.Errorf("Tune of an image that is not attached = %v", err)
		}
		if err := b.Tune(ctx, b.Volume("v")); err != nil {
			t.Errorf("Tune of a directory = %v", err)
		}
		missing := mounter.Mount{Kind: mounter.Image, Source: filepath.Join(b.Storage, "none")}
		if err := b.Tune(ctx, missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Tune of a missing image = %v, want ErrNotExist", err)
		}
		b.MustMount(m, b.Path("mounted"))
		m.Buffered, m.ReadAhead = false, 0
		b.MustMount(m, b.Path("mounted")) // no conflict
		for range 2 {
			if err := b.Tune(ctx, m); err != nil {
				t.Error(err)
			}
		}
		b.MustUnmount(b.Path("mounted"))
	}},
	{"Detach leaves the device of a mount alone", func(t *testing.T, b *Bench, image func(b *Bench, name,
		fsType string) mounter.Mount) {
		for _, fsType := range []string{"ext4", ""} {
			m := image(b, "image"+fsType, fsType)
			detach := func(state string) {
				t.Helper()
				var device string
				err := Answered(t, func() (err error) {
					device, err = b.Detach(ctx, m.Source)
					return err
				})
				if err != nil || device != "" {
					t.Errorf("Detach of an image that is %s = %q, %v", state, device, err)
				}
			}
			detach("not attached")
			b.MustMount(m, b.Path("mounted"))
			detach("mounted")
			if !b.IsMounted(m, b.Path("mounted")) {
				t.Errorf("after Detach the image is not mounted")
			}
			b.MustUnmount(b.Path("mounted"))
		}
		missing := filepath.Join(b.Storage, "none")
		if device, err := b.Detach(ctx, missing); device != "" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Detach of a missing image = %q, %v, want ErrNotExist", device, err)
		}
	}},
}

func nothing(context.Context) error { return nil }
