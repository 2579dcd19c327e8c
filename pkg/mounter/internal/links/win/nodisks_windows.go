//go:build winetest

package win

import "github.com/causeway-csi/causeway/pkg/mounter/internal/links"

// newDiskHost returns nil: virtdisk.dll of Wine ends the process.
func newDiskHost() links.DiskHost { return nil }
