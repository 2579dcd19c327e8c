package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// incomplete is the end of the name of an image that CreateImage has not completed.
const incomplete = ".incomplete"

// CreateImage makes the file path: an image of size bytes, which are reserved on the disk, with an
// empty filesystem of a type of FSTypes. The file at path is complete and durable, or missing; a
// repeated call after a crash starts again. The caller makes a single call for a path at a time,
// and none for a path that exists. formatter is an Images. Errors: those of Formatter.Format;
// errors.ErrUnsupported where the filesystem of path cannot reserve bytes; syscall.ENOSPC.
func CreateImage(ctx context.Context, formatter Formatter, path string, size int64, fsType string) error {
	if err := createIncomplete(ctx, formatter, path+incomplete, size, fsType); err != nil {
		return errors.Join(err, os.Remove(path+incomplete))
	}
	if err := os.Rename(path+incomplete, path); err != nil {
		return errors.Join(err, os.Remove(path+incomplete))
	}
	return syncDirectory(filepath.Dir(path))
}

// Formatter makes filesystems in images, as Images.Format does.
type Formatter interface {
	// Format is that of Images.
	Format(ctx context.Context, image *os.File, fsType string) error
}

func createIncomplete(ctx context.Context, formatter Formatter, path string, size int64, fsType string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := reserve(file, size); err != nil {
		return fmt.Errorf("reserve %d bytes: %w", size, err)
	}
	if err := formatter.Format(ctx, file, fsType); err != nil {
		return err
	}
	return file.Sync()
}

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
