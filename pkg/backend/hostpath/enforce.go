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

// The size of an image is its own. A directory is held to its size by a project quota of xfs or ext4, or as a subvolume
// of btrfs with a quota group, where there are quotas: nobody turns them on here. On btrfs directories are subvolumes
// in any case, for the sake of their snapshots.

// dataMode is the mode of a new volume's directory, which belongs to root, as on a freshly made filesystem. Pods that
// don't run as root set fsGroup.
const dataMode = 0o755

// admit returns by what the directory of v can be held to its size, and why it can't be. It notes that in v.
// Errors: ErrExhausted if that is required, as another node may be able to; the context's.
func (s *root) admit(ctx context.Context, v *volume) (m quota.Mechanism, why, err error) {
	m, why = s.mechanism(ctx)
	switch wanted := v.set(enforceKey); {
	case ctx.Err() != nil:
		return m, why, ctx.Err()
	case why != nil && wanted == required:
		return m, why, fmt.Errorf("%w: %w", backend.ErrExhausted, why)
	default:
		v.Promised = why != nil && wanted == preferred
		return m, why, nil
	}
}

// makeDirectory makes the directory of a volume in half, held to its size if that is what v wants and what can be. It
// is empty, or holds what fill puts into it, if that isn't nil.
func (b *Backend) makeDirectory(ctx context.Context, s *root, half *beneath.Dir, v *volume, fill func(dir *os.File) error) error {
	m, why, err := s.admit(ctx, v)
	if err != nil {
		return err
	}
	if m.Kind == "" {
		if err := half.Mkdir(dataDir, dataMode); err != nil {
			return err
		}
		if err := half.Chmod(dataDir, dataMode); err != nil { // whatever the umask is
			return err
		}
	} else if err := b.makeMarked(m, half, v); err != nil {
		return err
	}
	if fill != nil {
		dir, err := half.OpenDirFile(dataDir)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := fill(dir); err != nil {
			return err
		}
	}
	return b.hold(half, v, why)
}

// makeMarked makes the directory so that it can be held to a size.
func (b *Backend) makeMarked(m quota.Mechanism, half *beneath.Dir, v *volume) error {
	parent, err := half.OpenDirFile(".")
	if err != nil {
		return err
	}
	defer parent.Close()
	mark, err := quota.Make(m, parent, dataDir, quota.Options{Mode: dataMode, Volume: v.ID, Taken: b.catalog.ProjectTaken})
	v.Mark = &mark
	return err
}

// hold gives the directory of v, in dir, the limit that it is to have; why says why there can be none.
func (b *Backend) hold(dir *beneath.Dir, v *volume, why error) error {
	v.Enforced = why == nil && v.Mark != nil && v.set(enforceKey) != off
	if !v.Enforced {
		return nil
	}
	crashpoint.Reached("quota:unset")
	return b.limitIn(dir, dataDir, v, v.Size)
}

// enforceAnew makes the limit of a directory what its settings say, as they have changed.
// Errors: ErrInvalid if it is required and can't be.
func (b *Backend) enforceAnew(ctx context.Context, s *root, v *volume) error {
	if v.Kind != directory {
		return nil
	}
	_, why := s.mechanism(ctx)
	if why == nil && v.Mark == nil {
		why = errors.New("the volume was made without")
	}
	dir, err := s.Dir().OpenDir(path.Dir(s.dataName(v)))
	if err != nil {
		return err
	}
	defer dir.Close()
	switch wanted := v.set(enforceKey); {
	case wanted == required && why != nil:
		return fmt.Errorf("%w: %w", backend.ErrInvalid, why)
	case wanted != off && why == nil:
		return b.hold(dir, v, nil)
	case wanted != off || !v.Enforced: // it has a limit still, or never had one
		return nil
	case why != nil:
		return fmt.Errorf("%w: cannot remove the limit now: %w", backend.ErrUnavailable, why)
	}
	v.Enforced = false
	return b.limit(s, v, 0)
}

// raise makes the limit of a directory, if it has one, its size, which has grown. Where quotas are off for a while, a
// start gives the limit back.
func (b *Backend) raise(ctx context.Context, s *root, v *volume) error {
	if !v.Enforced {
		return nil
	}
	if _, why := s.mechanism(ctx); why != nil {
		if v.set(enforceKey) == required {
			return fmt.Errorf("%w: %w", backend.ErrUnavailable, why)
		}
		return nil
	}
	return b.limit(s, v, v.Size)
}

