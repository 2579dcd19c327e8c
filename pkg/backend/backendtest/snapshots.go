package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// snapshotter is a subject with a backend.Snapshotter.
type snapshotter struct {
	*subject
	backend.Snapshotter
}

func snapshotting(s *subject) *snapshotter {
	s.Helper()
	return &snapshotter{s, optional[backend.Snapshotter](s)}
}

// reopen closes the backend and opens the storage again, like a new process.
func (s *snapshotter) reopen() {
	s.Helper()
	s.subject.reopen()
	s.Snapshotter = s.Backend.(backend.Snapshotter)
}

// snap creates a snapshot of a volume.
func (s *snapshotter) snap(name, source string) backend.Snapshot {
	s.Helper()
	snapshot, err := s.Snapshot(context.Background(), backend.SnapshotOptions{Name: name, Source: source})
	if err != nil {
		s.Fatalf("Snapshot(%.40q, %q): %v", name, source, err)
	}
	return snapshot
}

func (s *snapshotter) drop(id string) {
	s.Helper()
	if err := s.DeleteSnapshot(context.Background(), id, nil); err != nil {
		s.Fatalf("DeleteSnapshot(%q): %v", id, err)
	}
}

// restore creates a volume from a snapshot.
func (s *snapshotter) restore(name, snapshot string) backend.Volume {
	s.Helper()
	v, err := s.Restore(context.Background(), snapshot, s.request(name))
	if err != nil {
		s.Fatalf("Restore(%q, %.40q): %v", snapshot, name, err)
	}
	return v
}

// keeps checks that a volume restored from the snapshot has this text, and deletes the volume.
func (s *snapshotter) keeps(snapshot backend.Snapshot, text string) {
	s.Helper()
	v := s.restore("copy of "+snapshot.ID[max(0, len(snapshot.ID)-64):], snapshot.ID)
	s.holds(v.ID, text)
	s.delete(v.ID)
}

// listed returns the IDs of the snapshots of the volume source, or of all volumes if source is "".
func (s *snapshotter) listed(source string) []string {
	s.Helper()
	all, more, err := s.ListSnapshots(context.Background(), source, "", 1<<20)
	if err != nil || more {
		s.Fatalf("ListSnapshots(%q): more %v, %v", source, more, err)
	}
	var ids []string
	for _, snapshot := range all {
		ids = append(ids, snapshot.ID)
	}
	return ids
}

// want checks that GetSnapshot and ListSnapshots return the snapshot.
func (s *snapshotter) want(want backend.Snapshot) {
	s.Helper()
	if got, err := s.GetSnapshot(context.Background(), want.ID, nil); err != nil || !same(got, want) {
		s.Errorf("GetSnapshot = %+v, %v, want %+v", got, err, want)
	}
	for _, source := range []string{"", want.Source} {
		all, _, err := s.ListSnapshots(context.Background(), source, "", 1<<20)
		if i := slices.IndexFunc(all, func(s backend.Snapshot) bool { return s.ID == want.ID }); i < 0 ||
			!same(all[i], want) {
			s.Errorf("ListSnapshots(%q) = %+v, %v, want %+v among them", source, all, err, want)
		}
	}
}

// wantGone checks that no snapshot has this ID.
func (s *snapshotter) wantGone(id string) {
	s.Helper()
	if got, err := s.GetSnapshot(context.Background(), id, nil); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("GetSnapshot(%.60q) = %+v, %v, want ErrNotFound", id, got, err)
	}
	if slices.Contains(s.listed(""), id) {
		s.Errorf("ListSnapshots still contains %.60q", id)
	}
}

// createdSince checks that a creation time is between start and now, give or take a second.
func (s *subject) createdSince(start, created time.Time) {
	s.Helper()
	if created.Before(start.Add(-time.Second)) || created.After(time.Now().Add(time.Second)) {
		s.Errorf("creation time %s, want a time between %s and now", created, start)
	}
}

