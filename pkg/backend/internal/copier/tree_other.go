//go:build !linux && !windows

package copier

import (
	"context"
	"errors"
	"os"
)

// Tree returns errors.ErrUnsupported: a copy without owners, links and attributes would lose data
// silently.
func Tree(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	return Copied, errors.ErrUnsupported
}

// OnDisk returns errors.ErrUnsupported.
func OnDisk(file *os.File) (int64, error) { return 0, errors.ErrUnsupported }

// File returns errors.ErrUnsupported: no backend with images runs on this platform.
func File(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	return Copied, errors.ErrUnsupported
}
