package mounter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// A disk of a storage system is used by its serial number: its disk number changes. Only a disk
// that is blank by examine, the guard of Linux, gets a partition and a filesystem. A record is
// written before, and removed after: with it, a disk whose format was interrupted is formatted
// again, if nothing on it shows that it was used since.

// diskFormat is the record of a format that began.
type diskFormat struct {
	Serial string `json:"serial"`
	Size   int64  `json:"size"` // of the disk, in bytes
	// Writing: the partition was blank, and the format may have written to it.
	Writing bool `json:"writing,omitempty"`
}

// formatOf returns the record of a disk, or nil.
func (d *linkDisks) formatOf(serial string) (*diskFormat, error) {
	files, err := d.formats.read()
	if err != nil {
		return nil, err
	}
	data, ok := files[recordName(serial)]
	if !ok {
		return nil, nil
	}
	var f diskFormat
	err = json.Unmarshal(data, &f)
	if err == nil && f.Serial != serial {
		err = errors.New("it is of another disk")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the record of its format: %w", ErrDevice, err)
	}
	return &f, nil
}

func (d *linkDisks) forgetFormat(serial string) error {
	if err := d.formats.remove(recordName(serial)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a format: %w", err)
	}
	return nil
}

// findDisk returns the only disk with a serial number. Errors: fs.ErrNotExist; ErrDevice if there
// are two.
func (d *linkDisks) findDisk(serial string) (diskInfo, error) {
	all, err := d.disks()
	if err != nil {
		return diskInfo{}, err
	}
	var found []diskInfo
	for _, disk := range all {
		if strings.TrimSpace(disk.serial) == serial || strings.TrimSpace(disk.page83) == serial {
			found = append(found, disk)
		}
	}
	switch len(found) {
	case 0:
		return diskInfo{}, fmt.Errorf("a disk with the serial number %q: %w", serial, fs.ErrNotExist)
	case 1:
		return found[0], nil
	}
	return diskInfo{}, fmt.Errorf("%w: the disks %d and %d have the same serial number %q", ErrDevice, found[0].number,
		found[1].number, serial)
}

// device is FindDevice.
func (d *linkDisks) device(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	var disk diskInfo
	err = d.flow(ctx, "", func(context.Context) (err error) {
		if err := d.rescan(); err != nil {
			return err
		}
		disk, err = d.findDisk(serial)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrDevice, err)
	}
	if err != nil { // disk may still change: the flow runs on
		return "", 0, err
	}
	return fmt.Sprintf(`\\.\PhysicalDrive%d`, disk.number), 0, err
}

// awaitDisk is findDisk for a disk that may appear late. Errors: ErrDevice.
func (d *linkDisks) awaitDisk(ctx context.Context, serial string) (disk diskInfo, err error) {
	err = d.rescan()
	if err == nil {
		err = d.poll(ctx, fmt.Sprintf("disk with the serial number %q", serial), func() (bool, error) {
			disk, err = d.findDisk(serial)
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil
			}
			return err == nil, err
		})
	}
	if errors.Is(err, ErrNoAnswer) {
		err = fmt.Errorf("%w: the system shows no disk with the serial number %q", ErrDevice, serial)
	}
	return disk, err
}

