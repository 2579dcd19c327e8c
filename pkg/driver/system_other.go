//go:build !linux && !windows

package driver

import "runtime"

// operatingSystem is the value of SystemKey.
const operatingSystem = runtime.GOOS

// bootID returns "": this system does not tell.
func bootID() string { return "" }
