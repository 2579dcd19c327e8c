package filesystem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// GrowLimit bounds the time in which a filesystem grows.
const GrowLimit = time.Minute

// GrowTask grows a mounted filesystem. Its files are the root of the filesystem, open as a path
// only, and the device. It waits, uninterruptibly, while the filesystem is frozen or is about to
// be.
var GrowTask = helper.Task{Name: "grow", Errors: []error{mounter.ErrBusy, mounter.ErrFormat},
	Run: func(j *helper.Job) (any, error) {
		var fsType string
		if err := j.Request(&fsType); err != nil {
			return nil, err
		}
		dirs, err := helper.OpenDirs(j.Files[:1])
		if err != nil {
			return nil, err
		}
		defer tool.CloseFiles(dirs)
		fd, dev := int(dirs[0].Fd()), j.Files[1]
		size, err := tree.SizeOf(dev)
		if err != nil {
			return nil, err
		}
		switch fsType {
		case "ext4":
			return nil, growExt4(fd, dev, size)
		case "xfs":
			return nil, growXFS(fd, size)
		}
		return nil, growBtrfs(fd)
	}}

// ext4Resize is EXT4_IOC_RESIZE_FS: fs/ext4/ext4.h of Linux. It takes the new number of blocks.
const ext4Resize = 0x40086610

// growExt4 needs CAP_SYS_RESOURCE. Without that, the next NodeStageVolume grows the filesystem: see
// mountAttached.
func growExt4(fd int, dev *os.File, size uint64) error {
	super, err := ReadExt4(dev)
	if err != nil || super.Full(size) {
		return err
	}
	blocks := size / super.blockSize
	err = tree.Ioctl(fd, ext4Resize, unsafe.Pointer(&blocks))
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: without CAP_SYS_RESOURCE it can be grown only when it is staged again: %w",
			mounter.ErrBusy, err)
	}
	if err != nil {
		return fmt.Errorf("EXT4_IOC_RESIZE_FS: %w", err)
	}
	if super, err = ReadExt4(dev); err == nil && blocks >= super.blocks+super.groupBlocks {
		err = fmt.Errorf("it has %d blocks, not %d", super.blocks, blocks)
	}
	return err
}

// Ext4Super has the required fields of an ext4's superblock:
// Documentation/filesystems/ext4/super.rst of Linux.
type Ext4Super struct {
	blocks, blockSize uint64
	first             uint64 // block of the first group
	groupBlocks       uint64 // of each group but the last, which may have fewer
	tableBlocks       uint64 // of each group, for its inodes
	backupBlocks      uint64 // of a group that has a copy of the superblock, for the copy and its tables
	sparse            bool   // few groups have
	UUID              UUID
	Sums              bool // metadata_csum
}

// Full reports whether the filesystem fills a device of size bytes, but for a rest that is too
// small for a group.
func (s Ext4Super) Full(size uint64) bool {
	blocks := size / uint64(os.Getpagesize()) * uint64(os.Getpagesize()) / s.blockSize // as resize2fs has it
	if s.blocks >= blocks {
		return true
	}
	whole := (s.blocks-s.first)%s.groupBlocks == 0
	return whole && blocks-s.blocks < min(s.leastLast((s.blocks-s.first)/s.groupBlocks), s.groupBlocks)
}

// leastLast returns the smallest number of blocks in a last group: adjust_fs_info in resize2fs.c of
// e2fsprogs.
func (s Ext4Super) leastLast(group uint64) uint64 {
	const bitmaps, room = 2, 50
	if s.sparse && !isPower(group, 3) && !isPower(group, 5) && !isPower(group, 7) {
		return bitmaps + s.tableBlocks + room
	}
	return bitmaps + s.tableBlocks + room + s.backupBlocks
}

// isPower reports whether n is a power of base.
func isPower(n, base uint64) bool {
	for n > 1 && n%base == 0 {
		n /= base
	}
	return n == 1
}

