//go:build !linux && !windows

package mounter

import (
	"errors"
	"fmt"
	"runtime"
)

// New refuses: volumes are mounted on Linux and Windows only. Elsewhere the project builds and runs its unit tests.
func New(string, string) (Mounter, error) {
	return nil, fmt.Errorf("%w: there are no mounts for pods on %s", errors.ErrUnsupported, runtime.GOOS)
}

// IsFilesystem refuses: see New.
func IsFilesystem(string) (bool, error) { return false, errors.ErrUnsupported }

// IsShared refuses: see New.
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }

// Main does nothing: nothing is frozen here, so no process is started for it.
func Main() {}
