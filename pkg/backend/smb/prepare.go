package smb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// prepare makes the directories of the store. Errors: errUnprepared if this process has seen them
// before; backend.ErrPrecondition if the directory of the source does not exist, or is inside a
// volume.
func (s *store) prepare(ctx context.Context) error {
	s.mu.Lock()
	seen := s.prepared[records.Fold(s.source.String())]
	s.mu.Unlock()
	if seen { // perhaps another call has just made them
		_, err := s.share.Stat(ctx, s.meta(records.WorkDir))
		if errors.Is(err, fs.ErrNotExist) {
			err = errUnprepared
		}
		return err
	}
	if err := s.checkAncestors(ctx); err != nil {
		return err
	}
	// A missing directory of markers shows that the store is not prepared, so this directory is
	// last.
	for _, dir := range []string{"", records.VolumesDir, records.SnapshotsDir, trashDir, records.WorkDir} {
		switch err := s.share.Mkdir(ctx, s.meta(dir)); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: there is no directory %s", backend.ErrPrecondition, s.source)
		case err != nil && !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return s.fillReserve(ctx)
}

// checkAncestors returns backend.ErrPrecondition if the source is a volume of another source, or a
// directory in a volume: the deletion of that volume would delete the volumes of this source.
func (s *store) checkAncestors(ctx context.Context) error {
	elements := strings.Split(s.source.Path, "/")
	for i := range elements {
		if s.source.Path == "" {
			return nil
		}
		outer := &store{Backend: s.Backend, share: s.share, source: s.source}
		outer.source.Path = path.Join(elements[:i]...)
		inner := client.FoldName(path.Join(elements[i:]...))
		err := outer.eachVolume(ctx, func(v *records.Volume) error {
			if theirs := client.FoldName(v.SubDir); theirs == inner || within(inner, theirs) {
				return fmt.Errorf("%w: source %s is in the directory of volume %s: choose another source",
					backend.ErrPrecondition, s.source, v)
			}
			return nil
		})
		if err != nil && !errors.Is(err, backend.ErrDenied) { // an account that cannot see the other source
			return err
		}
	}
	return nil
}

// reserveSize is the size of the reserve in bytes.
const reserveSize = 256 << 10

// reserveLock returns the lock of the reserve: it is full while it is held.
func (s *store) reserveLock() chan struct{} {
	name := records.Fold(s.source.String())
	s.mu.Lock()
	defer s.mu.Unlock()
	lock := s.reserves[name]
	if lock == nil {
		lock = make(chan struct{}, 1)
		s.reserves[name] = lock
	}
	return lock
}

// fillReserve makes the reserve, if there is space for it and no deletion of this process needs it.
func (s *store) fillReserve(ctx context.Context) error {
	lock := s.reserveLock()
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
	default:
		return nil
	}
	content := make([]byte, reserveSize)
	rand.Read(content) // not compressible
	err := s.share.Create(ctx, s.meta(reserveFile), content)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, backend.ErrExhausted) {
		return nil
	}
	return err
}

// withReserve calls a deletion, again without the reserve if the share is full. secrets are those of
// the call.
func (s *store) withReserve(ctx context.Context, secrets map[string]string, deletion func() error) error {
	err := deletion()
	if !errors.Is(err, backend.ErrExhausted) {
		return err
	}
	err = s.withoutReserve(ctx, deletion)
	s.emptyTrash(s.source, secrets) // makes the reserve again, also after an error
	if errors.Is(err, backend.ErrExhausted) {
		return fmt.Errorf("%w: %s is full: delete files on the server, or wait until the trash is empty",
			backend.ErrUnavailable, s.source)
	}
	return err
}

// withoutReserve removes the reserve, and calls a deletion that may use its space.
func (s *store) withoutReserve(ctx context.Context, deletion func() error) error {
	lock := s.reserveLock()
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.records().Remove(ctx, s.meta(reserveFile)); err != nil {
		return err
	}
	return deletion()
}
