package mounter

import (
	"context"
	"errors"
	"io/fs"
	"testing"
)

// testImages tests the contract for the making, growing and measuring of images, which every Host
// has to keep. fsTypes are the filesystems that the Host makes. It uses the files of an image
// through the Host only.
func testImages(t *testing.T, newBench func(t *testing.T) *bench, fsTypes ...string) {
	ctx := context.Background()
	const size = 320 << 20
	run := func(name string, test func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) { test(t, newBench(t)) })
	}
	path := func(b *bench, name string) string { return b.files.join(b.storage, name+b.ImageExt()) }

	run("an image has the size of its volume, and its filesystem", func(t *testing.T, b *bench) {
		for _, fsType := range fsTypes {
			m := Mount{Kind: Image, Source: path(b, fsType), FSType: fsType, Sector: 512}
			if err := b.MakeImage(ctx, m.Source, size, fsType); err != nil {
				t.Fatal(err)
			}
			b.hasSize(m.Source, size)
			b.mount(m, b.path("staging"))
			b.hasSize(m.Source, size)
			b.unmount(b.path("staging"))
		}
	})

	run("a raw block volume has no filesystem", func(t *testing.T, b *bench) {
		if b.Supports(Disk, "", nil) != nil {
			t.Skip("no raw block volumes here")
		}
		m := Mount{Kind: Disk, Source: path(b, "disk"), Sector: 512}
		if err := b.MakeImage(ctx, m.Source, size, ""); err != nil {
			t.Fatal(err)
		}
		b.hasSize(m.Source, size)
		b.mount(m, b.path("staging"))
		b.unmount(b.path("staging"))
		m.Kind, m.FSType = Image, fsTypes[0]
		b.refused(m, b.path("staging"), ErrFormat)
	})

	run("an image that exists is not made again", func(t *testing.T, b *bench) {
		if err := b.MakeImage(ctx, path(b, "image"), size, fsTypes[0]); err != nil {
			t.Fatal(err)
		}
		for _, fsType := range append(fsTypes, "") {
			if err := b.MakeImage(ctx, path(b, "image"), 2*size, fsType); !errors.Is(err, fs.ErrExist) {
				t.Errorf("MakeImage with %q of an image that exists = %v, want ErrExist", fsType, err)
			}
		}
		b.hasSize(path(b, "image"), size)
		m := Mount{Kind: Image, Source: path(b, "image"), FSType: fsTypes[0], Sector: 512}
		b.mount(m, b.path("staging"))
		b.unmount(b.path("staging"))
	})

	run("an image that cannot be made leaves no file", func(t *testing.T, b *bench) {
		ended, end := context.WithCancel(ctx)
		end()
		b.notMade(ended, path(b, "image"), fsTypes[0], context.Canceled)
		b.notMade(ctx, path(b, "image"), "minix", ErrFormat)
		for _, fsType := range FSTypes() {
			if b.Supports(Image, fsType, nil) != nil {
				b.notMade(ctx, path(b, "image"), fsType, errors.ErrUnsupported)
			}
		}
		b.notMade(ctx, b.files.join(b.storage, "none", "image"+b.ImageExt()), fsTypes[0], fs.ErrNotExist)
	})

	run("an image grows and never shrinks", func(t *testing.T, b *bench) {
		for _, fsType := range fsTypes {
			m := Mount{Kind: Image, Source: path(b, fsType), FSType: fsType, Sector: 512}
			if err := b.MakeImage(ctx, m.Source, size, fsType); err != nil {
				t.Fatal(err)
			}
			for _, to := range []struct{ ask, want int64 }{
				{size, size}, {2 * size, 2 * size}, {2 * size, 2 * size}, {size, 2 * size}, {0, 2 * size},
			} {
				if err := b.GrowImage(ctx, m.Source, to.ask); err != nil {
					t.Fatalf("GrowImage to %d bytes = %v", to.ask, err)
				}
				b.hasSize(m.Source, to.want)
			}
			b.mount(m, b.path("staging"))
			b.unmount(b.path("staging"))
		}
	})

	run("a path without an image has no size", func(t *testing.T, b *bench) {
		for path, want := range map[string]error{path(b, "none"): fs.ErrNotExist, b.storage: ErrFormat} {
			if got, err := b.ImageSize(path); !errors.Is(err, want) {
				t.Errorf("ImageSize(%s) = %d, %v, want %v", path, got, err, want)
			}
			if err := b.GrowImage(ctx, path, size); !errors.Is(err, want) {
				t.Errorf("GrowImage(%s) = %v, want %v", path, err, want)
			}
		}
	})
}

// hasSize tests the size of an image.
func (b *bench) hasSize(path string, want int64) {
	b.t.Helper()
	if got, err := b.ImageSize(path); got != want || err != nil {
		b.t.Errorf("ImageSize(%s) = %d, %v, want %d", path, got, err, want)
	}
}

// notMade tests that MakeImage returns an error and leaves no image.
func (b *bench) notMade(ctx context.Context, path, fsType string, want error) {
	b.t.Helper()
	if err := b.MakeImage(ctx, path, 320<<20, fsType); !errors.Is(err, want) {
		b.t.Errorf("MakeImage with %q = %v, want %v", fsType, err, want)
	}
	if _, err := b.ImageSize(path); !errors.Is(err, fs.ErrNotExist) {
		b.t.Errorf("after MakeImage with %q, ImageSize = %v, want ErrNotExist", fsType, err)
	}
}
