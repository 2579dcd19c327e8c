// Package orphans finds the volumes and snapshots of a driver that no object of the cluster names.
// The package does not use the API: it reads the objects from a stream of text, as kubectl prints
// them.
//
// An operator may delete a volume that is reported as an orphan. So a volume counts as named if its
// ID is anywhere in the text, and text that may be old, truncated or from another cluster gives no
// result. This package deletes nothing.
package orphans

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
)

// ErrNoConclusion reports that the text does not tell which volumes are orphans.
var ErrNoConclusion = errors.New("no conclusion")

// Options are the settings of the operator.
type Options struct {
	Settle time.Duration // least time between the list and the first byte of the objects; see Find
	Page   int32         // entries in a page of a list; 0: the default of the driver
	Call   time.Duration // time limit of a call to the driver; 0: none

	// Kinds of objects that the cluster has none of. Otherwise the absence of a kind is taken for a
	// mistake.
	NoVolumes   bool // PersistentVolumes
	NoSnapshots bool // VolumeSnapshotContents
	NoGroups    bool // VolumeGroupSnapshotContents
	NoneNamed   bool // objects that name anything which the driver holds

	Listed func(volumes, snapshots int) // called between the list and the first read; may be nil
}

// Report is the result of Find.
type Report struct {
	Volumes   Count    `json:"volumes"`
	Snapshots Count    `json:"snapshots"` // without members of group snapshots
	Members   Count    `json:"members"`   // members of group snapshots
	Orphans   []Orphan `json:"orphans"`   // volumes first, by ID
}

// Count has the numbers of a kind.
type Count struct {
	Held      int    `json:"held"`                // by the driver
	Named     int    `json:"named"`               // by an object
	Orphans   int    `json:"orphans"`             // held, and not named
	NotJudged string `json:"notJudged,omitempty"` // reason why unnamed ones are not orphans
}

// Orphan is a volume or snapshot that no object names.
type Orphan struct {
	What    string    `json:"what"` // volume or snapshot
	ID      string    `json:"id"`
	Group   string    `json:"group,omitempty"` // group snapshot of a member
	Size    int64     `json:"size"`            // bytes
	Nodes   []string  `json:"nodes,omitempty"` // values of its topology
	Created time.Time `json:"created,omitzero"`
	Source  string    `json:"source,omitempty"` // ID of the source
}

// Find lists the volumes and snapshots of the driver at conn first, and then reads the objects, so
// that a volume which is made meanwhile is not an orphan. The objects of new volumes must exist by
// then: the first byte must not come before Settle has passed. Errors: ErrNoConclusion, and those
// of the driver.
func Find(ctx context.Context, conn grpc.ClientConnInterface, objects io.Reader, o Options) (Report, error) {
	return find(ctx, conn, objects, o, time.Now)
}

func find(ctx context.Context, conn grpc.ClientConnInterface, objects io.Reader, o Options,
	now func() time.Time) (Report, error) {
	h, err := list(ctx, conn, o)
	if err != nil {
		return Report{}, fmt.Errorf("list the driver's volumes and snapshots: %w", err)
	}
	if o.Listed != nil {
		o.Listed(len(h.volumes), len(h.snapshots)+len(h.members()))
	}
	t := newText(h)
	listed := now()
	if err := t.first(objects); err != nil {
		return Report{}, err
	}
	if waited := now().Sub(listed); len(t.begin) > 0 && waited < o.Settle {
		return Report{}, fmt.Errorf("%w: the objects came %s after the list of volumes, and must come at least %s "+
			"after it: the object of a volume that was being made may not exist yet. Put a sleep before "+
			"kubectl get", ErrNoConclusion,
			waited.Round(time.Millisecond), o.Settle)
	}
	if err := t.read(objects); err != nil {
		return Report{}, err
	}
	return judge(h, t, o)
}

// judge compares the objects of the driver with the named IDs.
func judge(h *held, t *text, o Options) (r Report, err error) {
	r.Volumes, r.Snapshots = Count{Held: len(h.volumes)}, Count{Held: len(h.snapshots)}
	if !o.NoVolumes {
		r.Volumes.NotJudged = t.lacks(volumeKind, "--expect-no-volumes")
	}
	if !o.NoSnapshots {
		r.Snapshots.NotJudged = t.lacks(contentKind, "--expect-no-snapshots")
		r.Members.NotJudged = r.Snapshots.NotJudged
	}
	if !o.NoGroups && r.Members.NotJudged == "" {
		r.Members.NotJudged = t.lacks(groupKind, "--expect-no-groups")
	}
	var volumes, snapshots, members []Orphan
	for _, v := range h.volumes {
		volumes = r.Volumes.add(volumes, t.ids[key(v.ID)], v)
	}
	for _, s := range h.snapshots {
		snapshots = r.Snapshots.add(snapshots, t.ids[key(s.ID)], s)
	}
	for _, g := range h.groups {
		named := g.named(t.ids)
		for _, s := range g.snapshots {
			r.Members.Held++
			members = r.Members.add(members, named, s)
		}
	}
	r.Orphans = slices.Concat(r.Volumes.conclude(volumes), r.Snapshots.conclude(snapshots), r.Members.conclude(members))
	if len(r.Orphans) > 0 && r.Volumes.Named+r.Snapshots.Named+r.Members.Named == 0 && !o.NoneNamed {
		return Report{}, fmt.Errorf("%w: the driver holds %d volumes and %d snapshots, and the objects name not one "+
			"of them: are they this cluster's?"+
			" If they are, say --expect-none-named", ErrNoConclusion, r.Volumes.Held, r.Snapshots.Held+r.Members.Held)
	}
	return r, nil
}

// add counts an object of the driver, and keeps it if it is not named.
func (c *Count) add(others []Orphan, named bool, o Orphan) []Orphan {
	if named {
		c.Named++
		return others
	}
	return append(others, o)
}

// conclude returns all unnamed objects as orphans, or none.
func (c *Count) conclude(unnamed []Orphan) []Orphan {
	if len(unnamed) == 0 {
		c.NotJudged = "" // every object is named
	}
	if c.NotJudged != "" {
		return nil
	}
	c.Orphans = len(unnamed)
	return unnamed
}

// Judged reports whether every unnamed object was judged.
func (r Report) Judged() bool {
	return r.Volumes.NotJudged == "" && r.Snapshots.NotJudged == "" && r.Members.NotJudged == ""
}
