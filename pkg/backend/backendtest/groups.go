package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// grouper is a subject with a backend.GroupSnapshotter.
type grouper struct {
	*snapshotter
	backend.GroupSnapshotter
}

// grouping skips the test if the backend does not support groups of these volumes. grouping first
// checks that SnapshotGroup rejects such a group.
func grouping(s *subject) *grouper {
	s.Helper()
	g := &grouper{snapshotting(s), optional[backend.GroupSnapshotter](s)}
	if (s.access.Block && !s.kind.BlockGroups) || (!s.access.Block && !s.kind.Groups) {
		sources := []string{g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID}
		err := g.refusedGroup(backend.GroupOptions{Name: "group-1", Sources: sources}, backend.ErrPrecondition,
			backend.ErrInvalid)
		s.Skipf("the backend does not support groups of these volumes: %v", err)
	}
	return g
}

// reopen closes the backend and opens the storage again, like a new process.
func (g *grouper) reopen() {
	g.Helper()
	g.snapshotter.reopen()
	g.GroupSnapshotter = g.Backend.(backend.GroupSnapshotter)
}

func (g *grouper) group(name string, sources ...string) backend.Group {
	g.Helper()
	group, err := g.SnapshotGroup(context.Background(), backend.GroupOptions{Name: name, Sources: sources})
	if err != nil {
		g.Fatalf("SnapshotGroup(%q, %v): %v", name, sources, err)
	}
	return group
}

// refusedGroup checks that SnapshotGroup fails with an error in want and changes nothing.
func (g *grouper) refusedGroup(o backend.GroupOptions, want ...error) error {
	g.Helper()
	return g.leavesNothing(fmt.Sprintf("SnapshotGroup(%.200q)", fmt.Sprint(o)), func() error {
		_, err := g.SnapshotGroup(context.Background(), o)
		return err
	}, want...)
}

// wantGroup checks that GetGroup returns the group, and that its members exist.
func (g *grouper) wantGroup(want backend.Group) {
	g.Helper()
	backwards := slices.Clone(ids(want))
	slices.Reverse(backwards)
	for _, snapshots := range [][]string{nil, ids(want), backwards} {
		if got, err := g.GetGroup(context.Background(), want.ID, snapshots, nil); err != nil || !sameGroup(got, want) {
			g.Errorf("GetGroup(%q, %q) = %+v, %v, want %+v", want.ID, snapshots, got, err, want)
		}
	}
	for _, member := range want.Snapshots {
		g.want(member)
	}
}

func (g *grouper) wantNoGroup(id string) {
	g.Helper()
	if got, err := g.GetGroup(context.Background(), id, nil, nil); !errors.Is(err, backend.ErrNotFound) {
		g.Errorf("GetGroup(%.60q) = %+v, %v, want ErrNotFound", id, got, err)
	}
}

func (g *grouper) dropGroup(id string, snapshots ...string) {
	g.Helper()
	if err := g.DeleteGroup(context.Background(), id, snapshots, nil); err != nil {
		g.Fatalf("DeleteGroup(%.60q, %q): %v", id, snapshots, err)
	}
}

// ids returns the IDs of the members of the group.
func ids(g backend.Group) (ids []string) {
	for _, s := range g.Snapshots {
		ids = append(ids, s.ID)
	}
	return ids
}

func sameGroup(a, b backend.Group) bool {
	return a.ID == b.ID && a.Created.Equal(b.Created) && slices.EqualFunc(a.Snapshots, b.Snapshots, same)
}

