package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// incomplete is the end of the name of an image that CreateImage has not completed.
const incomplete = ".incomplete"

// CreateImage makes the file path: an image of size bytes, which are reserved on the disk, with an
// empty filesystem of a type of FSTypes. The file at path is complete and durable, or missing; a
// repeated call after a crash starts again. The caller makes a single call for a path at a time,
// and none for a path that exists. maker is an Images whose ImageExt is "". Errors: those of
// ImageMaker; errors.ErrUnsupported where the filesystem of path cannot reserve bytes, or an image
// is no plain file; syscall.ENOSPC.
func CreateImage(ctx context.Context, maker ImageMaker, path string, size int64, fsType string) error {
	temporary := path + incomplete
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := createIncomplete(ctx, maker, temporary, size, fsType)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		if left := os.Remove(temporary); !errors.Is(left, fs.ErrNotExist) {
			err = errors.Join(err, left)
		}
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// ImageMaker makes images, as Images does.
type ImageMaker interface {
	// MakeImage is that of Images.
	MakeImage(ctx context.Context, path string, size int64, fsType string) error
}

// createIncomplete reserves the bytes twice. The first time shows whether the disk has room, as the
// error of a mkfs on a full disk has no errno. Then mke2fs discards the blocks of the file.
func createIncomplete(ctx context.Context, maker ImageMaker, path string, size int64, fsType string) error {
	err := reserveIn(path, os.O_CREATE|os.O_EXCL, size)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	if err := maker.MakeImage(ctx, path, size, fsType); err != nil {
		return err
	}
	return reserveIn(path, 0, size)
}

// reserveIn reserves size bytes in the file path, durably, and keeps its content. flags are further
// flags of its open.
func reserveIn(path string, flags int, size int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return err
	}
	if err = reserve(file, size); err != nil {
		err = fmt.Errorf("reserve %d bytes: %w", size, err)
	} else {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