func same(a, b backend.Snapshot) bool {
	return a.ID == b.ID && a.Source == b.Source && a.Size == b.Size && a.Created.Equal(b.Created) && a.Group == b.Group
}

// notNow are the errors after which the CO repeats a call.
var notNow = []error{backend.ErrBusy, backend.ErrUnavailable, context.Canceled, context.DeadlineExceeded}

// retry repeats a call like the CO, until the error is neither in notNow nor in more, or the time of
// the test is over.
func retry[T any](t testing.TB, call func() (T, error), more ...error) (T, error) {
	t.Helper()
	again := slices.Concat(notNow, more)
	for ctx := await.Context(t); ; time.Sleep(time.Millisecond) {
		result, err := call()
		if !slices.ContainsFunc(again, func(e error) bool { return errors.Is(err, e) }) || ctx.Err() != nil {
			return result, err
		}
	}
}

// race calls call, which copies an object, and at the same time remove, which deletes that object.
// race checks that remove succeeds, and that call succeeds or returns ErrNotFound. race returns the
// copy, and whether call succeeded.
func race[T any](t testing.TB, call func() (T, error), remove func() error) (made T, ok bool) {
	t.Helper()
	var callErr, removeErr error
	var wg sync.WaitGroup
	wg.Go(func() { made, callErr = retry(t, call) })
	wg.Go(func() {
		_, removeErr = retry(t, func() (any, error) { return nil, remove() }, backend.ErrInUse)
	})
	wg.Wait()
	if removeErr != nil || (callErr != nil && !errors.Is(callErr, backend.ErrNotFound)) {
		t.Errorf("the copy returned %v, want nil or ErrNotFound; the deletion returned %v, want nil", callErr,
			removeErr)
	}
	return made, callErr == nil
}

// snapshotsOf returns the list of all snapshots, or of the snapshots of a volume while the
// snapshots of another volume are added.
func snapshotsOf(s *subject, all bool) list {
	sn := snapshotting(s)
	one, other := sn.create(sn.request("one")).ID, sn.create(sn.request("other")).ID
	source := one
	if all {
		source = ""
	}
	return list{
		add: func(name string) string {
			if !all {
				sn.snap("of the other volume "+name, other)
			}
			return sn.snap(name, one).ID
		},
		remove: sn.drop,
		page: func(after string, limit int) (ids []string, more bool, err error) {
			snapshots, more, err := sn.ListSnapshots(context.Background(), source, after, limit)
			for _, snapshot := range snapshots {
				ids = append(ids, snapshot.ID)
			}
			return ids, more, err
		},
	}
}

func snapshots(s *subject) {
	sn := snapshotting(s)
	v := sn.create(sn.request("pvc-1"))
	before := sn.state()
	sn.write(v.ID, "one")
	start := time.Now()
	first := sn.snap("snap-1", v.ID)
	if first.ID == "" || len(first.ID) > 128 || first.Source != v.ID || first.Group != "" || first.Size <= 0 ||
		first.Size > v.Size {
		sn.Errorf("Snapshot of %+v = %+v, want an ID of 1 to 128 bytes, this source, no group and at most its size",
			v, first)
	}
	sn.createdSince(start, first.Created)
	sn.write(v.ID, "two, which is longer")
	second := sn.snap("snap-2", v.ID)
	if again := sn.snap("snap-1", v.ID); !same(again, first) || second.ID == first.ID {
		sn.Errorf("the second Snapshot = %+v, want %+v, and not %+v", again, first, second)
	}
	sn.want(first)
	sn.want(second)
	sn.keeps(first, "one")
	sn.keeps(second, "two, which is longer")
	sn.holds(v.ID, "two, which is longer")
	for range 3 {
		sn.drop(first.ID)
	}
	sn.wantGone(first.ID)
	sn.want(second)
	sn.keeps(second, "two, which is longer")

	sn.write(v.ID, "three")
	anew := sn.snap("snap-1", v.ID) // the name is free again
	sn.keeps(anew, "three")
	sn.drop(anew.ID)
	sn.drop(second.ID)
	sn.holds(v.ID, "three")
	if after := sn.state(); after != before {
		sn.Errorf("objects are %s, want %s as before", after, before)
	}
}

