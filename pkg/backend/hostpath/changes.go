package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/extents"
)

// SnapshotSize returns the size of the volume at the time of the snapshot.
func (b *Backend) SnapshotSize(_ context.Context, id string, _ map[string]string) (int64, error) {
	n, _, err := b.findImage(id)
	if err != nil {
		return 0, err
	}
	return n.Size, nil
}

// Allocated asks the filesystem for the ranges in which the snapshot has data.
func (b *Backend) Allocated(ctx context.Context, id string, from int64, _ map[string]string,
	each func(offset, length int64) error) error {
	n, s, err := b.findImage(id)
	if err != nil {
		return err
	}
	file, err := b.openImage(s, n)
	if err != nil {
		return err
	}
	defer file.Close()
	return outOfRange(extents.Allocated(ctx, file, from, each))
}

// Delta asks the filesystem for the blocks of the two snapshots, and reads only blocks whose
// addresses prove nothing.
func (b *Backend) Delta(ctx context.Context, base, target string, from int64, _ map[string]string,
	each func(offset, length int64) error) error {
	old, s, err := b.findImage(base)
	if err != nil {
		return err
	}
	young, _, err := b.findImage(target)
	if err != nil {
		return err
	}
	if old.Source != young.Source {
		return fmt.Errorf("%w: snapshot %s is of volume %s, snapshot %s is of volume %s", backend.ErrInvalid, base,
			old.Source, target, young.Source)
	}
	a, err := b.openImage(s, old)
	if err != nil {
		return err
	}
	defer a.Close()
	z, err := b.openImage(s, young)
	if err != nil {
		return err
	}
	defer z.Close()
	// Both snapshots are reflinks of the same image: they share the blocks that none of the three
	// has rewritten.
	return outOfRange(extents.Delta(ctx, a, z, old.Cloned && young.Cloned, from, each))
}

// findImage returns the snapshot with this ID, which must be of an image. Errors: ErrNotFound,
// ErrInvalid.
func (b *Backend) findImage(id string) (*snapshot, *root, error) {
	n, s, err := b.findSnapshot(id)
	if err == nil && n.Kind != image {
		err = fmt.Errorf("%w: snapshot %s is of a directory: only snapshots of images have blocks", backend.ErrInvalid,
			id)
	}
	if err == nil && !plain(s.images) {
		err = fmt.Errorf("%w: changed blocks of a snapshot on Windows", errors.ErrUnsupported)
	}
	return n, s, err
}

func (b *Backend) openImage(s *root, n *snapshot) (*os.File, error) {
	file, err := s.Dir().OpenFile(path.Join(snapshotsDir, n.ID, s.Image()), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := b.snapshot(n.ID); gone != nil { // deleted in the meantime
			return nil, gone
		}
	}
	return file, err
}

// outOfRange gives the error of an invalid offset its class.
func outOfRange(err error) error {
	if errors.Is(err, extents.ErrOffset) {
		return fmt.Errorf("%w: %w", backend.ErrOutOfRange, err)
	}
	return err
}
