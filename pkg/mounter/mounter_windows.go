package mounter

import (
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/internal/helper"
)

// New returns errors.ErrUnsupported: the Host of Windows is not implemented yet.
func New(string, string) (Host, error) {
	return nil, fmt.Errorf("%w: mounts on Windows are not implemented yet", errors.ErrUnsupported)
}

// IsFilesystem returns errors.ErrUnsupported: see [New].
func IsFilesystem(string) (bool, error) { return false, errors.ErrUnsupported }

// IsShared returns errors.ErrUnsupported: see [New].
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }

// HelperTasks returns no tasks: this Host needs no helpers.
func HelperTasks() []helper.Task { return nil }

// FindDevice returns errors.ErrUnsupported: disks are attached to Linux nodes only.
func FindDevice(context.Context, string) (path string, sequence uint64, err error) {
	return "", 0, errors.ErrUnsupported
}
