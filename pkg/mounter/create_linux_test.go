package mounter

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// maker makes a sparse file with a word where a filesystem would be, or fails.
type maker struct{ err error }

func (m maker) MakeImage(_ context.Context, path string, size int64, fsType string) error {
	if m.err != nil {
		return m.err
	}
	return errors.Join(os.WriteFile(path, []byte(fsType), 0o600), os.Truncate(path, size))
}

func TestCreateImage(t *testing.T) {
	const size = 1 << 20
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	failed := errors.New("mkfs failed")
	if err := CreateImage(context.Background(), maker{failed}, path, size, "ext4"); !errors.Is(err, failed) {
		t.Errorf("a failing mkfs: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a failing mkfs leaves %v, %v", left, err)
	}
	// A crash has left a larger file that holds something.
	if err := os.WriteFile(path+incomplete, make([]byte, 2*size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CreateImage(context.Background(), maker{}, path, size, "ext4"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil || len(content) != size || !bytes.Equal(content, append([]byte("ext4"), make([]byte, size-4)...)) {
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
