package links

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter"
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
		return nil, fmt.Errorf("%w: the record of its format: %w", mounter.ErrDevice, err)
	}
	return &f, nil
}

func (d *linkDisks) forgetFormat(serial string) error {
	if err := d.formats.remove(recordName(serial)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a format: %w", err)
	}
	return nil
}

// FindDisk returns the only disk with a serial number. Errors: fs.ErrNotExist; ErrDevice if there
// are two.
func (d *linkDisks) findDisk(serial string) (DiskInfo, error) {
	all, err := d.disks()
	if err != nil {
		return DiskInfo{}, err
	}
	var found []DiskInfo
	for _, disk := range all {
		if strings.TrimSpace(disk.Serial) == serial || strings.TrimSpace(disk.Page83) == serial {
			found = append(found, disk)
		}
	}
	switch len(found) {
	case 0:
		return DiskInfo{}, fmt.Errorf("a disk with the serial number %q: %w", serial, fs.ErrNotExist)
	case 1:
		return found[0], nil
	}
	return DiskInfo{}, fmt.Errorf("%w: the disks %d and %d have the same serial number %q", mounter.ErrDevice,
		found[0].Number,
		found[1].Number, serial)
}

// Device is FindDevice.
func (d *linkDisks) device(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	var disk DiskInfo
	err = d.flow(ctx, "", func(context.Context) (err error) {
		if err := d.rescan(); err != nil {
			return err
		}
		disk, err = d.findDisk(serial)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", mounter.ErrDevice, err)
	}
	if err != nil { // disk may still change: the flow runs on
		return "", 0, err
	}
	return fmt.Sprintf(`\\.\PhysicalDrive%d`, disk.Number), 0, err
}

// awaitDisk is FindDisk for a disk that may appear late. Errors: ErrDevice.
func (d *linkDisks) awaitDisk(ctx context.Context, serial string) (disk DiskInfo, err error) {
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
	if errors.Is(err, mounter.ErrNoAnswer) {
		err = fmt.Errorf("%w: the system shows no disk with the serial number %q", mounter.ErrDevice, serial)
	}
	return disk, err
}

// attachDisk brings the disk of m online, and makes its filesystem if the disk is blank.
func (d *linkDisks) attachDisk(ctx context.Context, m mounter.Mount, mark marking) (volume string, number uint32,
	err error) {
	disk, err := d.awaitDisk(ctx, m.Serial)
	switch {
	case err != nil:
		return "", 0, err
	case disk.Size < m.Size:
		return "", 0, mounter.TooSmall(m, disk.Size)
	case m.ReadOnly && !disk.ReadOnly: // NTFS writes to a disk when it is mounted
		return "", 0, fmt.Errorf("%w: disk %d must be attached read-only for this volume, as other nodes may have it: "+
			"attach it so, or run Set-Disk -Number %d -IsReadOnly $true", mounter.ErrReadOnly, disk.Number, disk.Number)
	case disk.ReadOnly && !m.ReadOnly:
		return "", 0, fmt.Errorf("%w: disk %d must be writable for this volume: attach it for writing, and run "+
			"Set-Disk -Number %d -IsReadOnly $false", mounter.ErrReadOnly, disk.Number, disk.Number)
	}
	found, err := signature.Examine(diskReader{d, disk}, disk.Size)
	if err != nil {
		return "", 0, fmt.Errorf("%w: disk %d: %w", mounter.ErrDevice, disk.Number, err)
	}
	record, err := d.formatOf(m.Serial)
	if err != nil {
		return "", 0, err
	}
	switch {
	case found.Blank && m.ReadOnly:
		return "", 0, fmt.Errorf("%w: disk %d has no filesystem yet: it must be mounted for writing first", mounter.ErrDevice,
			disk.Number)
	case found.Blank:
		volume, err = d.formatBlank(ctx, m, disk, mark)
	case strings.Contains(found.Name, "partition table"):
		volume, err = d.useOrFormatAgain(ctx, m, disk, record, mark)
	default:
		err = fmt.Errorf("%w: disk %d has %s%s, not a partition with %s: it is not formatted, as the data may be "+
			"needed. If they are not, wipe the disk: Clear-Disk -Number %d -RemoveData", mounter.ErrDevice, disk.Number,
			found.Name, found.DescribeCopies(), options.NTFS, disk.Number)
	}
	return volume, disk.Number, err
}

// formatBlank makes a partition and a filesystem on a blank disk.
func (d *linkDisks) formatBlank(ctx context.Context, m mounter.Mount, disk DiskInfo, mark marking) (string, error) {
	record := diskFormat{Serial: m.Serial, Size: disk.Size}
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
func (d *linkDisks) finishFormat(ctx context.Context, m mounter.Mount, disk DiskInfo, record diskFormat,
	mark marking) (string, error) {
	if err := mark(); err != nil {
		return "", err
	}
	if err := d.setOnline(disk.Number, true); err != nil {
		return "", err
	}
	if now, err := d.findDisk(m.Serial); err != nil || now.Number != disk.Number || now.Size != disk.Size {
		return "", errors.Join(err, fmt.Errorf("%w: the disk with the serial number %q was disk %d with %d bytes, "+
			"is %d with %d bytes", mounter.ErrDevice, m.Serial, disk.Number, disk.Size, now.Number, now.Size))
	}
	if err := d.partition(disk.Number); err != nil {
		return "", err
	}
	volume, err := d.online(ctx, disk.Number, mark)
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
	if err := d.makeFilesystem(volume, disk.Number); err != nil {
		return "", err
	}
	return volume, d.forgetFormat(m.Serial)
}

// useOrFormatAgain returns the volume of a disk with a partition table, which has an NTFS, or whose
// format was interrupted.
func (d *linkDisks) useOrFormatAgain(ctx context.Context, m mounter.Mount, disk DiskInfo, record *diskFormat,
	mark marking) (string, error) {
	if record != nil && (record.Size > disk.Size || m.ReadOnly) {
		record = nil
	}
	all, err := d.partitions(disk.Number)
	if err != nil {
		return "", err
	}
	if len(all) == 0 && record != nil {
		return d.finishFormat(ctx, m, disk, *record, mark)
	}
	if len(all) != 1 {
		return "", fmt.Errorf("%w: disk %d has a partition table with %d partitions for data, must have 1: it is not "+
			"formatted", mounter.ErrDevice, disk.Number, len(all))
	}
	volume, err := d.online(ctx, disk.Number, mark)
	if err == nil {
		volume, err = d.useVolume(ctx, m, disk, volume, record, mark)
	}
	if errors.Is(err, mounter.ErrFormat) {
		err = fmt.Errorf("%w: disk %d: %w", mounter.ErrDevice, disk.Number, err)
	}
	return volume, err
}

// useVolume returns the only volume of a disk.
func (d *linkDisks) useVolume(ctx context.Context, m mounter.Mount, disk DiskInfo, volume string, record *diskFormat,
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
			"as the data may be needed", mounter.ErrDevice, disk.Number, found, options.NTFS)
	}
}