func groups(s *subject) {
	g := grouping(s)
	texts := map[string]string{}
	for i := range 3 {
		text := fmt.Sprint("text ", i)
		id := g.create(g.request(fmt.Sprint("pvc-", i))).ID
		g.write(id, text)
		texts[id] = text
	}
	sources := slices.Sorted(maps.Keys(texts))
	before, start := g.state(), time.Now()
	group := g.group("group-1", sources...)
	g.createdSince(start, group.Created)
	if group.ID == "" || len(group.ID) > 128 || len(group.Snapshots) != len(sources) || !slices.IsSorted(ids(group)) {
		g.Fatalf("SnapshotGroup(%q) = %+v, want an ID of 1 to 128 bytes and a member per source in order", sources,
			group)
	}
	for _, id := range sources {
		g.write(id, "later")
	}
	slices.Reverse(sources)
	if again := g.group("group-1", sources...); !sameGroup(again, group) {
		g.Errorf("the second SnapshotGroup, in another order, = %+v, want %+v", again, group)
	}
	alone := g.snap("group-1", sources[0]) // names of snapshots and of groups are independent
	g.keeps(alone, "later")
	g.drop(alone.ID)
	g.wantGroup(group)
	members := map[string]bool{}
	for _, member := range group.Snapshots {
		members[member.Source] = true
		g.createdSince(start, member.Created)
		if member.Group != group.ID || texts[member.Source] == "" {
			g.Errorf("member %+v, want group %s and a source of the group", member, group.ID)
		}
		g.keeps(member, texts[member.Source])
		g.leavesNothing("DeleteSnapshot of a member", func() error {
			return g.DeleteSnapshot(context.Background(), member.ID, nil)
		}, backend.ErrInvalid)
	}
	if len(members) != len(sources) {
		g.Errorf("the members are snapshots of %v, want %v", members, sources)
	}
	g.dropGroup(group.ID, ids(group)...)
	for range 2 {
		g.dropGroup(group.ID)
		g.dropGroup(group.ID, ids(group)...)
	}
	g.wantNoGroup(group.ID)
	for _, id := range ids(group) {
		g.wantGone(id)
	}
	if after := g.state(); after != before {
		g.Errorf("objects are %s, want %s as before", after, before)
	}
	g.keeps(g.group("group-1", sources[0]).Snapshots[0], "later") // the name is free again
}

func groupStays(s *subject) {
	g := grouping(s)
	one, two := g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID
	g.write(one, "one")
	group := g.group("group-1", one, two)
	g.delete(one)
	g.wantGroup(group)
	g.reopen()
	g.wantGroup(group)
	if again := g.group("group-1", one, two); !sameGroup(again, group) {
		g.Errorf("the same SnapshotGroup after a volume was deleted = %+v, want %+v", again, group)
	}
	i := slices.IndexFunc(group.Snapshots, func(s backend.Snapshot) bool { return s.Source == one })
	restored := g.restore("restored", group.Snapshots[i].ID)
	g.dropGroup(group.ID)
	g.reopen()
	g.wantNoGroup(group.ID)
	g.holds(restored.ID, "one")
}

func groupConflicts(s *subject) {
	g := grouping(s)
	one, two, three := g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID, g.create(g.request("pvc-3")).ID
	group, other := g.group("group-1", one, two), g.snap("snap-1", three)
	for _, sources := range [][]string{{one}, {one, three}, {one, two, three}} {
		g.refusedGroup(backend.GroupOptions{Name: "group-1", Sources: sources}, backend.ErrExists)
	}
	err := g.refusedGroup(backend.GroupOptions{
		Name: "group-2", Sources: []string{one, two}, Parameters: map[string]string{"color-of-it": "blue"},
	}, backend.ErrInvalid)
	if !strings.Contains(err.Error(), "color-of-it") {
		g.Errorf("%v does not name the parameter", err)
	}
	members := ids(group)
	for _, wrong := range [][]string{
		members[:1], {members[0], other.ID}, append(slices.Clone(members), other.ID),
		{other.ID}, {"none"}, {members[0], members[0]},
	} {
		for name, call := range map[string]func() error{
			"GetGroup": func() error {
				_, err := g.GetGroup(context.Background(), group.ID, wrong, nil)
				return err
			},
			"DeleteGroup": func() error { return g.DeleteGroup(context.Background(), group.ID, wrong, nil) },
		} {
			g.leavesNothing(fmt.Sprintf("%s with the members %q", name, wrong), call, backend.ErrInvalid)
		}
	}
	g.wantGroup(group)
}

