//go:build !linux

package main

import (
	"context"
	"errors"
)

// run is never reached: there is no namespace to enter.
func run(context.Context) error { return errors.ErrUnsupported }
