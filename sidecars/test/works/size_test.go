package works

import (
	"os"
	"testing"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// A dependency that looks methods up by name, as package text/template does, keeps the linker from
// the removal of unused functions, and adds 30 MB to csi-sidecars at once. On nodes the file is
// most of the memory of the process.
func TestTheBinariesAreSmall(t *testing.T) {
	node, err := rig.Build(t.Context(), t.TempDir(), "csi-sidecars-node")
	if err != nil {
		t.Fatal(err)
	}
	for path, most := range map[string]int64{world.binary: 50e6, node: 15e6} {
		switch file, err := os.Stat(path); {
		case err != nil:
			t.Error(err)
		case file.Size() > most:
			t.Errorf("%s has %d bytes, over %d", path, file.Size(), most)
		}
	}
}
