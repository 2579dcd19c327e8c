//go:build !windows

package driver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestASocketIsClosedOnce(t *testing.T) {
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "csi.sock")
	first, err := Listen("unix://"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := Listen("unix://"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	// As if the filesystem had given the next one the number of the first, which ext4 does.
	if first.(*socket).info, err = os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	if first.Close(); !exists(path) {
		t.Error("a second Close removed the next driver's socket")
	}
}
