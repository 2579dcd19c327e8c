// Package backendtest is the contract of package backend as a test suite. A backend's test is one call of Run; what
// the backend doesn't implement is not tested.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// MiB is a unit of sizes, in bytes.
const MiB = 1 << 20

// Size is one that every backend should be able to make, in bytes.
const Size = 16 * MiB

// Kind says what the volumes are with which Run tests. A backend with several kinds of them runs the suite for each.
type Kind struct {
	Parameters map[string]string // that they are made with; may be nil

	// Mutable are parameters that a Modifier can change, with two values for each that a volume hasn't by itself.
	Mutable map[string][2]string

	// Groups and BlockGroups say of a GroupSnapshotter whether it makes groups of those with a filesystem, and of block
	// devices. Others it must refuse.
	Groups, BlockGroups bool
}

// Run holds a backend against the contract. storage makes new, empty storage for one test; each call of what it
// returns opens that storage, as another process would, and returns a ready backend. One with a method Close is closed
// before the next is opened. Where the backend asks what is mounted, it is to ask images. The suite mounts nothing for real:
// where a filesystem is to be made in an image, images.Format is to make it.
// A backend that attaches is to know Nodes.
func Run(t *testing.T, kind Kind, storage func(t *testing.T, images mounter.Images) (open func() backend.Backend)) {
	fresh := func(t *testing.T, access backend.Access) *subject {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		m := mounter.NewFake(dir)
		open := storage(t, m)
		return &subject{T: t, Backend: open(), open: open, mounter: m, kubelet: dir, kind: kind, access: access}
	}
	for name, test := range rows {
		t.Run(name, func(t *testing.T) { test(fresh(t, backend.Access{})) })
	}
	for name, test := range rowsOfEachUse {
		t.Run(name, func(t *testing.T) { test(fresh(t, backend.Access{})) })
		t.Run(name+", of block devices", func(t *testing.T) {
			s := fresh(t, backend.Access{Block: true})
			if _, err := s.Create(context.Background(), s.request("pvc-1")); errors.Is(err, backend.ErrInvalid) {
				s.Skip("this backend has no block volumes")
			}
			test(fresh(t, s.access))
		})
	}
}

// rows are the contract.
var rows = map[string]func(s *subject){
	"a volume is made, found and deleted, and each can be repeated": lifecycle,
	"a deleted volume's name makes a new volume":                    reuse,
	"another process finds what was made and nothing more":          restart,
	"an ID from a stranger is not found, and nothing to delete":     strangeIDs,
	"a name from a stranger is a name like any other":               strangeNames,
	"sizes are kept to":                             sizes,
	"the same name for something else is refused":   conflicts,
	"what is not understood is refused and named":   unknowns,
	"a cancelled call leaves nothing":               cancelled,
	"Mount says what to mount":                      mounts,
	"a mounted volume is not deleted":               inUse,
	"a block volume is a device, if there are any":  block,
	"pages are in order":                            func(s *subject) { pages(s, volumes(s)) },
	"pages stay right while volumes come and go":    func(s *subject) { churn(s, volumes(s)) },
	"room that is promised is not offered again":    capacity,
	"what doesn't fit leaves nothing":               exhausted,
	"an inline volume is known by its handle alone": inline,
	"a ready backend says so":                       ready,
	"a well volume has no conditions":               health,
	"metrics have names that stay":                  metrics,
	"a volume grows and never shrinks":              expand,
	"many callers at once":                          concurrency,
	"secrets are in no error":                       secrets,

	"a volume is attached and detached, and each can be repeated": attaches,
	"a volume is shared only where all of its nodes share it":     shares,
	"an attachment is not changed by asking for another":          attachesAgain,
	"what isn't there is not attached, and detached already":      attachesNothing,
	"what is attached read-only is mounted read-only":             attachesReadOnly,
	"an attached volume is not deleted":                           attachedStays,
	"a node takes as many volumes as it says and no more":         attachesToTheLimit,
	"a disk whose filesystem several nodes write is not made":     sharesNoFilesystem,
	"many callers attach at once":                                 attachesConcurrently,

	"a volume is modified, and each change can be undone":  modifies,
	"a volume is made with parameters that can be changed": createsMutable,
	"a restored volume has them too":                       restoring(copiesMutable),
	"a clone has them too":                                 cloning(copiesMutable),
	"a volume that can't be modified stays as it is":       modifiesNothing,

	"a snapshot's ID from a stranger is not found, and nothing to delete": strangeSnapshots,
	"a snapshot's name from a stranger is a name like any other":          strangeSnapshotNames,
	"pages of snapshots are in order":                                     func(s *subject) { pages(s, snapshotsOf(s, true)) },
	"pages of snapshots stay right while snapshots come and go":           func(s *subject) { churn(s, snapshotsOf(s, true)) },
	"pages of a volume's snapshots are in order":                          func(s *subject) { pages(s, snapshotsOf(s, false)) },
	"pages of a volume's snapshots stay right while snapshots come and go": func(s *subject) {
		churn(s, snapshotsOf(s, false))
	},
}

