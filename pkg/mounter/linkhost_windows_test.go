package mounter

import (
	"path/filepath"
	"testing"

	_ "github.com/causeway-csi/causeway/internal/winetest"
)

// localLinks returns the links of this machine. The test is skipped if this account cannot make
// one.
func localLinks(t *testing.T) linkHost {
	t.Helper()
	h := machineLinks()
	path := filepath.Join(t.TempDir(), "link")
	err := h.link(`C:\Windows`, path)
	if e, look := h.look(path); err != nil || look != nil || e.kind != dirLink {
		t.Skipf("this system, or this account, makes no links of directories: %v, %v, %v", err, look, e.kind)
	}
	if err := h.unlink(path); err != nil {
		t.Fatal(err)
	}
	return h
}
