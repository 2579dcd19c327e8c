package mounter

import (
	"errors"
	"fmt"
)

// New refuses: the Mounter of Windows is not built yet.
func New(string, string) (Mounter, error) {
	return nil, fmt.Errorf("%w: mounting on Windows is not built yet", errors.ErrUnsupported)
}

// IsFilesystem refuses: see New.
func IsFilesystem(string) (bool, error) { return false, errors.ErrUnsupported }

// IsShared refuses: see New.
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }

// Main does nothing: nothing is frozen here, so no process is started for it.
func Main() {}