// rowsOfEachUse are those that are held against volumes with a filesystem, and against block devices too.
var rowsOfEachUse = map[string]func(s *subject){
	"a snapshot keeps what its volume held, and each call can be repeated": snapshots,
	"a snapshot doesn't need its volume":                                   snapshotStays,
	"the same snapshot of something else is refused":                       snapshotConflicts,
	"a snapshot nobody waits for is made or not":                           snapshotCancelled,
	"many callers make snapshots at once":                                  snapshotsConcurrently,
	"a volume is deleted while a snapshot is made of it":                   snapshotRaces,

	"a restored volume holds what the snapshot does, and is its own": restoring(copies),
	"a restored volume has the size that is asked for":               restoring(copySizes),
	"the same restored volume from something else is refused":        restoring(copyConflicts),
	"a volume that can't be restored leaves nothing":                 restoring(copyRefused),
	"a restored volume nobody waits for is made or not":              restoring(copyCancelled),
	"a snapshot is deleted while a volume is made of it":             restoring(copyRaces),

	"a clone holds what its volume does, and is its own": cloning(copies),
	"a clone has the size that is asked for":             cloning(copySizes),
	"the same clone of something else is refused":        cloning(copyConflicts),
	"a clone that can't be leaves nothing":               cloning(copyRefused),
	"a clone nobody waits for is made or not":            cloning(copyCancelled),
	"a volume is deleted while it is cloned":             cloning(copyRaces),

	"a group keeps what its volumes held, and each call can be repeated": groups,
	"a group doesn't need its volumes":                                   groupStays,
	"the same group of something else is refused":                        groupConflicts,
	"a group is whole or not at all":                                     groupAllOrNothing,
	"a group's ID from a stranger is not found, and nothing to delete":   strangeGroups,
	"a group nobody waits for is made or not":                            groupCancelled,
	"many callers make groups at once":                                   groupsConcurrently,
	"a group is deleted while a volume is made of a member":              groupRaces,

	"a part of a group keeps what its volumes held, and each call can be repeated": parts,
	"a part of a group is not made against the will of who asks for it":            partUndone,
	"a part of a group is discarded until it is settled":                           partDiscarded,
	"a part of a group doesn't need its volumes, nor the process that made it":     partStays,
	"the same part of another group is refused":                                    partConflicts,
	"a part's ID from a stranger is not found, and nothing to discard":             strangeParts,
	"a part of a group is made by one call":                                        partInTheMaking,
	"many callers make a part of a group at once":                                  partsConcurrently,
	"a part of a group is settled while it is discarded":                           partRaces,
	"a part of a group is discarded while a volume is made of a member":            partRestored,

	"what a snapshot holds is reported, from any offset on":       allocates,
	"what changed between two snapshots makes one of the other":   changes,
	"what can't be told of snapshots is refused":                  tellsNothing,
	"whoever has heard enough of a snapshot gets to hear no more": hangsUp,
}

type subject struct {
	*testing.T
	backend.Backend
	open    func() backend.Backend
	mounter *mounter.Fake
	kubelet string

	kind   Kind
	access backend.Access // of the volumes that are made
}

// optional returns the subject as a T, or skips the row.
func optional[T any](s *subject) T {
	b, ok := s.Backend.(T)
	if !ok {
		s.Skipf("the backend is no %s", reflect.TypeFor[T]())
	}
	return b
}

