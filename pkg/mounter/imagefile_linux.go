package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func (l *linux) ImageExt() string { return "" }

// MakeImage makes a sparse file.
func (l *linux) MakeImage(ctx context.Context, path string, size int64, fsType string) error {
	if fsType != "" {
		if err := canFormat(fsType); err != nil {
			return err
		}
	}
	parent, err := resolve(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
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
	if err := errors.Join(l.fillImage(ctx, file, size, fsType), file.Close()); err != nil {
		return errors.Join(err, unix.Unlinkat(parent, filepath.Base(path), 0))
	}
	return nil
}

// fillImage makes the content of an image, durably, in an empty file.
func (l *linux) fillImage(ctx context.Context, file *os.File, size int64, fsType string) error {
	if err := file.Truncate(size); err != nil {
		return err
	}
	if fsType != "" {
		if err := l.format(ctx, file, fsType); err != nil {
			return err
		}
	}
	return file.Sync()
}

// GrowImage makes the file longer. The device of a mounted image grows later: see Grow.
func (l *linux) GrowImage(_ context.Context, path string, size int64) error {
	src, err := l.openSource(path)
	if err != nil {
		return err
	}
	defer src.close()
	flags := unix.O_RDWR
	if int64(src.size) >= size {
		flags = unix.O_RDONLY // for a read-only disk; the sync is for an earlier call that died before it
	}
	file, err := src.openImageFor(flags)
	if err != nil {
		return err
	}
	defer file.Close()
	if int64(src.size) < size {
		if err := file.Truncate(size); err != nil {
			return err
		}
	}
	return file.Sync()
}

// ImageSize returns the size of the file.
func (l *linux) ImageSize(path string) (int64, error) {
	at, err := l.statSource(path)
	if err == nil && at.kind() != unix.S_IFREG {
		err = fmt.Errorf("%w: %s is not a regular file", ErrFormat, path)
	}
	return int64(at.size), err
}
