package memory

import (
	"errors"
	"os"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// sector is the logical block size of a disk, in bytes.
const sector = 512

// data is what a volume holds: a directory, or a file that is used as a block device.
type data struct {
	path  string
	block bool
}

func (d data) kind() mounter.Kind {
	if d.block {
		return mounter.Disk
	}
	return mounter.Directory
}

// newData makes an empty directory, or a disk of size bytes on which nothing was written.
func (b *Backend) newData(block bool, size int64) (data, error) {
	if !block {
		path, err := os.MkdirTemp(b.cfg.Dir, "directory-")
		return data{path: path}, err
	}
	f, err := os.CreateTemp(b.cfg.Dir, "disk-")
	if err != nil {
		return data{}, err
	}
	d := data{path: f.Name(), block: true}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		d.remove()
		return data{}, err
	}
	return d, nil
}

// grow makes a disk longer. A directory has no size.
func (d data) grow(size int64) error {
	if !d.block {
		return nil
	}
	return os.Truncate(d.path, size)
}

// remove removes a disk, or an empty directory. What pods wrote into a directory stays until somebody removes Config.Dir,
// and no other volume will get it.
func (d data) remove() { _ = os.Remove(d.path) }