func (s *subject) request(name string) backend.CreateOptions {
	return backend.CreateOptions{Name: name, Required: Size, Access: []backend.Access{s.access}, Parameters: maps.Clone(s.kind.Parameters)}
}

// with returns the parameters and one more.
func (s *subject) with(key, value string) map[string]string {
	p := map[string]string{key: value}
	maps.Copy(p, s.kind.Parameters)
	return p
}

func (s *subject) create(o backend.CreateOptions) backend.Volume {
	s.Helper()
	v, err := s.Create(context.Background(), o)
	if err != nil {
		s.Fatalf("Create(%.40q): %v", o.Name, err)
	}
	return v
}

func (s *subject) delete(id string) {
	s.Helper()
	if err := s.Delete(context.Background(), id, nil); err != nil {
		s.Fatalf("Delete(%q): %v", id, err)
	}
}

// refused makes sure that Create fails with one of want and that nothing is left.
func (s *subject) refused(o backend.CreateOptions, want ...error) error {
	s.Helper()
	return s.leavesNothing(fmt.Sprintf("Create(%+v)", o), func() error {
		_, err := s.Create(context.Background(), o)
		return err
	}, want...)
}

// leavesNothing makes sure that a call fails with one of want and that all is as before.
func (s *subject) leavesNothing(what string, call func() error, want ...error) error {
	s.Helper()
	before := s.state()
	err := call()
	if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		s.Fatalf("%.400s = %v, want one of %v", what, err, want)
	}
	if after := s.state(); after != before {
		s.Fatalf("%.400s was refused and left something: %s, before %s", what, after, before)
	}
	return err
}

// state is what can be seen of everything in the backend.
func (s *subject) state() string {
	s.Helper()
	var state string
	if l, ok := s.Backend.(backend.Lister); ok {
		state = fmt.Sprint(s.list(l))
	}
	if sn, ok := s.Backend.(backend.Snapshotter); ok {
		state += fmt.Sprint(" snapshots ", (&snapshotter{s, sn}).listed(""))
	}
	if m, ok := s.Backend.(backend.MetricsSource); ok {
		for _, v := range m.Metrics() {
			if v.Name == "promised_bytes" || strings.HasSuffix(v.Name, "volumes") || strings.HasSuffix(v.Name, "snapshots") || strings.HasSuffix(v.Name, "groups") {
				state += fmt.Sprintf(" %s=%v", v.Name, v.Value)
			}
		}
	}
	return state
}

func (s *subject) list(l backend.Lister) []string {
	s.Helper()
	volumes, more, err := l.List(context.Background(), "", 1<<20)
	if err != nil || more {
		s.Fatalf("List: more %v, %v", more, err)
	}
	var ids []string
	for _, v := range volumes {
		ids = append(ids, v.ID)
	}
	return ids
}

func lifecycle(s *subject) {
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	if again := s.create(s.request("pvc-1")); again.ID != v.ID || again.Size != v.Size {
		s.Errorf("a second Create made %+v, the first %+v", again, v)
	}
	if v.ID == "" || len(v.ID) > 128 || v.Inline {
		s.Errorf("Create made %+v", v)
	}
	if got, err := s.Get(ctx, v.ID, nil); err != nil || got.ID != v.ID || got.Size != v.Size {
		s.Errorf("Get = %+v, %v, want %+v", got, err, v)
	}
	if other := s.create(s.request("pvc-2")); other.ID == v.ID {
		s.Errorf("two names have the ID %q", v.ID)
	}
	for range 3 {
		s.delete(v.ID)
	}
	if got, err := s.Get(ctx, v.ID, nil); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("Get after Delete = %+v, %v", got, err)
	}
}

