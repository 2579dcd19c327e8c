//go:build !linux && !windows

package host

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// New returns errors.ErrUnsupported: the driver mounts volumes on Linux and Windows only. On other
// systems the project builds and runs its unit tests.
func New(string, string) (mounter.Host, error) {
	return nil, fmt.Errorf("%w: the driver cannot mount volumes on %s", errors.ErrUnsupported, runtime.GOOS)
}

// HelperTasks returns no tasks: this Host needs no helpers.
func HelperTasks() []helper.Task { return nil }

// IsShared returns errors.ErrUnsupported: see [New].
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }

// FindDevice returns errors.ErrUnsupported: disks are attached to Linux nodes only.
func FindDevice(context.Context, string) (path string, sequence uint64, err error) {
	return "", 0, errors.ErrUnsupported
}
