package memory

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// SnapshotSize returns how large the disk was.
func (b *Backend) SnapshotSize(_ context.Context, id string, _ map[string]string) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.findDisk(id)
	if err != nil {
		return 0, err
	}
	return s.Size, nil
}

// findDisk returns the snapshot with this ID, if it is of a disk. b.mu must be held.
func (b *Backend) findDisk(id string) (*snapshot, error) {
	s, err := b.findSnapshot(id)
	if err == nil && !s.data.block {
		err = fmt.Errorf("%w: snapshot %s is of a directory, not of a block device", backend.ErrInvalid, id)
	}
	return s, err
}

// openDisk opens the snapshot of a disk. It never changes, so it is read without b.mu.
func (b *Backend) openDisk(id string) (*os.File, backend.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.findDisk(id)
	if err != nil {
		return nil, backend.Snapshot{}, err
	}
	f, err := os.Open(s.data.path)
	return f, s.Snapshot, err
}

// Allocated reads the whole disk. Real storage knows better.
func (b *Backend) Allocated(ctx context.Context, id string, from int64, _ map[string]string, each func(offset, length int64) error) error {
	disk, s, err := b.openDisk(id)
	if err != nil {
		return err
	}
	defer disk.Close()
	return report(ctx, nothing, disk, from, s.Size, each)
}

// Delta reads both.
func (b *Backend) Delta(ctx context.Context, base, target string, from int64, _ map[string]string, each func(offset, length int64) error) error {
	old, was, err := b.openDisk(base)
	if err != nil {
		return err
	}
	defer old.Close()
	disk, is, err := b.openDisk(target)
	if err != nil {
		return err
	}
	defer disk.Close()
	if was.Source != is.Source {
		return fmt.Errorf("%w: snapshots %s and %s are of two volumes", backend.ErrInvalid, base, target)
	}
	return report(ctx, old, disk, from, is.Size, each)
}

// report tells which pieces of a disk of size bytes differ from base, while somebody wants to know.
func report(ctx context.Context, base, disk io.ReaderAt, from, size int64, each func(offset, length int64) error) error {
	if from < 0 || from > size {
		return fmt.Errorf("%w: the offset is %d, the snapshot has %d bytes", backend.ErrOutOfRange, from, size)
	}
	return differences(base, disk, from, size, func(at int64, p []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return each(at, int64(len(p)))
	})
}
