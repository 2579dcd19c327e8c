package mounter

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

// region is a part of a device, in bytes.
type region struct{ offset, length int64 }

// regions returns the ranges of a device of size bytes that must be read: both ends, and the ranges
// between where a filesystem keeps copies of its superblock.
func regions(size int64) []region {
	all := []region{{0, min(edge, size)}}
	if size > edge {
		all = append(all, region{max(edge, size-edge), min(edge, size-edge)})
	}
	for _, offset := range copies(size) {
		if offset >= edge && offset+copySize <= size-edge {
			all = append(all, region{offset, copySize})
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

// signature is a text on a device at an offset, which counts from the end of the device if it is
// negative.
type signature struct {
	name   string
	offset int64
	magic  string
}

// Names of contents. Those of filesystems that an attached disk may have are in FSTypes.
const (
	extFamily    = "ext4" // or ext2, ext3: blkid(8) tells them apart
	unfinishedFS = "an unfinished btrfs"
	unknownData  = "data of an unknown format"
	partitions   = "a partition table (MBR) or a boot sector"
)

// signatures are tried in this order: a device with a boot sector can still hold a filesystem.
// Sources: magic numbers of libblkid, and the specifications of LUKS, GPT and LVM2.
var signatures = slices.Concat([]signature{
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
	{extFamily, 1024 + 0x38, "\x53\xef"},
	{"btrfs", btrfsStart + 64, "_BHRfS_M"},
	{unfinishedFS, btrfsStart + 64, "!BHRfS_M"}, // BTRFS_MAGIC_TEMPORARY of btrfs-progs
	{"f2fs", 1024, "\x10\x20\xf5\xf2"},
	{"swap space", 4096 - 10, "SWAPSPACE2"},
	{"swap space", 65536 - 10, "SWAPSPACE2"},
	{"iso9660", 32769, "CD001"},
	{"ntfs", 3, "NTFS    "},
	{"exfat", 3, "EXFAT   "},
	{"vfat", 54, "FAT1"},
	{"vfat", 82, "FAT32"},
}, luksCopies(), zfsLabels(), []signature{{partitions, 510, "\x55\xaa"}})

const (
	btrfsStart = 64 << 10
	extStart   = 1024
)

// luksCopies are where the second header of LUKS2 can be.
func luksCopies() (all []signature) {
	for offset := int64(16 << 10); offset <= 4<<20; offset *= 2 {
		all = append(all, signature{"the second header of a LUKS volume", offset, "SKUL\xba\xbe"})
	}
	return all
}

// zfsLabels are where a zfs keeps its uberblocks: the second half of each of its labels at the
// start.
func zfsLabels() (all []signature) {
	for offset := int64(128 << 10); offset < 256<<10; offset += 1024 {
		for _, magic := range []string{"\x0c\xb1\xba\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\xba\xb1\x0c"} {
			all = append(all, signature{"a member of a zfs pool", offset, magic})
		}
	}
	return all
}

// content is the content of a device, as far as its signatures show.
type content struct {
	blank bool
	name  string // for messages; one of FSTypes if the content is such a filesystem
	id    string // of a filesystem of FSTypes, complete or not: its UUID
	// fresh says of a btrfs that mkfs has not ended, and of the others that they were never mounted
	// for writing.
	fresh bool
	// copies are those of superblocks, on a device with unknownData.
	copies []superblock
}

// examine reads a device of size bytes. An error names the bytes that cannot be read.
func examine(dev io.ReaderAt, size int64) (content, error) {
	if size < edge {
		return content{}, fmt.Errorf("it has %d bytes: a device must have at least %d", size, edge)
	}
	blank := true
	for _, r := range regions(size) {
		data := make([]byte, r.length)
		if _, err := dev.ReadAt(data, r.offset); err != nil && !(errors.Is(err, io.EOF) && r.offset+r.length == size) {
			return content{}, fmt.Errorf("cannot read bytes %d to %d: %w", r.offset, r.offset+r.length, err)
		}
		blank = blank && len(bytes.Trim(data, "\x00")) == 0
	}
	if blank {
		return content{blank: true, name: "nothing"}, nil
	}
	found := content{name: unknownData}
	for _, s := range append(signatures, raidAt(size)...) {
		is, err := s.on(dev, size)
		if err != nil {
			return content{}, err
		}
		if is {
			found.name = s.name
			break
		}
	}
	if found.name == unknownData {
		var err error
		found.copies, err = readCopies(dev, size)
		return found, err
	}
	return found, found.read(dev)
}

// raidAt are the superblocks of mdraid whose offsets depend on the size: versions 1.0 and 0.90,
// md(4).
func raidAt(size int64) []signature {
	const name, magic = "a member of an mdraid array", "\xfc\x4e\x2b\xa9"
	return []signature{
		{name, size/512&^7*512 - 8<<10, magic},
		{name, size&^(64<<10-1) - 64<<10, magic},
	}
}

// on reports whether the signature is on a device of size bytes.
func (s signature) on(dev io.ReaderAt, size int64) (bool, error) {
	at := s.offset
	if at < 0 {
		at += size
	}
	data := make([]byte, len(s.magic))
	if at < 0 || at+int64(len(data)) > size {
		return false, nil
	}
	if _, err := dev.ReadAt(data, at); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("cannot read bytes %d to %d: %w", at, at+int64(len(data)), err)
	}
	return string(data) == s.magic, nil
}

// read reads which filesystem a device has, and whether it is fresh.
func (c *content) read(dev io.ReaderAt) error {
	var id, fresh region
	switch c.name {
	case extFamily:
		id, fresh = region{extStart + 0x68, 16}, region{extStart + 0x2c, 10} // s_uuid; s_mtime, s_wtime, s_mnt_count
	case "xfs":
		id, fresh = region{32, 16}, region{0, 512} // sb_uuid, the superblock
	case "btrfs", unfinishedFS:
		id, fresh = region{btrfsStart + 32, 16}, region{btrfsStart + 64, 1} // fsid, the magic number
	default:
		return nil
	}
	uuid, mark := make([]byte, id.length), make([]byte, fresh.length)
	if _, err := dev.ReadAt(uuid, id.offset); err != nil {
		return fmt.Errorf("cannot read the UUID of the %s: %w", c.name, err)
	}
	if _, err := dev.ReadAt(mark, fresh.offset); err != nil {
		return fmt.Errorf("cannot read the superblock of the %s: %w", c.name, err)
	}
	c.id = hex.EncodeToString(uuid)
	switch c.name {
	case extFamily:
		never := make([]byte, 4)
		c.fresh = bytes.Equal(mark[:4], never) && bytes.Equal(mark[8:], never[:2])
	case "xfs":
		c.fresh = neverMountedXFS(dev, mark)
	case unfinishedFS:
		c.fresh = true
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

// describeCopies names the first copy of a superblock, for an error.
func (c content) describeCopies() string {
	if len(c.copies) == 0 {
		return ""
	}
	first := c.copies[0]
	return fmt.Sprintf(" and, at byte %d, the copy of the superblock of an %s with the UUID %s", first.offset,
		first.name, uuidText(first.id))
}

// uuidText returns a UUID of 32 hexadecimal digits as people write it.
func uuidText(u string) string {
	return u[:8] + "-" + u[8:12] + "-" + u[12:16] + "-" + u[16:20] + "-" + u[20:]
}
