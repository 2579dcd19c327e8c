package mounter

import (
	"context"
	"errors"
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
