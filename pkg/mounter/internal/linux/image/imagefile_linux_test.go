package image_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

func TestLinuxMakesImages(t *testing.T) {
	linuxtest.ContractOfImageFiles(t, linuxtest.NewLoopBench, "ext4", "xfs", "btrfs")
}

func TestAnImageIsASparseFileOfTheDriver(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	info, err := os.Stat(b.Image("image", "ext4").Source)
	if err != nil {
		t.Fatal(err)
	}
	if held := info.Sys().(*syscall.Stat_t).Blocks * 512; held > info.Size()/4 || info.Mode() != 0o600 {
		t.Errorf("%d of %d bytes are on disk, mode %v", held, info.Size(), info.Mode())
	}
}

func TestNoImageIsMadeOrGrownThroughALink(t *testing.T) {
	b, ctx := linuxtest.NewLoopBench(t), context.Background()
	m := b.Image("image", "ext4")
	dir, link := filepath.Join(b.Storage, "dir"), filepath.Join(b.Storage, "link")
	if err := errors.Join(os.Symlink(b.Storage, dir), os.Symlink(m.Source, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "image"), link} {
		if err := b.GrowImage(ctx, path, 1<<30); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("GrowImage(%s) = %v, want ErrPath", path, err)
		}
		if _, err := b.ImageSize(path); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("ImageSize(%s) = %v, want ErrPath", path, err)
		}
	}
	if err := b.MakeImage(ctx, filepath.Join(dir, "new"), 1<<20, ""); !errors.Is(err, mounter.ErrPath) {
		t.Errorf("MakeImage through a link = %v, want ErrPath", err)
	}
	if err := b.MakeImage(ctx, link, 1<<20, ""); !errors.Is(err, os.ErrExist) {
		t.Errorf("MakeImage at a link = %v, want ErrExist", err)
	}
	b.HasSize(m.Source, 320<<20)
}

// TestAFailingMkfsLeavesNoImage: the file has its size when mkfs starts.
func TestAFailingMkfsLeavesNoImage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	path := filepath.Join(b.Storage, "image")
	linuxtest.UseTool(t, "mkfs.ext4", "echo on demand; exit 1")
	if err := b.MakeImage(context.Background(), path, 1<<20, "ext4"); err == nil {
		t.Error("MakeImage with a failing mkfs returned no error")
	}
	if left, err := os.ReadDir(b.Storage); err != nil || len(left) > 0 {
		t.Errorf("a failing mkfs leaves %v, %v", left, err)
	}
}
