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

	"github.com/causeway-csi/causeway/pkg/backend"
)

// snapshotter is a subject that makes snapshots.
type snapshotter struct {
	*subject
	backend.Snapshotter
}

func snapshotting(s *subject) *snapshotter {
	s.Helper()
	return &snapshotter{s, optional[backend.Snapshotter](s)}
}

// reopen goes on with the storage as another process would.
func (s *snapshotter) reopen() {
	s.Helper()
	s.subject.reopen()
	s.Snapshotter = s.Backend.(backend.Snapshotter)
}

// snap makes a snapshot of a volume.
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

// restore makes a volume of a snapshot.
func (s *snapshotter) restore(name, snapshot string) backend.Volume {
	s.Helper()
	v, err := s.Restore(context.Background(), snapshot, s.request(name))
	if err != nil {
		s.Fatalf("Restore(%q, %.40q): %v", snapshot, name, err)
	}
	return v
}

// keeps makes sure that a snapshot has a text: a volume that is made of it, for a moment, does.
func (s *snapshotter) keeps(snapshot backend.Snapshot, text string) {
	s.Helper()
	v := s.restore("a look at "+snapshot.ID[max(0, len(snapshot.ID)-64):], snapshot.ID)
	s.holds(v.ID, text)
	s.delete(v.ID)
}

// listed returns the IDs of the snapshots of a volume, or of all if it is "".
func (s *snapshotter) listed(source string) []string {
	s.Helper()
	all, more, err := s.ListSnapshots(context.Background(), source, "", 1<<20)
	if err != nil || more {
		s.Fatalf("ListSnapshots(%q): more %v, %v", source, more, err)
	}
	var ids []string
	for _, one := range all {
		ids = append(ids, one.ID)
	}
	return ids
}

// want makes sure that a snapshot is there, whoever is asked.
func (s *snapshotter) want(want backend.Snapshot) {
	s.Helper()
	if got, err := s.GetSnapshot(context.Background(), want.ID, nil); err != nil || !same(got, want) {
		s.Errorf("GetSnapshot = %+v, %v, want %+v", got, err, want)
	}
	for _, source := range []string{"", want.Source} {
		all, _, err := s.ListSnapshots(context.Background(), source, "", 1<<20)
		if i := slices.IndexFunc(all, func(one backend.Snapshot) bool { return one.ID == want.ID }); i < 0 || !same(all[i], want) {
			s.Errorf("ListSnapshots(%q) = %+v, %v, want %+v among them", source, all, err, want)
		}
	}
}

// wantGone makes sure that no snapshot has this ID.
func (s *snapshotter) wantGone(id string) {
	s.Helper()
	if got, err := s.GetSnapshot(context.Background(), id, nil); !errors.Is(err, backend.ErrNotFound) {
		s.Errorf("GetSnapshot(%.60q) = %+v, %v, want ErrNotFound", id, got, err)
	}
	if slices.Contains(s.listed(""), id) {
		s.Errorf("ListSnapshots has %.60q still", id)
	}
}

// cutSince makes sure that something was cut between start and now.
func (s *subject) cutSince(start, created time.Time) {
	s.Helper()
	if created.Before(start.Add(-time.Second)) || created.After(time.Now().Add(time.Second)) {
		s.Errorf("it was cut at %s, after %s", created, start)
	}
}

func same(a, b backend.Snapshot) bool {
	return a.ID == b.ID && a.Source == b.Source && a.Size == b.Size && a.Created.Equal(b.Created) && a.Group == b.Group
}

// notNow are errors that leave a call to be made again.
var notNow = []error{backend.ErrBusy, backend.ErrUnavailable, context.Canceled, context.DeadlineExceeded}

// insist makes a call until it ends for good, as the CO does: with none of those errors, nor with one of more.
func insist[T any](t testing.TB, call func() (T, error), more ...error) (T, error) {
	t.Helper()
	again := slices.Concat(notNow, more)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		result, err := call()
		if !slices.ContainsFunc(again, func(e error) bool { return errors.Is(err, e) }) || time.Now().After(deadline) {
			return result, err
		}
	}
}

