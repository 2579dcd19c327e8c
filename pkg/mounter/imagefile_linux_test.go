package mounter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestLinuxMakesImages(t *testing.T) {
	testImages(t, newLoopBench, "ext4", "xfs", "btrfs")
}

func TestAnImageIsASparseFileOfTheDriver(t *testing.T) {
	b := newLoopBench(t)
	info, err := os.Stat(b.image("image", "ext4").Source)
	if err != nil {
		t.Fatal(err)
	}
	if held := info.Sys().(*syscall.Stat_t).Blocks * 512; held > info.Size()/4 || info.Mode() != 0o600 {
		t.Errorf("%d of %d bytes are on disk, mode %v", held, info.Size(), info.Mode())
	}
}

func TestNoImageIsMadeOrGrownThroughALink(t *testing.T) {
	b, ctx := newLoopBench(t), context.Background()
	m := b.image("image", "ext4")
	dir, link := filepath.Join(b.storage, "dir"), filepath.Join(b.storage, "link")
	if err := errors.Join(os.Symlink(b.storage, dir), os.Symlink(m.Source, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "image"), link} {
		if err := b.GrowImage(ctx, path, 1<<30); !errors.Is(err, ErrPath) {
			t.Errorf("GrowImage(%s) = %v, want ErrPath", path, err)
		}
		if _, err := b.ImageSize(path); !errors.Is(err, ErrPath) {
			t.Errorf("ImageSize(%s) = %v, want ErrPath", path, err)
		}
	}
	if err := b.MakeImage(ctx, filepath.Join(dir, "new"), 1<<20, ""); !errors.Is(err, ErrPath) {
		t.Errorf("MakeImage through a link = %v, want ErrPath", err)
	}
	if err := b.MakeImage(ctx, link, 1<<20, ""); !errors.Is(err, os.ErrExist) {
		t.Errorf("MakeImage at a link = %v, want ErrExist", err)
	}
	b.hasSize(m.Source, 320<<20)
}

// TestAFailingMkfsLeavesNoImage: the file has its size when mkfs starts.
func TestAFailingMkfsLeavesNoImage(t *testing.T) {
	b := newLoopBench(t)
	path := filepath.Join(b.storage, "image")
	useTool(t, "mkfs.ext4", "echo on demand; exit 1")
	if err := b.MakeImage(context.Background(), path, 1<<20, "ext4"); err == nil {
		t.Error("MakeImage with a failing mkfs returned no error")
	}
	if left, err := os.ReadDir(b.storage); err != nil || len(left) > 0 {
		t.Errorf("a failing mkfs leaves %v, %v", left, err)
	}
}
