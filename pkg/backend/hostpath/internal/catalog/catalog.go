// Package catalog is the index of all objects below a root, in memory: it finds them by key, lists
// them in pages, and adds up the capacity that is reserved for them. The package does not
// use the disk, and uses an object only through the methods of Object.
package catalog

import (
	"fmt"
	"math"
	"sync"
)

// Object is a volume, a snapshot or a group. An object in a catalog never changes: a call replaces
// it with another object.
type Object interface {
	Key() string // unique among the objects of its kind, which are listed in this order
}

// Volume is a volume.
type Volume interface {
	Object
	Reserved() int64 // bytes
	Listed() bool    // volumes that are not listed are found by their keys only
	Project() uint32 // of a quota, 0 if there is none
}

// Snapshot is a snapshot.
type Snapshot interface {
	Object
	Reserved() int64  // bytes
	VolumeID() string // of the source
}

// NotFound is the error for an object that the catalog does not have.
type NotFound struct{ What, Key string }

func (n *NotFound) Error() string { return fmt.Sprintf("%s %.128q", n.What, n.Key) }

// Full is the error of a reservation without enough space. Wanted and Left are in bytes.
type Full struct{ Wanted, Left int64 }

func (f *Full) Error() string {
	return fmt.Sprintf("%d bytes are wanted, %d are left", f.Wanted, f.Left)
}

// Catalog is the index. Its zero value is empty and can only be filled by Replace. Its methods may
// be called by many goroutines.
type Catalog[V Volume, S Snapshot, G Object] struct {
	mu        sync.RWMutex
	volumes   collection[V] // listed volumes
	hidden    map[string]V  // inline volumes
	snapshots collection[S]
	bySource  map[string][]string // keys of snapshots, sorted, by the ID of their volume
	groups    collection[G]
	reserved  int64           // bytes, of volumes and snapshots that exist or are being made
	projects  map[uint32]bool // of volumes
}

// Contents is the content of a catalog. The Broken maps have the reason why an object cannot be
// used, by key.
type Contents[V Volume, S Snapshot, G Object] struct {
	Volumes   []V
	Snapshots []S
	Groups    []G

	BrokenVolumes, BrokenSnapshots, BrokenGroups map[string]error
}

// Replace makes the catalog hold exactly these objects.
func (c *Catalog[V, S, G]) Replace(all Contents[V, S, G]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hidden, c.bySource, c.reserved = map[string]V{}, map[string][]string{}, 0
	c.projects = map[uint32]bool{}
	listed := make([]V, 0, len(all.Volumes))
	for _, v := range all.Volumes {
		c.takeProject(v)
		if c.reserved = addCapped(c.reserved, v.Reserved()); v.Listed() {
			listed = append(listed, v)
		} else {
			c.hidden[v.Key()] = v
		}
	}
	for _, s := range all.Snapshots {
		c.reserved = addCapped(c.reserved, s.Reserved())
		c.bySource[s.VolumeID()] = added(c.bySource[s.VolumeID()], s.Key())
	}
	c.volumes = newCollection("volume", listed, all.BrokenVolumes)
	c.snapshots = newCollection("snapshot", all.Snapshots, all.BrokenSnapshots)
	c.groups = newCollection("group", all.Groups, all.BrokenGroups)
}

// Reserve reserves size bytes if available, called with the bytes that are reserved already, allows
// it. Errors: Full.
func (c *Catalog[V, S, G]) Reserve(size int64, available func(reserved int64) int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := available(c.reserved); size > left {
		return &Full{size, left}
	}
	c.reserved = addCapped(c.reserved, size)
	return nil
}

// Release cancels a reservation of size bytes.
func (c *Catalog[V, S, G]) Release(size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= size
}

// Reserved returns the bytes that are reserved.
func (c *Catalog[V, S, G]) Reserved() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.reserved
}

// takeProject records the project of a volume.
func (c *Catalog[V, S, G]) takeProject(v V) {
	if project := v.Project(); project != 0 {
		c.projects[project] = true
	}
}

// YieldProject takes the project away from a volume that is being deleted.
func (c *Catalog[V, S, G]) YieldProject(v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.projects, v.Project())
}

// ProjectTaken reports whether a volume has a project.
func (c *Catalog[V, S, G]) ProjectTaken(project uint32) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.projects[project]
}

