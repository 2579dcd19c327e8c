package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
)

// retryTrash is the pause before a failed removal is repeated.
const retryTrash = time.Minute

// trash moves the object id in dir to the trash, durably. Errors: ErrUnavailable; ErrBusy on
// Windows, if a process has a file of the object open.
func (b *Backend) trash(s *root, dir, id string) error {
	err := available(s.Delete(dir, id))
	if store.IsInUse(err) {
		return fmt.Errorf("%w: a process of this node has a file in %s open: %w", backend.ErrBusy, s.Path(dir, id), err)
	}
	if err != nil {
		return err
	}
	b.count.trashed.Add(1)
	b.wakeTrash()
	return nil
}

// emptyTrash removes the entries of the trash until ctx is done. It is a single goroutine that
// gives way to calls: the removal of many files slows down the journal for which calls wait.
func (b *Backend) emptyTrash(ctx context.Context, s *root) {
	for {
		again := time.Duration(0)
		if err := b.emptyOnce(ctx, s); err != nil && ctx.Err() == nil {
			why := err.Error()
			b.count.stuck.Store(&why)
			again = retryTrash
		} else {
			b.count.stuck.Store(nil)
		}
		var timer <-chan time.Time
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-s.Parked().Freed():
		case <-timer:
		}
	}
}

// emptyOnce tries each entry of the trash once.
func (b *Backend) emptyOnce(ctx context.Context, s *root) error {
	names, err := s.Dir().Names(trashDir)
	b.count.trashed.Store(int64(len(names)))
	if err != nil || len(names) == 0 {
		return err
	}
	// Delete has checked the root and the mounts of the entry. The removal is final, so check both
	// again.
	if err := s.inPlace(); err != nil {
		return err
	}
	free, stalled := s.Parked().Without(names)
	if err := s.Parked().Full(); err != nil {
		return err
	}
	names, failed := b.unmounted(ctx, s, free)
	trash, err := s.Dir().OpenDirFile(trashDir)
	if err != nil {
		return err
	}
	defer trash.Close()
	for _, name := range names {
		err := guard.Do(func() error {
			if err := b.pace(ctx, 0); err != nil {
				return err
			}
			return b.exec.remove(ctx, trash, name, b.catalog.ProjectTaken,
				func(files int) error { return b.pace(ctx, files) })
		})
		if err != nil {
			b.panicked(err)
			if g := (*givenUp)(nil); errors.As(err, &g) {
				s.Parked().AddRemoval(name, err.Error(), g.gone)
			}
			b.count.trashErrors.Add(1)
			failed = fmt.Errorf("in %s: %w", s.Path(trashDir, name), err)
			continue
		}
		b.count.trashed.Add(-1)
	}
	if left, err := s.Dir().Names(trashDir); failed == nil && err == nil {
		if free, _ := s.Parked().Without(left); len(free) > 0 {
			b.wakeTrash() // deep trees come back in pieces; see removeTree
		}
	}
	if failed == nil {
		failed = stalled
	}
	return failed
}

// unmounted returns the entries of the trash from which nothing is mounted, and an error about the
// others.
func (b *Backend) unmounted(ctx context.Context, s *root, names []string) (free []string, err error) {
	trash := s.Real(trashDir)
	users, err := b.cfg.Images.MountPointsOf(trash)
	if err != nil {
		return nil, err
	}
	if len(users) == 0 {
		return names, nil
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		users, failed := b.cfg.Images.MountPointsOf(filepath.Join(trash, name))
		if failed == nil && len(users) > 0 {
			failed = fmt.Errorf("%s is mounted at %s", filepath.Join(trash, name), users[0])
		}
		if failed != nil {
			err = failed
			continue
		}
		free = append(free, name)
	}
	return free, err
}

// pace is called after the removal of some files, and before that of an entry. After a time slice
// it gives way to calls.
func (b *Backend) pace(ctx context.Context, files int) error {
	b.count.removedFiles.Add(int64(files))
	if files == burst {
		crashpoint.Reached("trash:burst")
	}
	if time.Since(b.emptying) >= slice {
		b.traffic.giveWay()
		b.emptying = time.Now()
	}
	return ctx.Err()
}
