//go:build !windows

package mounter

import "testing"

// localLinks returns the links of this machine.
func localLinks(*testing.T) linkHost { return symlinks{paths: unixPaths} }
