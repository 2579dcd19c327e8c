//go:build !unix

package connlimit

import "math"

// filesLimit returns the largest number: Windows has no such limit for sockets.
func filesLimit() int { return math.MaxInt }
