package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// parter is a subject with a backend.PartSnapshotter.
type parter struct {
	*grouper
	backend.PartSnapshotter
}

// elsewhere is the ID of a volume on another node. Every group contains it.
const elsewhere = "a volume of another node"

// errOnDemand is the error of a hook that must fail.
var errOnDemand = errors.New("on demand")

// parting skips the test if the backend does not support groups of these volumes. parting first
// checks that SnapshotPart rejects such a part.
func parting(s *subject) *parter {
	s.Helper()
	b := optional[backend.PartSnapshotter](s)
	if (s.access.Block && !s.kind.BlockGroups) || (!s.access.Block && !s.kind.Groups) {
		o := partOptions("attempt-1", s.create(s.request("pvc-1")).ID)
		o.Frozen, o.Durable = unwanted(s), unwanted(s)
		s.leavesNothing("SnapshotPart", func() error {
			_, err := b.SnapshotPart(context.Background(), o)
			return err
		}, backend.ErrPrecondition, backend.ErrInvalid)
	}
	return &parter{grouping(s), b}
}

// partOptions returns the options of a part. The other part of the group has the volume elsewhere.
func partOptions(attemptID string, sources ...string) backend.PartOptions {
	return backend.PartOptions{
		GroupOptions: backend.GroupOptions{Name: "group-1", Sources: sources},
		All:          slices.Sorted(slices.Values(append([]string{elsewhere}, sources...))), AttemptID: attemptID,
	}
}

// unwanted returns a hook that must not be called.
func unwanted(s *subject) func(context.Context) error {
	return func(context.Context) error { s.Error("a hook was called"); return nil }
}

// two creates the two volumes of a part.
func (p *parter) two() []string {
	p.Helper()
	return []string{p.create(p.request("pvc-1")).ID, p.create(p.request("pvc-2")).ID}
}

// reopen closes the backend and opens the storage again, like a new process.
func (p *parter) reopen() {
	p.Helper()
	p.grouper.reopen()
	p.PartSnapshotter = p.Backend.(backend.PartSnapshotter)
}

func (p *parter) part(o backend.PartOptions) backend.Part {
	p.Helper()
	part, err := p.SnapshotPart(context.Background(), o)
	if err != nil {
		p.Fatalf("SnapshotPart(%q, %q): %v", o.Sources, o.AttemptID, err)
	}
	return part
}

// found checks that SnapshotPart returns the existing part, also for another attempt ID.
func (p *parter) found(o backend.PartOptions, want backend.Part) {
	p.Helper()
	o.Frozen, o.Durable = unwanted(p.subject), unwanted(p.subject)
	for _, attemptID := range []string{want.AttemptID, "another"} {
		o.AttemptID = attemptID
		if got := p.part(o); !samePart(got, want) {
			p.Errorf("the second SnapshotPart, with attempt ID %q, = %+v, want %+v", attemptID, got, want)
		}
	}
}

// refusedPart checks that SnapshotPart fails with an error in want, calls no hook, and changes
// nothing.
func (p *parter) refusedPart(o backend.PartOptions, want ...error) error {
	p.Helper()
	o.Frozen, o.Durable = unwanted(p.subject), unwanted(p.subject)
	request := fmt.Sprintf("SnapshotPart(%.200q)", fmt.Sprint(o.GroupOptions, o.All, o.AttemptID))
	return p.leavesNothing(request, func() error {
		_, err := p.SnapshotPart(context.Background(), o)
		return err
	}, want...)
}

// wantPart checks that GetPart returns the part, and GetGroup the group of the part.
func (p *parter) wantPart(want backend.Part) {
	p.Helper()
	if got, err := p.GetPart(context.Background(), want.ID); err != nil || !samePart(got, want) {
		p.Errorf("GetPart(%q) = %+v, %v, want %+v", want.ID, got, err, want)
	}
	p.wantGroup(want.Group)
}