func snapshotStays(s *subject) {
	sn := snapshotting(s)
	v := sn.create(sn.request("pvc-1"))
	sn.write(v.ID, "one")
	snapshot := sn.snap("snap-1", v.ID)
	sn.delete(v.ID)
	sn.want(snapshot)
	sn.reopen()
	sn.want(snapshot)
	if again := sn.snap("snap-1", v.ID); !same(again, snapshot) {
		sn.Errorf("the same Snapshot = %+v, want %+v", again, snapshot)
	}
	sn.create(sn.request("pvc-1")) // may have the same ID
	sn.want(snapshot)
	restored := sn.restore("restored", snapshot.ID)
	sn.holds(restored.ID, "one")
	sn.drop(snapshot.ID)
	sn.reopen()
	sn.wantGone(snapshot.ID)
	sn.holds(restored.ID, "one")
}

// refusedSnapshot checks that Snapshot fails with an error in want and changes nothing.
func (s *snapshotter) refusedSnapshot(o backend.SnapshotOptions, want ...error) error {
	s.Helper()
	return s.leavesNothing(fmt.Sprintf("Snapshot(%.200q)", fmt.Sprint(o)), func() error {
		_, err := s.Snapshot(context.Background(), o)
		return err
	}, want...)
}

func snapshotConflicts(s *subject) {
	sn := snapshotting(s)
	v, other := sn.create(sn.request("pvc-1")), sn.create(sn.request("pvc-2"))
	snapshot := sn.snap("snap-1", v.ID)
	sn.refusedSnapshot(backend.SnapshotOptions{Name: "snap-1", Source: other.ID}, backend.ErrExists)
	err := sn.refusedSnapshot(backend.SnapshotOptions{
		Name: "snap-2", Source: v.ID, Parameters: map[string]string{"color-of-it": "blue"},
	}, backend.ErrInvalid)
	if !strings.Contains(err.Error(), "color-of-it") {
		sn.Errorf("%v does not name the parameter", err)
	}
	sn.want(snapshot)
}

func untrustedSnapshots(s *subject) {
	sn := snapshotting(s)
	ctx := context.Background()
	v := sn.create(sn.request("pvc-1"))
	snapshot := sn.snap("snap-1", v.ID)
	id := snapshot.ID
	for _, bad := range append(unusual(id), "", "\x00", id+"\x00", id[:len(id)-1], strings.Repeat(id, 100),
		strings.Repeat("x", 4096), v.ID) {
		sn.wantGone(bad)
		sn.drop(bad)
	}
	for _, bad := range append(unusual(v.ID), "\x00", v.ID+"\x00", strings.Repeat("x", 4096), id) {
		sn.refusedSnapshot(backend.SnapshotOptions{Name: "snap-2", Source: bad}, backend.ErrNotFound)
		if got := sn.listed(bad); len(got) > 0 {
			sn.Errorf("ListSnapshots of the unknown volume %.60q = %v, want none", bad, got)
		}
	}
	sn.delete(id) // the ID of a snapshot is not the ID of a volume
	sn.want(snapshot)
	sn.holds(v.ID, "")
	if _, err := sn.Get(ctx, id, nil); !errors.Is(err, backend.ErrNotFound) {
		sn.Errorf("Get with the ID of a snapshot = %v, want ErrNotFound", err)
	}
	if b, ok := s.Backend.(backend.Inliner); ok {
		handle := "csi-" + strings.Repeat("0", 64)
		if _, err := b.CreateInline(ctx, handle,
			backend.CreateOptions{Access: []backend.Access{{}}, Parameters: s.inline()}); err != nil {
			sn.Fatal(err)
		}
		sn.refusedSnapshot(backend.SnapshotOptions{Name: "snap-2", Source: handle}, backend.ErrNotFound)
	}
}

