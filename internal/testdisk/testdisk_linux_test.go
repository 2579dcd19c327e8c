package testdisk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
)

var noNamespace error

func TestMain(m *testing.M) {
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// TestUnmountNamesALeak: a file or a mount that a test has left fails at once.
func TestUnmountNamesALeak(t *testing.T) {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	dir := t.TempDir()
	mount := func(dir string) {
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	mount(dir)
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(leak string) {
		if err := Unmount(t, dir); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), leak) {
			t.Errorf("Unmount = %v, want EBUSY and %q", err, leak)
		}
	}
	refused(file.Name() + " is open")
	file.Close()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(inner)
	refused(inner + " is mounted")
	if err := errors.Join(Unmount(t, inner), Unmount(t, dir)); err != nil {
		t.Errorf("Unmount without a leak = %v", err)
	}
}
