package linux_test

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

// failingMaker makes no image.
type failingMaker struct{ err error }

func (m failingMaker) MakeImage(context.Context, string, int64, string) error { return m.err }

// TestCreateImageReportsAFullDisk: the error of a mkfs has no errno. The disk is of this test:
// fallocate(2) fills it before it fails, and other tests would find theirs full.
func TestCreateImageReportsAFullDisk(t *testing.T) {
	dir := linuxtest.NewRealBench(t).Storage
	const tooLarge = 1 << 30 // bytes
	mkfs := failingMaker{errors.New("a mkfs on a full disk")}
	err := mounter.CreateImage(context.Background(), mkfs, filepath.Join(dir, "image"), tooLarge, "ext4")
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("CreateImage = %v, want ENOSPC", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}
