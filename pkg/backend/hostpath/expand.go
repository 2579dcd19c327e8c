package hostpath

import (
	"context"
	"fmt"
	"os"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// Expand reserves more space for a volume, and makes an image longer: first the file, then the
// record, so that no record has more than its file. A repeated call completes an interrupted
// expansion. The node grows the filesystem of an image.
func (b *Backend) Expand(ctx context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	s, err := b.ready()
	if err != nil {
		return 0, false, err
	}
	v, err := b.persistent(id)
	if err != nil {
		return 0, false, err
	}
	node = v.Kind == image
	larger := *v
	if larger.Size, err = v.grown(o); err != nil || larger.Size == v.Size {
		return v.Size, node, err
	}
	defer b.traffic.begin()()
	if err := b.reserve(s, larger.Size-v.Size); err != nil {
		// without ErrExhausted, which has another code
		return 0, false, fmt.Errorf("%w: %v", backend.ErrOutOfRange, err) //nolint:errorlint // see above
	}
	if err := b.grow(ctx, s, &larger); err != nil {
		b.catalog.Release(larger.Size - v.Size)
		return 0, false, infeasible(err)
	}
	crashpoint.Reached("expand:grown")
	if err := s.Rewrite(volumesDir, v.ID, volumeFormat, &larger); err != nil {
		if v.Kind == image { // the file has this size durably, and the next start reads it
			b.catalog.PutVolume(&larger)
		} else {
			b.catalog.Release(larger.Size - v.Size)
		}
		return 0, false, infeasible(err)
	}
	b.catalog.PutVolume(&larger)
	return larger.Size, node, nil
}

// grow makes the data of the volume as large as v, durably.
func (b *Backend) grow(ctx context.Context, s *root, v *volume) error {
	if v.Kind == image {
		return s.growImage(v)
	}
	return b.raise(ctx, s, v)
}

func (s *root) growImage(v *volume) error {
	file, err := s.Dir().OpenFile(s.dataName(v), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < v.Size { // an earlier attempt may have made the file longer
		if err := file.Truncate(v.Size); err != nil {
			return err
		}
	}
	return file.Sync()
}
