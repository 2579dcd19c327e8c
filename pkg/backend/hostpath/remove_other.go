//go:build !linux

package hostpath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// removeTree removes the entry name of dir with its content, and calls each after each file.
// removeTree follows no link: os.Root does not, and removeTree enters plain directories only, which
// a mount point of Windows is not.
func removeTree(dir *os.File, name string, each func() error) error {
	root, err := os.OpenRoot(dir.Name())
	if err != nil {
		return err
	}
	defer root.Close()
	return remove(root, name, each)
}

func remove(root *os.Root, name string, each func() error) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		if err := clear(root, name, each); err != nil {
			return err
		}
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return each()
}

func clear(root *os.Root, name string, each func() error) error {
	sub, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	d, err := sub.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if closed := d.Close(); err != nil && err != io.EOF || closed != nil {
		return fmt.Errorf("read %q: %w", name, errors.Join(err, closed))
	}
	for _, n := range names {
		if err := remove(sub, n, each); err != nil {
			return err
		}
	}
	return nil
}
