//go:build !linux

package hostpath

import "github.com/causeway-csi/causeway/internal/beneath"

// setNamespace does nothing: this platform runs no checks of filesystems, and so needs no fair
// shares.
func setNamespace(*beneath.Dir, string) {}

func (s *root) namespaceOf(*volume) string { return "" }
