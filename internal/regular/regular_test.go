package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/winetest"
)

func TestARegularFileIsReadUpToTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, 511, 512, 4096} {
		want := strings.Repeat("x", size)
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(path, int64(size)); err != nil || string(got) != want {
			t.Errorf("ReadFile of %d bytes with that limit = %d bytes, %v", size, len(got), err)
		}
		if size == 0 {
			continue
		}
		if got, err := ReadFile(path, int64(size-1)); !errors.Is(err, ErrSize) || got != nil {
			t.Errorf("ReadFile of %d bytes with a smaller limit = %d bytes, %v, want ErrSize", size, len(got), err)
		}
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such file: %v, want ErrNotExist", err)
	}
}

func TestALinkToAFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := winetest.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Skip(err)
	}
	if got, err := ReadFile(filepath.Join(dir, "link"), 1); err != nil || string(got) != "x" {
		t.Errorf("ReadFile = %q, %v", got, err)
	}
}

func TestADirectoryIsNoRegularFile(t *testing.T) {
	_, err := ReadFile(t.TempDir(), 1)
	if !errors.Is(err, ErrType) || !strings.Contains(err.Error(), "a directory") {
		t.Errorf("ReadFile = %v, want ErrType that names a directory", err)
	}
}
