package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// TestASCSIDiskIsRescanned: a file plays that of sysfs, or a pipe without a reader.
func TestASCSIDiskIsRescanned(t *testing.T) {
	l, sys, device := &Disks{}, t.TempDir(), tree.FileID{Major: 8, Minor: 16}
	if err := l.rescan(context.Background(), sys, device); err != nil {
		t.Errorf("a disk without the file: %v", err)
	}
	file := filepath.Join(sys, "dev/block/8:16/device/rescan")
	mkdir(t, filepath.Dir(file))
	write(t, file, "")
	if err := l.rescan(context.Background(), sys, device); err != nil || read(t, file) != "1" {
		t.Errorf("rescan = %v, the file has %q, want 1", err, read(t, file))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	mkdir(t, file)
	if err := l.rescan(context.Background(), sys, device); err == nil {
		t.Error("an error is lost")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	runTool(t, "mkfifo", file)
	if err := l.rescan(context.Background(), sys, device); !errors.Is(err, mounter.ErrNoAnswer) {
		t.Errorf("rescan of a disk that hangs = %v, want ErrNoAnswer", err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	await.True(t, "the question ends", func() bool { return l.rescans.Len() == 0 })
}
