package memory

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// SnapshotSize returns the size of the disk in bytes. See [backend.Differ] for the errors. CSI spec
// v1.13, SnapshotMetadata service.
func (b *Backend) SnapshotSize(_ context.Context, id string, _ map[string]string) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.findDisk(id)
	if err != nil {
		return 0, err
	}
	return s.Size, nil
}

// findDisk returns the snapshot with this ID, and ErrInvalid for the snapshot of a directory.
// The caller holds b.mu.
func (b *Backend) findDisk(id string) (*snapshot, error) {
	s, err := b.findSnapshot(id)
	if err == nil && !s.data.block {
		err = fmt.Errorf("%w: snapshot %s is a directory, not a block device", backend.ErrInvalid, id)
	}
	return s, err
}

// openDisk opens the snapshot of a disk. A snapshot never changes, so the caller reads it without
// b.mu.
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

// Allocated reads the whole disk and reports the pieces that are not zero. Real storage keeps a map
// of its blocks. See [backend.Differ] for the errors. CSI spec v1.13, GetMetadataAllocated.
func (b *Backend) Allocated(
	ctx context.Context, id string, from int64, _ map[string]string, each func(offset, length int64) error,
) error {
	disk, s, err := b.openDisk(id)
	if err != nil {
		return err
	}
	defer disk.Close()
	return report(ctx, nothing, disk, from, s.Size, each)
}

// Delta reads both disks and reports the pieces that differ. See [backend.Differ] for the errors.
// CSI spec v1.13, GetMetadataDelta.
func (b *Backend) Delta(
	ctx context.Context, base, target string, from int64, _ map[string]string, each func(offset, length int64) error,
) error {
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
		return fmt.Errorf("%w: snapshots %s and %s are of different volumes", backend.ErrInvalid, base, target)
	}
	return report(ctx, old, disk, from, is.Size, each)
}

// report calls each for the pieces of a disk of size bytes that differ from base, until ctx ends.
func report(
	ctx context.Context, base, disk io.ReaderAt, from, size int64, each func(offset, length int64) error,
) error {
	if from < 0 || from > size {
		return fmt.Errorf("%w: invalid offset %d: must be from 0 to the snapshot's size of %d bytes",
			backend.ErrOutOfRange, from, size)
	}
	return differences(base, disk, from, size, func(at int64, p []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return each(at, int64(len(p)))
	})
}