func (p *parter) wantNoPart(id string) {
	p.Helper()
	if got, err := p.GetPart(context.Background(), id); !errors.Is(err, backend.ErrNotFound) {
		p.Errorf("GetPart(%.60q) = %+v, %v, want ErrNotFound", id, got, err)
	}
	if err := p.CommitPart(context.Background(), id, "attempt-1"); !errors.Is(err, backend.ErrNotFound) {
		p.Errorf("CommitPart(%.60q) = %v, want ErrNotFound", id, err)
	}
}

func (p *parter) commitPart(part *backend.Part) {
	p.Helper()
	if err := p.CommitPart(context.Background(), part.ID, part.AttemptID); err != nil {
		p.Fatalf("CommitPart(%q, %q): %v", part.ID, part.AttemptID, err)
	}
	part.Committed = true
}

func (p *parter) discard(id, attemptID string) {
	p.Helper()
	if err := p.DiscardPart(context.Background(), id, attemptID); err != nil {
		p.Fatalf("DiscardPart(%.60q, %q): %v", id, attemptID, err)
	}
}

// notDiscarded checks that DiscardPart fails with want and changes nothing.
func (p *parter) notDiscarded(part backend.Part, attemptID string, want error) {
	p.Helper()
	p.leavesNothing("DiscardPart",
		func() error { return p.DiscardPart(context.Background(), part.ID, attemptID) }, want)
	p.wantPart(part)
}

func samePart(a, b backend.Part) bool {
	return sameGroup(a.Group, b.Group) && slices.Equal(a.All, b.All) && a.AttemptID == b.AttemptID &&
		a.Committed == b.Committed
}

// nothingLeft returns a function that checks that the objects are the same as now.
func (s *subject) nothingLeft() func() {
	s.Helper()
	before := s.state()
	return func() {
		s.Helper()
		if after := s.state(); after != before {
			s.Errorf("objects are %s, want %s as before", after, before)
		}
	}
}

func parts(s *subject) {
	p := parting(s)
	sources := p.two()
	for _, id := range sources {
		p.write(id, "one")
	}
	whole := p.group("group-1", sources...) // a group and a part with the same name are independent
	nothingLeft := p.nothingLeft()
	o, start, asked := partOptions("attempt-1", sources...), time.Now(), ""
	o.Frozen = func(context.Context) error { asked += "frozen "; nothingLeft(); return nil }
	o.Durable = func(context.Context) error {
		asked += "durable "
		for _, id := range sources {
			p.write(id, "later")
		}
		return nil
	}
	part := p.part(o)
	p.createdSince(start, part.Created)
	if part.ID == "" || len(part.ID) > 128 || part.ID == whole.ID || len(part.Snapshots) != len(sources) ||
		!slices.IsSorted(ids(part.Group)) ||
		!slices.Equal(part.All, o.All) || part.AttemptID != "attempt-1" || part.Committed ||
		asked != "frozen durable " {
		p.Fatalf("SnapshotPart = %+v after the hooks %q, want an uncommitted part with sorted members after both hooks",
			part, asked)
	}
	slices.Reverse(o.Sources)
	p.found(o, part)
	for range 2 {
		p.wantPart(part)
		p.commitPart(&part)
		p.found(o, part)
	}
	for _, member := range part.Snapshots {
		if member.Group != part.ID || !slices.Contains(sources, member.Source) ||
			slices.ContainsFunc(whole.Snapshots, func(s backend.Snapshot) bool { return s.ID == member.ID }) {
			p.Errorf("member %+v, want part %s, a source of the part, and an ID of its own", member, part.ID)
		}
		p.keeps(member, "one")
		p.leavesNothing("DeleteSnapshot of a member", func() error {
			return p.DeleteSnapshot(context.Background(), member.ID, nil)
		}, backend.ErrInvalid)
	}
	for range 2 {
		p.dropGroup(part.ID, ids(part.Group)...)
	}
	p.wantNoPart(part.ID)
	p.wantNoGroup(part.ID)
	nothingLeft()
	p.wantGroup(whole)
	o.Durable = nil
	uncommitted := p.part(o)
	p.keeps(uncommitted.Snapshots[0], "later")
	p.dropGroup(uncommitted.ID)
	p.wantNoPart(part.ID)
	nothingLeft()
}

