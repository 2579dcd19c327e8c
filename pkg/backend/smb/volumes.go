package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// eachVolume calls each for the volumes of the store, in any state. Errors: backend.ErrNotReady for
// an unreadable record.
func (s *store) eachVolume(ctx context.Context, each func(v *volume) error) error {
	entries, err := s.keys(ctx, volumesDir, volumeid.Volume)
	if err != nil {
		return err
	}
	for _, e := range entries {
		v, err := s.listedVolume(ctx, e)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			continue
		case isUnreadable(err):
			return fmt.Errorf("compare the directories of all volumes of %s: %w", s.source, err)
		case err != nil:
			return err
		}
		if err := each(v); err != nil {
			return err
		}
	}
	return nil
}

// listedVolume returns the record of a listed volume.
func (s *store) listedVolume(ctx context.Context, e client.Entry) (*volume, error) {
	r, err := s.cache.get(cacheKey(s.source, volumesDir, e.Name), e, func() (any, error) {
		v, err := s.readVolume(ctx, object{e.Name, s.source})
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return r.(*volume), nil
}

// liveVolume reads the record of a volume that is ready. Errors: backend.ErrNotFound.
func (s *store) liveVolume(ctx context.Context, o object) (*volume, error) {
	v, err := s.readVolume(ctx, o)
	if err == nil && v.State != ready {
		err = fmt.Errorf("%w: volume %s", backend.ErrNotFound, o)
	}
	return v, err
}

// where returns the source of the directory of v.
func (s *store) where(v *volume) string { return s.source.String() + "/" + v.SubDir }

// hasRecord reports whether an object has a record, or may have one.
func (s *store) hasRecord(ctx context.Context, key string) bool {
	for _, dir := range []string{volumesDir, snapshotsDir} {
		if _, err := s.share.Stat(ctx, s.recordPath(dir, key)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}