func restart(s *subject) {
	ctx := context.Background()
	kept, deleted := s.create(s.request("kept")), s.create(s.request("deleted"))
	s.delete(deleted.ID)
	handle := "csi-" + strings.Repeat("0", 64)
	inliner, ok := s.Backend.(backend.Inliner)
	if ok {
		if _, err := inliner.CreateInline(ctx, handle, backend.CreateOptions{Access: []backend.Access{{}}, Parameters: s.kind.Parameters}); err != nil {
			s.Fatal(err)
		}
	}
	before := s.state()
	s.reopen()
	if after := s.state(); after != before {
		s.Errorf("the next process has %s, the first had %s", after, before)
	}
	if got, err := s.Get(ctx, kept.ID, nil); err != nil || !reflect.DeepEqual(got, kept) {
		s.Errorf("Get = %+v, %v, want %+v", got, err, kept)
	}
	if got, err := s.Get(ctx, deleted.ID, nil); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("Get of a deleted volume = %+v, %v", got, err)
	}
	if again := s.create(s.request("kept")); again.ID != kept.ID {
		s.Errorf("the same name makes %s, and made %s", again.ID, kept.ID)
	}
	if got, err := s.Get(ctx, handle, nil); ok && (err != nil || !got.Inline) {
		s.Errorf("the inline volume is %+v, %v", got, err)
	}
}

// reopen goes on with the storage as another process would.
func (s *subject) reopen() {
	s.Helper()
	if c, ok := s.Backend.(io.Closer); ok {
		if err := c.Close(); err != nil {
			s.Fatal(err)
		}
	}
	s.Backend = s.open()
}

func reuse(s *subject) {
	for range 3 {
		s.delete(s.create(s.request("pvc-1")).ID)
	}
	o := s.request("pvc-1")
	o.Required = 2 * Size
	if v := s.create(o); v.Size < 2*Size {
		s.Errorf("the new volume has %d bytes, as the deleted one", v.Size)
	}
}

// strange are strings that no ID may be and any name may be, as far as they are valid names.
func strange(id string) []string {
	return []string{
		".", "..", "/", "a/b", "../" + id, id + "/..", id + "/", "./" + id, strings.ToUpper(id) + "x", " " + id, id + " ",
		"-", "--help", "*", "$(id)", "%00", "a\\b", "C:\\", "NUL", "volumes", "staging", "record.json",
		strings.Repeat("x", 128), "\u202e" + id, "ａ" + id, "а", "\U0001F4BE",
	}
}

func strangeIDs(s *subject) {
	ctx := context.Background()
	id := s.create(s.request("pvc-1")).ID
	for _, bad := range append(strange(id), "", "\x00", id+"\x00", id[:len(id)-1], strings.Repeat(id, 100), strings.Repeat("x", 4096)) {
		if v, err := s.Get(ctx, bad, nil); !errors.Is(err, backend.ErrNotFound) {
			s.Errorf("Get(%.60q) = %+v, %v", bad, v, err)
		}
		if m, err := s.Mount(ctx, bad, backend.Access{}); !errors.Is(err, backend.ErrNotFound) {
			s.Errorf("Mount(%.60q) = %+v, %v", bad, m, err)
		}
		if err := s.Delete(ctx, bad, nil); err != nil {
			s.Errorf("Delete(%.60q) = %v", bad, err)
		}
	}
	if _, err := s.Get(ctx, id, nil); err != nil {
		s.Errorf("after all that the volume is %v", err)
	}
}

func strangeNames(s *subject) {
	seen := map[string]string{}
	for _, name := range strange("pvc") {
		v := s.create(s.request(name))
		if other, ok := seen[v.ID]; ok {
			s.Errorf("%q and %q are one volume", name, other)
		}
		seen[v.ID] = name
	}
	for id := range seen {
		s.delete(id)
	}
}

func sizes(s *subject) {
	for i, o := range []backend.CreateOptions{
		{Required: Size}, {Required: Size, Limit: Size}, {Required: Size + 1, Limit: 2 * Size}, {Limit: 2 * Size}, {}, {Required: Size + 4096},
	} {
		o.Name, o.Access, o.Parameters = fmt.Sprint("pvc-", i), []backend.Access{{}}, s.kind.Parameters
		if v := s.create(o); v.Size < o.Required || (o.Limit > 0 && v.Size > o.Limit) || v.Size <= 0 {
			s.Errorf("between %d and %d bytes were asked for, the volume has %d", o.Required, o.Limit, v.Size)
		}
	}
}

