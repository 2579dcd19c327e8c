package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

const (
	readers    = 4           // that read records at start
	retryTrash = time.Minute // until what could not be removed is tried again
	burst      = 64          // files that are removed between two looks at the time
)

// load finishes the groups that were committed, moves incomplete objects of an earlier process to
// the trash, makes durable what it finds, and reads all records into the index. An object with
// which it fails is reported and left alone; the others are served.
func (b *Backend) load(s *store) (err error) {
	var c contents
	if c.Groups, c.BrokenGroups, err = readRecords(s, groupsDir, partFormat, (*group).check); err != nil {
		return err
	}
	c.Groups = s.finishAll(c.Groups, c.BrokenGroups)
	if err := b.sweepStaging(s, c.BrokenGroups); err != nil {
		return err
	}
	if c.Snapshots, c.BrokenSnapshots, err = readRecords(s, snapshotsDir, snapshotFormat, (*snapshot).check); err != nil {
		return err
	}
	c.Snapshots = b.sweepMembers(s, c.Snapshots, c.BrokenSnapshots)
	c.Volumes, c.BrokenVolumes, err = readRecords(s, volumesDir, volumeFormat, func(v *volume, dir string) error {
		err := v.check(dir)
		if err == nil {
			s.measure(v)
		}
		return err
	})
	if err != nil {
		return err
	}
	// A driver that died between a rename and its fsync left what the kernel shows and the disk may not have. The retry
	// of that create finds the volume, the retry of that delete finds none, and neither has a reason to sync anything.
	for _, dir := range []string{volumesDir, snapshotsDir, groupsDir, trashDir} {
		if err := s.root.Sync(dir); err != nil {
			return err
		}
	}
	for _, broken := range []map[string]error{c.BrokenVolumes, c.BrokenSnapshots, c.BrokenGroups} {
		for _, err := range broken {
			b.panicked(err)
		}
	}
	b.catalog.Replace(c)
	return nil
}

// finishAll finishes groups that were committed, and returns those with which that worked. The
// others are in broken then.
func (s *store) finishAll(groups []*group, broken map[string]error) (finished []*group) {
	for _, g := range groups {
		err := s.finish(g)
		if g.Settled { // its record was renamed, too: see load
			err = errors.Join(err, s.root.Sync(path.Join(groupsDir, g.ID)))
		}
		if err != nil {
			broken[g.ID] = fmt.Errorf("its members can't be moved to their places: %w", err)
			continue
		}
		finished = append(finished, g)
	}
	return finished
}

// measure makes the size of an image what its file has: a driver that died while it grew left the record behind.
// The record stays as it is: the disk may be full, or read-only. What is wrong with a file, its health tells.
func (s *store) measure(v *volume) {
	if v.Kind != image {
		return
	}
	info, err := s.data(v)
	if err != nil || info.Size() <= v.Size || info.Size() > maxImage {
		return
	}
	file, err := s.root.OpenFile(s.dataName(v), os.O_RDONLY, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if file.Sync() == nil { // or it would be as long only until the power goes
		v.Size = info.Size()
	}
}

// sweepStaging sweeps all entries of staging/. Members of a group that was committed and could not
// be finished are left there, as they are the only copy; so is an entry of which that is not known.
func (b *Backend) sweepStaging(s *store, brokenGroups map[string]error) error {
	b.count.unswept.Store(nil)
	names, err := s.root.Names(stagingDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if len(brokenGroups) > 0 && s.isMember(path.Join(stagingDir, name), brokenGroups) {
			continue
		}
		if err := b.sweep(s, path.Join(stagingDir, name)); err != nil {
			why := err.Error()
			b.count.unswept.Store(&why)
		}
	}
	return nil
}

// isMember reports whether the directory called name has, or may have, a member of these groups.
func (s *store) isMember(name string, groups map[string]error) bool {
	dir, err := s.root.OpenDir(name)
	if err != nil {
		return !errors.Is(err, beneath.ErrType)
	}
	defer dir.Close()
	var n snapshot
	if err := snapshotFormat.Read(dir, recordFile, &n); err != nil {
		return !errors.Is(err, fs.ErrNotExist) // a member has its record before its group is committed
	}
	return groups[n.Group] != nil
}

// sweep moves something that a crash left to the trash.
func (b *Backend) sweep(s *store, name string) error {
	if err := s.root.Rename(name, path.Join(trashDir, path.Base(name)+"-"+random())); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	b.count.swept.Add(1)
	crashpoint.Reached("sweep:moved")
	return nil
}

// sweepMembers sweeps the members of groups that are deleted, and returns the other snapshots. A
// member with which it fails is in broken then.
func (b *Backend) sweepMembers(s *store, all []*snapshot, broken map[string]error) (left []*snapshot) {
	for _, n := range all {
		if n.Group == "" {
			left = append(left, n)
			continue
		}
		_, err := s.root.Lstat(path.Join(groupsDir, n.Group))
		switch {
		case err == nil:
			left = append(left, n)
			continue
		case errors.Is(err, fs.ErrNotExist):
			err = b.sweep(s, path.Join(snapshotsDir, n.ID))
		}
		if err != nil {
			broken[n.ID] = err
		}
	}
	return left
}

// readRecords reads the records of all objects in one of the root's directories. check returns what
// is wrong with the record in the directory of that name. broken are the errors of those that can't
// be used, by that name.
func readRecords[T any](s *store, in string, format record.Format, check func(object *T, dir string) error) (objects []*T, broken map[string]error, err error) {
	names, err := s.root.Names(in)
	if err != nil {
		return nil, nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { // not an object of ours
		_, err := volumeid.Parse(name)
		return err != nil
	})
	dir, err := s.root.OpenDir(in)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	objects, broken = make([]*T, 0, len(names)), map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan string)
	for range readers {
		wg.Go(func() {
			for name := range work {
				object := new(T)
				err := guard.Do(func() error {
					if err := readRecord(dir, name, format, object); err != nil {
						return err
					}
					return check(object, name)
				})
				mu.Lock()
				if err != nil {
					broken[name] = err
				} else {
					objects = append(objects, object)
				}
				mu.Unlock()
			}
		})
	}
	for _, name := range names {
		work <- name
	}
	close(work)
	wg.Wait()
	return objects, broken, nil
}