// limit gives the directory of v a limit, or none if size is 0.
func (b *Backend) limit(s *root, v *volume, size int64) error {
	return b.limitIn(s.Dir(), s.dataName(v), v, size)
}

// limitIn is limit for the directory called name in dir.
func (b *Backend) limitIn(dir *beneath.Dir, name string, v *volume, size int64) error {
	data, err := openMarked(dir, name, v)
	if err != nil {
		return err
	}
	defer data.Close()
	if v.Mark.Kind == quota.Subvolume {
		return b.stalled(fair.Claim{Volume: v.ID}, b.exec.setLimit(data, *v.Mark, size))
	}
	return quota.Set(data, *v.Mark, size)
}

// openMarked opens the directory of v, called name in dir: a subvolume as a path only, for a helper.
func openMarked(dir *beneath.Dir, name string, v *volume) (*os.File, error) {
	if v.Mark.Kind == quota.Subvolume {
		return dir.OpenDirPath(name)
	}
	return dir.OpenDirFile(name)
}

// unenforced says what is wrong with the limit of a directory, or nothing.
func (b *Backend) unenforced(s *root, v *volume) []backend.Condition {
	if v.Kind != directory {
		return nil
	}
	_, class := v.Class[enforceKey]
	_, mutable := v.Mutable[enforceKey]
	switch {
	case v.Enforced:
		u, err := b.look(s, v)
		if err == nil && u.Holds(v.Size) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("its limit is %d bytes, not %d", u.Limit, v.Size)
		}
		return condition(backend.Degraded, "SizeNotEnforced", "its size was enforced, and is not now: %v", err)
	case v.set(enforceKey) == preferred && (class || mutable): // nobody who didn't ask needs to hear it
		return condition(backend.Degraded, "SizeNotEnforced", "its size cannot be enforced here: %s", "mount the root with project quotas, or enable those of btrfs, and make it anew")
	}
	return nil
}

// heal gives directories their limits back, as quotas may have been off and on again, and takes away what the kernel
// keeps of subvolumes that are gone.
func (b *Backend) heal(ctx context.Context, s *root) {
	for _, v := range b.catalog.Volumes() {
		if ctx.Err() != nil {
			return
		}
		if !v.Enforced {
			continue
		}
		b.panicked(guard.Do(func() error {
			if u, err := b.look(s, v); err == nil && !u.Holds(v.Size) {
				b.again(s, v)
			}
			return nil
		}))
	}
	if root, err := s.Dir().OpenDirFile("."); err == nil {
		defer root.Close()
		_ = quota.Sweep(root) // it is for tidiness only
	}
}

// again sets the limit of a directory that has lost it. It takes no lock, and looks whether the volume has changed
// meanwhile. What can't be mended stays in its health.
func (b *Backend) again(s *root, v *volume) {
	for was := (*volume)(nil); was != v && v != nil && v.Enforced; {
		_ = b.limit(s, v, v.Size)
		was = v
		v, _ = b.volume(v.Key())
	}
}

func (b *Backend) look(s *root, v *volume) (quota.Usage, error) {
	data, err := openMarked(s.Dir(), s.dataName(v), v)
	if err != nil {
		return quota.Usage{}, err
	}
	defer data.Close()
	if v.Mark.Kind == quota.Subvolume {
		c := fair.Claim{Volume: v.ID}
		if err := b.troubles.check(c); err != nil {
			return quota.Usage{}, err
		}
		u, err := b.exec.look(data, *v.Mark)
		return u, b.stalled(c, err)
	}
	return quota.Look(data, *v.Mark)
}

// Usage tells how full a subvolume is: its mount shows the whole filesystem. All others tell themselves.
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
	q, err := b.look(s, v)
	if errors.Is(err, quota.ErrNotEnforced) { // its health says so
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

// stalled turns the error of work that was given up into ErrPrecondition, and notes it for the health
// of the source until the helper has ended.
func (b *Backend) stalled(c fair.Claim, err error) error {
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
