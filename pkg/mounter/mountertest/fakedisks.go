//go:build !windows

package mountertest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// fakeDisks are disks on this machine, as a DiskHost for tests. Links of tests lead through a
// folder to the directory with the files of a volume.
type fakeDisks struct {
	symlinks
	folders string // the directory with the folders of volumes, as a path of this machine
	data    string // the directory with the files of the volumes of virtual disks

	mu       sync.Mutex
	last     uint32 // number of a disk
	attached map[uint32]fakeDisk
	online   map[uint32]bool
}

// vhdxMark is at the start of the file of a virtual disk. The disk begins at vhdxHeader, in bytes.
const (
	vhdxMark   = "a virtual disk of tests"
	vhdxHeader = 4096
)

// virtual returns the virtual disk in a file. Errors: ErrFormat for another file.
func (d *fakeDisks) virtual(path string) (fakeDisk, error) {
	disk := fakeDisk{file: d.local(path), base: vhdxHeader}
	file, err := os.Open(disk.file)
	if err != nil {
		return disk, err
	}
	defer file.Close()
	mark := make([]byte, len(vhdxMark))
	if _, err := io.ReadFull(file, mark); err != nil || string(mark) != vhdxMark {
		return disk, fmt.Errorf("%w: %s: %w", mounter.ErrFormat, path, err)
	}
	return disk, nil
}