// readRecord reads the record of the thing called name in dir.
func readRecord(dir *beneath.Dir, name string, format record.Format, thing any) error {
	err := format.Read(dir, path.Join(name, recordFile), thing)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: there is none", record.ErrDamaged)
	}
	return err
}

// emptyTrash removes the entries of the trash, whenever there are some, until ctx is done. It is
// one goroutine that gives way to calls: the removal of many files slows the journal down that
// calls wait for.
func (b *Backend) emptyTrash(ctx context.Context, s *store) {
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
		case <-s.parked.freed:
		case <-timer:
		}
	}
}

// wakeTrash makes emptyTrash look.
func (b *Backend) wakeTrash() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// emptyOnce tries each entry of the trash once.
func (b *Backend) emptyOnce(ctx context.Context, s *store) error {
	names, err := s.root.Names(trashDir)
	b.count.trashed.Store(int64(len(names)))
	if err != nil || len(names) == 0 {
		return err
	}
	// Nothing that is mounted gets here, as Delete has looked. But what is removed is gone for ever: look again.
	if err := s.inPlace(); err != nil {
		return err
	}
	free, hanging := s.parked.without(names)
	if err := s.parked.full(); err != nil {
		return err
	}
	names, failed := b.unmounted(ctx, s, free)
	trash, err := s.root.OpenDirFile(trashDir)
	if err != nil {
		return err
	}
	defer trash.Close()
	for _, name := range names {
		err := guard.Do(func() error {
			if err := b.pace(ctx, 0); err != nil {
				return err
			}
			return b.exec.remove(ctx, trash, name, b.catalog.ProjectTaken, func(files int) error { return b.pace(ctx, files) })
		})
		if err != nil {
			b.panicked(err)
			if g := (*givenUp)(nil); errors.As(err, &g) {
				s.parked.addRemoval(name, err.Error(), g.gone)
			}
			b.count.trashErrors.Add(1)
			failed = fmt.Errorf("in %s: %w", filepath.Join(s.path, trashDir, name), err)
			continue
		}
		b.count.trashed.Add(-1)
	}
	if left, err := s.root.Names(trashDir); failed == nil && err == nil {
		if free, _ := s.parked.without(left); len(free) > 0 {
			b.wakeTrash() // deep trees come back in pieces; see removeTree
		}
	}
	if failed == nil {
		failed = hanging
	}
	return failed
}

// maxParkedRemovals is the number of removals that may hang: each of them keeps a helper process.
const maxParkedRemovals = 16

// parked are entries of the trash on which a helper may still work.
type parked struct {
	freed chan struct{} // there is one entry less

	mu       sync.Mutex
	names    map[string]string // and the reason
	removals int               // of names: their removal hangs
}

// add parks an entry until gone is closed.
func (p *parked) add(name, why string, gone <-chan struct{}) { p.park(name, why, 0, gone) }

// addRemoval parks an entry whose removal hangs until gone is closed.
func (p *parked) addRemoval(name, why string, gone <-chan struct{}) { p.park(name, why, 1, gone) }

func (p *parked) park(name, why string, removals int, gone <-chan struct{}) {
	p.mu.Lock()
	p.names[name] = why
	p.removals += removals
	p.mu.Unlock()
	go func() {
		<-gone
		p.mu.Lock()
		delete(p.names, name)
		p.removals -= removals
		p.mu.Unlock()
		select {
		case p.freed <- struct{}{}:
		default:
		}
	}()
}

// without returns the names of entries that are not parked, and an error about one that is.
func (p *parked) without(names []string) (free []string, parked error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if why, ok := p.names[name]; ok {
			parked = fmt.Errorf("in %s: %s", name, why)
		} else {
			free = append(free, name)
		}
	}
	return free, parked
}

// full returns an error while so many removals hang that no other one may begin.
func (p *parked) full() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removals < maxParkedRemovals {
		return nil
	}
	return fmt.Errorf("%d removals hang", p.removals)
}

// unmounted returns those entries of the trash of which nothing is mounted, and an error about the others.
func (b *Backend) unmounted(ctx context.Context, s *store, names []string) (free []string, err error) {
	trash := filepath.Join(s.real, trashDir)
	users, err := b.cfg.Images.Users(trash)
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
		users, failed := b.cfg.Images.Users(filepath.Join(trash, name))
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

// pace is called after the removal of some files, and before that of an entry. After a slice of time
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
