package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// load finishes committed groups, moves incomplete objects of an earlier process to the trash,
// makes the objects that it finds durable, and reads all records into the catalog. load reports an
// object with an error and leaves it alone. All other objects are served.
func (b *Backend) load(s *root) (err error) {
	var c contents
	if c.Groups, c.BrokenGroups, err = store.ReadAll(s.Store,
		store.Kind[group]{Dir: groupsDir, Format: partFormat, IsName: isID, Check: (*group).check}); err != nil {
		return err
	}
	c.Groups = s.finishAll(c.Groups, c.BrokenGroups)
	if err := b.sweepStaging(s, c.BrokenGroups); err != nil {
		return err
	}
	if c.Snapshots, c.BrokenSnapshots, err = store.ReadAll(s.Store,
		store.Kind[snapshot]{Dir: snapshotsDir, Format: snapshotFormat, IsName: isID,
			Check: (*snapshot).check}); err != nil {
		return err
	}
	c.Snapshots = b.sweepMembers(s, c.Snapshots, c.BrokenSnapshots)
	c.Volumes, c.BrokenVolumes, err = store.ReadAll(s.Store,
		store.Kind[volume]{Dir: volumesDir, Format: volumeFormat, IsName: isID, Check: s.checkVolume})
	if err != nil {
		return err
	}
	// A driver that died between a rename and its fsync left a state that the kernel shows and the
	// disk may not have. A repeated create finds the volume, a repeated delete finds no volume, and
	// neither has a reason to sync.
	if err := s.Sync(volumesDir, snapshotsDir, groupsDir, trashDir); err != nil {
		return err
	}
	for _, broken := range []map[string]error{c.BrokenVolumes, c.BrokenSnapshots, c.BrokenGroups} {
		for _, err := range broken {
			b.panicked(err)
		}
	}
	b.catalog.Replace(c)
	return nil
}

// isID reports whether an entry of the root is an object.
func isID(name string) bool {
	_, err := volumeid.Parse(name)
	return err == nil
}

// checkVolume returns an error for the record of a volume in the directory dir. It corrects the
// size of an image.
func (s *root) checkVolume(v *volume, dir string) error {
	err := v.check(dir)
	if err == nil {
		s.measure(v)
	}
	return err
}

// finishAll finishes committed groups and returns them. A group that cannot be finished gets an
// entry in broken.
func (s *root) finishAll(groups []*group, broken map[string]error) (finished []*group) {
	for _, g := range groups {
		err := s.finish(g)
		if g.Committed { // its record was renamed, too: see load
			err = errors.Join(err, s.Sync(path.Join(groupsDir, g.ID)))
		}
		if err != nil {
			broken[g.ID] = fmt.Errorf("move its members to their paths: %w", err)
			continue
		}
		finished = append(finished, g)
	}
	return finished
}

// measure sets the size of an image to that of its volume: a driver that died while the image grew
// left an older size in the record. The record stays as it is, as the disk may be full or
// read-only. The health of the volume reports problems with a file.
func (s *root) measure(v *volume) {
	if v.Kind != image {
		return
	}
	size, err := s.imageSize(v)
	if err != nil || size <= v.Size || size > maxImage {
		return
	}
	// The growth may not be durable yet: then the size is lost with the power.
	if s.images.GrowImage(context.Background(), s.dataPath(v), size) == nil {
		v.Size = size
	}
}

// sweepStaging sweeps all entries of staging/, except members of committed groups that could not be
// finished, as they are the only copy, and entries that may be such members.
func (b *Backend) sweepStaging(s *root, brokenGroups map[string]error) error {
	b.count.unswept.Store(nil)
	names, err := s.Dir().Names(stagingDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if len(brokenGroups) > 0 && s.isMember(name, brokenGroups) {
			continue
		}
		if err := b.sweep(s, stagingDir, name); err != nil {
			why := err.Error()
			b.count.unswept.Store(&why)
		}
	}
	return nil
}

// isMember reports whether an entry of staging/ is, or may be, a member of these groups.
func (s *root) isMember(name string, groups map[string]error) bool {
	var n snapshot
	switch err := s.ReadIncomplete(name, snapshotFormat, &n); {
	case errors.Is(err, fs.ErrNotExist): // a member has its record before its group is committed
		return false
	case err != nil: // also if a file of another type is at the path of the record
		return true
	}
	return groups[n.Group] != nil
}

// sweep moves an entry that a crash left to the trash.
func (b *Backend) sweep(s *root, dir, name string) error {
	err := s.Sweep(dir, name)
	if err == nil {
		b.count.swept.Add(1)
	}
	return err
}

// sweepMembers sweeps the members of groups that are deleted, and returns the other snapshots. A
// member that cannot be swept gets an entry in broken.
func (b *Backend) sweepMembers(s *root, all []*snapshot, broken map[string]error) (left []*snapshot) {
	for _, n := range all {
		if n.Group == "" {
			left = append(left, n)
			continue
		}
		_, err := s.Dir().Lstat(path.Join(groupsDir, n.Group))
		switch {
		case err == nil:
			left = append(left, n)
			continue
		case errors.Is(err, fs.ErrNotExist):
			err = b.sweep(s, snapshotsDir, n.ID)
		}
		if err != nil {
			broken[n.ID] = err
		}
	}
	return left
}
