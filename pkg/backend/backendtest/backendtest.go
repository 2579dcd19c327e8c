// Package backendtest is a test suite for the contract of package backend. The test of a backend
// calls [Run], which skips the tests of optional interfaces that the backend does not implement.
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
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// MiB is the number of bytes in a mebibyte.
const MiB = 1 << 20

// Size is the size in bytes of most volumes of the suite. Every backend must support volumes of
// this size.
const Size = 16 * MiB

// Kind describes the volumes with which [Run] tests. A backend with several kinds of volumes calls
// Run for each kind.
type Kind struct {
	// Parameters are the parameters of all volumes. They may be nil. See
	// [backend.CreateOptions].
	Parameters map[string]string

	// Inline are the parameters of the volumes of a [backend.Inliner], which may permit fewer
	// parameters for them. nil: Parameters.
	Inline map[string]string

	// Mutable are mutable parameters of a [backend.Modifier], each with two valid values that
	// differ from its default. The test of a Modifier must set this field.
	Mutable map[string][2]string

	// Groups reports that a [backend.GroupSnapshotter] supports groups of volumes with a
	// filesystem. If false, the backend must reject them with ErrPrecondition or ErrInvalid.
	Groups bool

	// BlockGroups is like Groups, for raw block devices.
	BlockGroups bool

	// Files returns the directory of this machine with the files of a [mounter.Share], such as the
	// directory of a private server. The test of a backend of shares must set this field.
	Files func(m mounter.Mount) string
}

// Run tests a backend against the contract.
//
// storage creates new, empty storage for a single test. Each call of the function that storage
// returns opens that storage, like a new process, and returns a ready backend. If the backend has a
// method Close, Run calls Close before it opens the storage again.
//
// Run does not mount anything. The backend must use images to find out which volumes are mounted,
// and images.MakeImage to create a filesystem in an image. A [backend.Attacher] must know exactly
// [Nodes].
func Run(t *testing.T, kind Kind, storage func(t *testing.T, images mounter.Images) (open func() backend.Backend)) {
	fresh := func(t *testing.T, access backend.Access) *subject {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		m := mountertest.NewFake(dir)
		open := storage(t, m)
		return &subject{T: t, Backend: open(), open: open, mounter: m, kubelet: dir, kind: kind, access: access}
	}
	for name, test := range rows {
		t.Run(name, func(t *testing.T) { test(fresh(t, backend.Access{})) })
	}
	for name, test := range rowsOfEachType {
		t.Run(name, func(t *testing.T) { test(fresh(t, backend.Access{})) })
		t.Run(name+", of block devices", func(t *testing.T) {
			s := fresh(t, backend.Access{Block: true})
			if _, err := s.Create(context.Background(), s.request("pvc-1")); errors.Is(err, backend.ErrInvalid) {
				s.Skip("the backend does not support block volumes")
			}
			test(fresh(t, s.access))
		})
	}
}

