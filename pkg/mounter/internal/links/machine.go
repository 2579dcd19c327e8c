package links

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/causeway-csi/causeway/internal/dacl"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// Machine has the calls of a machine on which a mount is a link.
type Machine struct {
	Links   LinkHost
	Disks   DiskHost // nil: the machine has no disks for volumes
	Shares  ShareHost
	Library *Worker // makes the calls of Disks and Shares
}

// FoldersDir is the directory of the folders at which the volumes of disks are mounted, in the
// state directory of the driver.
const FoldersDir = "volumes"

// NewHost returns the Host of a machine. dir is the directory of the kubelet. Records, and the
// folders of the volumes of disks, are in the directory state.
func NewHost(m Machine, dir, state string) (_ Host, err error) {
	stores, err := openStores(state)
	if err != nil {
		return Host{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stores.close())
		}
	}()
	disks, err := newDisks(m, state, stores.formats)
	if err != nil {
		return Host{}, err
	}
	l, err := newLinks(m.Links, dir, stores.links, withDisks(disks))
	if err != nil {
		return Host{}, err
	}
	if err := l.addShares(m.Shares, stores.mappings, m.Library); err != nil {
		return Host{}, err
	}
	l.stores = stores
	return Host{l}, nil
}

// Close releases the records. No call may follow.
func (h Host) Close() error { return h.stores.close() }

// newDisks returns the disks of a machine, or nil if it has none for volumes.
func newDisks(m Machine, state string, formats recordStore) (*linkDisks, error) {
	if m.Disks == nil {
		return nil, nil
	}
	folders := filepath.Join(state, FoldersDir)
	clean, err := m.Links.Form().Clean(folders)
	if err != nil {
		return nil, err
	}
	if err := dacl.MakePrivate(folders); err != nil {
		return nil, err
	}
	return newLinkDisks(m.Disks, m.Library.Run, clean, formats), nil
}

// FindDisk returns the path of the disk with a serial number: see FindDevice.
func FindDisk(ctx context.Context, host DiskHost, library *Worker, serial string) (path string, sequence uint64,
	err error) {
	return newLinkDisks(host, library.Run, "", nil).device(ctx, serial)
}

// ExamineDisk reads the signatures on a disk.
func ExamineDisk(host DiskHost, library *Worker, disk DiskInfo) (signature.Content, error) {
	return signature.Examine(diskReader{newLinkDisks(host, library.Run, "", nil), disk}, disk.Size)
}
