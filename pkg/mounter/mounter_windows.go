package mounter

import (
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/internal/helper"
)

// New refuses: the Host of Windows is not built yet.
func New(string, string) (Host, error) {
	return nil, fmt.Errorf("%w: mounting on Windows is not built yet", errors.ErrUnsupported)
}

// IsFilesystem refuses: see New.
func IsFilesystem(string) (bool, error) { return false, errors.ErrUnsupported }

// IsShared refuses: see New.
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }

// HelperTasks are none: nothing is frozen here.
func HelperTasks() []helper.Task { return nil }

// FindDevice refuses: disks are attached to Linux nodes only.
func FindDevice(context.Context, string) (path string, sequence uint64, err error) {
	return "", 0, errors.ErrUnsupported
}
