//go:build !windows

package mountertest

import (
	"path/filepath"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"

	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// localLinks returns the links of this machine.
func localLinks(*testing.T) links.LinkHost { return symlinks{paths: links.UnixPaths} }

func TestLinksOfThisMachineKeepTheContract(t *testing.T) { linkstest.Contract(t, localLinks, false) }

func TestTheLinksOfThisMachine(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	linkstest.LinkHost(t, localLinks(t), mountercontract.OSFiles{}, dir)
}
