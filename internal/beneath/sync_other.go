//go:build !linux && !windows

package beneath

import "errors"

// Sync makes the entries of the directory called name durable.
func (d *Dir) Sync(name string) error {
	dir, err := d.OpenDirFile(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
