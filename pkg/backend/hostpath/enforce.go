package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// The size of an image is that of the volume in it. A directory has a limit by a project quota of
// xfs or ext4, or as a subvolume of btrfs with a quota group, if the filesystem has quotas enabled;
// the driver never enables them. On btrfs directories are subvolumes in any case, for their
// snapshots.

// admit returns the mechanism for the limit of v's directory, and the reason if there can be no
// limit. admit sets v.Promised. Errors: ErrExhausted if the limit is required, as another node may
// have quotas; the error of the context.
func (s *root) admit(ctx context.Context, v *volume) (m quota.Mechanism, why, err error) {
	m, why = s.mechanism(ctx)
	switch wanted := v.value(enforceKey); {
	case ctx.Err() != nil:
		return m, why, ctx.Err()
	case why != nil && wanted == required:
		return m, why, fmt.Errorf("%w: %w", backend.ErrExhausted, why)
	default:
		v.Promised = why != nil && wanted == preferred
		return m, why, nil
	}
}

// makeDirectory makes the data directory of v in an incomplete directory, with a limit if v wants a
// limit and the filesystem can enforce it. If fill is not nil, fill puts data into the directory.
func (b *Backend) makeDirectory(ctx context.Context, s *root, incomplete *beneath.Dir, v *volume,
	fill func(dir *os.File) error) error {
	m, why, err := s.admit(ctx, v)
	if err != nil {
		return err
	}
	if m.Kind == "" {
		if err := incomplete.Mkdir(dataDir, dataMode); err != nil {
			return err
		}
		if err := incomplete.Chmod(dataDir, dataMode); err != nil { // independent of the umask
			return err
		}
	} else if err := b.makeMarked(m, incomplete, v); err != nil {
		return err
	}
	if fill != nil {
		dir, err := incomplete.OpenDirFile(dataDir)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := fill(dir); err != nil {
			return err
		}
	}
	return b.enforce(incomplete, v, why)
}

// makeMarked makes the directory with a mark, so that it can have a limit.
func (b *Backend) makeMarked(m quota.Mechanism, incomplete *beneath.Dir, v *volume) error {
	parent, err := incomplete.OpenDirFile(".")
	if err != nil {
		return err
	}
	defer parent.Close()
	mark, err := quota.Make(m, parent, dataDir,
		quota.Options{Mode: dataMode, Volume: v.ID, Taken: b.catalog.ProjectTaken})
	v.Mark = &mark
	return err
}

// enforce sets the limit of v's directory, in dir. why is the reason if there can be no limit.
func (b *Backend) enforce(dir *beneath.Dir, v *volume, why error) error {
	v.Enforced = why == nil && v.Mark != nil && v.value(enforceKey) != off
	if !v.Enforced {
		return nil
	}
	crashpoint.Reached("quota:unset")
	return b.limitIn(dir, dataDir, v, v.Size)
}

// enforceAnew sets or removes the limit of a directory after a change of its parameters. Errors:
// ErrInvalid if a limit is required and impossible.
func (b *Backend) enforceAnew(ctx context.Context, s *root, v *volume) error {
	if v.Kind != directory {
		return nil
	}
	_, why := s.mechanism(ctx)
	if why == nil && v.Mark == nil {
		why = errors.New("the volume was created without a limit")
	}
	dir, err := s.Dir().OpenDir(path.Dir(s.dataName(v)))
	if err != nil {
		return err
	}
	defer dir.Close()
	switch wanted := v.value(enforceKey); {
	case wanted == required && why != nil:
		return fmt.Errorf("%w: %w", backend.ErrInvalid, why)
	case wanted != off && why == nil:
		return b.enforce(dir, v, nil)
	case wanted != off || !v.Enforced: // a limit is preferred but impossible, or there is no limit to remove
		return nil
	case why != nil:
		return fmt.Errorf("%w: cannot remove the limit now: %w", backend.ErrUnavailable, why)
	}
	v.Enforced = false
	return b.limit(s, v, 0)
}

// raise raises the limit of a directory that has grown to its new size, if it has a limit. If
// quotas are off, a later start sets the limit.
func (b *Backend) raise(ctx context.Context, s *root, v *volume) error {
	if !v.Enforced {
		return nil
	}
	if _, why := s.mechanism(ctx); why != nil {
		if v.value(enforceKey) == required {
			return fmt.Errorf("%w: %w", backend.ErrUnavailable, why)
		}
		return nil
	}
	return b.limit(s, v, v.Size)
}

// limit sets the limit of v's directory, or removes it if size is 0.
func (b *Backend) limit(s *root, v *volume, size int64) error {
	return b.limitIn(s.Dir(), s.dataName(v), v, size)
}