// rows are the tests of the contract, by name.
var rows = map[string]func(s *subject){
	"a volume is created, found and deleted, and each call can be repeated": lifecycle,
	"the name of a deleted volume can be used again":                        reuse,
	"a new process finds the same volumes":                                  restart,
	"an unknown volume ID is not found, and its deletion succeeds":          untrustedIDs,
	"an unusual volume name is valid":                                       untrustedNames,
	"a volume has a size in the requested range":                            sizes,
	"the same name with other properties is rejected":                       conflicts,
	"an unknown parameter is rejected and named":                            unknowns,
	"a canceled Create leaves nothing":                                      canceled,
	"Mount returns the mount of a volume":                                   mounts,
	"a mounted volume is not deleted":                                       inUse,
	"a block volume is a device":                                            block,
	"pages of volumes are in order":                                         func(s *subject) { pages(s, volumes(s)) },
	"pages of volumes stay correct while volumes are created and deleted":   func(s *subject) { churn(s, volumes(s)) },
	"reserved space is not available":                                       capacity,
	"a volume that is too large leaves nothing":                             exhausted,
	"an inline volume is found by its handle only":                          inline,
	"a ready backend reports that it is ready":                              ready,
	"a healthy volume has no conditions":                                    health,
	"the names of metrics are constant":                                     metrics,
	"a volume expands and never shrinks":                                    expand,
	"concurrent calls succeed":                                              concurrency,
	"errors contain no secrets":                                             secrets,

	"a volume is attached and detached, and each call can be repeated":  attaches,
	"a volume is shared only if all of its nodes share it":              shares,
	"a second Attach with other options does not change the attachment": attachesAgain,
	"Attach rejects an unknown volume or node, and Detach ignores it":   attachesUnknown,
	"a volume that is attached read-only is mounted read-only":          attachesReadOnly,
	"an attached volume is not deleted":                                 attachedStays,
	"a node takes volumes up to its limit":                              attachesToTheLimit,
	"a disk with a filesystem for writers on several nodes is rejected": sharesNoFilesystem,
	"concurrent Attach calls succeed":                                   attachesConcurrently,

	"a volume is modified, and each change can be undone": modifies,
	"a volume is created with mutable parameters":         createsMutable,
	"a volume is restored with mutable parameters":        restoring(copiesMutable),
	"a volume is cloned with mutable parameters":          cloning(copiesMutable),
	"a rejected Modify changes nothing":                   modifyRefused,

	"an unknown snapshot ID is not found, and its deletion succeeds": untrustedSnapshots,
	"an unusual snapshot name is valid":                              untrustedSnapshotNames,
	"pages of snapshots are in order": func(s *subject) {
		pages(s, snapshotsOf(s, true))
	},
	"pages of snapshots stay correct while snapshots are created and deleted": func(s *subject) {
		churn(s, snapshotsOf(s, true))
	},
	"pages of the snapshots of a volume are in order": func(s *subject) { pages(s, snapshotsOf(s, false)) },
	"pages of the snapshots of a volume stay correct while snapshots are created and deleted": func(s *subject) {
		churn(s, snapshotsOf(s, false))
	},
}

// rowsOfEachType are the tests that run twice: for volumes with a filesystem and for raw block
// devices.
var rowsOfEachType = map[string]func(s *subject){
	"a snapshot keeps the content of its volume, and each call can be repeated": snapshots,
	"a snapshot does not need its volume":                                       snapshotStays,
	"the same snapshot name for another volume is rejected":                     snapshotConflicts,
	"a canceled Snapshot is complete or absent":                                 snapshotCanceled,
	"concurrent Snapshot calls succeed":                                         snapshotsConcurrently,
	"a volume is deleted during Snapshot":                                       snapshotRaces,

	"a restored volume has the content of the snapshot and is independent": restoring(copies),
	"a restored volume has the requested size":                             restoring(copySizes),
	"the same volume name for another snapshot is rejected":                restoring(copyConflicts),
	"a failed Restore leaves nothing":                                      restoring(copyRefused),
	"a canceled Restore is complete or absent":                             restoring(copyCanceled),
	"a snapshot is deleted during Restore":                                 restoring(copyRaces),

	"a clone has the content of its source and is independent": cloning(copies),
	"a clone has the requested size":                           cloning(copySizes),
	"the same clone name for another source is rejected":       cloning(copyConflicts),
	"a failed Clone leaves nothing":                            cloning(copyRefused),
	"a canceled Clone is complete or absent":                   cloning(copyCanceled),
	"a volume is deleted during Clone":                         cloning(copyRaces),

	"a group keeps the content of its volumes, and each call can be repeated": groups,
	"a group does not need its volumes":                                       groupStays,
	"the same group name for other volumes is rejected":                       groupConflicts,
	"a group is complete or absent":                                           groupAllOrNothing,
	"an unknown group ID is not found, and its deletion succeeds":             untrustedGroups,
	"a canceled SnapshotGroup is complete or absent":                          groupCanceled,
	"concurrent SnapshotGroup calls succeed":                                  groupsConcurrently,
	"a group is deleted during Restore of a member":                           groupRaces,

	"a part keeps the content of its volumes, and each call can be repeated": parts,
	"a part is absent after an error of Frozen or Durable":                   partAborted,
	"a part can be discarded until it is committed":                          partDiscarded,
	"a part does not need its volumes or the process that created it":        partStays,
	"the same part name for other volumes is rejected":                       partConflicts,
	"an unknown part ID is not found, and DiscardPart ignores it":            untrustedParts,
	"calls for a part are rejected while it is created":                      partInTheMaking,
	"concurrent SnapshotPart calls create the same part":                     partsConcurrently,
	"a part is committed while it is discarded":                              partRaces,
	"a part is discarded during Restore of a member":                         partRestored,

	"Allocated reports all data from any offset":                 allocates,
	"Delta reports all changes between two snapshots":            changes,
	"Allocated, Delta and SnapshotSize reject invalid arguments": changesRefused,
	"Allocated and Delta stop after an error":                    stopsEarly,
}