func (d *fakeDisks) CreateVHDX(path string, size int64) error {
	file, err := os.OpenFile(d.local(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(vhdxMark)
	return errors.Join(err, file.Truncate(vhdxHeader+size), file.Close())
}

func (d *fakeDisks) ResizeVHDX(path string, size int64) error {
	return os.Truncate(d.local(path), vhdxHeader+size)
}

func (d *fakeDisks) VHDX(path string) (info links.VHDXInfo, err error) {
	disk, err := d.virtual(path)
	if err != nil {
		return info, err
	}
	if info.Size, err = disk.size(); err != nil {
		return info, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	info.Number, info.Attached = d.numberOf(disk)
	info.HasNumber = info.Attached
	return info, nil
}

// numberOf returns the number of a disk that is attached. The caller holds mu.
func (d *fakeDisks) numberOf(disk fakeDisk) (number uint32, ok bool) {
	for number, at := range d.attached {
		if at == disk {
			return number, true
		}
	}
	return 0, false
}

func (d *fakeDisks) AttachVHDX(path string) error {
	disk, err := d.virtual(path)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.numberOf(disk); ok {
		return fmt.Errorf("%w: %s is attached", mounter.ErrBusy, path)
	}
	d.last++
	d.attached[d.last] = disk
	return nil
}

func (d *fakeDisks) DetachVHDX(path string) error {
	disk, err := d.virtual(path)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	number, ok := d.numberOf(disk)
	if !ok {
		return fmt.Errorf("%s is not attached", path)
	}
	delete(d.online, number)
	delete(d.attached, number)
	return nil
}

func (d *fakeDisks) RemoveVHDX(path string) error { return os.Remove(d.local(path)) }

func (d *fakeDisks) Rescan() error { return nil }

// disk returns the disk with a number.
func (d *fakeDisks) disk(number uint32) (disk fakeDisk, online bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	disk, ok := d.attached[number]
	if !ok {
		return disk, false, fmt.Errorf("%w: no disk %d", mounter.ErrDevice, number)
	}
	return disk, d.online[number], nil
}

func (d *fakeDisks) Disks() (all []links.DiskInfo, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for number, disk := range d.attached {
		size, err := disk.size()
		if err != nil {
			return nil, err
		}
		all = append(all, links.DiskInfo{Number: number, Serial: disk.serial, Size: size, ReadOnly: disk.readOnly})
	}
	return all, nil
}

func (d *fakeDisks) IsOnline(number uint32) (bool, error) {
	_, online, err := d.disk(number)
	return online, err
}

func (d *fakeDisks) SetOnline(number uint32, online bool) error {
	if _, _, err := d.disk(number); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.online[number] = online
	return nil
}

func (d *fakeDisks) Partition(number uint32) error {
	disk, online, err := d.disk(number)
	if err == nil && !online {
		err = fmt.Errorf("disk %d is offline", number)
	}
	if err != nil {
		return err
	}
	if t, err := disk.table(); err != nil || t.Volume != "" {
		return err
	}
	_, err = disk.setTable(newVolumeName())
	return err
}

func (d *fakeDisks) Partitions(number uint32) ([]signature.Region, error) {
	disk, _, err := d.disk(number)
	if err != nil {
		return nil, err
	}
	t, err := disk.table()
	if err != nil || t.Volume == "" {
		return nil, err
	}
	return []signature.Region{{Offset: fakeStart, Length: t.Length}}, nil
}

func (d *fakeDisks) ReadDisk(number uint32, data []byte, offset int64) error {
	disk, _, err := d.disk(number)
	if err != nil {
		return err
	}
	return disk.read(data, offset)
}

func (d *fakeDisks) Volumes(number uint32) ([]string, error) {
	disk, online, err := d.disk(number)
	if err != nil || !online {
		return nil, err
	}
	t, err := disk.table()
	if err != nil || t.Volume == "" {
		return nil, err
	}
	return []string{t.id()}, nil
}

// fakeVolume is a volume that the system has: its disk is online.
type fakeVolume struct {
	fakeDisk
	fakeTable
	number uint32
}

// find returns the volume with an ID: that of the disk with the least number, if a disk was copied.
func (d *fakeDisks) find(id string) (v fakeVolume, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, number := range slices.Sorted(maps.Keys(d.attached)) {
		disk := d.attached[number]
		if t, err := disk.table(); err == nil && t.Volume != "" && t.id() == id && d.online[number] {
			return fakeVolume{disk, t, number}, nil
		}
	}
	return v, fmt.Errorf("%w: no volume %s", mounter.ErrDevice, id)
}

// files returns the directory with the files of a volume.
func (d *fakeDisks) files(v fakeVolume) string {
	if v.base > 0 {
		return filepath.Join(d.data, v.Volume)
	}
	return v.file + volumeInfix + v.Volume
}

func (d *fakeDisks) DiskOf(volume string) (uint32, error) {
	v, err := d.find(volume)
	return v.number, err
}

func (d *fakeDisks) Filesystem(volume string) (string, error) {
	v, err := d.find(volume)
	if err != nil {
		return "", err
	}
	return v.fakeDisk.filesystem()
}

// Format returns an error if the volume has files.
func (d *fakeDisks) Format(volume string) error {
	v, err := d.find(volume)
	if err != nil {
		return err
	}
	if err := os.Remove(d.files(v)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(d.files(v), 0o700); err != nil {
		return err
	}
	return v.setFilesystem(v.fakeTable, ntfsName)
}

func (d *fakeDisks) Permit(volume string) error {
	_, err := d.find(volume)
	return err
}

func (d *fakeDisks) MountVolume(volume, dir string) error {
	v, err := d.find(volume)
	if err != nil {
		return err
	}
	// A copy of the disk of a storage system has no files yet.
	if err := errors.Join(os.MkdirAll(d.files(v), 0o700), os.Remove(d.local(dir))); err != nil {
		return err
	}
	return os.Symlink(d.files(v), d.local(dir))
}

func (d *fakeDisks) UnmountVolume(dir string) error {
	if err := d.Unlink(dir); err != nil {
		return err
	}
	return os.Mkdir(d.local(dir), 0o700)
}

func (d *fakeDisks) VolumeAt(dir string) (volume string, present bool, err error) {
	info, err := os.Lstat(d.local(dir))
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return "", false, err
	}
	text, err := os.Readlink(d.local(dir))
	if err != nil {
		return "", false, err
	}
	name := filepath.Base(text)
	if i := strings.LastIndex(name, volumeInfix); i >= 0 {
		name = name[i+len(volumeInfix):]
	}
	volume = fakeTable{Volume: name}.id()
	_, err = d.find(volume)
	return volume, err == nil, nil
}

func (d *fakeDisks) Flush(volume string) error {
	_, err := d.find(volume)
	return err
}

func (d *fakeDisks) GrowVolume(volume string) (int64, error) {
	v, err := d.find(volume)
	if err != nil {
		return 0, err
	}
	return v.grow(v.fakeTable)
}

func (d *fakeDisks) VolumeSize(volume string) (int64, error) {
	v, err := d.find(volume)
	return v.Length, err
}

func (d *fakeDisks) Flags(volume string) (dirty, readOnly bool, err error) {
	v, err := d.find(volume)
	return false, v.readOnly, err
}

// Entry shows a folder with a volume as a directory, as Windows does.
func (d *fakeDisks) Entry(path string) (links.LinkEntry, error) {
	e, err := d.symlinks.Entry(path)
	if err == nil && e.Kind == links.DirLink && filepath.Dir(d.local(path)) == d.folders {
		e.Kind = links.PlainDir
	}
	return e, err
}
