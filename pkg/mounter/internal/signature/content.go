// Package signature finds the signatures of filesystems, volume managers and partition tables on a
// device.
package signature

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A disk that a tool cannot read looks blank to it. So nothing is taken for blank here that was not
// read: every range in which a known filesystem, volume manager or partition table keeps a
// signature, or a copy of its superblock, must be read without an error, and must hold zeroes.

const (
	// edge is how much is read at both ends of a device, in bytes. Both labels of zfs at an end,
	// the superblocks of mdraid and both partition tables of GPT lie in it.
	edge = 1 << 20
	// copySize is the number of bytes to read at each copy in between, in bytes.
	copySize = 4096
)

// Region is a part of a device, in bytes.
type Region struct{ Offset, Length int64 }

// Regions returns the ranges of a device of size bytes that must be read: both ends, and the ranges
// between where a filesystem keeps copies of its superblock.
func Regions(size int64) []Region {
	all := []Region{{0, min(edge, size)}}
	if size > edge {
		all = append(all, Region{max(edge, size-edge), min(edge, size-edge)})
	}
	for _, offset := range copies(size) {
		if offset >= edge && offset+copySize <= size-edge {
			all = append(all, Region{offset, copySize})
		}
	}
	return all
}

// copies returns where filesystems keep copies of their superblocks on a device of size bytes.
func copies(size int64) []int64 {
	all := []int64{
		64 << 20, 256 << 30, // btrfs: Documentation/filesystems/btrfs of its own tools, "btrfs-ondisk"
		1 << 20, 2 << 20, 4 << 20, // the second header of LUKS2: its specification, 2.2
	}
	const maxGroup = 65528 // blocks: EXT2_MAX_BLOCKS_PER_GROUP of e2fsprogs
	for block := int64(1024); block <= 64<<10; block *= 2 {
		offset := min(8*block, maxGroup) * block // the second group of ext4: fs/ext4/super.c of Linux
		if block == 1024 {
			offset += block // whose first block is number 1
		}
		all = append(all, offset)
	}
	// A new xfs has 4 allocation groups, or, from 4 TiB on, groups of 1 TiB less one block, each
	// with a superblock: calc_default_ag_geometry in libfrog of xfsprogs.
	const groups, largest = 4, 1 << 40
	for block := int64(1024); block <= 64<<10; block *= 2 {
		group := (size/block + groups - 1) / groups * block
		for i := range int64(groups) {
			all = append(all, i*group, i*(largest-block))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Signature is a text on a device at an offset, which counts from the end of the device if it is
// negative.
type Signature struct {
	Name   string
	Offset int64
	Magic  string
}

// Names of contents. Those of filesystems that an attached disk may have are in FSTypes.
const (
	Ext        = "ext4" // or ext2, ext3: blkid(8) tells them apart
	Unfinished = "an unfinished btrfs"
	Unknown    = "data of an unknown format"
	partitions = "a partition table (MBR) or a boot sector"
)

// signatures are tried in this order: a device with a boot sector can still hold a filesystem.
// Sources: magic numbers of libblkid, and the specifications of LUKS, GPT and LVM2.
var signatures = slices.Concat([]Signature{
	{"a LUKS volume", 0, "LUKS\xba\xbe"},
	{"a GPT partition table", 512, "EFI PART"},
	{"a GPT partition table", 4096, "EFI PART"},
	{"the copy of a GPT partition table", -512, "EFI PART"},
	{"the copy of a GPT partition table", -4096, "EFI PART"},
	{"an LVM2 physical volume", 0, "LABELONE"},
	{"an LVM2 physical volume", 512, "LABELONE"},
	{"an LVM2 physical volume", 1024, "LABELONE"},
	{"an LVM2 physical volume", 1536, "LABELONE"},
	{"a member of an mdraid array", 0, "\xfc\x4e\x2b\xa9"},
	{"a member of an mdraid array", 4096, "\xfc\x4e\x2b\xa9"},
	{"a bcache device", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"xfs", 0, "XFSB"},
	{Ext, 1024 + 0x38, "\x53\xef"},
	{"btrfs", BtrfsStart + 64, "_BHRfS_M"},
	{Unfinished, BtrfsStart + 64, "!BHRfS_M"}, // BTRFS_MAGIC_TEMPORARY of btrfs-progs
	{"f2fs", 1024, "\x10\x20\xf5\xf2"},
	{"swap space", 4096 - 10, "SWAPSPACE2"},
	{"swap space", 65536 - 10, "SWAPSPACE2"},
	{"iso9660", 32769, "CD001"},
	{"ntfs", 3, "NTFS    "},
	{"exfat", 3, "EXFAT   "},
	{"vfat", 54, "FAT1"},
	{"vfat", 82, "FAT32"},
}, luksCopies(), zfsLabels(), []Signature{{partitions, 510, "\x55\xaa"}})

const (
	// BtrfsStart is the offset of the first superblock of a btrfs.
	BtrfsStart = 64 << 10
	extStart   = 1024
)

// luksCopies are where the second header of LUKS2 can be.
func luksCopies() (all []Signature) {
	for offset := int64(16 << 10); offset <= 4<<20; offset *= 2 {
		all = append(all, Signature{"the second header of a LUKS volume", offset, "SKUL\xba\xbe"})
	}
	return all
}

// zfsLabels are where a zfs keeps its uberblocks: the second half of each of its labels at the
// start.
func zfsLabels() (all []Signature) {
	for offset := int64(128 << 10); offset < 256<<10; offset += 1024 {
		for _, magic := range []string{"\x0c\xb1\xba\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\xba\xb1\x0c"} {
			all = append(all, Signature{"a member of a zfs pool", offset, magic})
		}
	}
	return all
}

// Content is the content of a device, as far as its signatures show.
type Content struct {
	Blank bool
	Name  string // for messages; one of FSTypes if the content is such a filesystem
	ID    string // of a filesystem of FSTypes, complete or not: its UUID
	// Fresh says of a btrfs that mkfs has not ended, and of the others that they were never mounted
	// for writing.
	Fresh bool
	// Copies are those of superblocks, on a device with Unknown.
	Copies []Superblock
}

// Examine reads a device of size bytes. An error names the bytes that cannot be read.
func Examine(dev io.ReaderAt, size int64) (Content, error) {
	if size < edge {
		return Content{}, fmt.Errorf("it has %d bytes: a device must have at least %d", size, edge)
	}
	blank := true
	for _, r := range Regions(size) {
		data := make([]byte, r.Length)
		if _, err := dev.ReadAt(data, r.Offset); err != nil && !(errors.Is(err, io.EOF) && r.Offset+r.Length == size) {
			return Content{}, fmt.Errorf("cannot read bytes %d to %d: %w", r.Offset, r.Offset+r.Length, err)
		}
		blank = blank && len(bytes.Trim(data, "\x00")) == 0
	}
	if blank {
		return Content{Blank: true, Name: "nothing"}, nil
	}
	found := Content{Name: Unknown}
	for _, s := range append(signatures, raidAt(size)...) {
		is, err := s.On(dev, size)
		if err != nil {
			return Content{}, err
		}
		if is {
			found.Name = s.Name
			break
		}
	}
	if found.Name == Unknown {
		var err error
		found.Copies, err = ReadCopies(dev, size)
		return found, err
	}
	return found, found.read(dev)
}

// raidAt are the superblocks of mdraid whose offsets depend on the size: versions 1.0 and 0.90,
// md(4).
func raidAt(size int64) []Signature {
	const name, magic = "a member of an mdraid array", "\xfc\x4e\x2b\xa9"
	return []Signature{
		{name, size/512&^7*512 - 8<<10, magic},
		{name, size&^(64<<10-1) - 64<<10, magic},
	}
}

// On reports whether the signature is on a device of size bytes.
func (s Signature) On(dev io.ReaderAt, size int64) (bool, error) {
	at := s.Offset
	if at < 0 {
		at += size
	}
	data := make([]byte, len(s.Magic))
	if at < 0 || at+int64(len(data)) > size {
		return false, nil
	}
	if _, err := dev.ReadAt(data, at); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("cannot read bytes %d to %d: %w", at, at+int64(len(data)), err)
	}
	return string(data) == s.Magic, nil
}

// read reads which filesystem a device has, and whether it is fresh.
func (c *Content) read(dev io.ReaderAt) error {
	var id, fresh Region
	switch c.Name {
	case Ext:
		id, fresh = Region{extStart + 0x68, 16}, Region{extStart + 0x2c, 10} // s_uuid; s_mtime, s_wtime, s_mnt_count
	case "xfs":
		id, fresh = Region{32, 16}, Region{0, 512} // sb_uuid, the superblock
	case "btrfs", Unfinished:
		id, fresh = Region{BtrfsStart + 32, 16}, Region{BtrfsStart + 64, 1} // fsid, the magic number
	default:
		return nil
	}
	uuid, mark := make([]byte, id.Length), make([]byte, fresh.Length)
	if _, err := dev.ReadAt(uuid, id.Offset); err != nil {
		return fmt.Errorf("cannot read the UUID of the %s: %w", c.Name, err)
	}
	if _, err := dev.ReadAt(mark, fresh.Offset); err != nil {
		return fmt.Errorf("cannot read the superblock of the %s: %w", c.Name, err)
	}
	c.ID = hex.EncodeToString(uuid)
	switch c.Name {
	case Ext:
		never := make([]byte, 4)
		c.Fresh = bytes.Equal(mark[:4], never) && bytes.Equal(mark[8:], never[:2])
	case "xfs":
		c.Fresh = neverMountedXFS(dev, mark)
	case Unfinished:
		c.Fresh = true
	}
	return nil
}

// neverMountedXFS reports whether an xfs was never mounted for writing. mkfs.xfs syncs nothing
// before its end, so a power cut may leave the superblock of a complete filesystem, and little
// else. mkfs.xfs leaves zeroes in the log except for a record of up to 256 KiB at its start. The
// first mount for writing first overwrites 2 MiB there: xlog_clear_stale_blocks in
// fs/xfs/xfs_log_recover.c of Linux. They are on the disk before any file is, as each write to the
// log begins with a flush. The offsets are those of struct xfs_dsb in fs/xfs/libxfs/xfs_format.h.
func neverMountedXFS(dev io.ReaderAt, super []byte) bool {
	if super[126] != 0 { // sb_inprogress
		return true
	}
	number := binary.BigEndian
	block, groupBlocks := uint64(number.Uint32(super[4:])), uint64(number.Uint32(super[84:]))
	start, blocks, shift := number.Uint64(super[48:]), uint64(number.Uint32(super[96:])), super[124]
	written := number.Uint64(super[240:]) != 0 // sb_lsn: the superblock was in the log
	const unused, length = 512 << 10, 64 << 10
	if written || start == 0 || blocks*block < unused+length { // start is 0 if the log is elsewhere
		return false
	}
	at := (start>>shift*groupBlocks + start&(1<<shift-1)) * block
	log := make([]byte, length)
	_, err := dev.ReadAt(log, int64(at)+unused)
	return err == nil && len(bytes.Trim(log, "\x00")) == 0
}

// DescribeCopies names the first copy of a superblock, for an error.
func (c Content) DescribeCopies() string {
	if len(c.Copies) == 0 {
		return ""
	}
	first := c.Copies[0]
	return fmt.Sprintf(" and, at byte %d, the copy of the superblock of an %s with the UUID %s", first.Offset,
		first.Name, UUIDText(first.ID))
}

// UUIDText returns a UUID of 32 hexadecimal digits as people write it.
func UUIDText(u string) string {
	return u[:8] + "-" + u[8:12] + "-" + u[12:16] + "-" + u[16:20] + "-" + u[20:]
}
