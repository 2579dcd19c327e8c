package hostpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// A group exists when its record is at groups/<id>/record.json. The record gets there after the
// data of all members is durable. Then the members are renamed to their paths. If the driver dies
// in between, the next start renames them. A deletion removes the record first: the next start
// deletes members without a group.

// SnapshotGroup makes snapshots of images at a point in time, while none of their filesystems is
// written to.
func (b *Backend) SnapshotGroup(ctx context.Context, o backend.GroupOptions) (backend.Group, error) {
	g, err := b.makeGroup(o, &group{ID: volumeid.New(volumeid.Group, b.cfg.Node, o.Name), Name: o.Name},
		func(t *groupJob) error {
			description := "volumes " + strings.Join(t.sources, ", ")
			return b.runOrJoin(ctx, t.group.ID, description, t.sources,
				func(ctx context.Context, _ *jobs.Job) error { return t.run(ctx) })
		})
	if err != nil {
		return backend.Group{}, err
	}
	return b.publicGroup(g)
}

// makeGroup finds the group with the ID of g, or makes it. g has no members yet. begin runs the job
// t.
func (b *Backend) makeGroup(o backend.GroupOptions, g *group, begin func(t *groupJob) error) (*group, error) {
	s, err := b.ready()
	if err != nil {
		return nil, err
	}
	if len(o.Parameters) > 0 {
		return nil, fmt.Errorf("%w: unknown parameters %.64q: a VolumeGroupSnapshotClass has no parameters",
			backend.ErrInvalid, slices.Sorted(maps.Keys(o.Parameters)))
	}
	t := &groupJob{Backend: b, store: s, group: g, sources: slices.Sorted(slices.Values(o.Sources))}
	t.claim = fair.Request{Kind: kindGroup, Tenant: o.Namespace, Volume: g.ID}
	switch old, err := b.group(g.ID); {
	case err == nil:
		return old, old.fits(t.sources, g.All)
	case !errors.Is(err, backend.ErrNotFound):
		return nil, err
	}
	if _, err := b.groupable(s, t.sources); err != nil {
		return nil, err
	}
	if err := begin(t); err != nil {
		return nil, err
	}
	return b.group(g.ID)
}

