package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Unmount removes one layer. While the mount is busy, unmount retries for about 30 ms: even a
// stat(2) of another process keeps the mount busy for a moment. Errors: ErrBusy.
func (p Handle) Unmount(ctx context.Context, flags int) error {
	path := p.Proc()
	err := unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW)
	for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait <= 16*time.Millisecond; wait *= 2 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w", p.Path, mounter.ErrBusy)
		case <-time.After(wait):
		}
		err = unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		err = mounter.ErrBusy
	case err == nil, errors.Is(err, unix.EINVAL): // EINVAL: no mount point any more, which the next stat shows
		return nil
	}
	return fmt.Errorf("unmount %s: %w", p.Path, err)
}

// RemoveDirectory removes an empty directory. Errors: ErrBusy for a mount point; ErrNotEmpty;
// ErrPath, which is also unix.ENOTDIR, if p is not a directory.
func (p Handle) RemoveDirectory() error {
	err := unix.Unlinkat(p.Parent, p.Name, unix.AT_REMOVEDIR)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		err = mounter.ErrNotEmpty
	case errors.Is(err, unix.ENOTDIR):
		err = fmt.Errorf("%w: %w", mounter.ErrPath, err)
	case errors.Is(err, unix.EBUSY):
		err = mounter.ErrBusy
	}
	return fmt.Errorf("remove %s: %w", p.Path, err)
}

// RemoveFile removes the target file of a device, and no other file. A target file that this
// mounter has made carries a mark; see TargetMode. known means that the caller knows the file as a
// target file, also without the mark. Errors: ErrBusy for a mount point, ErrPath.
func (p Handle) RemoveFile(known bool) error {
	at, err := p.Stat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case at.Mounted:
		return fmt.Errorf("remove %s: %w", p.Path, mounter.ErrBusy)
	case at.Kind() != unix.S_IFREG:
		return fmt.Errorf("remove %s: %w: it is neither a directory nor a file", p.Path, mounter.ErrPath)
	case at.Size > 0:
		return fmt.Errorf("remove %s: %w: a file of %d bytes is not the target of a device", p.Path, mounter.ErrPath,
			at.Size)
	case !known && !at.IsTarget():
		return fmt.Errorf("remove %s: %w: this driver has not made the file: remove it by hand if nothing needs it",
			p.Path, mounter.ErrPath)
	}
	err = unix.Unlinkat(p.Parent, p.Name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		err = mounter.ErrBusy
	}
	return fmt.Errorf("remove %s: %w", p.Path, err)
}
