//go:build !linux

package namespace

import "errors"

// Enter returns errors.ErrUnsupported: only Linux has mount namespaces.
func Enter() error { return errors.ErrUnsupported }

// EnterAlone returns errors.ErrUnsupported, as Enter.
func EnterAlone() error { return errors.ErrUnsupported }
