// Package orphans finds the volumes and snapshots that a driver holds and no object of the cluster names. It has no access
// to the API: what the objects say is read from a stream of text, as kubectl prints it.
//
// Who is told that a volume is an orphan may delete it. So a volume counts as named wherever in the text its ID stands,
// and from text that may be old, cut short or another cluster's nothing is concluded. Nothing is ever deleted here.
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

// ErrNoConclusion says that what was read can't tell which volumes are orphans.
var ErrNoConclusion = errors.New("no conclusion")

// Options are what the operator knows better.
type Options struct {
	Settle time.Duration // how long after the listing the objects must begin to come; see Find
	Page   int32         // entries in one answer to a list; 0 leaves it to the driver
	Call   time.Duration // how long one call to the driver may take; 0 is any time

	// What the cluster is meant to have none of. Without it, that none is there is taken for a mistake.
	NoVolumes   bool // PersistentVolumes
	NoSnapshots bool // VolumeSnapshotContents
	NoGroups    bool // VolumeGroupSnapshotContents
	NoneNamed   bool // objects that name anything which the driver holds

	Listed func(volumes, snapshots int) // is called between the listing and the reading; may be nil
}

// Report is what was found.
type Report struct {
	Volumes   Count    `json:"volumes"`
	Snapshots Count    `json:"snapshots"` // that are in no group
	Members   Count    `json:"members"`   // snapshots in groups
	Orphans   []Orphan `json:"orphans"`   // volumes first, by ID
}

// Count is how many there are of something.
type Count struct {
	Held      int    `json:"held"`                // by the driver
	Named     int    `json:"named"`               // by an object
	Orphans   int    `json:"orphans"`             // held, and not named
	NotJudged string `json:"notJudged,omitempty"` // why those that aren't named weren't called orphans
}

// Orphan is a volume or snapshot that no object names.
type Orphan struct {
	What    string    `json:"what"` // volume or snapshot
	ID      string    `json:"id"`
	Group   string    `json:"group,omitempty"` // the snapshot's
	Size    int64     `json:"size"`            // bytes
	Nodes   []string  `json:"nodes,omitempty"` // values of its topology
	Created time.Time `json:"created,omitzero"`
	Source  string    `json:"source,omitempty"` // ID of what it was made from
}

// Find lists what the driver at conn holds, and only then reads the objects, so that a volume which is made meanwhile
// isn't called an orphan. The objects of those that were just made must be there by then too: Settle is how long the
// first byte must take to come. Errors: ErrNoConclusion, and those of the driver.
func Find(ctx context.Context, conn grpc.ClientConnInterface, objects io.Reader, o Options) (Report, error) {
	return find(ctx, conn, objects, o, time.Now)
}

func find(ctx context.Context, conn grpc.ClientConnInterface, objects io.Reader, o Options, now func() time.Time) (Report, error) {
	h, err := list(ctx, conn, o)
	if err != nil {
		return Report{}, fmt.Errorf("list what the driver holds: %w", err)
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
		return Report{}, fmt.Errorf("%w: the objects came %s after the volumes were listed, and it must be %s at least: of what was being made then,"+
			" the object may not have been written yet. Put a sleep before kubectl get", ErrNoConclusion, waited.Round(time.Millisecond), o.Settle)
	}
	if err := t.read(objects); err != nil {
		return Report{}, err
	}
	return judge(h, t, o)
}

// judge compares what is held with what is named.
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
		volumes = r.Volumes.add(volumes, t.ids[v.ID], v)
	}
	for _, s := range h.snapshots {
		snapshots = r.Snapshots.add(snapshots, t.ids[s.ID], s)
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
		return Report{}, fmt.Errorf("%w: the driver holds %d volumes and %d snapshots, and the objects name not one of them: are they this cluster's?"+
			" If they are, say --expect-none-named", ErrNoConclusion, r.Volumes.Held, r.Snapshots.Held+r.Members.Held)
	}
	return r, nil
}

// add counts something that is held, and adds it to the others if it isn't named.
func (c *Count) add(others []Orphan, named bool, o Orphan) []Orphan {
	if named {
		c.Named++
		return others
	}
	return append(others, o)
}

// conclude returns those of the unnamed that are orphans: all or none.
func (c *Count) conclude(unnamed []Orphan) []Orphan {
	if len(unnamed) == 0 {
		c.NotJudged = "" // nothing is open
	}
	if c.NotJudged != "" {
		return nil
	}
	c.Orphans = len(unnamed)
	return unnamed
}

// Judged reports whether all that isn't named was judged.
func (r Report) Judged() bool {
	return r.Volumes.NotJudged == "" && r.Snapshots.NotJudged == "" && r.Members.NotJudged == ""
}
