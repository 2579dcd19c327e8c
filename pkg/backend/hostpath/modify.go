package hostpath

import (
	"context"
	"fmt"
	"maps"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
)

// Modify changes parameters: first the record, then the current mounts. If only the second step
// fails, the next mount, or the same call again, applies the record. A full or read-only disk is
// ErrUnavailable in each step: ErrInvalid would be final for the resizer.
func (b *Backend) Modify(ctx context.Context, id string, parameters, _ map[string]string) (err error) {
	defer func() {
		if store.IsFull(err) || store.IsReadOnly(err) {
			err = fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
	}()
	s, err := b.ready()
	if err != nil {
		return err
	}
	v, err := b.persistent(id)
	if err != nil {
		return err
	}
	if err := onlyMutable(parameters); err != nil {
		return err
	}
	changes, err := readParameters(parameters, v.Kind)
	if err != nil {
		return err
	}
	next := *v
	next.Mutable = maps.Clone(v.Mutable)
	for key := range parameters {
		delete(next.Mutable, key)
	}
	if len(changes) > 0 && next.Mutable == nil {
		next.Mutable = mutableParameters{}
	}
	maps.Copy(next.Mutable, changes)
	defer b.traffic.begin()()
	if !maps.Equal(next.Mutable, v.Mutable) {
		if next.value(enforceKey) != v.value(enforceKey) {
			if err := b.enforceAnew(ctx, s, &next); err != nil {
				return err
			}
		}
		if err := s.Rewrite(volumesDir, v.ID, volumeFormat, &next); err != nil {
			return err
		}
		b.catalog.PutVolume(&next)
	}
	crashpoint.Reached("modify:recorded")
	return b.apply(ctx, s, &next)
}

// apply applies v's parameters to its current mounts.
func (b *Backend) apply(ctx context.Context, s *root, v *volume) error {
	if v.Kind != image {
		return nil
	}
	m, err := v.mount(s.dataPath(v), backend.Access{Block: v.Block})
	if err != nil {
		return err
	}
	return b.cfg.Images.Tune(ctx, m)
}
