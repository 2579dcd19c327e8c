package mounter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// formatter writes a word where a filesystem would be, or fails.
type formatter struct{ err error }

func (f formatter) Format(_ context.Context, image *os.File, fsType string) error {
	if _, err := image.WriteAt([]byte(fsType), 0); err != nil {
		return err
	}
	return f.err
}

func TestCreateImage(t *testing.T) {
	const size = 1 << 20
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	failed := errors.New("mkfs failed")
	if err := CreateImage(context.Background(), formatter{failed}, path, size, "ext4"); !errors.Is(err, failed) {
		t.Errorf("a failing mkfs: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a failing mkfs leaves %v, %v", left, err)
	}
	// A crash has left a larger file that holds something.
	if err := os.WriteFile(path+incomplete, make([]byte, 2*size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CreateImage(context.Background(), formatter{}, path, size, "ext4"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil || len(content) != size || string(content[:4]) != "ext4" {
		t.Errorf("the image has %d bytes, %v", len(content), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if reserved := info.Sys().(*syscall.Stat_t).Blocks * 512; reserved < size || info.Mode() != 0o600 {
		t.Errorf("%d bytes are reserved, mode %v", reserved, info.Mode())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v, want the image only", left, err)
	}
}
