package mountertest

import "github.com/causeway-csi/causeway/pkg/mounter/internal/links"

// CleanPath brings a path into the one form of the Host of this system.
func (f *Fake) CleanPath(path string) (string, error) { return links.CleanWindows(path) }