// attachDisk brings the disk of m online, and makes its filesystem if the disk is blank.
func (d *linkDisks) attachDisk(ctx context.Context, m Mount, mark marking) (volume string, number uint32, err error) {
	disk, err := d.awaitDisk(ctx, m.Serial)
	switch {
	case err != nil:
		return "", 0, err
	case disk.size < m.Size:
		return "", 0, TooSmall(m, disk.size)
	case m.ReadOnly && !disk.readOnly: // NTFS writes to a disk when it is mounted
		return "", 0, fmt.Errorf("%w: disk %d must be attached read-only for this volume, as other nodes may have it: "+
			"attach it so, or run Set-Disk -Number %d -IsReadOnly $true", ErrReadOnly, disk.number, disk.number)
	case disk.readOnly && !m.ReadOnly:
		return "", 0, fmt.Errorf("%w: disk %d must be writable for this volume: attach it for writing, and run "+
			"Set-Disk -Number %d -IsReadOnly $false", ErrReadOnly, disk.number, disk.number)
	}
	found, err := signature.Examine(diskReader{d, disk}, disk.size)
	if err != nil {
		return "", 0, fmt.Errorf("%w: disk %d: %w", ErrDevice, disk.number, err)
	}
	record, err := d.formatOf(m.Serial)
	if err != nil {
		return "", 0, err
	}
	switch {
	case found.Blank && m.ReadOnly:
		return "", 0, fmt.Errorf("%w: disk %d has no filesystem yet: it must be mounted for writing first", ErrDevice,
			disk.number)
	case found.Blank:
		volume, err = d.formatBlank(ctx, m, disk, mark)
	case strings.Contains(found.Name, "partition table"):
		volume, err = d.useOrFormatAgain(ctx, m, disk, record, mark)
	default:
		err = fmt.Errorf("%w: disk %d has %s%s, not a partition with %s: it is not formatted, as the data may be "+
			"needed. If they are not, wipe the disk: Clear-Disk -Number %d -RemoveData", ErrDevice, disk.number,
			found.Name, found.DescribeCopies(), options.NTFS, disk.number)
	}
	return volume, disk.number, err
}

// formatBlank makes a partition and a filesystem on a blank disk.
func (d *linkDisks) formatBlank(ctx context.Context, m Mount, disk diskInfo, mark marking) (string, error) {
	record := diskFormat{Serial: m.Serial, Size: disk.size}
	if err := d.recordFormat(record); err != nil {
		return "", err
	}
	return d.finishFormat(ctx, m, disk, record, mark)
}

func (d *linkDisks) recordFormat(f diskFormat) error {
	data, err := json.Marshal(f)
	if err == nil {
		err = d.formats.write(recordName(f.Serial), data)
	}
	if err != nil {
		return fmt.Errorf("record that the disk with the serial number %q is being formatted: %w", f.Serial, err)
	}
	return nil
}

// finishFormat makes a partition, if there is none, and a filesystem, on a disk with a record.
func (d *linkDisks) finishFormat(ctx context.Context, m Mount, disk diskInfo, record diskFormat,
	mark marking) (string, error) {
	if err := mark(); err != nil {
		return "", err
	}
	if err := d.setOnline(disk.number, true); err != nil {
		return "", err
	}
	if now, err := d.findDisk(m.Serial); err != nil || now.number != disk.number || now.size != disk.size {
		return "", errors.Join(err, fmt.Errorf("%w: the disk with the serial number %q was disk %d with %d bytes, "+
			"is %d with %d bytes", ErrDevice, m.Serial, disk.number, disk.size, now.number, now.size))
	}
	if err := d.partition(disk.number); err != nil {
		return "", err
	}
	volume, err := d.online(ctx, disk.number, mark)
	if err != nil {
		return "", err
	}
	if err := d.neverUsed(disk, record.Writing); err != nil {
		return "", err
	}
	record.Writing = true
	if err := d.recordFormat(record); err != nil {
		return "", err
	}
	if err := d.makeFilesystem(volume, disk.number); err != nil {
		return "", err
	}
	return volume, d.forgetFormat(m.Serial)
}

// useOrFormatAgain returns the volume of a disk with a partition table, which has an NTFS, or whose
// format was interrupted.
func (d *linkDisks) useOrFormatAgain(ctx context.Context, m Mount, disk diskInfo, record *diskFormat,
	mark marking) (string, error) {
	if record != nil && (record.Size > disk.size || m.ReadOnly) {
		record = nil
	}
	all, err := d.partitions(disk.number)
	if err != nil {
		return "", err
	}
	if len(all) == 0 && record != nil {
		return d.finishFormat(ctx, m, disk, *record, mark)
	}
	if len(all) != 1 {
		return "", fmt.Errorf("%w: disk %d has a partition table with %d partitions for data, must have 1: it is not "+
			"formatted", ErrDevice, disk.number, len(all))
	}
	volume, err := d.online(ctx, disk.number, mark)
	if err == nil {
		volume, err = d.useVolume(ctx, m, disk, volume, record, mark)
	}
	if errors.Is(err, ErrFormat) {
		err = fmt.Errorf("%w: disk %d: %w", ErrDevice, disk.number, err)
	}
	return volume, err
}

