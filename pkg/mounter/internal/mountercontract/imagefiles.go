package mountercontract

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// TestImageFiles tests the contract for the making, growing and measuring of images, which every Host
// has to keep. fsTypes are the filesystems that the Host makes. It uses the files of an image
// through the Host only.
func TestImageFiles(t *testing.T, NewBench func(t *testing.T) *Bench, fsTypes ...string) {
	ctx := context.Background()
	const size = 320 << 20
	run := func(name string, test func(t *testing.T, b *Bench)) {
		t.Run(name, func(t *testing.T) { test(t, NewBench(t)) })
	}
	path := func(b *Bench, name string) string { return b.Files.Join(b.Storage, name+b.ImageExt()) }

	run("an image has the size of its volume, and its filesystem", func(t *testing.T, b *Bench) {
		for _, fsType := range fsTypes {
			m := mounter.Mount{Kind: mounter.Image, Source: path(b, fsType), FSType: fsType, Sector: 512}
			if err := b.MakeImage(ctx, m.Source, size, fsType); err != nil {
				t.Fatal(err)
			}
			b.HasSize(m.Source, size)
			b.MustMount(m, b.Path("staging"))
			b.HasSize(m.Source, size)
			b.MustUnmount(b.Path("staging"))
		}
	})

	run("a raw block volume has no filesystem", func(t *testing.T, b *Bench) {
		if b.Supports(mounter.Disk, "", nil) != nil {
			t.Skip("no raw block volumes here")
		}
		m := mounter.Mount{Kind: mounter.Disk, Source: path(b, "disk"), Sector: 512}
		if err := b.MakeImage(ctx, m.Source, size, ""); err != nil {
			t.Fatal(err)
		}
		b.HasSize(m.Source, size)
		b.MustMount(m, b.Path("staging"))
		b.MustUnmount(b.Path("staging"))
		m.Kind, m.FSType = mounter.Image, fsTypes[0]
		b.Refused(m, b.Path("staging"), mounter.ErrFormat)
	})

	run("an image that exists is not made again", func(t *testing.T, b *Bench) {
		if err := b.MakeImage(ctx, path(b, "image"), size, fsTypes[0]); err != nil {
			t.Fatal(err)
		}
		for _, fsType := range append(fsTypes, "") {
			if err := b.MakeImage(ctx, path(b, "image"), 2*size, fsType); !errors.Is(err, fs.ErrExist) {
				t.Errorf("MakeImage with %q of an image that exists = %v, want ErrExist", fsType, err)
			}
		}
		b.HasSize(path(b, "image"), size)
		m := mounter.Mount{Kind: mounter.Image, Source: path(b, "image"), FSType: fsTypes[0], Sector: 512}
		b.MustMount(m, b.Path("staging"))
		b.MustUnmount(b.Path("staging"))
	})

	run("an image that cannot be made leaves no file", func(t *testing.T, b *Bench) {
		ended, end := context.WithCancel(ctx)
		end()
		b.NotMade(ended, path(b, "image"), fsTypes[0], context.Canceled)
		b.NotMade(ctx, path(b, "image"), "minix", mounter.ErrFormat)
		for _, fsType := range mounter.FSTypes() {
			if b.Supports(mounter.Image, fsType, nil) != nil {
				b.NotMade(ctx, path(b, "image"), fsType, errors.ErrUnsupported)
			}
		}
		b.NotMade(ctx, b.Files.Join(b.Storage, "none", "image"+b.ImageExt()), fsTypes[0], fs.ErrNotExist)
	})

	run("an image grows and never shrinks", func(t *testing.T, b *Bench) {
		for _, fsType := range fsTypes {
			m := mounter.Mount{Kind: mounter.Image, Source: path(b, fsType), FSType: fsType, Sector: 512}
			if err := b.MakeImage(ctx, m.Source, size, fsType); err != nil {
				t.Fatal(err)
			}
			for _, to := range []struct{ ask, want int64 }{
				{size, size}, {2 * size, 2 * size}, {2 * size, 2 * size}, {size, 2 * size}, {0, 2 * size},
			} {
				if err := b.GrowImage(ctx, m.Source, to.ask); err != nil {
					t.Fatalf("GrowImage to %d bytes = %v", to.ask, err)
				}
				b.HasSize(m.Source, to.want)
			}
			b.MustMount(m, b.Path("staging"))
			b.MustUnmount(b.Path("staging"))
		}
	})

	run("a path without an image has no size", func(t *testing.T, b *Bench) {
		for path, want := range map[string]error{path(b, "none"): fs.ErrNotExist, b.Storage: mounter.ErrFormat} {
			if got, err := b.ImageSize(path); !errors.Is(err, want) {
				t.Errorf("ImageSize(%s) = %d, %v, want %v", path, got, err, want)
			}
			if err := b.GrowImage(ctx, path, size); !errors.Is(err, want) {
				t.Errorf("GrowImage(%s) = %v, want %v", path, err, want)
			}
		}
	})
}

// HasSize tests the size of an image.
func (b *Bench) HasSize(path string, want int64) {
	b.T.Helper()
	if got, err := b.ImageSize(path); got != want || err != nil {
		b.T.Errorf("ImageSize(%s) = %d, %v, want %d", path, got, err, want)
	}
}

// NotMade tests that MakeImage returns an error and leaves no image.
func (b *Bench) NotMade(ctx context.Context, path, fsType string, want error) {
	b.T.Helper()
	if err := b.MakeImage(ctx, path, 320<<20, fsType); !errors.Is(err, want) {
		b.T.Errorf("MakeImage with %q = %v, want %v", fsType, err, want)
	}
	if _, err := b.ImageSize(path); !errors.Is(err, fs.ErrNotExist) {
		b.T.Errorf("after MakeImage with %q, ImageSize = %v, want ErrNotExist", fsType, err)
	}
}