// partAborted lets each hook fail in several ways.
func partAborted(s *subject) {
	p := parting(s)
	o := partOptions("attempt-1", p.two()...)
	part := p.part(o)
	p.discard(part.ID, part.AttemptID)
	ctx, cancel := context.WithCancel(context.Background())
	for name, tc := range map[string]struct {
		hook func(ctx context.Context) error
		want error
	}{
		"an error": {func(context.Context) error { return fmt.Errorf("not now: %w", errOnDemand) }, errOnDemand},
		"the call is canceled": {func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}, context.Canceled},
		"the call is canceled, and the hook returns nil": {func(context.Context) error {
			cancel()
			return nil
		}, context.Canceled},
	} {
		for _, when := range []*func(context.Context) error{&o.Frozen, &o.Durable} {
			o.Frozen, o.Durable = nil, nil
			if when == &o.Frozen {
				o.Durable = unwanted(s)
			}
			*when = tc.hook
			ctx, cancel = context.WithCancel(context.Background())
			p.leavesNothing("SnapshotPart with a hook: "+name, func() error {
				_, err := p.SnapshotPart(ctx, o)
				return err
			}, tc.want)
			cancel()
			p.wantNoPart(part.ID)
			for _, id := range ids(part.Group) {
				p.wantGone(id)
			}
		}
	}
	o.Frozen, o.Durable = unwanted(s), unwanted(s)
	p.leavesNothing("a canceled SnapshotPart", func() error { _, err := p.SnapshotPart(ctx, o); return err },
		context.Canceled)
	o.Frozen, o.Durable = nil, nil
	p.wantPart(p.part(o)) // nothing prevents the valid call
}

func partDiscarded(s *subject) {
	p := parting(s)
	sources := p.two()
	nothingLeft := p.nothingLeft()
	var first backend.Part
	for i := range 3 {
		attemptID := fmt.Sprint("attempt-", i)
		for _, id := range sources {
			p.write(id, attemptID)
		}
		part := p.part(partOptions(attemptID, sources...))
		if i == 0 {
			first = part
		}
		if part.ID != first.ID || !slices.Equal(ids(part.Group), ids(first.Group)) || part.AttemptID != attemptID {
			p.Errorf("the new part = %+v, want the IDs of %+v and attempt ID %s", part, first, attemptID)
		}
		p.keeps(part.Snapshots[1], attemptID)
		p.notDiscarded(part, "another", backend.ErrPrecondition)
		p.notDiscarded(part, "", backend.ErrPrecondition)
		for range 2 {
			p.discard(part.ID, attemptID)
		}
		p.wantNoPart(part.ID)
		p.wantNoGroup(part.ID)
		nothingLeft()
	}
	part := p.part(partOptions("last", sources...))
	p.leavesNothing("CommitPart with another attempt ID", func() error {
		return p.CommitPart(context.Background(), part.ID, "another")
	}, backend.ErrPrecondition)
	p.wantPart(part)
	p.commitPart(&part)
	for _, attemptID := range []string{"another", part.AttemptID} {
		p.notDiscarded(part, attemptID, backend.ErrPrecondition)
	}
	p.leavesNothing("CommitPart with another attempt ID", func() error {
		return p.CommitPart(context.Background(), part.ID, "another")
	}, backend.ErrPrecondition)
	p.wantPart(part)
}

func partStays(s *subject) {
	p := parting(s)
	sources := p.two()
	p.write(sources[0], "one")
	o := partOptions("attempt-1", sources...)
	part := p.part(o)
	p.reopen()
	p.wantPart(part)
	p.commitPart(&part)
	p.reopen()
	p.wantPart(part)
	for _, id := range sources {
		p.delete(id)
	}
	p.found(o, part)
	p.commitPart(&part)
	p.notDiscarded(part, part.AttemptID, backend.ErrPrecondition)
	i := slices.IndexFunc(part.Snapshots, func(s backend.Snapshot) bool { return s.Source == sources[0] })
	restored := p.restore("restored", part.Snapshots[i].ID)
	p.dropGroup(part.ID)
	p.reopen()
	p.wantNoPart(part.ID)
	p.holds(restored.ID, "one")
}

