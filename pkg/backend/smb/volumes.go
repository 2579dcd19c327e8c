package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// eachVolume calls each for the volumes of the store, in any state, also for those with values that
// this release does not know: each compares directories. Errors: backend.ErrNotReady for an
// unreadable record.
func (s *store) eachVolume(ctx context.Context, each func(v *records.Volume) error) error {
	entries, err := s.records().Keys(ctx, records.VolumesDir, volumeid.Volume)
	if err != nil {
		return err
	}
	for _, e := range entries {
		v, err := s.decodedVolume(ctx, e)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			continue
		case records.IsUnreadable(err):
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

// listedVolume returns the record of a listed volume. Errors: those of ReadVolume.
func (s *store) listedVolume(ctx context.Context, e client.Entry) (*records.Volume, error) {
	v, err := s.decodedVolume(ctx, e)
	if err == nil {
		err = v.Check()
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// decodedVolume returns the record of a listed volume, as DecodeVolume does.
func (s *store) decodedVolume(ctx context.Context, e client.Entry) (*records.Volume, error) {
	r, err := s.cache.Get(records.CacheKey(s.source, records.VolumesDir, e.Name), e, func() (any, error) {
		v, err := s.records().DecodeVolume(ctx, records.Object{Key: e.Name, Source: s.source})
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return r.(*records.Volume), nil
}

// liveVolume reads the record of a volume that is ready. Errors: backend.ErrNotFound.
func (s *store) liveVolume(ctx context.Context, o records.Object) (*records.Volume, error) {
	v, err := s.records().ReadVolume(ctx, o)
	if err == nil && v.State != records.Ready {
		err = fmt.Errorf("%w: volume %s", backend.ErrNotFound, o)
	}
	return v, err
}

// where returns the source of the directory of v.
func (s *store) where(v *records.Volume) string { return s.source.String() + "/" + v.SubDir }

// hasRecord reports whether an object has a record, or may have one.
func (s *store) hasRecord(ctx context.Context, key string) bool {
	for _, dir := range []string{records.VolumesDir, records.SnapshotsDir} {
		if _, err := s.share.Stat(ctx, s.records().RecordPath(dir, key)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}
