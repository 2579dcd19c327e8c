//go:build !windows

package regular

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A FIFO would block an open or a read without O_NONBLOCK for ever: the test's own deadline ends it
// then.
func TestAFIFOIsRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink(fifo, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link} {
		if _, err := ReadFile(path, 1); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), "a FIFO") {
			t.Errorf("ReadFile(%s) = %v, want ErrType that names a FIFO", path, err)
		}
	}
	writer, err := os.OpenFile(fifo, os.O_RDWR, 0) // with a writer, an open does not wait, but a read does
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := ReadFile(fifo, 1); !errors.Is(err, ErrType) {
		t.Errorf("ReadFile of a FIFO with a writer = %v, want ErrType", err)
	}
}

func TestDevicesAndSocketsAreRefused(t *testing.T) {
	if _, err := ReadFile(os.DevNull, 1); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), "a device") {
		t.Errorf("ReadFile(%s) = %v, want ErrType that names a device", os.DevNull, err)
	}
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	if _, err := ReadFile(path, 1); err == nil {
		t.Error("a socket was read")
	}
}
