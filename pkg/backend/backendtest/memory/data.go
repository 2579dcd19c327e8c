package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// sector is the logical block size of a disk, in bytes.
const sector = 512

// data is what a volume or a snapshot holds: a directory, or a file that is used as a block device.
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

// newData makes data of size bytes that holds what content does, or nothing if that is the zero value. b.mu must be
// held; so everybody waits for a copy. Here it is small: where it may be large, it is made without a lock, and goes on
// when the caller has gone (backend.Snapshotter).
func (b *Backend) newData(content data, block bool, size int64) (d data, err error) {
	if room := b.cfg.Size - b.promised; size > room {
		return data{}, fmt.Errorf("%w: %d bytes are wanted, %d are left", backend.ErrExhausted, size, room)
	}
	if block {
		d, err = newDisk(b.cfg.Dir, size)
	} else {
		d.path, err = os.MkdirTemp(b.cfg.Dir, "directory-")
	}
	if err != nil {
		return data{}, err
	}
	b.promised += size
	if err := d.copyFrom(content); err != nil {
		b.discard(d, size)
		return data{}, err
	}
	return d, nil
}

// newDisk makes a disk on which nothing was written.
func newDisk(dir string, size int64) (data, error) {
	f, err := os.CreateTemp(dir, "disk-")
	if err != nil {
		return data{}, err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return data{}, errors.Join(err, os.Remove(f.Name()))
	}
	return data{path: f.Name(), block: true}, nil
}

// discard gives the room of data back. Of a directory into which pods wrote, what they wrote stays until somebody
// removes Config.Dir: nothing here removes more than an empty one, and nobody will get it again.
func (b *Backend) discard(d data, size int64) {
	_ = os.Remove(d.path)
	b.promised -= size
}

// grow makes a disk longer. A directory has no size.
func (d data) grow(size int64) error {
	if !d.block {
		return nil
	}
	return os.Truncate(d.path, size)
}

// copyFrom copies what content holds into d, where there is nothing yet.
func (d data) copyFrom(content data) error {
	switch {
	case content.path == "":
		return nil
	case !d.block:
		return os.CopyFS(d.path, os.DirFS(content.path))
	}
	from, err := os.Open(content.path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(d.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	info, err := from.Stat()
	if err == nil {
		err = differences(nothing, from, 0, info.Size(), func(at int64, p []byte) error {
			_, err := to.WriteAt(p, at)
			return err
		})
	}
	return errors.Join(err, to.Close())
}

// nothing is a disk on which nothing was written.
var nothing = bytes.NewReader(nil)

// piece is the length in which disks are compared, in bytes.
const piece = 64 << 10

// differences calls each for the pieces of a disk of size bytes that differ from base, in order. Beyond its end base has
// zeros. The first piece ends after from.
func differences(base, disk io.ReaderAt, from, size int64, each func(at int64, p []byte) error) error {
	if from == size {
		return nil
	}
	was, is := make([]byte, piece), make([]byte, piece)
	for at := from / piece * piece; at < size; at += piece {
		n := min(piece, size-at)
		if err := errors.Join(readAt(base, was[:n], at), readAt(disk, is[:n], at)); err != nil {
			return err
		}
		if bytes.Equal(was[:n], is[:n]) {
			continue
		}
		if err := each(at, is[:n]); err != nil {
			return err
		}
	}
	return nil
}

// readAt fills p, with zeros beyond the end of r.
func readAt(r io.ReaderAt, p []byte, at int64) error {
	n, err := r.ReadAt(p, at)
	if clear(p[n:]); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
