//go:build !linux

package hostpath

import "github.com/causeway-csi/causeway/internal/beneath"

// setNamespace does nothing: no filesystem is checked here, so no share of that is needed.
func setNamespace(*beneath.Dir, string) {}

func (s *root) namespaceOf(*volume) string { return "" }
