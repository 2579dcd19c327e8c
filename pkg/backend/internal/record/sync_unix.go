//go:build !windows

package record

import (
	"errors"
	"os"
)

// SyncDir makes the entries of the directory called name in dir durable.
func SyncDir(dir *os.Root, name string) error {
	d, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
