//go:build !windows

package archive

// checkLocal returns nil: the kernel permits every name without a slash and NUL.
func checkLocal(string) error { return nil }

// onWindows is true in a program for Windows.
const onWindows = false