// subject is a backend under test, with its storage and the test that runs.
type subject struct {
	*testing.T
	backend.Backend
	open    func() backend.Backend
	mounter *mountertest.Fake
	kubelet string

	kind   Kind
	access backend.Access // of the volumes that the test creates
}

// optional returns the backend as a T, or skips the test.
func optional[T any](s *subject) T {
	b, ok := s.Backend.(T)
	if !ok {
		s.Skipf("the backend does not implement %s", reflect.TypeFor[T]())
	}
	return b
}

func (s *subject) request(name string) backend.CreateOptions {
	return backend.CreateOptions{
		Name: name, Required: Size, Access: []backend.Access{s.access}, Parameters: maps.Clone(s.kind.Parameters),
	}
}

// inline returns the parameters of the kind's inline volumes.
func (s *subject) inline() map[string]string {
	if s.kind.Inline != nil {
		return s.kind.Inline
	}
	return s.kind.Parameters
}

// with returns the parameters of the kind and a further parameter.
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

// refused checks that Create fails with an error in want and changes nothing.
func (s *subject) refused(o backend.CreateOptions, want ...error) error {
	s.Helper()
	return s.leavesNothing(fmt.Sprintf("Create(%+v)", o), func() error {
		_, err := s.Create(context.Background(), o)
		return err
	}, want...)
}

// leavesNothing checks that a call fails with an error in want and changes nothing. name names the
// call.
func (s *subject) leavesNothing(name string, call func() error, want ...error) error {
	s.Helper()
	before := s.state()
	err := call()
	if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		s.Fatalf("%.400s = %v, want an error in %v", name, err, want)
	}
	if after := s.state(); after != before {
		s.Fatalf("%.400s failed, and objects are %s, want %s as before", name, after, before)
	}
	return err
}

// state returns a text that changes with every object of the backend: lists and metrics.
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
			if v.Name == "promised_bytes" || strings.HasSuffix(v.Name, "volumes") ||
				strings.HasSuffix(v.Name, "snapshots") || strings.HasSuffix(v.Name, "groups") {
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
		s.Errorf("the second Create = %+v, want %+v as the first", again, v)
	}
	if v.ID == "" || len(v.ID) > 128 || v.Inline {
		s.Errorf("Create = %+v, want an ID of 1 to 128 bytes that is not inline", v)
	}
	if got, err := s.Get(ctx, v.ID, nil); err != nil || got.ID != v.ID || got.Size != v.Size {
		s.Errorf("Get = %+v, %v, want %+v", got, err, v)
	}
	if other := s.create(s.request("pvc-2")); other.ID == v.ID {
		s.Errorf("two names have the same ID %q", v.ID)
	}
	for range 3 {
		s.delete(v.ID)
	}
	if got, err := s.Get(ctx, v.ID, nil); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("Get after Delete = %+v, %v, want ErrNotFound", got, err)
	}
}

func restart(s *subject) {
	ctx := context.Background()
	kept, deleted := s.create(s.request("kept")), s.create(s.request("deleted"))
	s.delete(deleted.ID)
	handle := "csi-" + strings.Repeat("0", 64)
	inliner, ok := s.Backend.(backend.Inliner)
	if ok {
		if _, err := inliner.CreateInline(ctx, handle,
			backend.CreateOptions{Access: []backend.Access{{}}, Parameters: s.inline()}); err != nil {
			s.Fatal(err)
		}
	}
	before := s.state()
	s.reopen()
	if after := s.state(); after != before {
		s.Errorf("after the restart objects are %s, want %s", after, before)
	}
	if got, err := s.Get(ctx, kept.ID, nil); err != nil || !reflect.DeepEqual(got, kept) {
		s.Errorf("Get = %+v, %v, want %+v", got, err, kept)
	}
	if got, err := s.Get(ctx, deleted.ID, nil); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("Get of a deleted volume = %+v, %v, want ErrNotFound", got, err)
	}
	if again := s.create(s.request("kept")); again.ID != kept.ID {
		s.Errorf("Create with the same name = %s, want %s", again.ID, kept.ID)
	}
	if got, err := s.Get(ctx, handle, nil); ok && (err != nil || !got.Inline) {
		s.Errorf("Get of the inline volume = %+v, %v", got, err)
	}
}

