//go:build !linux

package main

import (
	"context"
	"errors"
	"time"
)

// supported refuses: the guest runs this machine's programs.
func supported() error { return errors.ErrUnsupported }

// serveSMB refuses: see supported.
func (m *machine) serveSMB(context.Context) (func(), error) { return nil, errors.ErrUnsupported }

// boot refuses: see supported.
func (m *machine) boot(context.Context, time.Duration) (string, error) {
	return "", errors.ErrUnsupported
}
