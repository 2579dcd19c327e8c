package hostpath

import (
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// TestAVirtualDiskIsNotReservedBesideItsSpace: it has all of its space on the disk from its start,
// so the free bytes are without it.
func TestAVirtualDiskIsNotReservedBesideItsSpace(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	w := newWorld(t)
	host, err := mountertest.NewFakeWindows(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Images = host
	b := w.open()
	reserved := func(what string, want int64) {
		t.Helper()
		if got := b.catalog.Reserved(); got != want {
			t.Errorf("%s: %d bytes are reserved, want %d", what, got, want)
		}
	}
	o := imageOptions("v", nil, nil)
	o.Required, o.Access = 128*mib, []backend.Access{{FSType: "ntfs"}}
	v, err := b.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	reserved("an image", 0)
	if _, _, err := b.Expand(t.Context(), v.ID, backend.ExpandOptions{Required: 256 * mib}); err != nil {
		t.Fatal(err)
	}
	reserved("a larger image", 0)
	if _, err := b.Create(t.Context(), backend.CreateOptions{Name: "d", Required: 10 * mib}); err != nil {
		t.Fatal(err)
	}
	reserved("with a directory", 10*mib)
	b.Close()
	b = w.open()
	reserved("after a restart", 10*mib)
	if err := b.Delete(t.Context(), v.ID, nil); err != nil {
		t.Fatal(err)
	}
	reserved("without the image", 10*mib)
}