// reopen closes the backend and opens the storage again, like a new process.
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
		s.Errorf("the new volume has %d bytes, want at least %d", v.Size, 2*Size)
	}
}

// unusual returns strings that are valid names but are not IDs of objects.
func unusual(id string) []string {
	return []string{
		".", "..", "/", "a/b", "../" + id, id + "/..", id + "/", "./" + id, strings.ToUpper(id) + "x", " " + id,
		id + " ",
		"-", "--help", "*", "$(id)", "%00", "a\\b", "C:\\", "NUL", "volumes", "staging", "record.json",
		strings.Repeat("x", 128), "\u202e" + id, "ａ" + id, "а", "\U0001F4BE",
	}
}

func untrustedIDs(s *subject) {
	ctx := context.Background()
	id := s.create(s.request("pvc-1")).ID
	for _, bad := range append(unusual(id), "", "\x00", id+"\x00", id[:len(id)-1], strings.Repeat(id, 100),
		strings.Repeat("x", 4096)) {
		if v, err := s.Get(ctx, bad, nil); !errors.Is(err, backend.ErrNotFound) {
			s.Errorf("Get(%.60q) = %+v, %v, want ErrNotFound", bad, v, err)
		}
		if m, err := s.Mount(ctx, bad, backend.Access{}); !errors.Is(err, backend.ErrNotFound) {
			s.Errorf("Mount(%.60q) = %+v, %v, want ErrNotFound", bad, m, err)
		}
		if err := s.Delete(ctx, bad, nil); err != nil {
			s.Errorf("Delete(%.60q) = %v, want nil", bad, err)
		}
	}
	if _, err := s.Get(ctx, id, nil); err != nil {
		s.Errorf("Get of the volume after the calls with other IDs: %v", err)
	}
}

func untrustedNames(s *subject) {
	seen := map[string]string{}
	for _, name := range unusual("pvc") {
		v := s.create(s.request(name))
		if other, ok := seen[v.ID]; ok {
			s.Errorf("the names %q and %q have the same volume", name, other)
		}
		seen[v.ID] = name
	}
	for id := range seen {
		s.delete(id)
	}
}

func sizes(s *subject) {
	for i, o := range []backend.CreateOptions{
		{Required: Size}, {Required: Size, Limit: Size}, {Required: Size + 1, Limit: 2 * Size}, {Limit: 2 * Size}, {},
		{Required: Size + 4096},
	} {
		o.Name, o.Access, o.Parameters = fmt.Sprint("pvc-", i), []backend.Access{{}}, s.kind.Parameters
		if v := s.create(o); v.Size < o.Required || (o.Limit > 0 && v.Size > o.Limit) || v.Size <= 0 {
			s.Errorf("Create for %d to %d bytes made a volume of %d bytes", o.Required, o.Limit, v.Size)
		}
	}
}

func conflicts(s *subject) {
	o := s.request("pvc-1")
	o.Required, o.Limit = 2*Size, 2*Size
	v := s.create(o)
	larger, smaller, found := o, o, o
	larger.Required, larger.Limit = v.Size+1, 0
	smaller.Required, smaller.Limit = 1, v.Size-1
	found.Required, found.Limit = 0, 0
	s.refused(larger, backend.ErrExists)
	s.refused(smaller, backend.ErrExists, backend.ErrOutOfRange)
	if got := s.create(found); got.ID != v.ID {
		s.Errorf("a request without a size made %+v, want the existing volume", got)
	}
}

func unknowns(s *subject) {
	o := s.request("pvc-1")
	o.Parameters = s.with("color-of-the-disk", "blue")
	if err := s.refused(o, backend.ErrInvalid); !strings.Contains(err.Error(), "color-of-the-disk") {
		s.Errorf("%v does not name the parameter", err)
	}
	o = s.request("pvc-1")
	o.Access = []backend.Access{{}, {Options: []string{"hidden"}}}
	if err := s.refused(o, backend.ErrInvalid); strings.Contains(err.Error(), "hidden") {
		s.Errorf("%v contains an unknown mount option, which may be a secret", err)
	}
	o.Access = []backend.Access{{FSType: "fat12"}}
	s.refused(o, backend.ErrInvalid)
}

