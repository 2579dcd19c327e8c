//go:build winetest

package winetest

import _ "unsafe" // for linkname

// Wine reports whether the tests run under Wine.
const Wine = true

// deleteFallback makes the standard library remove files as on Windows before version 1709. Wine
// has no newer way. The linker needs -checklinkname=0.
//
//go:linkname deleteFallback internal/syscall/windows.TestDeleteatFallback
var deleteFallback bool

var _ = useFallback()

func useFallback() bool {
	deleteFallback = true
	return true
}
