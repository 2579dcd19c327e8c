package mounter

import (
	"fmt"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// diskHost has the system calls for virtual disks, disks and volumes. The files for Windows pass
// them to the system, and decide nothing. The tests have a model. All calls may hang, and may
// panic: see diskCalls. A volume is named by its ID, \\?\Volume{GUID}\.
type diskHost interface {
	// createVHDX makes a virtual disk of a fixed size in bytes, with all of its space reserved.
	// Errors: fs.ErrExist.
	createVHDX(path string, size int64) error
	// resizeVHDX makes a virtual disk larger.
	resizeVHDX(path string, size int64) error
	// vhdx describes a virtual disk. Errors: fs.ErrNotExist; ErrFormat for another file.
	vhdx(path string) (vhdxInfo, error)
	// attachVHDX attaches a virtual disk without a drive letter, until detachVHDX or a reboot. The
	// disk may appear later.
	attachVHDX(path string) error
	detachVHDX(path string) error
	// removeVHDX removes the file of a virtual disk. Errors: fs.ErrNotExist.
	removeVHDX(path string) error

	// rescan makes the system look for disks, partitions, volumes, and their sizes.
	rescan() error
	disks() ([]diskInfo, error)
	// isOnline may return true with an error.
	isOnline(disk uint32) (bool, error)
	setOnline(disk uint32, online bool) error
	// partition makes a partition table (GPT) if the disk has none, and a partition in all of the
	// disk if it has none.
	partition(disk uint32) error
	// partitions returns the partitions for data of a disk.
	partitions(disk uint32) ([]signature.Region, error)
	// volumes returns the volumes on a disk that is online. None is no error: volumes appear late.
	volumes(disk uint32) ([]string, error)
	// readDisk fills data with the bytes of a disk from offset on, also of a disk that is offline.
	// Both are multiples of 4096, but at the end of the disk.
	readDisk(disk uint32, data []byte, offset int64) error

	// diskOf returns the number of the disk with a volume.
	diskOf(volume string) (uint32, error)
	// filesystem returns the type of a volume's filesystem, in lower case. "" is no proof of a
	// volume without one: the filesystem may be damaged, locked or unknown.
	filesystem(volume string) (string, error)
	// format makes an NTFS on a volume, and destroys its content.
	format(volume string) error
	// permit lets the users of the system change the root directory of a volume, which administrators
	// own.
	permit(volume string) error
	// mountVolume makes an empty directory show a volume. An error is no proof that it does not.
	mountVolume(volume, dir string) error
	// unmountVolume removes the mount point at dir, also of a volume that is gone.
	unmountVolume(dir string) error
	// volumeAt returns the volume of the mount point at dir, and whether the system has the volume
	// now; "" without a mount point. Errors: fs.ErrNotExist for a missing dir.
	volumeAt(dir string) (volume string, present bool, err error)
	flush(volume string) error
	// growVolume makes the partition and filesystem of a volume as large as the disk allows, and
	// returns the size of the partition in bytes.
	growVolume(volume string) (int64, error)
	// volumeSize returns the size of the filesystem of a volume in bytes.
	volumeSize(volume string) (int64, error)
	// flags returns the dirty bit and the read-only flag of the filesystem of a volume.
	flags(volume string) (dirty, readOnly bool, err error)
}

// vhdxInfo describes a virtual disk.
type vhdxInfo struct {
	size     int64 // of the disk, in bytes
	attached bool
	// number is that of its disk, from its physical path. It is valid if hasNumber: shortly after
	// attachVHDX the disk may be missing.
	number    uint32
	hasNumber bool
}

// diskInfo describes a disk.
type diskInfo struct {
	number         uint32 // until the next reboot, or until the disk is detached
	serial, page83 string
	size           int64 // in bytes
	readOnly       bool
}

// diskCalls are the calls of a diskHost. Those of the library go through run, which makes one call at
// a time, and returns a *guard.Panic for a panic: see worker. The others are system calls for a file,
// a disk or a mount point, and wait for no other call: to make a large virtual disk takes minutes.
type diskCalls struct {
	host diskHost
	run  func(name string, call func() error) error
}

// asked makes a call with a result.
func asked[T any](c diskCalls, name string, call func() (T, error)) (T, error) {
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
	_, err := asked(c, name, func() (struct{}, error) { return struct{}{}, call() })
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
	return direct("create "+path, func() error { return c.host.createVHDX(path, size) })
}

func (c diskCalls) resizeVHDX(path string, size int64) error {
	return direct("resize "+path, func() error { return c.host.resizeVHDX(path, size) })
}

func (c diskCalls) vhdx(path string) (vhdxInfo, error) {
	return directly("open "+path, func() (vhdxInfo, error) { return c.host.vhdx(path) })
}

func (c diskCalls) attachVHDX(path string) error {
	return direct("attach "+path, func() error { return c.host.attachVHDX(path) })
}

func (c diskCalls) detachVHDX(path string) error {
	return direct("detach "+path, func() error { return c.host.detachVHDX(path) })
}

func (c diskCalls) removeVHDX(path string) error {
	return direct("remove "+path, func() error { return c.host.removeVHDX(path) })
}

func (c diskCalls) rescan() error { return c.done("rescan disks", c.host.rescan) }

func (c diskCalls) disks() ([]diskInfo, error) { return asked(c, "list disks", c.host.disks) }

func (c diskCalls) isOnline(disk uint32) (bool, error) {
	return asked(c, "state of a disk", func() (bool, error) { return c.host.isOnline(disk) })
}

func (c diskCalls) setOnline(disk uint32, online bool) error {
	return c.done(fmt.Sprintf("set disk %d online: %t", disk, online),
		func() error { return c.host.setOnline(disk, online) })
}

func (c diskCalls) partition(disk uint32) error {
	return c.done(fmt.Sprintf("partition disk %d", disk), func() error { return c.host.partition(disk) })
}

func (c diskCalls) partitions(disk uint32) ([]signature.Region, error) {
	return asked(c, "list partitions", func() ([]signature.Region, error) { return c.host.partitions(disk) })
}

func (c diskCalls) volumes(disk uint32) ([]string, error) {
	return asked(c, "list volumes", func() ([]string, error) { return c.host.volumes(disk) })
}

func (c diskCalls) readDisk(disk uint32, data []byte, offset int64) error {
	return direct(fmt.Sprintf("read disk %d", disk), func() error { return c.host.readDisk(disk, data, offset) })
}

func (c diskCalls) diskOf(volume string) (uint32, error) {
	return asked(c, "disk of "+volume, func() (uint32, error) { return c.host.diskOf(volume) })
}

func (c diskCalls) filesystem(volume string) (string, error) {
	return asked(c, "filesystem of "+volume, func() (string, error) { return c.host.filesystem(volume) })
}

func (c diskCalls) format(volume string) error {
	return c.done("format "+volume, func() error { return c.host.format(volume) })
}

func (c diskCalls) permit(volume string) error {
	return direct("permit users to change "+volume, func() error { return c.host.permit(volume) })
}

func (c diskCalls) mountVolume(volume, dir string) error {
	return direct("mount "+volume, func() error { return c.host.mountVolume(volume, dir) })
}

func (c diskCalls) unmountVolume(dir string) error {
	return direct("remove the mount point "+dir, func() error { return c.host.unmountVolume(dir) })
}

func (c diskCalls) volumeAt(dir string) (volume string, present bool, err error) {
	err = guard.Do(func() (err error) {
		volume, present, err = c.host.volumeAt(dir)
		return err
	})
	return volume, present, err
}

func (c diskCalls) flush(volume string) error {
	return c.done("flush "+volume, func() error { return c.host.flush(volume) })
}

func (c diskCalls) growVolume(volume string) (int64, error) {
	return asked(c, "grow "+volume, func() (int64, error) { return c.host.growVolume(volume) })
}

func (c diskCalls) volumeSize(volume string) (int64, error) {
	return asked(c, "size of "+volume, func() (int64, error) { return c.host.volumeSize(volume) })
}

// failure returns the failure that the flags of a volume show, or nil.
func (c diskCalls) failure(volume string) (*Failure, error) {
	var dirty, readOnly bool
	err := guard.Do(func() (err error) {
		dirty, readOnly, err = c.host.flags(volume)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case readOnly:
		return &Failure{TurnedReadOnly, "the volume is read-only: see the event log of the node"}, nil
	case dirty:
		return &Failure{Erroneous, "the volume is marked as damaged (dirty bit): stop its pods, and run chkdsk"}, nil
	}
	return nil, nil
}
