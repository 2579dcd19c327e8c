//go:build !unix

// Package flock locks files against other processes.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Try returns an error: only a Unix has these locks.
func Try(f *os.File) (bool, error) {
	return false, fmt.Errorf("lock %s: %w", f.Name(), errors.ErrUnsupported)
}

// Wait returns an error: see Try.
func Wait(_ context.Context, path string, _ func()) (unlock func(), err error) {
	return nil, fmt.Errorf("lock %s: %w", path, errors.ErrUnsupported)
}
