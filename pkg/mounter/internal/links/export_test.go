package links

import "github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"

// NewModelMachine returns the calls of a model of a Windows node, and its files, for the tests
// outside of this package. Disks appear late.
func NewModelMachine() (Machine, mountercontract.Files) {
	m := newModel()
	m.disks.late = 3
	return Machine{Links: m, Disks: m.disks, Shares: newModelShares(m)}, modelFiles{m}
}
