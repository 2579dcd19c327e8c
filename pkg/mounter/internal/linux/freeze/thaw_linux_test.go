package freeze_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// TestNewIgnoresForeignEntriesAmongFreezeRecords: an open of a FIFO without O_NONBLOCK would block
// New forever, until the deadline of the test.
func TestNewIgnoresForeignEntriesAmongFreezeRecords(t *testing.T) {
	open := linuxtest.RealMounter(t)
	dir := filepath.Join(t.TempDir(), "kubelet")
	state := filepath.Join(filepath.Dir(dir), "frozen")
	if err := errors.Join(
		os.Mkdir(dir, 0o700),
		os.MkdirAll(filepath.Join(state, "1.json", "x"), 0o700),
		unix.Mkfifo(filepath.Join(state, "2.json"), 0o600),
		os.Symlink("/dev/zero", filepath.Join(state, "3.json")),
		os.WriteFile(filepath.Join(state, "4.json"), []byte("[]"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	open(dir)
	left, err := os.ReadDir(state)
	if err != nil || len(left) != 3 {
		t.Errorf("%v is left, %v, want all but the file", left, err)
	}
}