func canceled(s *subject) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := s.state()
	_, err := s.Create(ctx, s.request("pvc-1"))
	if after := s.state(); err != nil && after != before {
		s.Errorf("after a canceled Create objects are %s, want %s", after, before)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("a canceled Create = %v, want the error of the context", err)
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
	if again, err := s.Mount(ctx, v.ID, backend.Access{}); err != nil || again.Source != m.Source ||
		(m.Source == "") != s.mustAttach(m) || m.ReadOnly {
		s.Errorf("Mount = %+v, the second time %+v, %v", m, again, err)
	}
	if ro, err := s.Mount(ctx, v.ID, backend.Access{ReadOnly: true}); err != nil || !ro.ReadOnly {
		s.Errorf("Mount with ReadOnly = %+v, %v, want a read-only mount", ro, err)
	}
	other := backend.Access{Context: map[string]string{"color": "blue"}}
	if _, err := s.Mount(ctx, v.ID, other); !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("Mount with the volume context of another volume = %v, want ErrInvalid", err)
	}
	forbidden := backend.Access{Options: []string{"password=hidden"}}
	if _, err := s.Mount(ctx, v.ID, forbidden); !errors.Is(err, backend.ErrInvalid) ||
		strings.Contains(err.Error(), "hidden") {
		s.Errorf("Mount with a forbidden option = %v, want ErrInvalid without its value", err)
	}
	o := s.request("pvc-2")
	o.Access = []backend.Access{{Block: true}}
	_, refused := s.Create(ctx, o)
	if _, err := s.Mount(ctx, v.ID, backend.Access{Block: true}); errors.Is(refused, backend.ErrInvalid) &&
		!errors.Is(err, backend.ErrInvalid) {
		s.Errorf("Mount of a volume as a block device = %v, want ErrInvalid as from Create", err)
	}
}

func block(s *subject) {
	ctx := context.Background()
	o := s.request("pvc-1")
	o.Access = []backend.Access{{Block: true}}
	v, err := s.Create(ctx, o)
	if errors.Is(err, backend.ErrInvalid) {
		s.Skip("the backend does not support block volumes")
	}
	if err != nil {
		s.Fatal(err)
	}
	m, end := s.use(v.ID, o.Access[0])
	attached := m.Kind == mounter.BlockDevice && m.FSType == ""
	if (m.Kind != mounter.Disk && !attached) || len(m.Options) != 0 {
		s.Errorf("Mount = %+v, want a disk", m)
	}
	// An attached disk supports both access types.
	if m, err := s.Mount(ctx, v.ID, backend.Access{}); !attached && !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("Mount of a block volume as a filesystem = %+v, %v, want ErrInvalid", m, err)
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
			s.Errorf("Delete of a staged block volume = %v, want ErrInUse", err)
		}
	}
	if err := s.mounter.Unmount(ctx, staging); err != nil {
		s.Fatal(err)
	}
	end()
	s.delete(v.ID)
}

// mustAttach reports whether m is a disk that has no source before it is attached.
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
		s.Errorf("Delete of a mounted volume = %v, want ErrInUse", err)
	}
	if got, err := s.Get(ctx, v.ID, nil); err != nil || got.ID != v.ID {
		s.Errorf("Get after the rejected Delete = %+v, %v", got, err)
	}
	if err := s.mounter.Unmount(ctx, target); err != nil {
		s.Fatal(err)
	}
	s.delete(v.ID)
}

