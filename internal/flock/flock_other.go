//go:build !unix

// Package flock locks files against other processes.
package flock

import (
	"errors"
	"fmt"
	"os"
)

// Try returns errors.ErrUnsupported: only a Unix has these locks.
func Try(f *os.File) (bool, error) {
	return false, fmt.Errorf("lock %s: %w", f.Name(), errors.ErrUnsupported)
}