// useVolume returns the only volume of a disk.
func (d *linkDisks) useVolume(ctx context.Context, m Mount, disk diskInfo, volume string, record *diskFormat,
	mark marking) (string, error) {
	switch found, err := d.filesystem(volume); {
	case err != nil:
		return "", err
	case found == options.NTFS && record != nil && record.Writing: // the driver died after the format
		if err := d.finishFilesystem(volume); err != nil {
			return "", err
		}
		return volume, d.forgetFormat(m.Serial)
	case found == options.NTFS:
		return volume, d.forgetFormat(m.Serial) // the volume was formatted elsewhere
	case found == "" && record != nil:
		return d.finishFormat(ctx, m, disk, *record, mark)
	default:
		return "", fmt.Errorf("%w: the volume of disk %d has the filesystem %q, must have %s: it is not formatted, "+
			"as the data may be needed", ErrDevice, disk.number, found, options.NTFS)
	}
}

// neverUsed returns ErrDevice unless the only partition of a disk is blank, or, if a format was
// interrupted, has no trace of a filesystem: a damaged or locked volume looks unformatted to the
// system.
func (d *linkDisks) neverUsed(disk diskInfo, interrupted bool) error {
	all, err := d.partitions(disk.number)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("it has %d partitions for data, must have 1", len(all))
	}
	if err != nil {
		return fmt.Errorf("%w: disk %d: %w", ErrDevice, disk.number, err)
	}
	part := io.NewSectionReader(diskReader{d, disk}, all[0].Offset, all[0].Length)
	found, err := signature.Examine(part, all[0].Length)
	if err == nil && !found.Blank {
		for _, s := range volumeTraces {
			var is bool
			if is, err = s.On(part, all[0].Length); err != nil || is {
				found.Name = s.Name
				break
			}
		}
	}
	if err == nil && !found.Blank && (!interrupted || found.Name != signature.Unknown || len(found.Copies) > 0) {
		err = fmt.Errorf("its partition has %s%s: it is not formatted, as the data may be needed", found.Name,
			found.DescribeCopies())
	}
	if err != nil {
		return fmt.Errorf("%w: disk %d: %w", ErrDevice, disk.number, err)
	}
	return nil
}

// volumeTraces are signatures of volumes of Windows beside signatures: the copy of the boot sector
// of an NTFS, volumes of BitLocker, and ReFS.
var volumeTraces = []signature.Signature{
	{Name: "a copy of the boot sector of an ntfs", Offset: -512 + 3, Magic: "NTFS    "},
	{Name: "a copy of the boot sector of an ntfs", Offset: -4096 + 3, Magic: "NTFS    "},
	{Name: "a volume of BitLocker", Offset: 3, Magic: "-FVE-FS-"},
	{Name: "a copy of the boot sector of BitLocker", Offset: -512 + 3, Magic: "-FVE-FS-"},
	{Name: "ReFS", Offset: 3, Magic: "ReFS"},
}

// diskReader reads a disk. A read need not be aligned.
type diskReader struct {
	disks *linkDisks
	disk  diskInfo
}

// readUnit divides offset and length of a read of a disk, in bytes: it is the largest sector.
const readUnit = 4096

func (r diskReader) ReadAt(data []byte, offset int64) (int, error) {
	if offset < 0 || offset >= r.disk.size {
		return 0, io.EOF
	}
	end := min(offset+int64(len(data)), r.disk.size)
	from, to := offset/readUnit*readUnit, min((end+readUnit-1)/readUnit*readUnit, r.disk.size)
	buffer := make([]byte, to-from)
	if err := r.disks.readDisk(r.disk.number, buffer, from); err != nil {
		return 0, err
	}
	n := copy(data, buffer[offset-from:end-from])
	if n < len(data) {
		return n, io.EOF
	}
	return n, nil
}
