package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Grow grows the filesystem on a block device that is mounted at path. The storage has
// made the device larger before.
func (ds *Disks) Grow(ctx context.Context, m mounter.Mount, path string) error {
	src, release, err := ds.locks.LockSource(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	dev, err := tree.OpenDevice(src.FD, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := ds.seeGrowth(ctx, m, src, dev); err != nil || m.IsDevice() {
		return err
	}
	p, err := ds.tree.Open(path)
	if err != nil {
		return err
	}
	defer p.Close()
	fd, err := p.OpenPath()
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	at, err := tree.StatFD(fd)
	if err != nil {
		return err
	}
	if same, err := OnDevice(at, src.Device); err != nil || !same {
		return errors.Join(fmt.Errorf("%w: %s does not show %s", mounter.ErrPath, path, m.Source), err)
	}
	if flags, err := tree.FlagsOf(fd); err != nil || flags&unix.ST_RDONLY != 0 {
		return errors.Join(fmt.Errorf("%w: %s", mounter.ErrReadOnly, path), err)
	}
	if m.FSType, err = fsTypeOf(fd); err != nil { // the caller may not know it, if a class has another than the default
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := ds.resize(ctx, m, tool.Disk{File: dev, Image: src.DeviceKey(), Path: m.Source, Tenant: m.Tenant},
		dir); err != nil {
		return fmt.Errorf("grow the %s at %s: %w", m.FSType, path, err)
	}
	return nil
}

// seeGrowth asks a SCSI disk to look at its size again, and returns ErrDevice if the device is
// still smaller than m.Size, or is another device than m says.
func (ds *Disks) seeGrowth(ctx context.Context, m mounter.Mount, src tree.Source, dev *os.File) error {
	if err := checkSequence(m, dev); err != nil {
		return err
	}
	failed := ds.rescan(ctx, "/sys", src.Device)
	if err := largeEnough(m, dev); err != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// rescan asks a SCSI disk to look at its size again. A disk that is reached by iSCSI or Fibre
// Channel notices only then that it grew: store_rescan_field in drivers/scsi/scsi_sysfs.c of Linux.
// Other devices have no such file, and notice by themselves. sys is /sys, or that of a test. The
// disk may not answer, so rescan waits for inflight.AnswerTime at most. Errors: ErrNoAnswer.
func (ds *Disks) rescan(ctx context.Context, sys string, device tree.FileID) error {
	path := filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", device.Major, device.Minor), "device/rescan")
	a, err := ds.rescans.Start(path, func() (struct{}, error) {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return struct{}{}, nil
		}
		if err != nil {
			return struct{}{}, err
		}
		_, err = file.WriteString("1")
		return struct{}{}, errors.Join(err, file.Close())
	})
	if err == nil {
		_, err = waitFor(ctx, a, inflight.AnswerTime)
	}
	if errors.Is(err, inflight.ErrNoAnswer) {
		err = fmt.Errorf("%w: write to %s: %w", mounter.ErrNoAnswer, path, err)
	}
	return err
}

// fsTypeOf returns the type of the filesystem at fd, one of FSTypes: statfs(2).
func fsTypeOf(fd int) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", err
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return tree.Btrfs, nil
	}
	return "", fmt.Errorf("%w: type %#x of statfs(2)", mounter.ErrFormat, st.Type)
}

// resize grows the filesystem that is mounted at dir to the size of its device.
func (ds *Disks) resize(ctx context.Context, m mounter.Mount, d tool.Disk, dir *os.File) error {
	leave, err := ds.filesystems.GrowthSlots.Acquire(ctx,
		fair.Request{Kind: "grow", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	if m.FSType == "ext4" { // resize2fs takes its time to find out that there is nothing to do
		size, err := tree.SizeOf(d.File)
		if err != nil {
			return err
		}
		if super, err := filesystem.ReadExt4(d.File); err != nil || super.Full(size) {
			return err
		}
	}
	crashpoint.Reached("device:growing")
	p := &programs{Disks: ds, ctx: ctx, disk: d, files: []*os.File{dir}, fsType: m.FSType}
	_, err = mount.NewResizeFs(p).Resize(tool.DiskPath, tool.FilePath)
	switch {
	case p.failed != nil:
		return p.failed
	case err != nil && m.FSType == "ext4" && !tool.HasCapability(unix.CAP_SYS_RESOURCE):
		return fmt.Errorf("%w: without CAP_SYS_RESOURCE it can be grown only when it is staged again: %w",
			mounter.ErrBusy, err)
	case err != nil:
		return err
	}
	// xfs writes the copies of its superblock last, without a flush. xfs_repair would use the old
	// copies.
	err = d.File.Sync()
	crashpoint.Reached("device:grown")
	return err
}