// neverUsed returns ErrDevice unless the only partition of a disk is blank, or, if a format was
// interrupted, has no trace of a filesystem: a damaged or locked volume looks unformatted to the
// system.
func (d *linkDisks) neverUsed(disk DiskInfo, interrupted bool) error {
	all, err := d.partitions(disk.Number)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("it has %d partitions for data, must have 1", len(all))
	}
	if err != nil {
		return fmt.Errorf("%w: disk %d: %w", mounter.ErrDevice, disk.Number, err)
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
		return fmt.Errorf("%w: disk %d: %w", mounter.ErrDevice, disk.Number, err)
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
	disk  DiskInfo
}

// ReadUnit divides offset and length of a read of a disk, in bytes: it is the largest sector.
const ReadUnit = 4096

func (r diskReader) ReadAt(data []byte, offset int64) (int, error) {
	if offset < 0 || offset >= r.disk.Size {
		return 0, io.EOF
	}
	end := min(offset+int64(len(data)), r.disk.Size)
	from, to := offset/ReadUnit*ReadUnit, min((end+ReadUnit-1)/ReadUnit*ReadUnit, r.disk.Size)
	buffer := make([]byte, to-from)
	if err := r.disks.readDisk(r.disk.Number, buffer, from); err != nil {
		return 0, err
	}
	n := copy(data, buffer[offset-from:end-from])
	if n < len(data) {
		return n, io.EOF
	}
	return n, nil
}
