package filesystem

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// ReadUUID reads the UUID by which the kernel identifies a mounted filesystem. Errors: ErrFormat if
// the filesystem has another type.
func ReadUUID(image *os.File, fsType string) (UUID, error) {
	switch fsType {
	case "ext4":
		super, err := ReadExt4(image)
		return super.UUID, err
	case tree.Btrfs:
		super, err := ReadBtrfs(image)
		return super.uuid, err
	}
	return readXFS(image)
}

// readXFS reads the UUID from the first superblock: fs/xfs/libxfs/xfs_format.h of Linux.
func readXFS(image *os.File) (id UUID, err error) {
	var raw [64]byte
	if _, err := image.ReadAt(raw[:], 0); err != nil {
		return id, err
	}
	if string(raw[:4]) != "XFSB" {
		return id, fmt.Errorf("%w: no xfs superblock", mounter.ErrFormat)
	}
	return UUID(raw[32:48]), nil
}

// BtrfsSuper holds the fields that ReadBtrfs reads from the superblock of a btrfs:
// include/uapi/linux/btrfs_tree.h of Linux.
type BtrfsSuper struct {
	uuid UUID
	Log  uint64 // address of the log tree, which holds the fsyncs since the last commit; 0 if empty
}

// ReadBtrfs reads the superblock of a btrfs in an image.
func ReadBtrfs(image *os.File) (BtrfsSuper, error) {
	const offset = 64 << 10
	var raw [0x68]byte
	if _, err := image.ReadAt(raw[:], offset); err != nil {
		return BtrfsSuper{}, err
	}
	if string(raw[0x40:0x48]) != "_BHRfS_M" {
		return BtrfsSuper{}, fmt.Errorf("%w: no btrfs superblock", mounter.ErrFormat)
	}
	return BtrfsSuper{uuid: UUID(raw[0x20:0x30]), Log: binary.LittleEndian.Uint64(raw[0x60:])}, nil
}