func capacity(s *subject) {
	z := optional[backend.CapacityReporter](s)
	current := func() backend.Capacity {
		s.Helper()
		c, err := z.Capacity(context.Background(), backend.CreateOptions{Parameters: s.kind.Parameters})
		if err != nil || c.Available < 0 || c.Maximum < 0 || c.Maximum > c.Available {
			s.Fatalf("Capacity = %+v, %v", c, err)
		}
		return c
	}
	before := current()
	if before.Available < 1024*MiB {
		s.Skipf("only %d bytes are available", before.Available)
	}
	o := s.request("pvc-1")
	o.Required = 512 * MiB
	v := s.create(o)
	const noise = 256 * MiB // other programs use the disk at the same time
	if after := current(); after.Available > before.Available-v.Size+noise {
		s.Errorf("%d bytes were available before a volume of %d bytes, and %d with it", before.Available, v.Size,
			after.Available)
	}
	s.delete(v.ID)
	if after := current(); after.Available < before.Available-noise {
		s.Errorf("%d bytes were available before the volume, %d after its deletion", before.Available, after.Available)
	}
	unknown := backend.CreateOptions{Parameters: s.with("color", "blue")}
	if _, err := z.Capacity(context.Background(), unknown); !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("Capacity with an unknown parameter = %v, want ErrInvalid", err)
	}
}

