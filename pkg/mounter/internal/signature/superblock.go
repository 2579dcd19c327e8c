package signature

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Superblock is a backup copy of the superblock of a filesystem, on a device whose primary
// superblock is damaged, or was never written.
type Superblock struct {
	Name   string // one of FSTypes
	Offset int64  // in bytes
	ID     string // UUID of the filesystem
	// Fresh means that nothing on the device shows a use of the filesystem after mkfs.
	Fresh bool
}

// ReadCopies returns the copies of superblocks on a device of size bytes. ReadCopies reads only the
// offsets that examine reads, too.
func ReadCopies(dev io.ReaderAt, size int64) (all []Superblock, err error) {
	for _, offset := range copies(size) {
		data := make([]byte, copySize)
		if offset+copySize > size {
			continue
		}
		if _, err := dev.ReadAt(data, offset); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("cannot read bytes %d to %d: %w", offset, offset+copySize, err)
		}
		if c, ok := superblockOf(dev, data); ok {
			c.Offset = offset
			all = append(all, c)
		}
	}
	return all, nil
}

// superblockOf returns the copy of a superblock at the start of data, and false if there is none.
func superblockOf(dev io.ReaderAt, data []byte) (Superblock, bool) {
	const magic = 64 // of btrfs, which writes its final magic number last: see Unfinished
	switch {
	case string(data[:4]) == "XFSB":
		data[126] = 0 // sb_inprogress: mkfs.xfs leaves it set in the copies
		return Superblock{
			Name: "xfs", ID: hex.EncodeToString(data[32:48]), Fresh: neverMountedXFS(dev, data[:512]),
		}, true
	case string(data[magic:magic+8]) == "_BHRfS_M":
		return Superblock{Name: "btrfs", ID: hex.EncodeToString(data[32:48])}, true
	case string(data[magic:magic+8]) == "!BHRfS_M":
		return Superblock{Name: "btrfs", ID: hex.EncodeToString(data[32:48]), Fresh: true}, true
	case isExt(data):
		return Superblock{
			Name: Ext, ID: hex.EncodeToString(data[0x68:0x78]), Fresh: freshJournal(dev, data),
		}, true
	}
	return Superblock{}, false
}

// isExt reports whether data starts with a superblock of ext4: struct ext4_super_block in
// fs/ext4/ext4.h of Linux. The magic number has only two bytes, so isExt also checks other fields.
func isExt(data []byte) bool {
	number := binary.LittleEndian
	const maxLogBlock, maxRevision = 6, 1
	return string(data[0x38:0x3a]) == "\x53\xef" && number.Uint32(data[0x18:]) <= maxLogBlock &&
		number.Uint32(data[0x4c:]) <= maxRevision && number.Uint32(data[0x20:]) != 0
}

// freshJournal reports whether the journal shows that an ext4 was never mounted for writing. A
// mount does not change the copies of the superblock, but they hold the location of the journal
// (s_jnl_blocks). mkfs.ext4 creates an empty journal with the sequence number 1, and each mount for
// writing raises that number: struct journal_superblock_s in include/linux/jbd2.h of Linux. A power
// cut during mkfs can leave zeroes instead of the journal. freshJournal returns false for an ext4
// without a journal.
func freshJournal(dev io.ReaderAt, super []byte) bool {
	number := binary.LittleEndian
	const hasJournal, blocksAreKnown, extentMagic = 4, 1, 0xf30a
	inode := super[0x10c:] // i_block of the inode of the journal: an extent tree without inner nodes
	if number.Uint32(super[0x5c:])&hasJournal == 0 || super[0xfd] != blocksAreKnown ||
		number.Uint16(inode) != extentMagic || number.Uint16(inode[6:]) != 0 {
		return false
	}
	block := int64(number.Uint16(inode[18:]))<<32 | int64(number.Uint32(inode[20:]))
	journal := make([]byte, 1024)
	if _, err := dev.ReadAt(journal, block*(1024<<number.Uint32(super[0x18:]))); err != nil {
		return false
	}
	if strings.Trim(string(journal), "\x00") == "" {
		return true
	}
	const magic = 0xc03b3998
	big := binary.BigEndian
	return big.Uint32(journal) == magic && big.Uint32(journal[0x18:]) == 1 && big.Uint32(journal[0x1c:]) == 0
}
