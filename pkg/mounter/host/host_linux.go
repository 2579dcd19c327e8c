package host

import (
	"context"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/disk"
)

// New returns the Host of this machine for paths below dir, the kubelet directory, which must
// exist. state is a directory for the Host alone, which must outlive the process. New creates a
// missing state directory. New first thaws the filesystems that an earlier process has left frozen.
//
// New needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace.
func New(dir, state string) (mounter.Host, error) {
	h, err := linux.New(dir, state)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// HelperTasks returns the tasks of the helper processes of a Host.
func HelperTasks() []helper.Task { return linux.HelperTasks() }

// IsShared reports whether mounts below a directory reach the other mount namespaces.
func IsShared(dir string) (bool, error) { return linux.IsShared(dir) }

// FindDevice returns the path and the sequence number of the block device with a serial number.
func FindDevice(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	return disk.Find(ctx, serial)
}
