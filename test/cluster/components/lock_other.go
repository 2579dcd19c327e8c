//go:build !unix

package components

import (
	"context"
	"errors"
	"fmt"
)

// lock isn't there: test clusters need a Unix.
func lock(context.Context, string, func()) (unlock func(), err error) {
	return nil, fmt.Errorf("lock the components: %w", errors.ErrUnsupported)
}
