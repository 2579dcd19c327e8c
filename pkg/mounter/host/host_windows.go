package host

import (
	"context"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/win"
)

// New returns the Host of this machine. A mount is a link for directories. dir is the directory of
// the kubelet. Records, and the folders of the volumes of disks, are beside the path frozen, which
// has the records of frozen filesystems on Linux.
func New(dir, frozen string) (mounter.Host, error) { return win.New(dir, frozen) }

// HelperTasks returns no tasks: this Host needs no helpers.
func HelperTasks() []helper.Task { return nil }

// IsShared returns true: every process of the node sees a link.
func IsShared(string) (bool, error) { return true, nil }

// FindDevice returns the path of the disk with a serial number, or with an identifier of page 83 of
// SCSI. The number in the path may change at a reboot, and when the disk is attached again. The
// sequence number is 0: Windows has none, and Mount finds a BlockDevice by its Serial again.
// Errors: fs.ErrNotExist, which is also ErrDevice, for no such disk; ErrDevice for several.
func FindDevice(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	return win.FindDevice(ctx, serial)
}
