package hostpath

import (
	"fmt"
	"maps"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// kind is the kind of a volume.
type kind string

const (
	kindKey        = "kind" // the parameter
	directory kind = "directory"
	image     kind = "image"
)

// parseKinds returns kinds by their names: all kinds if there are no names.
func parseKinds(names []string) (all []kind, err error) {
	if len(names) == 0 {
		return []kind{directory, image}, nil
	}
	for _, name := range names {
		k := kind(name)
		if k != directory && k != image || slices.Contains(all, k) {
			return nil, fmt.Errorf("invalid kinds %q: must be %q, %q, or both", names, directory, image)
		}
		all = append(all, k)
	}
	return all, nil
}

// withKind returns o with a kind: k if o has none.
func withKind(o backend.CreateOptions, k kind) backend.CreateOptions {
	if _, ok := o.Parameters[kindKey]; !ok {
		parameters := map[string]string{kindKey: string(k)}
		maps.Copy(parameters, o.Parameters)
		o.Parameters = parameters
	}
	return o
}

const (
	defaultSize = 1 << 30 // bytes of a volume without a requested size
	// defaultFSType is the same on all operating systems: the node with the most space must not
	// decide the filesystem. A class for Windows sets ntfs.
	defaultFSType = "ext4"

	// sector is the logical block size of images, in bytes. A filesystem made for smaller sectors
	// cannot be mounted with larger sectors, so the record stores the size instead of leaving it to
	// the machine. Raw block volumes have it, too: the partition table of a disk that is written to
	// one depends on it.
	sector = 512

	// reflinkSector is that of filesystems on a root with reflinks, in bytes. Where a file shares
	// blocks with a snapshot, xfs permits direct I/O of whole blocks only: with smaller sectors, an
	// image would use the page cache of its disk from its first snapshot on.
	reflinkSector = 4096

	// sizeUnit is the unit of the sizes of images, in bytes: a loop device ignores an incomplete
	// last block. It is also a multiple of the sectors of a virtual disk of Windows.
	sizeUnit = 4096
)

// minSizes are the sizes, in bytes, of the smallest images with a useful filesystem that can grow:
// btrfs rejects sizes below 256 MiB for a device that is to be resized. An image with ntfs is a
// disk with a partition table: 1 MiB at each end, and at most 32 MiB that Windows reserves on a
// disk of this size (the Microsoft Reserved Partition) leave 94 MiB for the filesystem, which needs
// about 10.
var minSizes = map[string]int64{
	"": sizeUnit, "ext4": 4 << 20, "xfs": 300 << 20, "btrfs": 256 << 20, "ntfs": 128 << 20,
}

// Logical block sizes of a loop device, in bytes.
const (
	minSector = 512
	maxSector = 4096
)

// maxImage is the largest image, in bytes.
const maxImage = 1 << 62
