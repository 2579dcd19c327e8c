//go:build unix

package connlimit

import (
	"math"
	"syscall"
)

// filesLimit returns the number of files that this process may open. Go raises the soft limit to
// the hard limit when a program starts.
func filesLimit() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(uint64(limit.Cur), math.MaxInt)) //nolint:unconvert // signed on FreeBSD
}
