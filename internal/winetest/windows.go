//go:build !winetest

package winetest

// Wine reports whether the tests run under Wine.
const Wine = false
