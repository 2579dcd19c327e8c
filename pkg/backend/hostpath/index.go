package hostpath

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// catalog is what is known of all things of one kind: volumes, snapshots or groups. A thing in it never changes: it is
// replaced.
type catalog[T any] struct {
	what   string // one thing is called
	byID   map[string]T
	broken map[string]error // directories whose record can't be used, by name
	ids    []string         // the keys of both, sorted: what pages are cut from
}

func newCatalog[T any](what string, things map[string]T, broken map[string]error) catalog[T] {
	c := catalog[T]{what: what, byID: things, broken: broken}
	for id := range things {
		c.ids = append(c.ids, id)
	}
	for id := range broken {
		c.ids = append(c.ids, id)
	}
	slices.Sort(c.ids)
	return c
}

// find returns the thing with this ID. Errors: ErrNotFound, or what is wrong with its record.
func (c *catalog[T]) find(id string) (thing T, err error) {
	if thing, ok := c.byID[id]; ok {
		return thing, nil
	}
	if err := c.broken[id]; err != nil {
		return thing, fmt.Errorf("%s %s can't be used: %w", c.what, id, err)
	}
	return thing, fmt.Errorf("%w: %s %.128q", backend.ErrNotFound, c.what, id)
}

func (c *catalog[T]) put(id string, thing T) {
	c.byID[id] = thing
	c.ids = added(c.ids, id)
}

// breaks notes why the thing with this ID can't be used until the next start.
func (c *catalog[T]) breaks(id string, err error) {
	c.broken[id] = err
	c.ids = added(c.ids, id)
}

func (c *catalog[T]) drop(id string) {
	delete(c.byID, id)
	c.ids = removed(c.ids, id)
}

// after calls see with each thing above the ID after, in order, until it returns false. A broken one comes with its
// error only.
func (c *catalog[T]) after(after string, see func(id string, thing T, err error) bool) {
	for _, id := range above(c.ids, after) {
		if !see(id, c.byID[id], c.broken[id]) {
			return
		}
	}
}

// added returns sorted with id in it.
func added(sorted []string, id string) []string {
	i, found := slices.BinarySearch(sorted, id)
	if found {
		return sorted
	}
	return slices.Insert(sorted, i, id)
}

// removed returns sorted without id.
func removed(sorted []string, id string) []string {
	i, found := slices.BinarySearch(sorted, id)
	if !found {
		return sorted
	}
	return slices.Delete(sorted, i, i+1)
}

// above returns the part of sorted that comes after id.
func above(sorted []string, id string) []string {
	i, found := slices.BinarySearch(sorted, id)
	if found {
		i++
	}
	return sorted[i:]
}

// index is what is known of all that is below the root.
type index struct {
	mu        sync.RWMutex
	volumes   catalog[*volume]   // from CreateVolume, Restore and Clone
	inline    map[string]*volume // by the kubelet's handle
	snapshots catalog[*snapshot]
	bySource  map[string][]string // IDs of snapshots, sorted, by the volume that they are of
	groups    catalog[*group]
	promised  int64           // bytes, of volumes and snapshots that are there or being made
	projects  map[uint32]bool // of quotas, that volumes have
}

// contents is what an index is made of.
type contents struct {
	volumes   []*volume
	snapshots []*snapshot
	groups    []*group

	brokenVolumes, brokenSnapshots, brokenGroups map[string]error
}

// replace makes the index hold exactly these things.
func (x *index) replace(c contents) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.inline, x.bySource, x.promised = map[string]*volume{}, map[string][]string{}, 0
	x.projects = map[uint32]bool{}
	volumes := make(map[string]*volume, len(c.volumes))
	for _, v := range c.volumes {
		x.take(v)
		if x.promised = addCapped(x.promised, v.Size); v.Inline {
			x.inline[v.Name] = v
		} else {
			volumes[v.ID] = v
		}
	}
	snapshots := make(map[string]*snapshot, len(c.snapshots))
	for _, s := range c.snapshots {
		x.promised = addCapped(x.promised, s.Held)
		snapshots[s.ID] = s
		x.bySource[s.Source] = added(x.bySource[s.Source], s.ID)
	}
	groups := make(map[string]*group, len(c.groups))
	for _, g := range c.groups {
		groups[g.ID] = g
	}
	x.volumes = newCatalog("volume", volumes, c.brokenVolumes)
	x.snapshots = newCatalog("snapshot", snapshots, c.brokenSnapshots)
	x.groups = newCatalog("group", groups, c.brokenGroups)
}