func partConflicts(s *subject) {
	p := parting(s)
	sources := p.two()
	one, two := sources[0], sources[1]
	three := p.create(p.request("pvc-3")).ID
	o := partOptions("attempt-1", one, two)
	part := p.part(o)
	for _, other := range [][]string{{one}, {one, three}, {one, two, three}} {
		p.refusedPart(partOptions("attempt-1", other...), backend.ErrExists)
	}
	of := o
	of.All = slices.Sorted(slices.Values(sources)) // without the volume elsewhere
	p.refusedPart(of, backend.ErrExists)
	of.All = o.All
	of.Sources = sources[:1]
	p.refusedPart(of, backend.ErrExists)
	for name, bad := range map[string]func(o *backend.PartOptions){
		"no attempt ID":        func(o *backend.PartOptions) { o.AttemptID = "" },
		"a long attempt ID":    func(o *backend.PartOptions) { o.AttemptID = strings.Repeat("x", 65) },
		"no volumes":           func(o *backend.PartOptions) { o.Sources = nil },
		"no volumes of all":    func(o *backend.PartOptions) { o.All = nil },
		"out of order":         func(o *backend.PartOptions) { slices.Reverse(o.All) },
		"a duplicate in all":   func(o *backend.PartOptions) { o.All = append(o.All, o.All[len(o.All)-1]) },
		"a duplicate source":   func(o *backend.PartOptions) { o.Sources = append(o.Sources, one) },
		"a source outside all": func(o *backend.PartOptions) { o.Sources = []string{one, three} },
		"a parameter": func(o *backend.PartOptions) {
			o.Parameters = map[string]string{"color-of-it": "blue"}
		},
	} {
		for _, group := range []string{"group-1", "group-2"} {
			o := partOptions("attempt-1", one, two)
			o.Name = group
			bad(&o)
			if err := p.refusedPart(o, backend.ErrInvalid); name == "a parameter" &&
				!strings.Contains(err.Error(), "color-of-it") {
				p.Errorf("%v does not name the parameter", err)
			}
		}
	}
	for _, id := range append(unusual(one), one+"\x00", strings.Repeat("x", 4096), part.Snapshots[0].ID) {
		o := partOptions("attempt-1", one, id)
		o.Name = "group-2"
		p.refusedPart(o, backend.ErrNotFound)
	}
	p.wantPart(part)
	o = partOptions(strings.Repeat("x", 64), one, two) // the longest attempt ID, and a group without other parts
	o.Name, o.All = "group-2", slices.Sorted(slices.Values(sources))
	p.wantPart(p.part(o))
}

func untrustedParts(s *subject) {
	p := parting(s)
	sources := p.two()
	whole, part := p.group("group-1", sources...), p.part(partOptions("attempt-1", sources...))
	id := part.ID
	for _, bad := range append(unusual(id), "", "\x00", id+"\x00", id[:len(id)-1], strings.Repeat("x", 4096),
		sources[0], part.Snapshots[0].ID, whole.ID) {
		p.wantNoPart(bad)
		for _, attemptID := range []string{"attempt-1", ""} {
			p.discard(bad, attemptID)
		}
	}
	p.wantGroup(whole)
	p.wantPart(part)
	p.dropGroup(whole.ID)
	p.wantPart(part)
}

