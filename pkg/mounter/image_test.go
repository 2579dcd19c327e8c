package mounter

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// fakeImage makes a file for an image of a fake, with a filesystem unless fsType is "".
func (b *bench) fakeImage(name, fsType string) Mount {
	b.t.Helper()
	m := Mount{Kind: Image, Source: filepath.Join(b.storage, name), FSType: fsType, Sector: 512}
	f, err := os.Create(m.Source)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	if fsType == "" {
		m.Kind = Disk
	} else if err := b.Format(context.Background(), f, fsType); err != nil {
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

// copyImage copies what is in an image to a new file, without its holes, as it is now.
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
		return newBench(t, func(dir string) Mounter { return NewFake(dir) })
	}, (*bench).fakeImage)
}

// testImageContract is what every Mounter does with images, the fake too.
func testImageContract(t *testing.T, newBench func(t *testing.T) *bench, image func(b *bench, name, fsType string) Mount) {
	ctx := context.Background()
	run := func(name string, test func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) { test(t, newBench(t)) })
	}

	run("a copy with another UUID is mounted beside its source", func(t *testing.T, b *bench) {
		for _, fsType := range FSTypes() {
			m := image(b, fsType, fsType)
			copied := b.copyImage(m, fsType+"-copy")
			b.mount(m, b.path(fsType))
			if fsType == "xfs" {
				b.refused(copied, b.path(fsType+"-copy"), ErrFormat)
			}
			if err := b.newUUID(m); !errors.Is(err, ErrBusy) {
				t.Errorf("NewUUID of what is mounted = %v, want ErrBusy", err)
			}
			for range 2 {
				if err := b.newUUID(copied); err != nil {
					t.Fatalf("NewUUID: %v", err)
				}
				b.mount(copied, b.path(fsType+"-copy"))
				b.unmount(b.path(fsType + "-copy"))
			}
			other := copied
			for _, other.FSType = range append(FSTypes(), "minix") {
				if err := b.newUUID(other); other.FSType != fsType && !errors.Is(err, ErrFormat) {
					t.Errorf("NewUUID of a %s as %s = %v, want ErrFormat", fsType, other.FSType, err)
				}
			}
			b.mount(copied, b.path(fsType+"-copy"))
			b.unmount(b.path(fsType+"-copy"), b.path(fsType))
		}
	})

	run("only what is attached is tuned", func(t *testing.T, b *bench) {
		m := image(b, "mounted", "ext4")
		m.Buffered, m.ReadAhead = true, 1<<20
		if err := b.Tune(ctx, m); err != nil {
			t.Errorf("Tune of what isn't attached = %v", err)
		}
		if err := b.Tune(ctx, b.volume("v")); err != nil {
			t.Errorf("Tune of a directory = %v", err)
		}
		missing := Mount{Kind: Image, Source: filepath.Join(b.storage, "none")}
		if err := b.Tune(ctx, missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Tune of what isn't there = %v, want ErrNotExist", err)
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

func TestTheFakeRemembersHowItWasTuned(t *testing.T) {
	fake := NewFake(t.TempDir())
	b := newBench(t, func(dir string) Mounter { fake.dir = dir; return fake })
	m := b.fakeImage("image", "xfs")
	b.mount(m, b.path("staging"))
	m.Buffered, m.ReadAhead = true, 4096
	if err := b.Tune(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	if got := fake.Mounts()[b.path("staging")]; !got.Buffered || got.ReadAhead != 4096 {
		t.Errorf("it is mounted as %+v", got)
	}
}
