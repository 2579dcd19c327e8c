package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// shelf is the ordered list of a simulated node.
type shelf struct {
	*node
	ids []string
}

// shelves are simulated nodes, by ID.
type shelves map[string]*shelf

// view is who answers.
func (s shelves) view(r *Router) {
	v := &view{known: true, byDigest: map[string]*node{}}
	for _, one := range s {
		v.nodes = append(v.nodes, one.node)
	}
	slices.SortFunc(v.nodes, func(a, b *node) int { return strings.Compare(a.key(), b.key()) })
	r.view.Store(v)
}

// page is a lister that gives short pages now and then, as a node may.
func (s shelves) page(rng *rand.Rand, asked *atomic.Int64) lister[string] {
	short := rng.IntN(3) == 0
	return func(_ context.Context, n *node, token string, limit int32) ([]string, string, error) {
		asked.Add(1)
		ids := s[n.id].ids
		at, found := slices.BinarySearch(ids, token)
		if found {
			at++
		}
		ids = ids[at:]
		if most := int(limit); short && most > 3 && len(ids) > 3 {
			limit = 3
		}
		if len(ids) <= int(limit) {
			return ids, "", nil
		}
		return ids[:limit], ids[limit-1], nil
	}
}

// TestPagesAreRight lists simulated nodes while others, and their volumes, come and go: a volume
// that exists all the time is in the list exactly once, and no volume is there twice.
func TestPagesAreRight(t *testing.T) {
	seed := rand.Uint64()
	for round := range 300 {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		r := &Router{}
		nodes := shelves{}
		n := 0
		add := func(stays bool) (ids []string) {
			name := fmt.Sprintf("n%d", n)
			n++
			s := &shelf{node: &node{id: name, digests: volumeid.NodeDigests(name)}}
			for v := range rng.IntN(2) * rng.IntN(40) {
				s.ids = append(s.ids, volumeid.New(volumeid.Volume, name, fmt.Sprint(v)))
			}
			slices.Sort(s.ids)
			nodes[name] = s
			return s.ids
		}
		var always []string
		for range rng.IntN(30) {
			always = append(always, add(true)...)
		}
		ever := slices.Clone(always)
		nodes.view(r)
		var got []string
		var asked atomic.Int64
		limit := int32(1 + rng.IntN(60))
		for token, pages := "", 0; ; pages++ {
			entries, next, err := list(context.Background(), r, token, limit, nodes.page(rng, &asked))
			if err != nil || len(entries) > int(limit) || pages > 3000 {
				t.Fatalf("seed %d round %d: page %d of %d entries, %v", seed, round, pages, len(entries), err)
			}
			got = append(got, entries...)
			if token = next; token == "" {
				break
			}
			if rng.IntN(3) == 0 {
				ever = append(ever, add(false)...)
			}
			if rng.IntN(4) == 0 {
				for name, s := range nodes { // any node goes
					always = slices.DeleteFunc(always, func(id string) bool { return slices.Contains(s.ids, id) })
					delete(nodes, name)
					break
				}
			}
			nodes.view(r)
		}
		slices.Sort(got)
		if len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("seed %d round %d: something is there twice", seed, round)
		}
		for _, id := range always {
			if _, ok := slices.BinarySearch(got, id); !ok {
				t.Fatalf("seed %d round %d: %s is missing", seed, round, id)
			}
		}
		for _, id := range got {
			if !slices.Contains(ever, id) {
				t.Fatalf("seed %d round %d: nobody has %s", seed, round, id)
			}
		}
	}
}

// TestAPageTakesCallsToFewNodes checks the calls of a page when each node has the same volumes.
func TestAPageTakesCallsToFewNodes(t *testing.T) {
	for _, tc := range []struct{ nodes, each, limit, most int }{{500, 100, 1000, 14}, {10, 5000, 1000, 1},
		{500, 1, 1000, 520}, {500, 0, 1000, 500}} {
		r, nodes := &Router{}, shelves{}
		for i := range tc.nodes {
			name := fmt.Sprint("n", i)
			s := &shelf{node: &node{id: name, digests: volumeid.NodeDigests(name)}}
			for v := range tc.each {
				s.ids = append(s.ids, fmt.Sprintf("%06d", v))
			}
			nodes[name] = s
		}
		nodes.view(r)
		var asked atomic.Int64
		page := nodes.page(rand.New(rand.NewPCG(2, 0)), &asked) // a seed without short pages
		entries, _, err := list(context.Background(), r, "", int32(tc.limit), page)
		if want := min(tc.limit, tc.nodes*tc.each); err != nil || len(entries) != want ||
			asked.Load() > int64(tc.most) {
			t.Errorf("%+v: %d entries, %v, with %d calls", tc, len(entries), err, asked.Load())
		}
	}
}

