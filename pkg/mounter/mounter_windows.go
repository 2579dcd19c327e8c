package mounter

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/causeway-csi/causeway/internal/dacl"
	"github.com/causeway-csi/causeway/internal/helper"
)

// foldersDir is the directory of the folders at which the volumes of disks are mounted, in the state
// directory of the driver.
const foldersDir = "volumes"

// libraryCalls is the worker for all calls of the library in this process: FindDevice makes some, too.
var libraryCalls = newWorker()

// callLibrary makes a call of the library. A caller that gives up leaves its whole flow behind, so
// the call needs no ctx: see linkDisks.flow.
func callLibrary(name string, call func() error) error {
	return libraryCalls.do(context.Background(), name, call)
}

// New returns the Host of this machine. A mount is a link for directories. dir is the directory of
// the kubelet. Records, and the folders of the volumes of disks, are beside the path frozen, which
// has the records of frozen filesystems on Linux.
func New(dir, frozen string) (_ Host, err error) {
	stores, err := openStores(filepath.Dir(frozen))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stores.close())
		}
	}()
	disks, err := newDisks(filepath.Dir(frozen), stores.formats)
	if err != nil {
		return nil, err
	}
	l, err := newLinks(machineLinks(), dir, stores.links, withDisks(disks))
	if err != nil {
		return nil, err
	}
	if err := l.addShares(windowsShares{}, stores.mappings, libraryCalls); err != nil {
		return nil, err
	}
	return linksHost{l}, nil
}

// newDisks returns the disks of this machine, or nil if this program is built without them.
func newDisks(state string, formats recordStore) (*linkDisks, error) {
	host := newDiskHost()
	if host == nil {
		return nil, nil
	}
	folders, err := windowsPaths.clean(filepath.Join(state, foldersDir))
	if err != nil {
		return nil, err
	}
	if err := dacl.MakePrivate(folders); err != nil {
		return nil, err
	}
	return newLinkDisks(host, callLibrary, folders, formats), nil
}

// IsFilesystem returns errors.ErrUnsupported: drives have letters here.
func IsFilesystem(string) (bool, error) { return false, errors.ErrUnsupported }

// IsShared returns true: every process of the node sees a link.
func IsShared(string) (bool, error) { return true, nil }

// HelperTasks returns no tasks: this Host needs no helpers.
func HelperTasks() []helper.Task { return nil }

// FindDevice returns the path of the disk with a serial number, or with an identifier of page 83 of
// SCSI. The number in the path may change at a reboot, and when the disk is attached again. The
// sequence number is 0: Windows has none, and Mount finds a BlockDevice by its Serial again. Errors:
// fs.ErrNotExist, which is also ErrDevice, for no such disk; ErrDevice for several.
func FindDevice(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	host := newDiskHost()
	if host == nil {
		return "", 0, errors.ErrUnsupported
	}
	return newLinkDisks(host, callLibrary, "", nil).device(ctx, serial)
}
