//go:build !unix

package controlplane

import (
	"errors"
	"fmt"
	"os"
)

// reserve returns an error: test clusters need a Unix.
func reserve(address string) (int, *os.File, error) {
	return 0, nil, fmt.Errorf("reserve a port of %s: %w", address, errors.ErrUnsupported)
}
