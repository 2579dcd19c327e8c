package hostpath

import (
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
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
			b.addToCatalog(&larger, larger.Size-v.Size)
		} else {
			b.catalog.Release(larger.Size - v.Size)
		}
		return 0, false, infeasible(err)
	}
	b.addToCatalog(&larger, larger.Size-v.Size)
	return larger.Size, node, nil
}

// grow makes the data of the volume as large as v, durably. Errors: ErrInUse for an image that
// cannot grow while it is in use here.
func (b *Backend) grow(ctx context.Context, s *root, v *volume) error {
	if v.Kind != image {
		return b.raise(ctx, s, v)
	}
	if err := s.checkData(v); err != nil {
		return err
	}
	err := s.images.GrowImage(ctx, s.dataPath(v), v.Size)
	if errors.Is(err, mounter.ErrBusy) {
		return fmt.Errorf("%w: %w: end the pods that use the volume, then it grows", backend.ErrInUse, err)
	}
	return err
}
