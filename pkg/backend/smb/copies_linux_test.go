package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// files writes files into the source, each with its path as content.
func (w *world) files(paths ...string) {
	w.Helper()
	for _, path := range paths {
		w.write(path, path)
	}
}

// TestACopyThatCannotBeWhole: the error is final and names the entry, the copies leave nothing, and
// the source can be deleted.
func TestACopyThatCannotBeWhole(t *testing.T) {
	for name, row := range map[string]struct {
		make func(w *world, b *Backend)
		want string
	}{
		"two names for one": {func(w *world, _ *Backend) { w.files("pvc-1/README", "pvc-1/readme") },
			"which the server takes for one name"},
		"an alias": {func(w *world, _ *Backend) { w.files("pvc-1/aux.c") }, "mangled names = no"},
		"too many levels": {func(w *world, _ *Backend) {
			if err := os.MkdirAll(w.path("pvc-1", strings.Repeat("d/", 600)), 0o777); err != nil {
				w.Fatal(err)
			}
		}, "more than 512 levels"},
		"a name that is not found": {func(w *world, b *Backend) {
			w.files("pvc-1/bad")
			bad := w.path("pvc-1/bad")
			b.pool.Before = func(op, path string) error { // the list has the file, and the open does not find it
				switch {
				case op == "open" && strings.HasSuffix(path, "/pvc-1/bad"):
					os.Rename(bad, bad+".hidden")
				case op == "open" && strings.HasSuffix(path, "/pvc-1"):
					os.Rename(bad+".hidden", bad)
				}
				return nil
			}
		}, "does not find it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, smbtest.Serve(t), smbtest.Share)
			b := w.open()
			v := w.create(b, w.claimed("pvc-1"))
			w.files("pvc-1/a", "pvc-1/b", "pvc-1/c")
			row.make(w, b)
			ctx := context.Background()
			for i := range 4 {
				var err error
				if i%2 == 0 {
					_, err = b.Clone(ctx, v.ID, w.claimed("pvc-2"))
				} else {
					_, err = b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID})
				}
				if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(fmt.Sprint(err), row.want) {
					t.Errorf("%v, want ErrPrecondition with %q", err, row.want)
				}
			}
			await.NoError(t, "the background has emptied the trash", w.trash)
			if left := w.entries(); len(left) != 1 || left[0] != "pvc-1" {
				t.Errorf("the source has %q, want the volume only", left)
			}
			if err := b.Delete(ctx, v.ID, nil); err != nil {
				t.Fatal(err)
			}
			await.NoError(t, "the background has emptied the trash", w.trash)
			if left := w.entries(); len(left) > 0 {
				t.Errorf("left after the deletion: %q", left)
			}
		})
	}
}

// TestADirectoryThatIsInUseIsNotDenied: Samba 4.22 answers ACCESS_DENIED if a file of a directory
// that moves is open. The hook gives this answer: Samba 4.17 moves such a directory.
func TestADirectoryThatIsInUseIsNotDenied(t *testing.T) {
	for onDelete, want := range map[string]error{records.DeleteData: backend.ErrInUse, records.ArchiveData: backend.ErrDenied} {
		t.Run(onDelete, func(t *testing.T) {
			w := newWorld(t, smbtest.Serve(t), smbtest.Share)
			b := w.open()
			v := w.create(b, w.claimed("pvc-1", onDeleteKey, onDelete))
			w.files("pvc-1/a")
			denied := true
			b.pool.Before = func(op, path string) error {
				if denied && strings.HasPrefix(op, "move to") && strings.HasSuffix(path, "/pvc-1") {
					return fmt.Errorf("hook: %w", backend.ErrDenied)
				}
				return nil
			}
			err := b.Delete(t.Context(), v.ID, nil)
			if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), "has files of") {
				t.Errorf("Delete = %v, want %v", err, want)
			}
			w.holds("pvc-1/a", "pvc-1", "a")
			denied = false
			if err := b.Delete(t.Context(), v.ID, nil); err != nil {
				t.Error(err)
			}
		})
	}
}
