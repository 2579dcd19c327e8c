//go:build !windows

package dacl

import "os"

// Protect does nothing: a mode protects a file here.
func Protect(string) error { return nil }

// MakePrivate makes a directory, with its parents, that other users cannot enter. An existing
// directory keeps its mode.
func MakePrivate(path string) error { return os.MkdirAll(path, 0o700) }