// ReadExt4 reads the superblock of an ext4 on a device.
func ReadExt4(dev *os.File) (Ext4Super, error) {
	const offset, magic, incompat64bit, sparseSuper, metadataCsum = 1024, 0xef53, 0x80, 0x1, 0x400
	raw := make([]byte, 1024)
	if _, err := dev.ReadAt(raw, offset); err != nil {
		return Ext4Super{}, err
	}
	if binary.LittleEndian.Uint16(raw[0x38:]) != magic || binary.LittleEndian.Uint32(raw[0x18:]) > 6 {
		return Ext4Super{}, fmt.Errorf("%w: no ext4 superblock", mounter.ErrFormat)
	}
	s := Ext4Super{
		blocks:      uint64(binary.LittleEndian.Uint32(raw[0x4:])),
		blockSize:   1024 << binary.LittleEndian.Uint32(raw[0x18:]),
		first:       uint64(binary.LittleEndian.Uint32(raw[0x14:])),
		groupBlocks: uint64(binary.LittleEndian.Uint32(raw[0x20:])),
		sparse:      binary.LittleEndian.Uint32(raw[0x64:])&sparseSuper != 0,
		UUID:        UUID(raw[0x68:0x78]),
		Sums:        binary.LittleEndian.Uint32(raw[0x64:])&metadataCsum != 0,
	}
	descriptor := uint64(32) // bytes
	if binary.LittleEndian.Uint32(raw[0x60:])&incompat64bit != 0 {
		s.blocks |= uint64(binary.LittleEndian.Uint32(raw[0x150:])) << 32
		descriptor = uint64(binary.LittleEndian.Uint16(raw[0xfe:]))
	}
	if s.groupBlocks == 0 || s.blocks <= s.first {
		return Ext4Super{}, fmt.Errorf("%w: its superblock has groups of %d blocks", mounter.ErrFormat, s.groupBlocks)
	}
	up := func(bytes uint64) uint64 { return (bytes + s.blockSize - 1) / s.blockSize }
	s.tableBlocks = up(uint64(binary.LittleEndian.Uint32(raw[0x28:])) * uint64(binary.LittleEndian.Uint16(raw[0x58:])))
	groups := (s.blocks-s.first)/s.groupBlocks + 1 // with the next group
	s.backupBlocks = 1 + up(groups*descriptor) + uint64(binary.LittleEndian.Uint16(raw[0xce:]))
	return s, nil
}

// From fs/xfs/libxfs/xfs_fs.h of Linux: XFS_IOC_FSGEOMETRY and XFS_IOC_FSGROWFSDATA.
const (
	xfsGeometry = 0x8100587e
	xfsGrow     = 0x4010586e
)

func growXFS(fd int, size uint64) error {
	var geometry struct {
		blockSize   uint32
		_           uint32
		groupBlocks uint32
		_           [4]uint32
		imaxPercent uint32
		dataBlocks  uint64
		_           [216]byte
	}
	if err := tree.Ioctl(fd, xfsGeometry, unsafe.Pointer(&geometry)); err != nil {
		return fmt.Errorf("XFS_IOC_FSGEOMETRY: %w", err)
	}
	wanted := size / uint64(geometry.blockSize)
	if geometry.dataBlocks >= wanted {
		return nil
	}
	grow := struct {
		blocks      uint64
		imaxPercent uint32
		_           uint32
	}{blocks: wanted, imaxPercent: geometry.imaxPercent}
	if err := tree.Ioctl(fd, xfsGrow, unsafe.Pointer(&grow)); err != nil {
		return fmt.Errorf("XFS_IOC_FSGROWFSDATA: %w", err)
	}
	if err := tree.Ioctl(fd, xfsGeometry, unsafe.Pointer(&geometry)); err != nil {
		return fmt.Errorf("XFS_IOC_FSGEOMETRY: %w", err)
	}
	if wanted >= geometry.dataBlocks+uint64(geometry.groupBlocks) { // a rest that is too small for a group is left
		return fmt.Errorf("it has %d blocks, not %d", geometry.dataBlocks, wanted)
	}
	return nil
}

// btrfsResize is BTRFS_IOC_RESIZE: include/uapi/linux/btrfs.h of Linux.
const btrfsResize = 0x50009403

func growBtrfs(fd int) error {
	var args struct {
		_    int64
		name [4088]byte
	}
	copy(args.name[:], "1:max")
	if err := tree.Ioctl(fd, btrfsResize, unsafe.Pointer(&args)); err != nil {
		return fmt.Errorf("BTRFS_IOC_RESIZE: %w", err)
	}
	return nil
}

// UUID is the UUID of a filesystem.
type UUID [16]byte
