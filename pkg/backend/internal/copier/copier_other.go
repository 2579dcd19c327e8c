//go:build !linux

package copier

import (
	"context"
	"errors"
	"os"
)

// Clone returns errors.ErrUnsupported.
func Clone(src, dst *os.File) error { return errors.ErrUnsupported }

// CloneWithin returns errors.ErrUnsupported.
func CloneWithin(ctx context.Context, src, dst *os.File) error { return errors.ErrUnsupported }
