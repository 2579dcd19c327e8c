//go:build winetest

package mounter

// newDiskHost returns nil: virtdisk.dll of Wine ends the process.
func newDiskHost() diskHost { return nil }
