package win

import (
	"path/filepath"
	"testing"

	_ "github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

// localLinks returns the links of this machine. The test is skipped if this account cannot make
// one.
func localLinks(t *testing.T) links.LinkHost {
	t.Helper()
	h := machineLinks()
	path := filepath.Join(t.TempDir(), "link")
	err := h.Link(`C:\Windows`, path)
	if e, look := h.Entry(path); err != nil || look != nil || e.Kind != links.DirLink {
		t.Skipf("this system, or this account, makes no links of directories: %v, %v, %v", err, look, e.Kind)
	}
	if err := h.Unlink(path); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestLinksOfThisMachineKeepTheContract(t *testing.T) { linkstest.Contract(t, localLinks, true) }

func TestTheLinksOfThisMachine(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	linkstest.LinkHost(t, localLinks(t), mountercontract.OSFiles{}, dir)
}
