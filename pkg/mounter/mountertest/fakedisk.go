//go:build !windows

package mountertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// fakeDisk is a disk of a fake node: a virtual disk, or one of a storage system. Its file has the
// bytes of the disk: the signatures that examine looks for, and a fakeTable. The files of its
// volume are in a directory. That of a disk of a storage system is beside the file, so the files
// follow the disk to another node.
type fakeDisk struct {
	serial, file string
	base         int64 // where the disk begins in the file, in bytes: not 0 for a virtual disk
	readOnly     bool
}

// fakeTable is the partition table of a disk, at tableOffset.
type fakeTable struct {
	Volume string `json:"volume"` // the name in its ID
	Length int64  `json:"length"` // of the partition, in bytes
}

// Places on a disk, in bytes. The partition begins at fakeStart, and ends fakeStart before the end.
const (
	tableOffset = 1024
	tableSize   = 1024
	fakeStart   = 1 << 20
)

// volumeInfix is between the name of the file of a disk and the name of its volume.
const volumeInfix = ".volume-"

// AttachDisk attaches a disk with a serial number to the node, as a storage system does; the node
// finds it by that number. The file has the bytes of the disk, and may grow: zeros are a blank
// disk. The files of its volume are in a directory beside the file. A repeated call has no effect.
// As on a real node, several disks can have one serial number, which is an error of a Mount, and
// Mount waits up to 30 s for a disk that is not attached.
func (w *FakeWindows) AttachDisk(serial, file string, readOnly bool) error {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%w: %s must be a file", mounter.ErrDevice, file))
	}
	d, disk := w.disks, fakeDisk{serial: serial, file: file, readOnly: readOnly}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.numberOf(disk); ok {
		return nil
	}
	d.last++
	d.attached[d.last] = disk
	return nil
}

// DetachDisk detaches the disks with a serial number, mounted or not. None is no error.
func (w *FakeWindows) DetachDisk(serial string) {
	d := w.disks
	d.mu.Lock()
	defer d.mu.Unlock()
	for number, disk := range d.attached {
		if disk.base == 0 && disk.serial == serial {
			delete(d.attached, number)
			delete(d.online, number)
		}
	}
}

// FindDevice is the function FindDevice of Windows for the disks of the node.
func (w *FakeWindows) FindDevice(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	return links.FindDisk(ctx, w.disks, links.NewWorker(), serial)
}

// newVolumeName returns a name for the volume of a new partition.
func newVolumeName() string { return strings.ToLower(rand.Text()) }

// id returns the ID of the volume of a table.
func (t fakeTable) id() string { return `\\?\Volume{` + t.Volume + `}\` }

// size returns the size of a disk in bytes.
func (k fakeDisk) size() (int64, error) {
	info, err := os.Stat(k.file)
	if err != nil {
		return 0, err
	}
	return info.Size() - k.base, nil
}

// read fills data with the bytes of a disk from an offset on.
func (k fakeDisk) read(data []byte, offset int64) error {
	file, err := os.Open(k.file)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.ReadFull(io.NewSectionReader(file, k.base+offset, int64(len(data))), data)
	return err
}

// write writes texts at offsets of a disk.
func (k fakeDisk) write(texts map[int64]string) error {
	if k.readOnly {
		return fmt.Errorf("%w: %s", mounter.ErrReadOnly, k.file)
	}
	file, err := os.OpenFile(k.file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for at, text := range texts {
		_, writeErr := file.WriteAt([]byte(text), k.base+at)
		err = errors.Join(err, writeErr)
	}
	return errors.Join(err, file.Close())
}

// table returns the partition table of a disk: an empty one if it has none of a fakeDisk.
func (k fakeDisk) table() (t fakeTable, err error) {
	data := make([]byte, tableSize)
	if err := k.read(data, tableOffset); err != nil {
		return t, err
	}
	if data = bytes.TrimRight(data, "\x00"); len(data) == 0 {
		return t, nil
	}
	return t, json.Unmarshal(data, &t)
}

// setTable writes a table with a partition in all of the disk, and returns its length in bytes.
func (k fakeDisk) setTable(volume string) (length int64, err error) {
	size, err := k.size()
	if err == nil && size <= 2*fakeStart {
		err = fmt.Errorf("%w: %s has %d bytes, must have more than %d", mounter.ErrDevice, k.file, size, 2*fakeStart)
	}
	if err != nil {
		return 0, err
	}
	t := fakeTable{volume, size - 2*fakeStart}
	data, err := json.Marshal(t)
	if err != nil {
		return 0, err
	}
	return t.Length, k.write(map[int64]string{510: "\x55\xaa", 512: "EFI PART", size - 512: "EFI PART",
		tableOffset: string(data) + strings.Repeat("\x00", tableSize-len(data))})
}

// ntfsName is the name in the boot sector of an NTFS; noName is as long.
const ntfsName, noName = "NTFS    ", "\x00\x00\x00\x00\x00\x00\x00\x00"

// setFilesystem writes a text at the places where an NTFS has its name.
func (k fakeDisk) setFilesystem(t fakeTable, text string) error {
	return k.write(map[int64]string{fakeStart + 3: text, fakeStart + t.Length - 512 + 3: text})
}

func (k fakeDisk) filesystem() (string, error) {
	name := make([]byte, len(ntfsName))
	if err := k.read(name, fakeStart+3); err != nil || string(name) != ntfsName {
		return "", err
	}
	return options.NTFS, nil
}

// grow makes the partition and the filesystem as large as the disk allows.
func (k fakeDisk) grow(t fakeTable) (int64, error) {
	if err := k.setFilesystem(t, noName); err != nil {
		return 0, err
	}
	length, err := k.setTable(t.Volume)
	if err != nil {
		return 0, err
	}
	return length, k.setFilesystem(fakeTable{t.Volume, length}, ntfsName)
}