func TestANodeThatNeverEnds(t *testing.T) {
	r, nodes := &Router{}, shelves{"n": {node: &node{id: "n", digests: volumeid.NodeDigests("n")}}}
	nodes.view(r)
	for name, answer := range map[string]struct {
		entries []string
		token   string
	}{
		"no entries and more to come": {nil, "more"}, "more than was asked for": {make([]string, 11), ""},
		"a token without end": {make([]string, 10), strings.Repeat("x", 1000)},
	} {
		_, _, err := list(context.Background(), r, "", 10,
			func(context.Context, *node, string, int32) ([]string, string, error) {
				return answer.entries, answer.token, nil
			})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "x", "0123456789abcdef.", "0123456789abcdef.a.b", "0123456789ABCDEF.", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, rest, err := parseToken(s)
		if err == nil && s != "" && key+"."+rest != s || err != nil && status.Code(err) != codes.Aborted {
			t.Errorf("%q: %q, %q, %v", s, key, rest, err)
		}
	})
}

func TestLists(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	ctx := context.Background()
	var volumes, snapshots []string
	for i := range 7 {
		node := string(rune('a' + i%3))
		volumes = append(volumes, c.volume(fmt.Sprint("v", i), node))
		snapshots = append(snapshots, c.snapshot(fmt.Sprint("s", i), volumes[i]))
	}
	slices.Sort(volumes)
	slices.Sort(snapshots)
	for limit := range int32(9) {
		var gotVolumes, gotSnapshots []string
		for token := "?"; token != ""; {
			resp, err := c.ListVolumes(ctx,
				&csi.ListVolumesRequest{MaxEntries: limit, StartingToken: strings.Trim(token, "?")})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range resp.GetEntries() {
				gotVolumes = append(gotVolumes, e.GetVolume().GetVolumeId())
			}
			token = resp.GetNextToken()
		}
		for token := "?"; token != ""; {
			resp, err := c.ListSnapshots(ctx,
				&csi.ListSnapshotsRequest{MaxEntries: limit, StartingToken: strings.Trim(token, "?")})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range resp.GetEntries() {
				gotSnapshots = append(gotSnapshots, e.GetSnapshot().GetSnapshotId())
			}
			if token = resp.GetNextToken(); len(token) > 128 {
				t.Errorf("a token has %d bytes", len(token))
			}
		}
		slices.Sort(gotVolumes)
		slices.Sort(gotSnapshots)
		if !slices.Equal(gotVolumes, volumes) || !slices.Equal(gotSnapshots, snapshots) {
			t.Errorf("pages of %d: %q and %q, want %q and %q", limit, gotVolumes, gotSnapshots, volumes, snapshots)
		}
	}
	_, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: "garbage"})
	wantCode(t, err, codes.Aborted)
	_, err = c.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: volumeid.NodeDigest("a") + ".garbage"})
	wantCode(t, err, codes.Aborted)
	_, err = c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: -1})
	wantCode(t, err, codes.InvalidArgument)

	// By ID or source, a single node is asked, and the others may be away.
	c.nodes["c"].stop()
	c.lost(2)
	for what, call := range map[string]func() error{
		"volumes":   func() error { _, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{}); return err },
		"snapshots": func() error { _, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}); return err },
	} {
		t.Log(what)
		wantCode(t, call(), codes.Unavailable, "c (")
	}
	for i := range 7 {
		node := string(rune('a' + i%3))
		volume, snapshot := volumeid.New(volumeid.Volume, node, fmt.Sprint("v", i)), volumeid.New(volumeid.Snapshot,
			node, fmt.Sprint("s", i))
		for _, req := range []*csi.ListSnapshotsRequest{{SnapshotId: snapshot}, {SourceVolumeId: volume},
			{SnapshotId: snapshot, SourceVolumeId: volume}} {
			resp, err := c.ListSnapshots(ctx, req)
			if node == "c" {
				wantCode(t, err, codes.Unavailable, "c (")
			} else if err != nil || len(resp.GetEntries()) != 1 || resp.Entries[0].GetSnapshot().GetSnapshotId() != snapshot {
				t.Errorf("%v: %v, %v", req, resp, err)
			}
		}
	}
	for _, req := range []*csi.ListSnapshotsRequest{{SnapshotId: "x"}, {SourceVolumeId: "x"},
		{SnapshotId: volumeid.New(volumeid.Snapshot, "a", "none")}} {
		if resp, err := c.ListSnapshots(ctx, req); err != nil || len(resp.GetEntries()) > 0 {
			t.Errorf("%v: %v, %v", req, resp, err)
		}
	}
}
