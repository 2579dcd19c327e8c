// Package orphans finds the volumes and snapshots of a driver that no object of the cluster names,
// and deletes them if the operator wants that.
//
// Neither the storage nor the API shows whether a volume is still wanted once its object is gone.
// So everything that speaks for a volume counts: the handle in a typed field, the ID anywhere in an
// object of storage, a claim or a snapshot whose UID gives the same ID. A list that may be old,
// short or from another cluster gives no result.
package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/pkg/volumeid"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// ErrNoConclusion reports that the objects do not tell which volumes are orphans.
var ErrNoConclusion = errors.New("no conclusion")

// Options are the settings of the operator.
type Options struct {
	// Settle is the time between the list of the driver and the lists of objects: the object of a
	// volume that was just made may not exist yet.
	Settle time.Duration

	// Kinds of objects that the cluster has none of. Otherwise the absence of a kind is taken for a
	// mistake.
	NoVolumes   bool // PersistentVolumes
	NoSnapshots bool // VolumeSnapshotContents
	NoGroups    bool // VolumeGroupSnapshotContents
	NoneNamed   bool // objects that name anything which the driver holds
}

// Search is a search for orphans of a driver.
type Search struct {
	Client cluster.Client
	Driver *cluster.Driver
	List   func(ctx context.Context) (*inventory.Inventory, error) // of the driver
	Options
	// Sleep waits, or returns the error of ctx. Nil is a real sleep.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Report is the result of a search.
type Report struct {
	Driver    string   `json:"driver"`
	Volumes   Count    `json:"volumes"`
	Snapshots Count    `json:"snapshots"` // without members of group snapshots
	Members   Count    `json:"members"`   // members of group snapshots
	Orphans   []Orphan `json:"orphans"`   // volumes first, by ID
	// Pending are the pending claims of the driver, as namespace/name. While there are any, the
	// driver may be creating the volumes that are reported as orphans.
	Pending []string `json:"pendingClaims"`
	// Reservations are the objects that an interrupted delete has left. Their volumes count as
	// named.
	Reservations []Reservation `json:"reservations"`
	read         read
}

// Reservation is an object that an interrupted delete has left.
type Reservation struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Policy string `json:"policy"` // Retain, or Delete: then a sidecar deletes the volume or snapshot
	uid    types.UID
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
	What string `json:"what"` // volume or snapshot
	inventory.Object
}

// Find lists the volumes and snapshots of the driver first, and then reads the objects, so that a
// volume which is made meanwhile is not an orphan. Errors: ErrNoConclusion, and those of the driver
// and the API server.
func (s *Search) Find(ctx context.Context) (Report, error) {
	held, err := s.List(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("list the volumes of the driver: %w", err)
	}
	if held.Driver != s.Driver.Name {
		return Report{}, fmt.Errorf("%w: the pod's driver is %q, and not %q", ErrNoConclusion, held.Driver,
			s.Driver.Name)
	}
	if err := s.sleep(ctx, s.Settle); err != nil {
		return Report{}, err
	}
	n, err := s.read(ctx, nil)
	if err != nil {
		return Report{}, err
	}
	return s.judge(held, n)
}

func (s *Search) sleep(ctx context.Context, d time.Duration) error {
	if s.Sleep != nil {
		return s.Sleep(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// judge compares the objects of the driver with the objects of the cluster.
func (s *Search) judge(held *inventory.Inventory, n *names) (Report, error) {
	r := Report{Driver: held.Driver, Pending: n.pending, Reservations: n.reservations, Orphans: []Orphan{},
		read: n.read}
	if !s.NoVolumes {
		r.Volumes.NotJudged = n.lacks(volumeKind, "--expect-no-volumes")
	}
	if !s.NoSnapshots {
		r.Snapshots.NotJudged = n.lacks(contentKind, "--expect-no-snapshots")
		r.Members.NotJudged = r.Snapshots.NotJudged
	}
	if !s.NoGroups && r.Members.NotJudged == "" {
		r.Members.NotJudged = n.lacks(groupKind, "--expect-no-groups")
	}
	var volumes, snapshots, members []Orphan
	for _, v := range held.Volumes {
		volumes = r.Volumes.add(volumes, n.named(v.ID), Orphan{"volume", v})
	}
	groups := namedGroups(held, n)
	for _, o := range held.Snapshots {
		if o.Group == "" {
			snapshots = r.Snapshots.add(snapshots, n.named(o.ID), Orphan{"snapshot", o})
		} else {
			members = r.Members.add(members, groups[o.Group], Orphan{"snapshot", o})
		}
	}
	// A kind without objects was judged above.
	none := func(kind string) bool { return s.NoneNamed || n.count[kind] == 0 }
	r.Orphans = slices.Concat(r.Orphans, r.Volumes.conclude(volumes, none(volumeKind)),
		r.Snapshots.conclude(snapshots, none(contentKind)), r.Members.conclude(members, none(groupKind)))
	if len(r.Orphans) > 0 && r.Volumes.Named+r.Snapshots.Named+r.Members.Named == 0 && !s.NoneNamed {
		return Report{}, fmt.Errorf("%w: the driver holds %d volumes and %d snapshots, and no object names any of "+
			"them. "+
			"Was the cluster restored from a backup, or is the storage that of another cluster? If all of them are "+
			"orphans, use --expect-none-named", ErrNoConclusion, r.Volumes.Held, r.Snapshots.Held+r.Members.Held)
	}
	return r, nil
}

// namedGroups returns the groups that are named, or of which a member is named. A group can only be
// deleted as a whole, so it also counts as named as a whole.
func namedGroups(held *inventory.Inventory, n *names) map[string]bool {
	groups := map[string]bool{}
	for _, o := range held.Snapshots {
		if o.Group != "" && (n.named(o.ID) || n.named(o.Group)) {
			groups[o.Group] = true
		}
	}
	return groups
}

// add counts an object of the driver, and keeps it if it is not named.
func (c *Count) add(others []Orphan, named bool, o Orphan) []Orphan {
	c.Held++
	if named {
		c.Named++
		return others
	}
	return append(others, o)
}

// conclude returns all unnamed objects as orphans, or none. Unless none may be named, one of the
// kind must be: a restore from a backup may lack all objects of one kind.
func (c *Count) conclude(unnamed []Orphan, none bool) []Orphan {
	switch {
	case len(unnamed) == 0:
		c.NotJudged = "" // every object is named
	case c.NotJudged == "" && c.Named == 0 && !none:
		c.NotJudged = "no object names any of them. Was the cluster restored from a backup without these objects? " +
			"If all of them are orphans, use --expect-none-named"
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

// parsed returns the kind and the digest of the name of an ID.
func parsed(id string) (volumeid.Kind, string, bool) {
	p, err := volumeid.Parse(inventory.Key(id))
	return p.Kind, p.Name, err == nil
}
