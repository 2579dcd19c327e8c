//go:build !winetest

package win

import "github.com/causeway-csi/causeway/pkg/mounter/internal/links"

// machineLinks returns the links of this machine.
func machineLinks() links.LinkHost { return windowsLinks{} }
