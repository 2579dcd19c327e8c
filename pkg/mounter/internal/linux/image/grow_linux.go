package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Grow grows the device of an Image or Disk that is mounted at path, and its filesystem.
func (im *Images) Grow(ctx context.Context, m mounter.Mount, path string) error {
	release, err := im.locks.LockAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	p, err := im.tree.Open(path)
	if err != nil {
		return err
	}
	defer p.Close()
	at, err := p.Stat()
	isFilesystem := at.Mounted && at.Mode&unix.S_IFMT == unix.S_IFDIR // and not the kubelet's, with a Disk in it
	if err == nil && !at.Mounted {
		at, err = p.NodeState()
	}
	if err != nil {
		return err
	}
	n, ok := im.loops.NumberOf(at)
	if !ok || !at.Mounted {
		return fmt.Errorf("grow %s: it is not on a loop device", path)
	}
	dev, err := loop.Open(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	if _, err := unix.IoctlRetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY); err != nil {
		return &fs.PathError{Op: "LOOP_SET_CAPACITY", Path: dev.Name(), Err: err}
	}
	if !isFilesystem {
		return nil
	}
	if err := im.growFilesystem(ctx, p, m, n, dev); err != nil {
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("%w: %w", mounter.ErrReadOnly, err)
		}
		return fmt.Errorf("grow the %s at %s: %w", m.FSType, path, err)
	}
	return nil
}

// growFilesystem grows the filesystem mounted at p to the size of its device, loop device n.
func (im *Images) growFilesystem(ctx context.Context, p tree.Handle, m mounter.Mount, n int, dev *os.File) error {
	b, err := loop.FileOfDevice(n)
	if err != nil {
		return err
	}
	leave, err := im.filesystems.GrowthSlots.Acquire(ctx,
		fair.Request{Kind: "grow", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	if err := errors.Join(im.tools.Stalls.Check(b), im.tools.Stalls.Admit(m.Tenant)); err != nil {
		return err
	}
	fd, err := unix.Openat(p.Parent, p.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), p.Path)
	defer dir.Close()
	on := tool.Disk{File: dev, Image: b, Path: m.Source, Tenant: m.Tenant}
	return im.tools.HelpWriter(ctx, filesystem.GrowLimit, filesystem.GrowTask, m.FSType, on, dir, dev)
}