func expand(s *subject) {
	e := optional[backend.Expander](s)
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	for _, o := range []backend.ExpandOptions{
		{Required: 2 * Size}, {Required: 2 * Size}, {Required: Size}, {Limit: 2 * Size},
		{Required: 2*Size + 1, Limit: 3 * Size}, {Limit: 4 * Size},
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
		if size, _, err := e.Expand(ctx, v.ID, o); !errors.Is(err, backend.ErrOutOfRange) ||
			errors.Is(err, backend.ErrExhausted) {
			s.Errorf("Expand(%+v) of %d bytes = %d, %v, want ErrOutOfRange without ErrExhausted", o, v.Size, size, err)
		}
	}
	if got, err := s.Get(ctx, v.ID, nil); err != nil || got.Size != v.Size || s.state() != before {
		s.Errorf("Get = %+v, %v, want %+v; objects are %s, want %s as before", got, err, v, s.state(), before)
	}
	for _, id := range append(unusual(v.ID), "", "csi-"+strings.Repeat("0", 64)) {
		_, _, err := e.Expand(ctx, id, backend.ExpandOptions{Required: 2 * Size})
		if !errors.Is(err, backend.ErrNotFound) {
			s.Errorf("Expand(%.60q) = %v, want ErrNotFound", id, err)
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
	o := backend.CreateOptions{Required: Size, Access: []backend.Access{{}}, Parameters: s.inline()}
	v, err := b.CreateInline(ctx, handle, o)
	if err != nil || !v.Inline {
		s.Fatalf("CreateInline = %+v, %v", v, err)
	}
	if again, err := b.CreateInline(ctx, handle, o); err != nil || again.ID != v.ID {
		s.Errorf("the second CreateInline = %+v, %v, want %+v as the first", again, err, v)
	}
	if got, err := s.Get(ctx, handle, nil); err != nil || !got.Inline || got.ID != handle {
		s.Errorf("Get by the handle = %+v, %v", got, err)
	}
	if m, err := s.Mount(ctx, handle, backend.Access{}); err != nil || m.Source == "" {
		s.Errorf("Mount by the handle = %+v, %v", m, err)
	}
	if l, ok := s.Backend.(backend.Lister); ok && len(s.list(l)) > 0 {
		s.Error("List contains an inline volume")
	}
	s.delete(handle)
	if _, err := s.Get(ctx, handle, nil); err != nil {
		s.Errorf("Delete deleted an inline volume: %v", err)
	}
	persistent := s.create(s.request("pvc-1"))
	if err := b.DeleteInline(ctx, persistent.ID); err != nil {
		s.Errorf("DeleteInline of a volume that is not inline = %v, want nil", err)
	}
	if _, err := s.Get(ctx, persistent.ID, nil); err != nil {
		s.Errorf("DeleteInline deleted a volume that is not inline: %v", err)
	}
	s.delete(persistent.ID)
	for range 3 {
		if err := b.DeleteInline(ctx, handle); err != nil {
			s.Fatal(err)
		}
	}
	if after := s.state(); after != before {
		s.Errorf("objects are %s, want %s as before", after, before)
	}
	o.Parameters = map[string]string{"color": "blue"}
	maps.Copy(o.Parameters, s.inline())
	if _, err := b.CreateInline(ctx, handle, o); !errors.Is(err, backend.ErrInvalid) {
		s.Errorf("CreateInline with an unknown parameter = %v, want ErrInvalid", err)
	}
	o.Parameters = s.inline()
	for _, bad := range []string{
		"", "..", "csi-", "csi-1", handle + "0", strings.ToUpper(handle),
		"csi-" + strings.Repeat("/", 64), persistent.ID,
	} {
		if v, err := b.CreateInline(ctx, bad, o); !errors.Is(err, backend.ErrInvalid) {
			s.Errorf("CreateInline(%q) = %+v, %v, want ErrInvalid", bad, v, err)
		}
	}
	if after := s.state(); after != before {
		s.Errorf("after the rejected calls objects are %s, want %s", after, before)
	}
}

func ready(s *subject) {
	if ok, err := optional[backend.Prober](s).Probe(context.Background()); !ok || err != nil {
		s.Errorf("Probe = %v, %v, want true", ok, err)
	}
}

func health(s *subject) {
	d := optional[backend.HealthReporter](s)
	ctx := context.Background()
	v := s.create(s.request("pvc-1"))
	if c, err := d.Health(ctx, v.ID); err != nil || len(c) != 0 {
		s.Errorf("Health = %v, %v, want no conditions", c, err)
	}
	if c, err := d.Health(ctx, "none"); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("Health of an unknown volume = %v, %v, want ErrNotFound", c, err)
	}
	if sick, more, err := d.ListHealth(ctx, "", 10); err != nil || more || len(sick) != 0 {
		s.Errorf("ListHealth = %v, %v, %v, want no volumes", sick, more, err)
	}
	if c, err := d.StorageHealth(ctx); err != nil || len(c) != 0 {
		s.Errorf("StorageHealth = %v, %v, want no conditions", c, err)
	}
}

func metrics(s *subject) {
	m := optional[backend.MetricsSource](s)
	names := func() (names []string) {
		about := map[string]string{} // help, type and labels by name
		for _, v := range m.Metrics() {
			if v.Help == "" || strings.ToLower(v.Name) != v.Name || v.Counter != strings.HasSuffix(v.Name, "_total") {
				s.Errorf("metric %+v must have a help text and a name in lower case, with _total for counters only", v)
			}
			common := fmt.Sprint(v.Help, v.Counter, slices.Sorted(maps.Keys(v.Labels)))
			if other, ok := about[v.Name]; ok && other != common {
				s.Errorf("metric %s has different properties: %s, %s", v.Name, other, common)
			}
			about[v.Name] = common
			names = append(names, fmt.Sprint(v.Name, v.Labels))
		}
		slices.Sort(names)
		return names
	}
	before := names()
	if unique := slices.Compact(slices.Clone(before)); len(unique) != len(before) {
		s.Errorf("a metric is a duplicate: %v", before)
	}
	s.create(s.request("pvc-1"))
	if after := names(); !slices.Equal(before, after) {
		s.Errorf("names of metrics changed from %v to %v", before, after)
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
					if page, _, err := l.List(ctx, "", 100); err != nil ||
						!slices.ContainsFunc(page, func(p backend.Volume) bool { return p.ID == v.ID }) {
						s.Errorf("List does not contain the new volume %s: %v", v.ID, err)
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
			s.Errorf("volumes %v remain, want only the shared volume", got)
		}
	}
}

func secrets(s *subject) {
	ctx, secret := context.Background(), map[string]string{"password": "correct horse battery"}
	bad := s.request("pvc-1")
	bad.Secrets, bad.Parameters = secret, s.with("color", "blue")
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
		errs = append(errs, b.Modify(ctx, "none", map[string]string{"color": "blue"}, secret))
	}
	if b, ok := s.Backend.(backend.GroupSnapshotter); ok {
		o := backend.GroupOptions{Name: "group-1", Sources: []string{"none"}, Secrets: secret}
		_, err1 := b.SnapshotGroup(ctx, o)
		_, err2 := b.GetGroup(ctx, "none", nil, secret)
		errs = append(errs, err1, err2, b.DeleteGroup(ctx, "none", nil, secret))
	}
	if b, ok := s.Backend.(backend.PartSnapshotter); ok {
		o := partOptions("attempt-1", "none")
		o.Secrets = secret
		_, err := b.SnapshotPart(ctx, o)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); strings.Contains(err.Error(), "correct horse") {
		s.Errorf("error contains the password: %v", err)
	}
}
