//go:build !linux && !windows

package driver

import "runtime"

// operatingSystem is the value of SystemKey.
const operatingSystem = runtime.GOOS
