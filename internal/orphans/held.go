package orphans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// maxMessage is the largest size of a response, in bytes. A page has up to 4 MiB of node IDs alone.
const maxMessage = 64 << 20

// held has the objects of the driver. All have IDs of package volumeid, perhaps with an address.
type held struct {
	volumes, snapshots []Orphan // sorted by ID, without members of group snapshots
	groups             []*group
}

// group is a group snapshot. It is deleted as a whole, so it also counts as named as a whole.
type group struct {
	id        string
	snapshots []Orphan
}

// named reports whether the group or a member is named.
func (g *group) named(ids map[string]bool) bool {
	return ids[key(g.id)] || slices.ContainsFunc(g.snapshots, func(s Orphan) bool { return ids[key(s.ID)] })
}

// key returns the part of an ID that identifies its object, which a Finder finds in text.
func key(id string) string {
	id, _, _ = volumeid.Cut(id)
	return id
}

// members returns the snapshots of all groups.
func (h *held) members() (all []Orphan) {
	for _, g := range h.groups {
		all = append(all, g.snapshots...)
	}
	return all
}

// list lists all objects of the driver.
func list(ctx context.Context, conn grpc.ClientConnInterface, o Options) (*held, error) {
	c := csi.NewControllerClient(conn)
	can, err := capabilities(ctx, c, o)
	if err != nil {
		return nil, err
	}
	if !can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES] {
		return nil, errors.New("it cannot list volumes (LIST_VOLUMES): ask the controller's socket, or that of a " +
			"node which serves its own storage")
	}
	volumes, err := pages(ctx, o, func(ctx context.Context, token string) ([]Orphan, string, error) {
		resp, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: o.Page, StartingToken: token},
			grpc.MaxCallRecvMsgSize(maxMessage))
		return entries(resp.GetEntries(), volume), resp.GetNextToken(), err
	})
	if err != nil {
		return nil, err
	}
	if !can[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS] {
		if can[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
			return nil, errors.New("it makes snapshots and cannot list them (LIST_SNAPSHOTS)")
		}
		return sorted(volumes, nil)
	}
	snapshots, err := pages(ctx, o, func(ctx context.Context, token string) ([]Orphan, string, error) {
		resp, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: o.Page, StartingToken: token},
			grpc.MaxCallRecvMsgSize(maxMessage))
		return entries(resp.GetEntries(), snapshot), resp.GetNextToken(), err
	})
	if err != nil {
		return nil, err
	}
	return sorted(volumes, snapshots)
}

// capabilities returns the controller capabilities of the driver.
func capabilities(ctx context.Context, c csi.ControllerClient,
	o Options) (map[csi.ControllerServiceCapability_RPC_Type]bool, error) {
	ctx, cancel := o.call(ctx)
	defer cancel()
	resp, err := c.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	can := map[csi.ControllerServiceCapability_RPC_Type]bool{}
	for _, c := range resp.GetCapabilities() {
		can[c.GetRpc().GetType()] = true
	}
	return can, nil
}

// call returns the context of a call to the driver.
func (o Options) call(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.Call == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, o.Call)
}

// pages reads all pages of a list and returns the entries by ID: an entry may be on two pages.
func pages(ctx context.Context, o Options,
	ask func(ctx context.Context, token string) ([]Orphan, string, error)) (map[string]Orphan, error) {
	all, seen := map[string]Orphan{}, map[string]bool{}
	for token := ""; ; {
		call, cancel := o.call(ctx)
		page, next, err := ask(call, token)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, o := range page {
			all[o.ID] = o
		}
		if next == "" {
			return all, nil
		}
		if seen[next] {
			return nil, fmt.Errorf("it handed out the paging token %.64q twice: the list has no end", next)
		}
		seen[next] = true
		token = next
	}
}

// sorted sorts the entries. An ID of another form is an error, as no text shows whether it is
// named.
func sorted(volumes, snapshots map[string]Orphan) (*held, error) {
	h, groups := &held{}, map[string]*group{}
	byID := func(a, b Orphan) int { return cmp.Compare(a.ID, b.ID) }
	for _, v := range slices.SortedFunc(maps.Values(volumes), byID) {
		switch id, err := volumeid.Parse(key(v.ID)); {
		case err != nil:
			return nil, fmt.Errorf("volume %.128q: %w", v.ID, err)
		case id.Kind == volumeid.Inline: // an inline volume has no object of its own
		default:
			h.volumes = append(h.volumes, v)
		}
	}
	for _, s := range slices.SortedFunc(maps.Values(snapshots), byID) {
		if _, err := volumeid.Parse(key(s.ID)); err != nil {
			return nil, fmt.Errorf("snapshot %.128q: %w", s.ID, err)
		}
		if s.Group == "" {
			h.snapshots = append(h.snapshots, s)
			continue
		}
		if _, err := volumeid.Parse(key(s.Group)); err != nil {
			return nil, fmt.Errorf("snapshot %s is in group %.128q: %w", s.ID, s.Group, err)
		}
		if groups[s.Group] == nil {
			groups[s.Group] = &group{id: s.Group}
			h.groups = append(h.groups, groups[s.Group])
		}
		groups[s.Group].snapshots = append(groups[s.Group].snapshots, s)
	}
	return h, nil
}

func entries[E any](all []E, what func(E) Orphan) []Orphan {
	page := make([]Orphan, 0, len(all))
	for _, e := range all {
		page = append(page, what(e))
	}
	return page
}

func volume(e *csi.ListVolumesResponse_Entry) Orphan {
	v := e.GetVolume()
	return Orphan{
		What: "volume", ID: v.GetVolumeId(), Size: v.GetCapacityBytes(), Nodes: segments(v.GetAccessibleTopology()),
		Source: cmp.Or(v.GetContentSource().GetSnapshot().GetSnapshotId(),
			v.GetContentSource().GetVolume().GetVolumeId()),
	}
}

func snapshot(e *csi.ListSnapshotsResponse_Entry) Orphan {
	s := e.GetSnapshot()
	o := Orphan{
		What: "snapshot", ID: s.GetSnapshotId(), Group: s.GetGroupSnapshotId(), Size: s.GetSizeBytes(),
		Nodes: segments(s.GetAccessibleTopology()), Source: s.GetSourceVolumeId(),
	}
	if s.GetCreationTime() != nil {
		o.Created = s.GetCreationTime().AsTime()
	}
	return o
}

// segments returns the values of a topology, without their keys and without the operating systems of
// nodes, which identify no node.
func segments(all []*csi.Topology) (values []string) {
	for _, t := range all {
		for key, value := range t.GetSegments() {
			if !strings.HasSuffix(key, "/os") {
				values = append(values, value)
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}
