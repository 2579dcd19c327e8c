package win

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// libraryCalls is the worker for all calls of the library in this process: FindDevice makes some,
// too.
var libraryCalls = links.NewWorker()

// New returns the Host of this machine. A mount is a link for directories. dir is the directory of
// the kubelet. Records, and the folders of the volumes of disks, are beside the path frozen, which
// has the records of frozen filesystems on Linux.
func New(dir, frozen string) (mounter.Host, error) {
	machine := links.Machine{Links: machineLinks(), Disks: newDiskHost(), Shares: windowsShares{},
		Library: libraryCalls}
	return links.NewHost(machine, dir, filepath.Dir(frozen))
}

// FindDevice returns the path of the disk with a serial number: see the package host.
func FindDevice(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	host := newDiskHost()
	if host == nil {
		return "", 0, errors.ErrUnsupported
	}
	return links.FindDisk(ctx, host, libraryCalls, serial)
}