// race makes a copy of something while that is deleted, and makes sure that both end well. It returns the copy, unless what
// it should have been made of was gone.
func race[T any](t testing.TB, call func() (T, error), remove func() error) (made T, ok bool) {
	t.Helper()
	var callErr, removeErr error
	var wg sync.WaitGroup
	wg.Go(func() { made, callErr = insist(t, call) })
	wg.Go(func() {
		_, removeErr = insist(t, func() (any, error) { return nil, remove() }, backend.ErrInUse)
	})
	wg.Wait()
	if removeErr != nil || (callErr != nil && !errors.Is(callErr, backend.ErrNotFound)) {
		t.Errorf("the copy: %v, want that it is made, or ErrNotFound; the removal: %v", callErr, removeErr)
	}
	return made, callErr == nil
}

// snapshotsOf is the list of the snapshots of a volume, beside which another one's come and go; or of all volumes.
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
				sn.snap("of the other one "+name, other)
			}
			return sn.snap(name, one).ID
		},
		remove: sn.drop,
		page: func(after string, limit int) (ids []string, more bool, err error) {
			snapshots, more, err := sn.ListSnapshots(context.Background(), source, after, limit)
			for _, one := range snapshots {
				ids = append(ids, one.ID)
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
	if first.ID == "" || len(first.ID) > 128 || first.Source != v.ID || first.Group != "" || first.Size <= 0 || first.Size > v.Size {
		sn.Errorf("Snapshot of %+v = %+v", v, first)
	}
	sn.cutSince(start, first.Created)
	sn.write(v.ID, "two, which is longer")
	second := sn.snap("snap-2", v.ID)
	if again := sn.snap("snap-1", v.ID); !same(again, first) || second.ID == first.ID {
		sn.Errorf("a second Snapshot = %+v, want %+v; another = %+v", again, first, second)
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
		sn.Errorf("something is left: %s, before %s", after, before)
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
	sn.create(sn.request("pvc-1")) // which may have the same ID
	sn.want(snapshot)
	restored := sn.restore("restored", snapshot.ID)
	sn.holds(restored.ID, "one")
	sn.drop(snapshot.ID)
	sn.reopen()
	sn.wantGone(snapshot.ID)
	sn.holds(restored.ID, "one")
}

// refusedSnapshot makes sure that Snapshot fails with one of want and that nothing is left.
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
	err := sn.refusedSnapshot(backend.SnapshotOptions{Name: "snap-2", Source: v.ID, Parameters: map[string]string{"colour-of-it": "blue"}}, backend.ErrInvalid)
	if !strings.Contains(err.Error(), "colour-of-it") {
		sn.Errorf("%v doesn't name the parameter", err)
	}
	sn.want(snapshot)
}

func strangeSnapshots(s *subject) {
	sn := snapshotting(s)
	ctx := context.Background()
	v := sn.create(sn.request("pvc-1"))
	snapshot := sn.snap("snap-1", v.ID)
	id := snapshot.ID
	for _, bad := range append(strange(id), "", "\x00", id+"\x00", id[:len(id)-1], strings.Repeat(id, 100), strings.Repeat("x", 4096), v.ID) {
		sn.wantGone(bad)
		sn.drop(bad)
	}
	for _, bad := range append(strange(v.ID), "\x00", v.ID+"\x00", strings.Repeat("x", 4096), id) {
		sn.refusedSnapshot(backend.SnapshotOptions{Name: "snap-2", Source: bad}, backend.ErrNotFound)
		if got := sn.listed(bad); len(got) > 0 {
			sn.Errorf("ListSnapshots of the volume %.60q = %v", bad, got)
		}
	}
	sn.delete(id) // which is no volume's
	sn.want(snapshot)
	sn.holds(v.ID, "")
	if _, err := sn.Get(ctx, id, nil); !errors.Is(err, backend.ErrNotFound) {
		sn.Errorf("Get of a snapshot's ID = %v", err)
	}
	if b, ok := s.Backend.(backend.Inliner); ok {
		handle := "csi-" + strings.Repeat("0", 64)
		if _, err := b.CreateInline(ctx, handle, backend.CreateOptions{Access: []backend.Access{{}}, Parameters: s.kind.Parameters}); err != nil {
			sn.Fatal(err)
		}
		sn.refusedSnapshot(backend.SnapshotOptions{Name: "snap-2", Source: handle}, backend.ErrNotFound)
	}
}

func strangeSnapshotNames(s *subject) {
	sn := snapshotting(s)
	v := sn.create(sn.request("pvc-1"))
	seen := map[string]string{}
	for _, name := range strange("snap") {
		id := sn.snap(name, v.ID).ID
		if other, ok := seen[id]; ok {
			sn.Errorf("%q and %q are one snapshot", name, other)
		}
		seen[id] = name
	}
	for id := range seen {
		sn.drop(id)
	}
}

// snapshotCancelled makes a call that nobody waits for: it may have begun something, which the next one finds.
func snapshotCancelled(s *subject) {
	sn := snapshotting(s)
	v := sn.create(sn.request("pvc-1"))
	before := sn.state()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := backend.SnapshotOptions{Name: "snap-1", Source: v.ID}
	if _, err := sn.Snapshot(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		sn.Errorf("a cancelled Snapshot = %v, want the context's error", err)
	}
	snapshot, err := insist(sn, func() (backend.Snapshot, error) { return sn.Snapshot(context.Background(), o) })
	if err != nil {
		sn.Fatal(err)
	}
	sn.want(snapshot)
	sn.drop(snapshot.ID)
	if after := sn.state(); after != before {
		sn.Errorf("something is left: %s, before %s", after, before)
	}
}

func snapshotRaces(s *subject) {
	sn := snapshotting(s)
	before := sn.state()
	for i := range 8 {
		v := sn.create(sn.request("pvc-1"))
		sn.write(v.ID, "one")
		snapshot, ok := race(sn, func() (backend.Snapshot, error) {
			return sn.Snapshot(context.Background(), backend.SnapshotOptions{Name: fmt.Sprint("snap-", i), Source: v.ID})
		}, func() error { return sn.Delete(context.Background(), v.ID, nil) })
		if ok {
			sn.want(snapshot)
			sn.keeps(snapshot, "one")
			sn.drop(snapshot.ID)
		}
	}
	if after := sn.state(); after != before {
		sn.Errorf("something is left: %s, before %s", after, before)
	}
}

// snapshotsConcurrently makes one change at a time of each snapshot, as the driver does, but for one that all want.
func snapshotsConcurrently(s *subject) {
	sn := snapshotting(s)
	ctx := context.Background()
	v := sn.create(sn.request("pvc-1"))
	sn.write(v.ID, "one")
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for j := range 4 {
				name := fmt.Sprintf("snap-%d-%d", i, j)
				call := func(name string) (backend.Snapshot, error) {
					return insist(sn, func() (backend.Snapshot, error) {
						return sn.Snapshot(ctx, backend.SnapshotOptions{Name: name, Source: v.ID})
					})
				}
				_, err1 := call("shared")
				own, err2 := call(name)
				restored, err3 := insist(sn, func() (backend.Volume, error) { return sn.Restore(ctx, own.ID, sn.request(name)) })
				if err := errors.Join(err1, err2, err3); err != nil {
					sn.Error(err)
					return
				}
				sn.want(own)
				sn.holds(restored.ID, "one")
				if err := errors.Join(sn.DeleteSnapshot(ctx, own.ID, nil), sn.Delete(ctx, restored.ID, nil)); err != nil {
					sn.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, want := sn.listed(""), []string{sn.snap("shared", v.ID).ID}; !slices.Equal(got, want) {
		sn.Errorf("%v are left, want the shared one, %v", got, want)
	}
}