// groupable returns the volumes with these IDs. Errors: ErrNotFound; ErrPrecondition if they cannot
// have a common point in time.
func (b *Backend) groupable(s *root, ids []string) (volumes []*volume, err error) {
	for _, id := range ids {
		v, err := b.persistent(id)
		switch {
		case err != nil:
			return nil, err
		case v.Kind == directory:
			err = fmt.Errorf("volume %s is a directory, which is copied file by file, not at a point in time", id)
		case v.FSType == "":
			err = fmt.Errorf("volume %s is a block device: writes to several block devices cannot be stopped at a "+
				"point in time", id)
		case !plain(s.images):
			err = errors.New("on this operating system an image is copied only while it is not attached")
		case !s.reflinks():
			err = errors.New("the filesystem of the root cannot copy a file at a point in time: must be xfs with " +
				"reflink=1, or btrfs")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: a group snapshot needs a point in time: %w", backend.ErrPrecondition, err)
		}
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// groupJob is the creation of a group, or of a part of a group.
type groupJob struct {
	*Backend
	store     *root
	group     *group
	sources   []string    // IDs of the group's volumes, sorted
	snapshots []*snapshot // as g.Members
	images    []string    // absolute paths of the sources of snapshots
	claim     fair.Request
	reserved  int64
	files     [][2]*os.File // source and copy

	// Of a part: see backend.PartOptions. They may be nil.
	frozen, durable func(context.Context) error
}

// run makes the group of its volumes, and adds it to the catalog.
func (t *groupJob) run(ctx context.Context) (err error) {
	if old, err := t.Backend.group(t.group.ID); err == nil { // made just before this job began
		return old.fits(t.sources, t.group.All)
	}
	defer t.traffic.begin()()
	defer t.wakeTrash()
	volumes, err := t.groupable(t.store, t.sources) // from now on they cannot be deleted
	if err != nil {
		return err
	}
	defer func() {
		switch {
		case errors.Is(err, store.ErrUndecided):
			t.catalog.BreakGroup(t.group.ID, err)
		case err != nil:
			err = errors.Join(exhausted(err), t.undo(err))
		}
	}()
	for _, v := range volumes {
		if err := t.open(v); err != nil {
			return err
		}
	}
	if err := t.copyAll(ctx); err != nil {
		return err
	}
	if err := t.record(); err != nil {
		return err
	}
	crashpoint.Reached("group:recorded")
	if err := callHook(ctx, t.durable); err != nil {
		return err
	}
	if err := t.commit(t.jobs.Context()); err != nil { // the end of the call does not stop the commit
		return err
	}
	t.catalog.PutGroup(t.group, t.snapshots...)
	return nil
}

// callHook calls hook, if it is not nil, and returns its error, or the reason why ctx has ended
// meanwhile.
func callHook(ctx context.Context, hook func(context.Context) error) error {
	if hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// open makes the directory of the member for v, in staging/, and an empty image in it.
func (t *groupJob) open(v *volume) error {
	n := &snapshot{
		ID: volumeid.New(volumeid.Snapshot, t.cfg.Node,
			nameOfMember(t.group.ID, v.ID)), Name: v.ID, Source: v.ID, Accept: frozen,
		content: v.content, Group: t.group.ID,
	}
	incomplete, err := t.store.NewIncomplete(n.ID)
	if err != nil {
		return err
	}
	m := member{ID: n.ID, Source: v.ID, Incomplete: incomplete}
	t.group.Members, t.snapshots = append(t.group.Members, m), append(t.snapshots, n)
	t.images = append(t.images, t.store.dataPath(v))
	src, err := t.store.Dir().OpenFile(t.store.dataName(v), os.O_RDONLY, 0)
	if err != nil {
		return missing(err)
	}
	t.files = append(t.files, [2]*os.File{src})
	dst, err := t.store.Dir().OpenFile(path.Join(m.Incomplete, t.store.Image()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	t.files[len(t.files)-1][1] = dst
	return nil
}

// copyAll makes all copies at a point in time.
func (t *groupJob) copyAll(ctx context.Context) error {
	defer t.traffic.pause()()
	crashpoint.Reached("group:prepared")
	var refused error // an error of the caller's hook, returned unchanged
	leave, err := t.slots.pointInTime.Acquire(ctx, t.claim)
	if err != nil {
		return err
	}
	defer leave()
	var pairs []*os.File
	for _, f := range t.files {
		pairs = append(pairs, f[0], f[1])
	}
	clone, err := t.exec.cloner(pairs...) // started before the freeze
	if err != nil {
		return err
	}
	defer clone.close()
	err = t.cfg.Images.Freeze(ctx, tenantOf(t.claim), t.images, freezeLimit, func(limit context.Context) error {
		if refused = callHook(limit, t.frozen); refused != nil {
			return refused
		}
		t.group.Created = time.Now().UTC()
		return clone.within(limit)
	})
	crashpoint.Reached("group:cut")
	switch {
	case err == nil, refused != nil:
		return err
	case errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("%w: %w", backend.ErrPrecondition, err)
	}
	return fmt.Errorf("%w: no common point in time: %w", backend.ErrUnavailable, err)
}

// record makes the copies durable, with a record beside each. Until the commit, a crash leaves them
// to the sweep of the next start.
func (t *groupJob) record() error {
	for i, n := range t.snapshots {
		dst := t.files[i][1]
		if err := dst.Sync(); err != nil {
			return err
		}
		held, err := copier.OnDisk(dst)
		if err != nil {
			return err
		}
		incomplete := t.group.Members[i].Incomplete
		size, err := t.store.images.ImageSize(t.store.Real(incomplete, t.store.Image()))
		if err != nil {
			return err
		}
		n.Created = t.group.Created
		n.setResult(copied{how: copier.Cloned, size: size, held: held})
		if err := t.reserve(t.store, n.OnDisk); err != nil {
			return err
		}
		t.reserved += n.OnDisk
		if err := t.store.RecordIncomplete(incomplete, snapshotFormat, n); err != nil {
			return err
		}
	}
	return errors.Join(t.close(), t.store.Sync(stagingDir))
}

// commit writes the record of the group, and with it the group and all members exist.
func (t *groupJob) commit(ctx context.Context) error {
	slices.SortFunc(t.group.Members, func(a, b member) int { return strings.Compare(a.ID, b.ID) })
	err := t.store.makeObject(ctx, groupsDir, t.group.ID, func(incomplete *beneath.Dir) error {
		return store.WriteRecord(incomplete, t.group.format(), t.group)
	})
	if err != nil {
		return err
	}
	crashpoint.Reached("group:committed")
	if err := errors.Join(t.store.finish(t.group), t.store.Sync(snapshotsDir)); err != nil {
		return available(fmt.Errorf("%w: %w", store.ErrUndecided, err))
	}
	crashpoint.Reached("group:finished")
	return nil
}

// finish renames the members of a committed group to their paths, unless an earlier call did. The
// caller syncs.
func (s *root) finish(g *group) error {
	for _, m := range g.Members {
		if err := s.MoveIn(m.Incomplete, snapshotsDir, m.ID); err != nil {
			return err
		}
	}
	return nil
}

func (t *groupJob) close() error {
	var failed error
	for _, f := range t.files {
		for _, file := range f {
			if file != nil {
				failed = errors.Join(failed, file.Close())
			}
		}
	}
	t.files = nil
	return failed
}

// undo removes the incomplete members after the error why.
func (t *groupJob) undo(why error) error {
	failed := t.close()
	t.catalog.Release(t.reserved)
	for _, m := range t.group.Members {
		failed = errors.Join(failed, t.store.Drop(m.Incomplete, why))
	}
	return failed
}

func (b *Backend) publicGroup(g *group) (backend.Group, error) {
	group := backend.Group{ID: g.ID, Created: g.Created}
	for _, m := range g.Members {
		n, err := b.snapshot(m.ID)
		if err != nil {
			return group, b.lostMember(g, err)
		}
		group.Snapshots = append(group.Snapshots, n.public())
	}
	return group, nil
}

// lostMember returns the error for a group that lacks a member. Another call may be deleting the
// group, which is no longer in the index when that call ends.
func (b *Backend) lostMember(g *group, why error) error {
	deleting := b.jobs.InExclusiveUse(g.ID)
	if !deleting {
		_, err := b.group(g.ID)
		deleting = err != nil
	}
	if deleting {
		return fmt.Errorf("%w: group %s is being deleted", backend.ErrBusy, g.ID)
	}
	return fmt.Errorf("group %s has lost a member: %v", g.ID,
		why) //nolint:errorlint // ErrNotFound would mean the group
}

// GetGroup returns the group.
func (b *Backend) GetGroup(_ context.Context, id string, snapshots []string,
	_ map[string]string) (backend.Group, error) {
	if _, err := b.ready(); err != nil {
		return backend.Group{}, err
	}
	g, err := b.group(id)
	if err == nil {
		err = g.hasMembers(snapshots)
	}
	if err != nil {
		return backend.Group{}, err
	}
	return b.publicGroup(g)
}
