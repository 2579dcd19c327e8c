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

// remove removes an entry. Of a directory that it cannot enter, such as a reparse point that looks
// like one, it tries to remove the entry alone.
func remove(root *os.Root, name string, each func() error) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var entered error
	if info.IsDir() {
		entered = empty(root, name, each)
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(entered, err)
	}
	return each()
}

// empty removes the entries of a directory. An error does not keep it from the other entries.
func empty(root *os.Root, name string, each func() error) error {
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
	if closed := d.Close(); err != nil && !errors.Is(err, io.EOF) || closed != nil {
		return fmt.Errorf("read %q: %w", name, errors.Join(err, closed))
	}
	var failed error // the first, as there may be very many
	for _, n := range names {
		if err := remove(sub, n, each); failed == nil {
			failed = err
		}
	}
	return failed
}
