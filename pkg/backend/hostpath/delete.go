package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// deletion is an object that a call deletes.
type deletion struct {
	dir, id string
	members []string     // IDs of the snapshots that go with the object
	prepare func() error // runs right before the object is moved; nil: nothing to do
	undo    func()       // undoes prepare if the object could not be moved; nil: nothing to do
	drop    func()       // removes the object from the catalog
}

// remove moves an object to the trash: every deletion of a volume, snapshot or group takes this
// path. No job may use the object id meanwhile. find looks the object up and returns the reason for
// which it must stay; ErrNotFound means that there is nothing to delete, which is no error.
//
// The record of a group goes first: without it the members are deleted at the next start, if a
// crash or an error comes before the last of them. The catalog keeps the group until then, so a
// retry finishes the deletion.
func (b *Backend) remove(id string, find func(s *root) (*deletion, error)) error {
	s, err := b.ready()
	if err != nil {
		return err
	}
	release, err := b.exclusive(id)
	if err != nil {
		return err
	}
	defer release()
	d, err := find(s)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	leave, err := b.exclusive(d.members...)
	if err != nil {
		return err
	}
	defer leave()
	defer b.traffic.begin()()
	if err := b.move(s, d); err != nil {
		return err
	}
	d.drop()
	return nil
}

// move moves an object and its members to the trash.
func (b *Backend) move(s *root, d *deletion) error {
	if d.prepare != nil {
		if err := d.prepare(); err != nil {
			return err
		}
	}
	if err := b.trash(s, d.dir, d.id); err != nil {
		if d.undo != nil {
			d.undo()
		}
		return err
	}
	if len(d.members) > 0 {
		crashpoint.Reached("group:ended")
	}
	for _, id := range d.members {
		if err := b.trash(s, snapshotsDir, id); err != nil {
			return err
		}
		if n, err := b.snapshot(id); err == nil {
			b.catalog.DropSnapshot(n)
		}
	}
	return nil
}

// Delete moves the volume to the trash.
func (b *Backend) Delete(ctx context.Context, id string, _ map[string]string) error {
	return b.removeVolume(ctx, id, false)
}

// DeleteInline moves an inline volume to the trash.
func (b *Backend) DeleteInline(ctx context.Context, handle string) error {
	b.traffic.touch()
	// The driver calls DeleteInline for every volume that it unpublishes. A volume of CreateVolume
	// must not wait for the root.
	if _, err := volumeid.Parse(handle); err == nil {
		return nil
	}
	return b.removeVolume(ctx, handle, true)
}

func (b *Backend) removeVolume(ctx context.Context, id string, inline bool) error {
	return b.remove(id, func(s *root) (*deletion, error) {
		v, err := b.volume(id)
		if err == nil && v.Inline != inline {
			err = backend.ErrNotFound
		}
		if err != nil {
			return nil, err
		}
		return &deletion{
			dir: volumesDir, id: v.ID,
			prepare: func() error {
				if err := b.unused(ctx, s, v); err != nil {
					return err
				}
				crashpoint.Reached("delete:checked")
				// Yield the project before the move: the emptying of the trash removes the limit of
				// a project only if no volume has the project.
				b.catalog.YieldProject(v)
				return nil
			},
			undo: func() { b.catalog.PutVolume(v) },
			drop: func() { b.catalog.DropVolume(v) },
		}, nil
	})
}

// DeleteSnapshot moves the snapshot to the trash.
func (b *Backend) DeleteSnapshot(_ context.Context, id string, _ map[string]string) error {
	return b.remove(id, func(*root) (*deletion, error) {
		n, err := b.snapshot(id)
		if err == nil && n.Group != "" {
			err = fmt.Errorf("%w: snapshot %s is a member of group %s: delete the group", backend.ErrInvalid, id,
				n.Group)
		}
		if err != nil {
			return nil, err
		}
		return &deletion{dir: snapshotsDir, id: n.ID, drop: func() { b.catalog.DropSnapshot(n) }}, nil
	})
}

// DeleteGroup moves the group and its members to the trash.
func (b *Backend) DeleteGroup(_ context.Context, id string, snapshots []string, _ map[string]string) error {
	return b.removeGroup(id, func(g *group) error { return g.hasMembers(snapshots) })
}

// removeGroup moves a group to the trash if the group exists and allow returns nil. The group does
// not change while allow runs.
func (b *Backend) removeGroup(id string, allow func(*group) error) error {
	return b.remove(id, func(*root) (*deletion, error) {
		g, err := b.group(id)
		if err == nil {
			err = allow(g)
		}
		if err != nil {
			return nil, err
		}
		return &deletion{dir: groupsDir, id: id, members: g.members(), drop: func() { b.catalog.DropGroup(id) }}, nil
	})
}

// unused returns ErrInUse if the kernel reports the volume as mounted anywhere on this machine.
// hostpath attaches nothing, so no attachment prevents a deletion, and the emptying of the trash
// would delete the files below a mount. unused detaches the device of a block volume whose staging
// path was unmounted by another program than the driver.
func (b *Backend) unused(ctx context.Context, s *root, v *volume) error {
	source := filepath.Dir(s.dataPath(v))
	if v.Kind == image {
		source = s.dataPath(v)
	}
	users, err := b.cfg.Images.MountPointsOf(source)
	if errors.Is(err, mounter.ErrPath) { // a link is in the path: the arguments of the call are not the reason
		if at := s.checkData(v); at != nil {
			return wrongType(at)
		}
	}
	if err == nil && v.Kind == image {
		users, err = b.detached(ctx, source, users)
	}
	if err != nil {
		return fmt.Errorf("find out whether volume %s is in use: %w", v.ID, err)
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: volume %s is %s", backend.ErrInUse, v.ID, usedAt(users))
	}
	return nil
}

// detached returns the users of an image. Where its device is the only one of users, it detaches the
// device first, unless a process or another mount namespace uses that.
func (b *Backend) detached(ctx context.Context, image string, users []string) ([]string, error) {
	if len(users) != 1 || !isDevice(users[0]) {
		return users, nil
	}
	device, err := b.cfg.Images.Detach(ctx, image)
	if err == nil && device == "" { // detached, or mounted by now
		return b.cfg.Images.MountPointsOf(image)
	}
	return users, err
}

// isDevice reports whether a user of an image is its device: nothing is mounted in /dev.
func isDevice(user string) bool { return strings.HasPrefix(user, "/dev/") }

// usedAt describes the users of a volume.
func usedAt(users []string) string {
	if isDevice(users[0]) {
		return "attached to " + users[0] + ", which a process or another mount namespace uses"
	}
	return "mounted at " + strings.Join(users[:min(3, len(users))], ", ")
}