func untrustedSnapshotNames(s *subject) {
	sn := snapshotting(s)
	v := sn.create(sn.request("pvc-1"))
	seen := map[string]string{}
	for _, name := range unusual("snap") {
		id := sn.snap(name, v.ID).ID
		if other, ok := seen[id]; ok {
			sn.Errorf("the names %q and %q have the same snapshot", name, other)
		}
		seen[id] = name
	}
	for id := range seen {
		sn.drop(id)
	}
}

// snapshotCanceled makes a call with a canceled context. The call may have started a job, which
// the next call finds.
func snapshotCanceled(s *subject) {
	sn := snapshotting(s)
	v := sn.create(sn.request("pvc-1"))
	before := sn.state()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := backend.SnapshotOptions{Name: "snap-1", Source: v.ID}
	if _, err := sn.Snapshot(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		sn.Errorf("a canceled Snapshot = %v, want the error of the context", err)
	}
	snapshot, err := retry(sn, func() (backend.Snapshot, error) { return sn.Snapshot(context.Background(), o) })
	if err != nil {
		sn.Fatal(err)
	}
	sn.want(snapshot)
	sn.drop(snapshot.ID)
	if after := sn.state(); after != before {
		sn.Errorf("objects are %s, want %s as before", after, before)
	}
}

func snapshotRaces(s *subject) {
	sn := snapshotting(s)
	before := sn.state()
	for i := range 8 {
		v := sn.create(sn.request("pvc-1"))
		sn.write(v.ID, "one")
		snapshot, ok := race(sn, func() (backend.Snapshot, error) {
			return sn.Snapshot(context.Background(),
				backend.SnapshotOptions{Name: fmt.Sprint("snap-", i), Source: v.ID})
		}, func() error { return sn.Delete(context.Background(), v.ID, nil) })
		if ok {
			sn.want(snapshot)
			sn.keeps(snapshot, "one")
			sn.drop(snapshot.ID)
		}
	}
	if after := sn.state(); after != before {
		sn.Errorf("objects are %s, want %s as before", after, before)
	}
}

// snapshotsConcurrently makes a single changing call at a time for each snapshot, like the driver,
// also for a snapshot that all goroutines create.
func snapshotsConcurrently(s *subject) {
	sn := snapshotting(s)
	ctx := context.Background()
	v := sn.create(sn.request("pvc-1"))
	sn.write(v.ID, "one")
	var wg sync.WaitGroup
	var shared sync.Mutex // held for the calls that name the snapshot of all goroutines
	for i := range 6 {
		wg.Go(func() {
			for j := range 4 {
				name := fmt.Sprintf("snap-%d-%d", i, j)
				call := func(name string) (backend.Snapshot, error) {
					return retry(sn, func() (backend.Snapshot, error) {
						return sn.Snapshot(ctx, backend.SnapshotOptions{Name: name, Source: v.ID})
					})
				}
				shared.Lock()
				_, err1 := call("shared")
				shared.Unlock()
				own, err2 := call(name)
				restored, err3 := retry(sn, func() (backend.Volume, error) {
					return sn.Restore(ctx, own.ID, sn.request(name))
				})
				if err := errors.Join(err1, err2, err3); err != nil {
					sn.Error(err)
					return
				}
				sn.want(own)
				sn.holds(restored.ID, "one")
				if err := errors.Join(sn.DeleteSnapshot(ctx, own.ID, nil),
					sn.Delete(ctx, restored.ID, nil)); err != nil {
					sn.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, want := sn.listed(""), []string{sn.snap("shared", v.ID).ID}; !slices.Equal(got, want) {
		sn.Errorf("snapshots %v remain, want only the shared snapshot %v", got, want)
	}
}
