package mountercontract

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// TestImageFiles tests the contract for the making, growing and measuring of images, which every
// Host has to keep. fsTypes are the filesystems that the Host makes. It uses the files of an image
// through the Host only.
func TestImageFiles(t *testing.T, newBench func(t *testing.T) *Bench, fsTypes ...string) {
	for _, rule := range imageFileRules {
		t.Run(rule.name, func(t *testing.T) { rule.test(t, newBench(t), fsTypes) })
	}
}

// imageSize is the size of a volume, in bytes.
const imageSize = 320 << 20

// imagePath returns the path of an image.
func imagePath(b *Bench, name string) string { return b.Files.Join(b.Storage, name+b.ImageExt()) }

// imageFileRules are the rules for the files of images.
var imageFileRules = []struct {
	name string
	test func(t *testing.T, b *Bench, fsTypes []string)
}{
	{"an image has the imageSize of its volume, and its filesystem", func(t *testing.T, b *Bench, fsTypes []string) {
		for _, fsType := range fsTypes {
			m := mounter.Mount{Kind: mounter.Image, Source: imagePath(b, fsType), FSType: fsType, Sector: 512}
			if err := b.MakeImage(ctx, m.Source, imageSize, fsType); err != nil {
				t.Fatal(err)
			}
			b.HasSize(m.Source, imageSize)
			b.MustMount(m, b.Path("staging"))
			b.HasSize(m.Source, imageSize)
			b.MustUnmount(b.Path("staging"))
		}
	}},
	{"a raw block volume has no filesystem", func(t *testing.T, b *Bench, fsTypes []string) {
		if b.Supports(mounter.Disk, "", nil) != nil {
			t.Skip("no raw block volumes here")
		}
		m := mounter.Mount{Kind: mounter.Disk, Source: imagePath(b, "disk"), Sector: 512}
		if err := b.MakeImage(ctx, m.Source, imageSize, ""); err != nil {
			t.Fatal(err)
		}
		b.HasSize(m.Source, imageSize)
		b.MustMount(m, b.Path("staging"))
		b.MustUnmount(b.Path("staging"))
		m.Kind, m.FSType = mounter.Image, fsTypes[0]
		b.Refused(m, b.Path("staging"), mounter.ErrFormat)
	}},
	{"an image that exists is not made again", func(t *testing.T, b *Bench, fsTypes []string) {
		if err := b.MakeImage(ctx, imagePath(b, "image"), imageSize, fsTypes[0]); err != nil {
			t.Fatal(err)
		}
		for _, fsType := range append(fsTypes, "") {
			if err := b.MakeImage(ctx, imagePath(b, "image"), 2*imageSize, fsType); !errors.Is(err, fs.ErrExist) {
				t.Errorf("MakeImage with %q of an image that exists = %v, want ErrExist", fsType, err)
			}
		}
		b.HasSize(imagePath(b, "image"), imageSize)
		m := mounter.Mount{Kind: mounter.Image, Source: imagePath(b, "image"), FSType: fsTypes[0], Sector: 512}
		b.MustMount(m, b.Path("staging"))
		b.MustUnmount(b.Path("staging"))
	}},
	{"an image that cannot be made leaves no file", func(t *testing.T, b *Bench, fsTypes []string) {
		ended, end := context.WithCancel(ctx)
		end()
		b.NotMade(ended, imagePath(b, "image"), fsTypes[0], context.Canceled)
		b.NotMade(ctx, imagePath(b, "image"), "minix", mounter.ErrFormat)
		for _, fsType := range mounter.FSTypes() {
			if b.Supports(mounter.Image, fsType, nil) != nil {
				b.NotMade(ctx, imagePath(b, "image"), fsType, errors.ErrUnsupported)
			}
		}
		b.NotMade(ctx, b.Files.Join(b.Storage, "none", "image"+b.ImageExt()), fsTypes[0], fs.ErrNotExist)
	}},
	{"an image grows and never shrinks", func(t *testing.T, b *Bench, fsTypes []string) {
		for _, fsType := range fsTypes {
			m := mounter.Mount{Kind: mounter.Image, Source: imagePath(b, fsType), FSType: fsType, Sector: 512}
			if err := b.MakeImage(ctx, m.Source, imageSize, fsType); err != nil {
				t.Fatal(err)
			}
			for _, to := range []struct{ ask, want int64 }{
				{imageSize, imageSize}, {2 * imageSize, 2 * imageSize}, {2 * imageSize, 2 * imageSize}, {imageSize,
					2 * imageSize}, {0, 2 * imageSize},
			} {
				if err := b.GrowImage(ctx, m.Source, to.ask); err != nil {
					t.Fatalf("GrowImage to %d bytes = %v", to.ask, err)
				}
				b.HasSize(m.Source, to.want)
			}
			b.MustMount(m, b.Path("staging"))
			b.MustUnmount(b.Path("staging"))
		}
	}},
	{"a path without an image has no imageSize", func(t *testing.T, b *Bench, fsTypes []string) {
		for path, want := range map[string]error{imagePath(b, "none"): fs.ErrNotExist, b.Storage: mounter.ErrFormat} {
			if got, err := b.ImageSize(path); !errors.Is(err, want) {
				t.Errorf("ImageSize(%s) = %d, %v, want %v", path, got, err, want)
			}
			if err := b.GrowImage(ctx, path, imageSize); !errors.Is(err, want) {
				t.Errorf("GrowImage(%s) = %v, want %v", path, err, want)
			}
		}
	}},
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