// Volume returns the volume with a key, listed or not. Errors: NotFound, or the reason why the
// volume cannot be used.
func (c *Catalog[V, S, G]) Volume(key string) (V, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if v, ok := c.hidden[key]; ok {
		return v, nil
	}
	return c.volumes.find(key)
}

// Volumes returns all volumes, listed or not, in no order.
func (c *Catalog[V, S, G]) Volumes() (all []V) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, volumes := range []map[string]V{c.volumes.byKey, c.hidden} {
		for _, v := range volumes {
			all = append(all, v)
		}
	}
	return all
}

// VolumesAfter calls see with each listed volume whose key is above after, in order, until see
// returns false. A broken volume comes with its error only.
func (c *Catalog[V, S, G]) VolumesAfter(after string, see func(key string, v V, err error) bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	c.volumes.after(after, see)
}

// PutVolume adds a volume whose size is reserved.
func (c *Catalog[V, S, G]) PutVolume(v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takeProject(v)
	if v.Listed() {
		c.volumes.put(v)
	} else {
		c.hidden[v.Key()] = v
	}
}

// DropVolume removes a volume and its reservation.
func (c *Catalog[V, S, G]) DropVolume(v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= v.Reserved()
	if v.Listed() {
		c.volumes.drop(v.Key())
	} else {
		delete(c.hidden, v.Key())
	}
}

// BreakVolume records why a volume cannot be used until the next start.
func (c *Catalog[V, S, G]) BreakVolume(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.volumes.breaks(key, err)
}

// Snapshot returns the snapshot with a key. Errors: NotFound, or the reason why the snapshot cannot
// be used.
func (c *Catalog[V, S, G]) Snapshot(key string) (S, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.snapshots.find(key)
}

// SnapshotsAfter calls see with each snapshot of a volume, or with all snapshots if source is "",
// whose key is above after, in order, until see returns false. Broken snapshots are left out.
func (c *Catalog[V, S, G]) SnapshotsAfter(source, after string, see func(S) bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	keys := c.snapshots.keys
	if source != "" {
		keys = c.bySource[source]
	}
	for _, key := range above(keys, after) {
		if s, ok := c.snapshots.byKey[key]; ok && !see(s) {
			return
		}
	}
}

// PutSnapshot adds a snapshot whose bytes are reserved.
func (c *Catalog[V, S, G]) PutSnapshot(s S) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putSnapshot(s)
}

func (c *Catalog[V, S, G]) putSnapshot(s S) {
	c.snapshots.put(s)
	c.bySource[s.VolumeID()] = added(c.bySource[s.VolumeID()], s.Key())
}

// DropSnapshot removes a snapshot and its reservation.
func (c *Catalog[V, S, G]) DropSnapshot(s S) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= s.Reserved()
	c.snapshots.drop(s.Key())
	source := s.VolumeID()
	if c.bySource[source] = removed(c.bySource[source], s.Key()); len(c.bySource[source]) == 0 {
		delete(c.bySource, source)
	}
}

// BreakSnapshot records why a snapshot cannot be used until the next start.
func (c *Catalog[V, S, G]) BreakSnapshot(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots.breaks(key, err)
}

// Group returns the group with a key. Errors: NotFound, or the reason why the group cannot be used.
func (c *Catalog[V, S, G]) Group(key string) (G, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.groups.find(key)
}

// PutGroup adds a group and members whose bytes are reserved: no call sees one without the other.
func (c *Catalog[V, S, G]) PutGroup(g G, members ...S) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range members {
		c.putSnapshot(s)
	}
	c.groups.put(g)
}

// DropGroup removes a group; its members stay.
func (c *Catalog[V, S, G]) DropGroup(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups.drop(key)
}

// BreakGroup records why a group cannot be used until the next start.
func (c *Catalog[V, S, G]) BreakGroup(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups.breaks(key, err)
}

// Stats are the figures of a catalog.
type Stats struct {
	Volumes, Hidden, Snapshots, Groups, Broken int
	Reserved                                   int64 // bytes
}

// Stats returns the current figures.
func (c *Catalog[V, S, G]) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return Stats{
		Volumes: len(c.volumes.byKey), Hidden: len(c.hidden), Snapshots: len(c.snapshots.byKey),
		Groups:   len(c.groups.byKey),
		Broken:   len(c.volumes.broken) + len(c.snapshots.broken) + len(c.groups.broken),
		Reserved: c.reserved,
	}
}

// addCapped returns a + b for positive numbers without an overflow: a record may hold any size.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