// find returns the volume with this ID, or the inline volume with this handle. Errors: ErrNotFound, or what is wrong
// with its record.
func (x *index) find(id string) (*volume, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if v := x.inline[id]; v != nil {
		return v, nil
	}
	return x.volumes.find(id)
}

// persistent returns the volume with this ID, if it isn't inline.
func (x *index) persistent(id string) (*volume, error) {
	v, err := x.find(id)
	if err == nil && v.Inline {
		return nil, fmt.Errorf("%w: volume %.128q is a pod's inline volume", backend.ErrNotFound, id)
	}
	return v, err
}

// reserve promises size bytes if available, called with what is promised already, allows it.
func (x *index) reserve(size int64, available func(promised int64) int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if room := available(x.promised); size > room {
		return fmt.Errorf("%w: %d bytes are wanted, %d are left", backend.ErrExhausted, size, room)
	}
	x.promised = addCapped(x.promised, size)
	return nil
}

// release takes the promise of reserve back.
func (x *index) release(size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promised -= size
}

// take notes the project of a volume.
func (x *index) take(v *volume) {
	if v.Mark != nil && v.Mark.Project != 0 {
		x.projects[v.Mark.Project] = true
	}
}

// yield takes the project away from a volume that is being deleted.
func (x *index) yield(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if v.Mark != nil {
		delete(x.projects, v.Mark.Project)
	}
}

// projectTaken reports whether a volume has a project.
func (x *index) projectTaken(project uint32) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.projects[project]
}

// enforced returns the volumes that are held to their sizes.
func (x *index) enforced() (held []*volume) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, volumes := range []map[string]*volume{x.volumes.byID, x.inline} {
		for _, v := range volumes {
			if v.Enforced {
				held = append(held, v)
			}
		}
	}
	return held
}

// put adds a volume whose size is reserved.
func (x *index) put(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.take(v)
	if v.Inline {
		x.inline[v.Name] = v
		return
	}
	x.volumes.put(v.ID, v)
}

// breaks notes why the volume with this ID, or inline volume with this handle, can't be used until the next start.
func (x *index) breaks(id string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.volumes.breaks(id, err)
}

// drop takes a volume and the promise of its size out.
func (x *index) drop(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promised -= v.Size
	if v.Inline {
		delete(x.inline, v.Name)
		return
	}
	x.volumes.drop(v.ID)
}

// after calls see with each volume above the ID after, in order, until it returns false; see catalog.after.
func (x *index) after(after string, see func(id string, v *volume, err error) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.volumes.after(after, see)
}

func (x *index) snapshot(id string) (*snapshot, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.snapshots.find(id)
}

// breakSnapshot notes why a snapshot can't be used until the next start, and breakGroup the same of a group.
func (x *index) breakSnapshot(id string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.snapshots.breaks(id, err)
}

func (x *index) breakGroup(id string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.groups.breaks(id, err)
}

// putSnapshots adds snapshots for which there is room reserved, and their group if they have one.
func (x *index) putSnapshots(g *group, all ...*snapshot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range all {
		x.snapshots.put(s.ID, s)
		x.bySource[s.Source] = added(x.bySource[s.Source], s.ID)
	}
	if g != nil {
		x.groups.put(g.ID, g)
	}
}

// dropSnapshot takes a snapshot and the promise of its room out.
func (x *index) dropSnapshot(s *snapshot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promised -= s.Held
	x.snapshots.drop(s.ID)
	if x.bySource[s.Source] = removed(x.bySource[s.Source], s.ID); len(x.bySource[s.Source]) == 0 {
		delete(x.bySource, s.Source)
	}
}

// snapshotsAfter calls see with each snapshot of a volume, or with all if source is "", above the ID after, in order,
// until it returns false. Broken ones are left out: nothing is known of them.
func (x *index) snapshotsAfter(source, after string, see func(*snapshot) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ids := x.snapshots.ids
	if source != "" {
		ids = x.bySource[source]
	}
	for _, id := range above(ids, after) {
		if s := x.snapshots.byID[id]; s != nil && !see(s) {
			return
		}
	}
}

func (x *index) group(id string) (*group, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.groups.find(id)
}

// dropGroup takes a group out; its members stay.
func (x *index) dropGroup(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.groups.drop(id)
}

// addCapped is a + b for positive numbers, and no overflow: a record may say any size.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