func conflicts(s *subject) {
	o := s.request("pvc-1")
	o.Required, o.Limit = 2*Size, 2*Size
	v := s.create(o)
	larger, smaller, any := o, o, o
	larger.Required, larger.Limit = v.Size+1, 0
	smaller.Required, smaller.Limit = 1, v.Size-1
	any.Required, any.Limit = 0, 0
	s.refused(larger, backend.ErrExists)
	s.refused(smaller, backend.ErrExists, backend.ErrOutOfRange)
	if got := s.create(any); got.ID != v.ID {
		s.Errorf("a request for any size made %+v", got)
	}
}

func unknowns(s *subject) {
	o := s.request("pvc-1")
	o.Parameters = s.with("colour-of-the-disk", "blue")
	if err := s.refused(o, backend.ErrInvalid); !strings.Contains(err.Error(), "colour-of-the-disk") {
		s.Errorf("%v doesn't name the parameter", err)
	}
	o = s.request("pvc-1")
	o.Access = []backend.Access{{}, {Options: []string{"hidden"}}}
	if err := s.refused(o, backend.ErrInvalid); strings.Contains(err.Error(), "hidden") {
		s.Errorf("%v shows an unknown mount option, which may be a secret", err)
	}
	o.Access = []backend.Access{{FSType: "fat12"}}
	s.refused(o, backend.ErrInvalid)
}

func cancelled(s *subject) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := s.state()
	_, err := s.Create(ctx, s.request("pvc-1"))
	if after := s.state(); err != nil && after != before {
		s.Errorf("a cancelled Create left something: %s, before %s", after, before)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("Create = %v, want the context's error", err)
	}
	s.create(s.request("pvc-1"))
}

func mounts(s *subject) {
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	m, err := s.Mount(ctx, v.ID, backend.Access{Context: v.Context})
	if err != nil {
		s.Fatal(err)
	}
	if again, err := s.Mount(ctx, v.ID, backend.Access{}); err != nil || again.Source != m.Source || (m.Source == "") != s.mustAttach(m) || m.ReadOnly {
		s.Errorf("Mount = %+v, then %+v, %v", m, again, err)
	}
	if ro, err := s.Mount(ctx, v.ID, backend.Access{ReadOnly: true}); err != nil || !ro.ReadOnly {
		s.Errorf("a read-only Mount = %+v, %v", ro, err)
	}
	if _, err := s.Mount(ctx, v.ID, backend.Access{Context: map[string]string{"colour": "blue"}}); !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("Mount with a context that isn't the volume's = %v", err)
	}
	if _, err := s.Mount(ctx, v.ID, backend.Access{Options: []string{"password=hidden"}}); !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), "hidden") {
		s.Errorf("Mount with a forbidden option = %v", err)
	}
	o := s.request("pvc-2")
	o.Access = []backend.Access{{Block: true}}
	_, refused := s.Create(ctx, o)
	if _, err := s.Mount(ctx, v.ID, backend.Access{Block: true}); errors.Is(refused, backend.ErrInvalid) && !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("no block volume can be made, but Mount makes one a block device: %v", err)
	}
}

func block(s *subject) {
	ctx := context.Background()
	o := s.request("pvc-1")
	o.Access = []backend.Access{{Block: true}}
	v, err := s.Create(ctx, o)
	if errors.Is(err, backend.ErrInvalid) {
		s.Skip("this backend has no block volumes")
	}
	if err != nil {
		s.Fatal(err)
	}
	m, end := s.use(v.ID, o.Access[0])
	attached := m.Kind == mounter.BlockDevice && m.FSType == ""
	if (m.Kind != mounter.Disk && !attached) || len(m.Options) != 0 {
		s.Errorf("Mount = %+v, want a disk", m)
	}
	if m, err := s.Mount(ctx, v.ID, backend.Access{}); !attached && !errors.Is(err, backend.ErrInvalid) { // a disk serves both
		s.Errorf("Mount of a block volume as a filesystem = %+v, %v", m, err)
	}
	if !attached {
		s.refused(s.request("pvc-1"), backend.ErrExists)
	}
	staging := filepath.Join(s.kubelet, "staging")
	if err := s.mounter.Mount(ctx, m, staging); err != nil {
		s.Fatal(err)
	}
	if _, ok := s.Backend.(backend.NodeLocal); ok {
		if err := s.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrInUse) {
			s.Errorf("Delete of a staged block volume = %v", err)
		}
	}
	if err := s.mounter.Unmount(ctx, staging); err != nil {
		s.Fatal(err)
	}
	end()
	s.delete(v.ID)
}