// limitIn is limit for the directory name in dir.
func (b *Backend) limitIn(dir *beneath.Dir, name string, v *volume, size int64) error {
	data, err := openMarked(dir, name, v)
	if err != nil {
		return err
	}
	defer data.Close()
	if v.Mark.Kind == quota.Subvolume {
		return b.stalled(fair.Request{Volume: v.ID}, b.exec.setLimit(data, *v.Mark, size))
	}
	return quota.Set(data, *v.Mark, size)
}

// openMarked opens the directory of v, name in dir: a subvolume as a path only, for a helper.
func openMarked(dir *beneath.Dir, name string, v *volume) (*os.File, error) {
	if v.Mark.Kind == quota.Subvolume {
		return dir.OpenDirPath(name)
	}
	return dir.OpenDirFile(name)
}

// unenforced returns the conditions of a directory without the limit that it should have.
func (b *Backend) unenforced(s *root, v *volume) []backend.Condition {
	if v.Kind != directory {
		return nil
	}
	switch {
	case v.Enforced:
		u, err := b.quotaUsage(s, v)
		if err == nil && u.Holds(v.Size) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("its limit is %d bytes, not %d", u.Limit, v.Size)
		}
		return condition(backend.Degraded, "SizeNotEnforced", "the size of the directory is no longer enforced: %v",
			err)
	case v.asksFor(enforceKey, preferred): // others did not ask for a limit
		return condition(backend.Degraded, "SizeNotEnforced", "the size of the directory cannot be enforced: %s",
			"mount the root with project quotas, or enable the quotas of btrfs, and create the volume again")
	}
	return nil
}

// repairLimits sets the limits that directories have lost while quotas were off, and
// removes quota groups of subvolumes that no longer exist.
func (b *Backend) repairLimits(ctx context.Context, s *root) {
	for _, v := range b.catalog.Volumes() {
		if ctx.Err() != nil {
			return
		}
		if !v.Enforced {
			continue
		}
		b.panicked(guard.Do(func() error {
			if u, err := b.quotaUsage(s, v); err == nil && !u.Holds(v.Size) {
				b.repairLimit(s, v)
			}
			return nil
		}))
	}
	if root, err := s.Dir().OpenDirFile("."); err == nil {
		defer root.Close()
		_ = quota.Sweep(root) // housekeeping: a failure has no effect
	}
}

// repairLimit sets the limit of a directory that has lost its limit. repairLimit takes no lock, and
// checks whether the volume has changed meanwhile. The health of the volume reports a limit that
// cannot be set.
func (b *Backend) repairLimit(s *root, v *volume) {
	for was := (*volume)(nil); was != v && v != nil && v.Enforced; {
		_ = b.limit(s, v, v.Size)
		was = v
		v, _ = b.volume(v.Key())
	}
}

// quotaUsage returns the usage of a directory, from the quotas of its filesystem.
func (b *Backend) quotaUsage(s *root, v *volume) (quota.Usage, error) {
	data, err := openMarked(s.Dir(), s.dataName(v), v)
	if err != nil {
		return quota.Usage{}, err
	}
	defer data.Close()
	if v.Mark.Kind == quota.Subvolume {
		c := fair.Request{Volume: v.ID}
		if err := b.troubles.check(c); err != nil {
			return quota.Usage{}, err
		}
		u, err := b.exec.quotaUsage(data, *v.Mark)
		return u, b.stalled(c, err)
	}
	return quota.Look(data, *v.Mark)
}

// Usage returns the usage of a subvolume with a limit, as its mount reports the usage of the whole
// filesystem. For all other volumes known is false.
func (b *Backend) Usage(_ context.Context, id string) (u mounter.Usage, known bool, err error) {
	s, err := b.ready()
	if err != nil {
		return u, false, err
	}
	v, err := b.volume(id)
	if err != nil {
		return u, false, err
	}
	if !v.Enforced || v.Mark.Kind != quota.Subvolume {
		return u, false, nil
	}
	q, err := b.quotaUsage(s, v)
	if errors.Is(err, quota.ErrNotEnforced) { // the volume's health reports the error
		return u, false, nil
	}
	if err != nil || q.Limit == 0 {
		return u, false, err
	}
	disk, err := s.Space()
	if err != nil {
		return u, false, err
	}
	free := max(0, q.Limit-q.Used)
	return mounter.Usage{TotalBytes: q.Limit, UsedBytes: q.Used, AvailableBytes: min(free, disk.Free)}, true, nil
}

// stalled converts the error of a task that was given up to ErrPrecondition, and records the error
// for the health of the source until the helper has ended.
func (b *Backend) stalled(c fair.Request, err error) error {
	g := (*givenUp)(nil)
	if !errors.Is(err, errNoProgress) || !errors.As(err, &g) {
		return err
	}
	ends := b.troubles.hang(c, time.Now(), err.Error())
	go func() {
		<-g.gone
		ends()
	}()
	return fmt.Errorf("%w: %w", backend.ErrPrecondition, err)
}
