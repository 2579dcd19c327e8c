//go:build !linux

package worker

import (
	"fmt"
	"os"
)

// Main returns 1: a worker needs Linux.
func Main() int {
	fmt.Fprintln(os.Stderr, "worker: this system has no copies to containers")
	return 1
}
