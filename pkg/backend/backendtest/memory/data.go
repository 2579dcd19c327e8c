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

// data is the content of a volume or snapshot: a directory, or a file that stands for a block
// device.
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

// newData creates data of size bytes as a copy of content, or empty data if content is the zero
// value. The caller holds b.mu, so all other calls wait for the copy. Copies in tests are small. A
// backend with large copies makes them without a lock, and continues them after ctx has ended
// (backend.Snapshotter).
func (b *Backend) newData(content data, block bool, size int64) (d data, err error) {
	if available := b.cfg.Size - b.reserved; size > available {
		return data{}, fmt.Errorf("%w: %d bytes requested, %d available", backend.ErrExhausted, size, available)
	}
	if block {
		d, err = newDisk(b.cfg.Dir, size)
	} else {
		d.path, err = os.MkdirTemp(b.cfg.Dir, "directory-")
	}
	if err != nil {
		return data{}, err
	}
	b.reserved += size
	if err := d.copyFrom(content); err != nil {
		b.discard(d, size)
		return data{}, err
	}
	return d, nil
}

// newDisk creates a disk of size bytes of zeros.
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

// discard removes d and releases its reserved space. A directory with files of pods is not removed:
// it stays until the test removes Config.Dir, and no new volume uses that directory.
func (b *Backend) discard(d data, size int64) {
	_ = os.Remove(d.path)
	b.reserved -= size
}

// grow grows a disk to size bytes. A directory has no size, so grow does nothing.
func (d data) grow(size int64) error {
	if !d.block {
		return nil
	}
	return os.Truncate(d.path, size)
}

// copyFrom copies content into d, which must be empty. Zeros are skipped.
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

// nothing is an empty disk, which reads as zeros.
var nothing = bytes.NewReader(nil)

// piece is the unit in which disks are compared, in bytes.
const piece = 64 << 10

// differences calls each, in ascending order, for the pieces of a disk of size bytes that differ
// from base. base reads as zeros beyond its end. The first piece ends after from.
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
