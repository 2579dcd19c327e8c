package host

import (
	"context"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// New returns the Host of this machine for paths below dir, the kubelet directory.
func New(dir, state string) (mounter.Host, error) { return mounter.New(dir, state) }

// HelperTasks returns the tasks of the helper processes of a Host.
func HelperTasks() []helper.Task { return mounter.HelperTasks() }

// IsShared reports whether mounts below a directory reach the other mount namespaces.
func IsShared(dir string) (bool, error) { return mounter.IsShared(dir) }

// IsFilesystem reports whether a directory is the root of a filesystem.
func IsFilesystem(dir string) (bool, error) { return mounter.IsFilesystem(dir) }

// FindDevice returns the path and the sequence number of the block device with a serial number.
func FindDevice(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	return mounter.FindDevice(ctx, serial)
}
