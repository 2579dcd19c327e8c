//go:build !unix

// Package flock locks files against other processes.
package flock

import (
	"errors"
	"fmt"
	"os"
)

var errNoLocks = fmt.Errorf("lock a file: %w", errors.ErrUnsupported)

// Try returns errors.ErrUnsupported: only a Unix has these locks.
func Try(*os.File) (bool, error) { return false, errNoLocks }
