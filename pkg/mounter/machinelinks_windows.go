//go:build !winetest

package mounter

// machineLinks returns the links of this machine.
func machineLinks() linkHost { return windowsLinks{} }
