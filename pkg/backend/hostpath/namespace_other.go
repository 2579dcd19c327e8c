//go:build !linux

package hostpath

import "github.com/causeway-csi/causeway/internal/beneath"

// setNamespace does nothing: this platform runs no checks of filesystems, and needs no shares of
// them.
func setNamespace(*beneath.Dir, string) {}

func (s *root) namespaceOf(*volume) string { return "" }
