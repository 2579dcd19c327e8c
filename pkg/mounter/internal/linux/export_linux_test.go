package linux

import "github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"

// For the tests of this package with a Host.

var UnescapeOctal = unescapeOctal
var Within = within

// Opens returns the open calls on roots of filesystems.
func Opens(h *Host) *inflight.Group[int, struct{}] { return &h.opens }