// groupAllOrNothing requests groups with a volume that does not exist.
func groupAllOrNothing(s *subject) {
	g := grouping(s)
	one, two := g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID
	bad := append(unusual(one), one+"\x00", strings.Repeat("x", 4096), g.snap("snap-1", one).ID)
	if b, ok := s.Backend.(backend.Inliner); ok {
		handle := "csi-" + strings.Repeat("0", 64)
		if _, err := b.CreateInline(context.Background(), handle,
			backend.CreateOptions{Access: []backend.Access{{}}, Parameters: s.inline()}); err != nil {
			g.Fatal(err)
		}
		bad = append(bad, handle)
	}
	for i, id := range bad {
		sources := slices.Insert([]string{one, two}, i%3, id)
		g.refusedGroup(backend.GroupOptions{Name: "group-1", Sources: sources}, backend.ErrNotFound)
	}
	g.wantGroup(g.group("group-1", one, two)) // nothing prevents the valid call
}

func untrustedGroups(s *subject) {
	g := grouping(s)
	v := g.create(g.request("pvc-1")).ID
	group := g.group("group-1", v)
	id := group.ID
	for _, bad := range append(unusual(id), "", "\x00", id+"\x00", id[:len(id)-1], strings.Repeat("x", 4096), v,
		group.Snapshots[0].ID) {
		g.wantNoGroup(bad)
		g.dropGroup(bad)
		g.dropGroup(bad, ids(group)...)
	}
	g.drop(id) // the ID of a group is not the ID of a snapshot
	g.delete(id)
	g.wantGroup(group)
}

// groupCanceled makes a call with a canceled context. The call may have started a job, which the
// next call finds.
func groupCanceled(s *subject) {
	g := grouping(s)
	sources := []string{g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID}
	o := backend.GroupOptions{Name: "group-1", Sources: sources}
	before := g.state()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := g.SnapshotGroup(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		g.Errorf("a canceled SnapshotGroup = %v, want the error of the context", err)
	}
	group, err := retry(g, func() (backend.Group, error) { return g.SnapshotGroup(context.Background(), o) })
	if err != nil {
		g.Fatal(err)
	}
	g.wantGroup(group)
	g.dropGroup(group.ID)
	if after := g.state(); after != before {
		g.Errorf("objects are %s, want %s as before", after, before)
	}
}

// groupsConcurrently creates groups of the same volumes in several goroutines.
func groupsConcurrently(s *subject) {
	g := grouping(s)
	sources := []string{g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID}
	before := g.state()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 3 {
				o := backend.GroupOptions{Name: fmt.Sprintf("group-%d-%d", i, j), Sources: sources}
				group, err := retry(g, func() (backend.Group, error) {
					return g.SnapshotGroup(context.Background(), o)
				})
				if err != nil {
					g.Error(err)
					return
				}
				g.wantGroup(group)
				if err := g.DeleteGroup(context.Background(), group.ID, ids(group), nil); err != nil {
					g.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if after := g.state(); after != before {
		g.Errorf("objects are %s, want %s as before", after, before)
	}
}

func groupRaces(s *subject) {
	g := grouping(s)
	one, two := g.create(g.request("pvc-1")).ID, g.create(g.request("pvc-2")).ID
	g.write(one, "one")
	g.write(two, "one")
	before := g.state()
	for i := range 8 {
		group := g.group("group-1", one, two)
		member := group.Snapshots[i%2].ID
		made, ok := race(g, func() (backend.Volume, error) {
			return g.Restore(context.Background(), member, g.request(fmt.Sprint("restored-", i)))
		}, func() error { return g.DeleteGroup(context.Background(), group.ID, ids(group), nil) })
		if ok {
			g.holds(made.ID, "one")
			g.delete(made.ID)
		}
		g.wantNoGroup(group.ID)
	}
	if after := g.state(); after != before {
		g.Errorf("objects are %s, want %s as before", after, before)
	}
}
