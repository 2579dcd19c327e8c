package mounter

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
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
)

// growBlockDevice grows the filesystem on a block device that is mounted at path. The storage has
// made the device larger before.
func (l *linux) growBlockDevice(ctx context.Context, m Mount, path string) error {
	src, release, err := l.lockSource(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	dev, err := openDevice(src.fd, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := l.seeGrowth(ctx, m, src, dev); err != nil || m.IsDevice() {
		return err
	}
	p, err := l.open(path)
	if err != nil {
		return err
	}
	defer p.close()
	fd, err := p.openPath()
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	at, err := statFD(fd)
	if err != nil {
		return err
	}
	if same, err := onDevice(at, src.device); err != nil || !same {
		return errors.Join(fmt.Errorf("%w: %s does not show %s", ErrPath, path, m.Source), err)
	}
	if flags, err := flagsOf(fd); err != nil || flags&unix.ST_RDONLY != 0 {
		return errors.Join(fmt.Errorf("%w: %s", ErrReadOnly, path), err)
	}
	if m.FSType, err = fsTypeOf(fd); err != nil { // the caller may not know it, if a class has another than the default
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := l.resize(ctx, m, disk{file: dev, image: src.deviceKey(), path: m.Source, tenant: m.Tenant},
		dir); err != nil {
		return fmt.Errorf("grow the %s at %s: %w", m.FSType, path, err)
	}
	return nil
}

// seeGrowth asks a SCSI disk to look at its size again, and returns ErrDevice if the device is
// still smaller than m.Size, or is another device than m says.
func (l *linux) seeGrowth(ctx context.Context, m Mount, src source, dev *os.File) error {
	if err := checkSequence(m, dev); err != nil {
		return err
	}
	failed := l.rescan(ctx, "/sys", src.device)
	if err := largeEnough(m, dev); err != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// rescan asks a SCSI disk to look at its size again. A disk that is reached by iSCSI or Fibre
// Channel notices only then that it grew: store_rescan_field in drivers/scsi/scsi_sysfs.c of Linux.
// Other devices have no such file, and notice by themselves. sys is /sys, or that of a test. The
// disk may not answer, so rescan waits for inflight.AnswerTime at most. Errors: ErrNoAnswer.
func (l *linux) rescan(ctx context.Context, sys string, device fileID) error {
	path := filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", device.major, device.minor), "device/rescan")
	a, err := l.rescans.Start(path, func() (struct{}, error) {
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
		err = fmt.Errorf("%w: write to %s: %w", ErrNoAnswer, path, err)
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
		return btrfs, nil
	}
	return "", fmt.Errorf("%w: type %#x of statfs(2)", ErrFormat, st.Type)
}

// resize grows the filesystem that is mounted at dir to the size of its device.
func (l *linux) resize(ctx context.Context, m Mount, d disk, dir *os.File) error {
	leave, err := l.growths.Acquire(ctx, fair.Request{Kind: "grow", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	if m.FSType == "ext4" { // resize2fs takes its time to find out that there is nothing to do
		size, err := sizeOf(d.file)
		if err != nil {
			return err
		}
		if super, err := readExt4(d.file); err != nil || super.full(size) {
			return err
		}
	}
	crashpoint.Reached("device:growing")
	p := &programs{linux: l, ctx: ctx, disk: d, files: []*os.File{dir}, fsType: m.FSType}
	_, err = mount.NewResizeFs(p).Resize(diskPath, filePath)
	switch {
	case p.failed != nil:
		return p.failed
	case err != nil && m.FSType == "ext4" && !hasCapability(unix.CAP_SYS_RESOURCE):
		return fmt.Errorf("%w: without CAP_SYS_RESOURCE it can be grown only when it is staged again: %w", ErrBusy, err)
	case err != nil:
		return err
	}
	// xfs writes the copies of its superblock last, without a flush. xfs_repair would use the old
	// copies.
	err = d.file.Sync()
	crashpoint.Reached("device:grown")
	return err
}