// mustAttach reports whether what m names is a disk, which has no source before it is attached.
func (s *subject) mustAttach(m mounter.Mount) bool {
	_, attaches := s.Backend.(backend.Attacher)
	return attaches && m.Kind == mounter.BlockDevice
}

func inUse(s *subject) {
	optional[backend.NodeLocal](s)
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	m, err := s.Mount(ctx, v.ID, backend.Access{})
	if err != nil {
		s.Fatal(err)
	}
	target := filepath.Join(s.kubelet, "target")
	if err := s.mounter.Mount(ctx, m, target); err != nil {
		s.Fatal(err)
	}
	if err := s.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrInUse) {
		s.Errorf("Delete of a mounted volume = %v", err)
	}
	if got, err := s.Get(ctx, v.ID, nil); err != nil || got.ID != v.ID {
		s.Errorf("after that Get = %+v, %v", got, err)
	}
	if err := s.mounter.Unmount(ctx, target); err != nil {
		s.Fatal(err)
	}
	s.delete(v.ID)
}

func capacity(s *subject) {
	z := optional[backend.CapacityReporter](s)
	room := func() backend.Capacity {
		s.Helper()
		c, err := z.Capacity(context.Background(), backend.CreateOptions{Parameters: s.kind.Parameters})
		if err != nil || c.Available < 0 || c.Maximum < 0 || c.Maximum > c.Available {
			s.Fatalf("Capacity = %+v, %v", c, err)
		}
		return c
	}
	before := room()
	if before.Available < 1024*MiB {
		s.Skipf("only %d bytes are left here", before.Available)
	}
	o := s.request("pvc-1")
	o.Required = 512 * MiB
	v := s.create(o)
	const noise = 256 * MiB // others use the disk too
	if after := room(); after.Available > before.Available-v.Size+noise {
		s.Errorf("%d bytes were left, a volume of %d was made, %d are left", before.Available, v.Size, after.Available)
	}
	s.delete(v.ID)
	if after := room(); after.Available < before.Available-noise {
		s.Errorf("%d bytes were left before the volume, %d after it", before.Available, after.Available)
	}
	if _, err := z.Capacity(context.Background(), backend.CreateOptions{Parameters: s.with("colour", "blue")}); !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("Capacity with an unknown parameter = %v", err)
	}
}

func expand(s *subject) {
	e := optional[backend.Expander](s)
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	for _, o := range []backend.ExpandOptions{
		{Required: 2 * Size}, {Required: 2 * Size}, {Required: Size}, {Limit: 2 * Size}, {Required: 2*Size + 1, Limit: 3 * Size}, {Limit: 4 * Size},
	} {
		size, _, err := e.Expand(ctx, v.ID, o)
		if err != nil || size < o.Required || size < v.Size || (o.Limit > 0 && size > o.Limit) {
			s.Errorf("Expand(%+v) of %d bytes = %d, %v", o, v.Size, size, err)
		}
		if v, err = s.Get(ctx, v.ID, nil); err != nil || v.Size != size {
			s.Errorf("Get = %+v, %v after Expand to %d", v, err, size)
		}
	}
	s.reopen()
	e = optional[backend.Expander](s)
	before := s.state()
	for _, o := range []backend.ExpandOptions{{Limit: Size}, {Required: Size, Limit: Size}, {Required: 1 << 60}} {
		if size, _, err := e.Expand(ctx, v.ID, o); !errors.Is(err, backend.ErrOutOfRange) || errors.Is(err, backend.ErrExhausted) {
			s.Errorf("Expand(%+v) of %d bytes = %d, %v, want ErrOutOfRange alone", o, v.Size, size, err)
		}
	}
	if got, err := s.Get(ctx, v.ID, nil); err != nil || got.Size != v.Size || s.state() != before {
		s.Errorf("Get = %+v, %v, want %+v: %s, before %s", got, err, v, s.state(), before)
	}
	for _, id := range append(strange(v.ID), "", "csi-"+strings.Repeat("0", 64)) {
		if _, _, err := e.Expand(ctx, id, backend.ExpandOptions{Required: 2 * Size}); !errors.Is(err, backend.ErrNotFound) {
			s.Errorf("Expand(%.60q) = %v", id, err)
		}
	}
	s.delete(v.ID)
}

