package links

import (
	"fmt"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// DiskHost has the system calls for virtual disks, disks and volumes. The files for Windows pass
// them to the system, and decide nothing. The tests have a model. All calls may hang, and may
// panic: see diskCalls. A volume is named by its ID, \\?\Volume{GUID}\.
type DiskHost interface {
	// CreateVHDX makes a virtual disk of a fixed size in bytes, with all of its space reserved.
	// Errors: fs.ErrExist.
	CreateVHDX(path string, size int64) error
	// ResizeVHDX makes a virtual disk larger.
	ResizeVHDX(path string, size int64) error
	// VHDX describes a virtual disk. Errors: fs.ErrNotExist; ErrFormat for another file.
	VHDX(path string) (VHDXInfo, error)
	// AttachVHDX attaches a virtual disk without a drive letter, until DetachVHDX or a reboot. The
	// disk may appear later.
	AttachVHDX(path string) error
	DetachVHDX(path string) error
	// RemoveVHDX removes the file of a virtual disk. Errors: fs.ErrNotExist.
	RemoveVHDX(path string) error

	// Rescan makes the system look for disks, partitions, volumes, and their sizes.
	Rescan() error
	Disks() ([]DiskInfo, error)
	// IsOnline may return true with an error.
	IsOnline(disk uint32) (bool, error)
	SetOnline(disk uint32, online bool) error
	// Partition makes a partition table (GPT) if the disk has none, and a partition in all of the
	// disk if it has none.
	Partition(disk uint32) error
	// Partitions returns the partitions for data of a disk.
	Partitions(disk uint32) ([]signature.Region, error)
	// Volumes returns the volumes on a disk that is online. None is no error: volumes appear late.
	Volumes(disk uint32) ([]string, error)
	// ReadDisk fills data with the bytes of a disk from offset on, also of a disk that is offline.
	// Both are multiples of 4096, but at the end of the disk.
	ReadDisk(disk uint32, data []byte, offset int64) error

	// DiskOf returns the number of the disk with a volume.
	DiskOf(volume string) (uint32, error)
	// Filesystem returns the type of a volume's filesystem, in lower case. "" is no proof of a
	// volume without one: the filesystem may be damaged, locked or unknown.
	Filesystem(volume string) (string, error)
	// Format makes an NTFS on a volume, and destroys its content.
	Format(volume string) error
	// Permit lets the users of the system change the root directory of a volume, which
	// administrators own.
	Permit(volume string) error
	// MountVolume makes an empty directory show a volume. An error is no proof that it does not.
	MountVolume(volume, dir string) error
	// UnmountVolume removes the mount point at dir, also of a volume that is gone.
	UnmountVolume(dir string) error
	// VolumeAt returns the volume of the mount point at dir, and whether the system has the volume
	// now; "" without a mount point. Errors: fs.ErrNotExist for a missing dir.
	VolumeAt(dir string) (volume string, present bool, err error)
	Flush(volume string) error
	// GrowVolume makes the partition and filesystem of a volume as large as the disk allows, and
	// returns the size of the partition in bytes.
	GrowVolume(volume string) (int64, error)
	// VolumeSize returns the size of the filesystem of a volume in bytes.
	VolumeSize(volume string) (int64, error)
	// Flags returns the dirty bit and the read-only flag of the filesystem of a volume.
	Flags(volume string) (dirty, readOnly bool, err error)
}

// VHDXInfo describes a virtual disk.
type VHDXInfo struct {
	Size     int64 // of the disk, in bytes
	Attached bool
	// Number is that of its disk, from its physical path. It is valid if HasNumber: shortly after
	// AttachVHDX the disk may be missing.
	Number    uint32
	HasNumber bool
}

// DiskInfo describes a disk.
type DiskInfo struct {
	Number         uint32 // until the next reboot, or until the disk is detached
	Serial, Page83 string
	Size           int64 // in bytes
	ReadOnly       bool
}

// diskCalls are the calls of a DiskHost. Those of the library go through run, which makes one call
// at a time, and returns a *guard.Panic for a panic: see worker. The others are system calls for a
// file, a disk or a mount point, and wait for no other call: to make a large virtual disk takes
// minutes.
type diskCalls struct {
	host DiskHost
	run  func(name string, call func() error) error
}

// query makes a call with a result.
func query[T any](c diskCalls, name string, call func() (T, error)) (T, error) {
	var result T
	err := c.run(name, func() (err error) {
		result, err = call()
		return err
	})
	if err != nil { // the library returns true with an error
		var none T
		return none, fmt.Errorf("%s: %w", name, err)
	}
	return result, nil
}

// done makes a call without a result.
func (c diskCalls) done(name string, call func() error) error {
	_, err := query(c, name, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// direct makes a call that is not of the library.
func direct(name string, call func() error) error {
	if err := guard.Do(call); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// directly is direct for a call with a result.
func directly[T any](name string, call func() (T, error)) (result T, err error) {
	err = direct(name, func() (err error) {
		result, err = call()
		return err
	})
	return result, err
}

func (c diskCalls) createVHDX(path string, size int64) error {
	return direct("create "+path, func() error { return c.host.CreateVHDX(path, size) })
}

func (c diskCalls) resizeVHDX(path string, size int64) error {
	return direct("resize "+path, func() error { return c.host.ResizeVHDX(path, size) })
}

func (c diskCalls) vhdx(path string) (VHDXInfo, error) {
	return directly("open "+path, func() (VHDXInfo, error) { return c.host.VHDX(path) })
}

func (c diskCalls) attachVHDX(path string) error {
	return direct("attach "+path, func() error { return c.host.AttachVHDX(path) })
}

func (c diskCalls) detachVHDX(path string) error {
	return direct("detach "+path, func() error { return c.host.DetachVHDX(path) })
}

func (c diskCalls) removeVHDX(path string) error {
	return direct("remove "+path, func() error { return c.host.RemoveVHDX(path) })
}

func (c diskCalls) rescan() error { return c.done("rescan disks", c.host.Rescan) }

func (c diskCalls) disks() ([]DiskInfo, error) { return query(c, "list disks", c.host.Disks) }

func (c diskCalls) isOnline(disk uint32) (bool, error) {
	return query(c, "state of a disk", func() (bool, error) { return c.host.IsOnline(disk) })
}

func (c diskCalls) setOnline(disk uint32, online bool) error {
	return c.done(fmt.Sprintf("set disk %d online: %t", disk, online),
		func() error { return c.host.SetOnline(disk, online) })
}

func (c diskCalls) partition(disk uint32) error {
	return c.done(fmt.Sprintf("partition disk %d", disk), func() error { return c.host.Partition(disk) })
}

func (c diskCalls) partitions(disk uint32) ([]signature.Region, error) {
	return query(c, "list partitions", func() ([]signature.Region, error) { return c.host.Partitions(disk) })
}

func (c diskCalls) volumes(disk uint32) ([]string, error) {
	return query(c, "list volumes", func() ([]string, error) { return c.host.Volumes(disk) })
}

func (c diskCalls) readDisk(disk uint32, data []byte, offset int64) error {
	return direct(fmt.Sprintf("read disk %d", disk), func() error { return c.host.ReadDisk(disk, data, offset) })
}

func (c diskCalls) diskOf(volume string) (uint32, error) {
	return query(c, "disk of "+volume, func() (uint32, error) { return c.host.DiskOf(volume) })
}

func (c diskCalls) filesystem(volume string) (string, error) {
	return query(c, "filesystem of "+volume, func() (string, error) { return c.host.Filesystem(volume) })
}

func (c diskCalls) format(volume string) error {
	return c.done("format "+volume, func() error { return c.host.Format(volume) })
}

func (c diskCalls) permit(volume string) error {
	return direct("permit users to change "+volume, func() error { return c.host.Permit(volume) })
}

func (c diskCalls) mountVolume(volume, dir string) error {
	return direct("mount "+volume, func() error { return c.host.MountVolume(volume, dir) })
}

func (c diskCalls) unmountVolume(dir string) error {
	return direct("remove the mount point "+dir, func() error { return c.host.UnmountVolume(dir) })
}

func (c diskCalls) volumeAt(dir string) (volume string, present bool, err error) {
	err = guard.Do(func() (err error) {
		volume, present, err = c.host.VolumeAt(dir)
		return err
	})
	return volume, present, err
}

func (c diskCalls) flush(volume string) error {
	return c.done("flush "+volume, func() error { return c.host.Flush(volume) })
}

func (c diskCalls) growVolume(volume string) (int64, error) {
	return query(c, "grow "+volume, func() (int64, error) { return c.host.GrowVolume(volume) })
}

func (c diskCalls) volumeSize(volume string) (int64, error) {
	return query(c, "size of "+volume, func() (int64, error) { return c.host.VolumeSize(volume) })
}

// failure returns the failure that the flags of a volume show, or nil.
func (c diskCalls) failure(volume string) (*mounter.Failure, error) {
	var dirty, readOnly bool
	err := guard.Do(func() (err error) {
		dirty, readOnly, err = c.host.Flags(volume)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case readOnly:
		return &mounter.Failure{Kind: mounter.TurnedReadOnly,
			Message: "the volume is read-only: see the event log of the node"}, nil
	case dirty:
		return &mounter.Failure{Kind: mounter.Erroneous,
			Message: "the volume is marked as damaged (dirty bit): stop its pods, and run chkdsk"}, nil
	}
	return nil, nil
}