// partInTheMaking makes calls for a part while SnapshotPart creates it.
func partInTheMaking(s *subject) {
	p := parting(s)
	sources := p.two()
	three := p.create(p.request("pvc-3")).ID
	o := partOptions("attempt-1", sources...)
	id := p.part(o).ID
	p.discard(id, "attempt-1")
	asked := 0
	look := func(context.Context) error {
		asked++
		for _, again := range []backend.PartOptions{
			o, partOptions("attempt-2", sources...), partOptions("attempt-1", three),
			partOptions("attempt-1", sources[0]),
		} {
			p.refusedPart(again, backend.ErrBusy)
		}
		for _, source := range sources {
			p.leavesNothing("Delete of a volume", func() error { return p.Delete(context.Background(), source, nil) },
				backend.ErrInUse)
		}
		p.wantNoPart(id)
		p.wantNoGroup(id)
		for name, call := range map[string]func() error{
			"DiscardPart": func() error { return p.DiscardPart(context.Background(), id, "attempt-1") },
			"DeleteGroup": func() error { return p.DeleteGroup(context.Background(), id, nil, nil) },
		} {
			p.leavesNothing(name, call, backend.ErrInUse)
		}
		return nil
	}
	o.Frozen, o.Durable = look, look
	part := p.part(o)
	if p.wantPart(part); asked != 2 {
		p.Errorf("the hooks were called %d times, want 2", asked)
	}
	for _, source := range sources {
		p.delete(source)
	}
}

// partsConcurrently creates the same part in several goroutines, each with its own attemptID.
func partsConcurrently(s *subject) {
	p := parting(s)
	sources := p.two()
	nothingLeft := p.nothingLeft()
	for range 4 {
		var wg sync.WaitGroup
		var made atomic.Int64
		got := make([]backend.Part, 6)
		for i := range got {
			wg.Go(func() {
				o := partOptions(fmt.Sprint("attempt-", i), sources...)
				o.Durable = func(context.Context) error { made.Add(1); return nil }
				var err error
				if got[i], err = retry(p, func() (backend.Part, error) {
					return p.SnapshotPart(context.Background(), o)
				}); err != nil {
					p.Error(err)
				}
			})
		}
		wg.Wait()
		for _, part := range got {
			if !samePart(part, got[0]) || made.Load() != 1 {
				p.Errorf("callers got the parts %+v and %+v, and %d parts were created, want the same part", part,
					got[0], made.Load())
			}
		}
		p.wantPart(got[0])
		p.discard(got[0].ID, got[0].AttemptID)
		nothingLeft()
	}
}

// partRaces commits and discards a part at the same time: exactly one call must succeed.
func partRaces(s *subject) {
	p := parting(s)
	sources := p.two()
	nothingLeft := p.nothingLeft()
	call := func(err *error, call func(context.Context, string, string) error, part backend.Part) func() {
		return func() {
			_, *err = retry(p, func() (any, error) { return nil, call(context.Background(), part.ID, part.AttemptID) })
		}
	}
	for i := range 16 {
		part := p.part(partOptions(fmt.Sprint("attempt-", i), sources...))
		var committed, discarded error
		var wg sync.WaitGroup
		wg.Go(call(&committed, p.CommitPart, part))
		wg.Go(call(&discarded, p.DiscardPart, part))
		wg.Wait()
		switch {
		case committed == nil && errors.Is(discarded, backend.ErrPrecondition):
			part.Committed = true
			p.wantPart(part)
			p.dropGroup(part.ID)
		case errors.Is(committed, backend.ErrNotFound) && discarded == nil:
			p.wantNoPart(part.ID)
		default:
			p.Errorf("CommitPart = %v, DiscardPart = %v, want success of a single call", committed, discarded)
		}
		nothingLeft()
	}
}

func partRestored(s *subject) {
	p := parting(s)
	sources := p.two()
	for _, id := range sources {
		p.write(id, "one")
	}
	nothingLeft := p.nothingLeft()
	for i := range 8 {
		part := p.part(partOptions("attempt-1", sources...))
		made, ok := race(p, func() (backend.Volume, error) {
			return p.Restore(context.Background(), part.Snapshots[i%2].ID, p.request(fmt.Sprint("restored-", i)))
		}, func() error { return p.DiscardPart(context.Background(), part.ID, part.AttemptID) })
		if ok {
			p.holds(made.ID, "one")
			p.delete(made.ID)
		}
		p.wantNoPart(part.ID)
		nothingLeft()
	}
}
