//go:build !linux && !windows

package mounter

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/causeway-csi/causeway/internal/helper"
)

// New refuses: volumes are mounted on Linux and Windows only. Elsewhere the project builds and runs its unit tests.
func New(string, string) (Host, error) {
	return nil, fmt.Errorf("%w: there are no mounts for pods on %s", errors.ErrUnsupported, runtime.GOOS)
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