func exhausted(s *subject) {
	optional[backend.CapacityReporter](s)
	o := s.request("pvc-1")
	o.Required = 1 << 60
	s.refused(o, backend.ErrExhausted, backend.ErrOutOfRange)
	s.create(s.request("pvc-1"))
}

func inline(s *subject) {
	b := optional[backend.Inliner](s)
	ctx := context.Background()
	handle := "csi-" + strings.Repeat("0123456789abcdef", 4)
	before := s.state()
	o := backend.CreateOptions{Required: Size, Access: []backend.Access{{}}, Parameters: s.kind.Parameters}
	v, err := b.CreateInline(ctx, handle, o)
	if err != nil || !v.Inline {
		s.Fatalf("CreateInline = %+v, %v", v, err)
	}
	if again, err := b.CreateInline(ctx, handle, o); err != nil || again.ID != v.ID {
		s.Errorf("a second CreateInline = %+v, %v, the first %+v", again, err, v)
	}
	if got, err := s.Get(ctx, handle, nil); err != nil || !got.Inline || got.ID != handle {
		s.Errorf("Get by the handle = %+v, %v", got, err)
	}
	if m, err := s.Mount(ctx, handle, backend.Access{}); err != nil || m.Source == "" {
		s.Errorf("Mount by the handle = %+v, %v", m, err)
	}
	if l, ok := s.Backend.(backend.Lister); ok && len(s.list(l)) > 0 {
		s.Error("List shows an inline volume")
	}
	s.delete(handle)
	if _, err := s.Get(ctx, handle, nil); err != nil {
		s.Errorf("Delete deleted an inline volume: %v", err)
	}
	persistent := s.create(s.request("pvc-1"))
	if err := b.DeleteInline(ctx, persistent.ID); err != nil {
		s.Errorf("DeleteInline of a volume that isn't inline: %v", err)
	}
	if _, err := s.Get(ctx, persistent.ID, nil); err != nil {
		s.Errorf("DeleteInline deleted a volume that isn't inline: %v", err)
	}
	s.delete(persistent.ID)
	for range 3 {
		if err := b.DeleteInline(ctx, handle); err != nil {
			s.Fatal(err)
		}
	}
	if after := s.state(); after != before {
		s.Errorf("something is left: %s, before %s", after, before)
	}
	o.Parameters = s.with("colour", "blue")
	if _, err := b.CreateInline(ctx, handle, o); !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("CreateInline with an unknown parameter = %v", err)
	}
	o.Parameters = s.kind.Parameters
	for _, bad := range []string{"", "..", "csi-", "csi-1", handle + "0", strings.ToUpper(handle), "csi-" + strings.Repeat("/", 64), persistent.ID} {
		if v, err := b.CreateInline(ctx, bad, o); !errors.Is(err, backend.ErrInvalid) {
			s.Errorf("CreateInline(%q) = %+v, %v", bad, v, err)
		}
	}
	if after := s.state(); after != before {
		s.Errorf("refused calls left something: %s, before %s", after, before)
	}
}

func ready(s *subject) {
	if ok, err := optional[backend.Prober](s).Probe(context.Background()); !ok || err != nil {
		s.Errorf("Probe = %v, %v", ok, err)
	}
}

func health(s *subject) {
	d := optional[backend.HealthReporter](s)
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	if c, err := d.Health(ctx, v.ID); err != nil || len(c) != 0 {
		s.Errorf("Health = %v, %v", c, err)
	}
	if c, err := d.Health(ctx, "none"); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("Health of an unknown volume = %v, %v", c, err)
	}
	if sick, more, err := d.ListHealth(ctx, "", 10); err != nil || more || len(sick) != 0 {
		s.Errorf("ListHealth = %v, %v, %v", sick, more, err)
	}
	if c, err := d.StorageHealth(ctx); err != nil || len(c) != 0 {
		s.Errorf("StorageHealth = %v, %v", c, err)
	}
}

