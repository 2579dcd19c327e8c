package hostpath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	_ "github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// TestOpenFilesOfAVolume: a process of the node has a file of the volume open. Its deletion, and
// its snapshot if the process shares the file with no reader, are repeated.
func TestOpenFilesOfAVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	ctx := context.Background()
	v := w.create(b, "v")
	path := w.path("volumes", v.ID, "data", "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	closeFile := hold(t, path, 0)
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "s", Source: v.ID}); !errors.Is(err, backend.ErrBusy) ||
		!strings.Contains(err.Error(), "file") {
		t.Errorf("Snapshot = %v, want ErrBusy with the file", err)
	}
	closeFile()
	closeDir := hold(t, filepath.Dir(filepath.Dir(path)), windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE)
	if err := b.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrBusy) || !strings.Contains(err.Error(), v.ID) {
		t.Errorf("Delete = %v, want ErrBusy with the volume", err)
	}
	closeDir()
	if got, err := os.ReadFile(path); string(got) != "content" {
		t.Errorf("the data: %q, %v", got, err)
	}
	n, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "s", Source: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{b.Delete(ctx, v.ID, nil), b.DeleteSnapshot(ctx, n.ID, nil)} {
		if err != nil {
			t.Error(err)
		}
	}
}

// hold opens a file or directory, and shares it in a way.
func hold(t *testing.T, path string, share uint32) (release func()) {
	t.Helper()
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ, share, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() { windows.CloseHandle(h) }
}

// TestASnapshotHasTheBytesOfItsCopy: they are reserved.
func TestASnapshotHasTheBytesOfItsCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "v")
	const size = 1 << 20
	if err := os.WriteFile(w.path("volumes", v.ID, "data", "file"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	before := b.catalog.Reserved()
	if _, err := b.Snapshot(t.Context(), backend.SnapshotOptions{Name: "s", Source: v.ID}); err != nil {
		t.Fatal(err)
	}
	if got := b.catalog.Reserved() - before; got != size {
		t.Errorf("%d bytes are reserved for the snapshot, want %d", got, size)
	}
}

// TestAnEntryThatStaysKeepsNoOther in a deleted tree.
func TestAnEntryThatStaysKeepsNoOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	for _, name := range []string{"a", "b", "c"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(tree, name), 0o700),
			os.WriteFile(filepath.Join(tree, name, "file"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	release := hold(t, filepath.Join(tree, "b", "file"), windows.FILE_SHARE_READ)
	trash, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer trash.Close()
	each := func() error { return nil }
	if err := removeTree(trash, "tree", each); err == nil {
		t.Error("no error for an open file")
	}
	if left, err := os.ReadDir(tree); err != nil || len(left) != 1 || left[0].Name() != "b" {
		t.Errorf("left are %v, %v, want b", left, err)
	}
	release()
	if err := removeTree(trash, "tree", each); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(tree); !os.IsNotExist(err) {
		t.Errorf("the tree: %v", err)
	}
}
