package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// ImageExt is that of mounter.Images.
func (im *Images) ImageExt() string { return "" }

// MakeImage makes a sparse file.
func (im *Images) MakeImage(ctx context.Context, path string, size int64, fsType string) error {
	if fsType != "" {
		if err := filesystem.CanFormat(fsType); err != nil {
			return err
		}
	}
	parent, err := tree.Resolve(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, filepath.Base(path), flags, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	if err := errors.Join(im.fillImage(ctx, file, size, fsType), file.Close()); err != nil {
		return errors.Join(err, unix.Unlinkat(parent, filepath.Base(path), 0))
	}
	return nil
}

// fillImage makes the content of an image, durably, in an empty file.
func (im *Images) fillImage(ctx context.Context, file *os.File, size int64, fsType string) error {
	if err := file.Truncate(size); err != nil {
		return err
	}
	if fsType != "" {
		if err := im.filesystems.Format(ctx, file, fsType); err != nil {
			return err
		}
	}
	return file.Sync()
}

// GrowImage makes the file longer. The device of a mounted image grows later: see Grow.
func (im *Images) GrowImage(_ context.Context, path string, size int64) error {
	src, err := im.tree.OpenSource(path)
	if err != nil {
		return err
	}
	defer src.Close()
	flags := unix.O_RDWR
	if int64(src.Size) >= size {
		flags = unix.O_RDONLY // for a read-only disk; the sync is for an earlier call that died before it
	}
	file, err := src.OpenImageFor(flags)
	if err != nil {
		return err
	}
	defer file.Close()
	if int64(src.Size) < size {
		if err := file.Truncate(size); err != nil {
			return err
		}
	}
	return file.Sync()
}

// ImageSize returns the size of the file.
func (im *Images) ImageSize(path string) (int64, error) {
	at, err := im.tree.StatSource(path)
	if err == nil && at.Kind() != unix.S_IFREG {
		err = fmt.Errorf("%w: %s is not a regular file", mounter.ErrFormat, path)
	}
	return int64(at.Size), err
}