func metrics(s *subject) {
	m := optional[backend.MetricsSource](s)
	names := func() (names []string) {
		about := map[string]string{} // what all metrics of a name have in common
		for _, v := range m.Metrics() {
			if v.Help == "" || strings.ToLower(v.Name) != v.Name || v.Counter != strings.HasSuffix(v.Name, "_total") {
				s.Errorf("bad metric %+v", v)
			}
			common := fmt.Sprint(v.Help, v.Counter, slices.Sorted(maps.Keys(v.Labels)))
			if other, ok := about[v.Name]; ok && other != common {
				s.Errorf("%s has two forms: %s, %s", v.Name, other, common)
			}
			about[v.Name] = common
			names = append(names, fmt.Sprint(v.Name, v.Labels))
		}
		slices.Sort(names)
		return names
	}
	before := names()
	if unique := slices.Compact(slices.Clone(before)); len(unique) != len(before) {
		s.Errorf("a name is there twice: %v", before)
	}
	s.create(s.request("pvc-1"))
	if after := names(); !slices.Equal(before, after) {
		s.Errorf("the names were %v and are %v", before, after)
	}
}

func concurrency(s *subject) {
	ctx := context.Background()
	shared := s.create(s.request("shared"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				o := s.request(fmt.Sprintf("pvc-%d-%d", i, j))
				v, err := s.Create(ctx, o)
				if err != nil {
					s.Error(err)
					return
				}
				if got, err := s.Create(ctx, s.request("shared")); err != nil || got.ID != shared.ID {
					s.Errorf("Create(shared) = %+v, %v", got, err)
				}
				if l, ok := s.Backend.(backend.Lister); ok {
					if page, _, err := l.List(ctx, "", 100); err != nil || !slices.ContainsFunc(page, func(p backend.Volume) bool { return p.ID == v.ID }) {
						s.Errorf("List is without %s, which was made: %v", v.ID, err)
					}
				}
				if err := s.Delete(ctx, v.ID, nil); err != nil {
					s.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if l, ok := s.Backend.(backend.Lister); ok {
		if got := s.list(l); !slices.Equal(got, []string{shared.ID}) {
			s.Errorf("%v are left, want the shared one", got)
		}
	}
}

func secrets(s *subject) {
	ctx, secret := context.Background(), map[string]string{"password": "correct horse battery"}
	bad := s.request("pvc-1")
	bad.Secrets, bad.Parameters = secret, s.with("colour", "blue")
	_, err1 := s.Create(ctx, bad)
	_, err2 := s.Get(ctx, "none", secret)
	_, err3 := s.Mount(ctx, "none", backend.Access{Secrets: secret, Options: []string{"pass=correct horse battery"}})
	errs := []error{err1, err2, err3, s.Delete(ctx, "none", secret)}
	if b, ok := s.Backend.(backend.Snapshotter); ok {
		_, err1 := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap-1", Source: "none", Secrets: secret})
		_, err2 := b.GetSnapshot(ctx, "none", secret)
		_, err3 := b.Restore(ctx, "none", bad)
		errs = append(errs, err1, err2, err3, b.DeleteSnapshot(ctx, "none", secret))
	}
	if b, ok := s.Backend.(backend.Cloner); ok {
		_, err := b.Clone(ctx, "none", bad)
		errs = append(errs, err)
	}
	if b, ok := s.Backend.(backend.Differ); ok {
		_, err := b.SnapshotSize(ctx, "none", secret)
		errs = append(errs, err, b.Allocated(ctx, "none", 0, secret, nil), b.Delta(ctx, "none", "none", 0, secret, nil))
	}
	if b, ok := s.Backend.(backend.Modifier); ok {
		errs = append(errs, b.Modify(ctx, "none", map[string]string{"colour": "blue"}, secret))
	}
	if b, ok := s.Backend.(backend.GroupSnapshotter); ok {
		_, err1 := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "group-1", Sources: []string{"none"}, Secrets: secret})
		_, err2 := b.GetGroup(ctx, "none", nil, secret)
		errs = append(errs, err1, err2, b.DeleteGroup(ctx, "none", nil, secret))
	}
	if b, ok := s.Backend.(backend.PartSnapshotter); ok {
		o := partOptions("cut-1", "none")
		o.Secrets = secret
		_, err := b.SnapshotPart(ctx, o)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); strings.Contains(err.Error(), "correct horse") {
		s.Errorf("the password is in %v", err)
	}
}
