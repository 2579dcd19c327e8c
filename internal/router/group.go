package router

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// A group snapshot whose volumes share a node is made by that node. A group snapshot over several
// nodes has a part on each of them. Writes stop on all nodes while the parts
// are copied, so all parts are of the same moment. Then all nodes record their parts. When all
// have, each node commits its part, and only then the caller gets the group snapshot. A part that
// is recorded and not committed was never acknowledged: a retry that finds such a part beside a
// node without a part deletes it and starts from the beginning. A committed part is never deleted
// in this way.

// groupController is the GroupController service. CSI spec v1.13, Group Controller Service RPCs.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	*Router
}

func groupCall[Req, Resp proto.Message](ctx context.Context, r *Router, n *node,
	m method[csi.GroupControllerClient, Req, Resp], req Req) (Resp, error) {
	return call(ctx, r, n, csi.NewGroupControllerClient, m, req)
}

func (g *groupController) GroupControllerGetCapabilities(context.Context,
	*csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return g.cfg.Group, nil
}

// CreateVolumeGroupSnapshot makes a group snapshot on the nodes of its volumes, all of which must
// answer.
func (g *groupController) CreateVolumeGroupSnapshot(ctx context.Context,
	req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if req.GetName() == "" || len(req.GetSourceVolumeIds()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the name or the source volume IDs are missing")
	}
	volumes, err := g.byNode("source volume ID", req.GetSourceVolumeIds())
	if err != nil {
		return nil, err
	}
	nodes := sorted(volumes)
	if len(nodes) == 1 {
		return groupCall(ctx, g.Router, nodes[0], csi.GroupControllerClient.CreateVolumeGroupSnapshot, req)
	}
	all := slices.Sorted(slices.Values(req.GetSourceVolumeIds()))
	if i := slices.Compact(slices.Clone(all)); len(i) != len(all) {
		return nil, status.Error(codes.InvalidArgument, "a source volume ID is repeated")
	}
	const tries = 2 // the second try after the parts of an earlier call were deleted
	for range tries {
		var group *csi.VolumeGroupSnapshot
		if group, err = g.createOverNodes(ctx, req, nodes, volumes, all); group != nil || err != nil {
			return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: group}, err
		}
	}
	return nil, status.Error(codes.Aborted, "another call makes this group")
}

// byNode groups IDs by the node that holds their objects. Errors: those of nodeOf.
func (g *groupController) byNode(what string, ids []string) (map[*node][]string, error) {
	nodes, first := map[*node][]string{}, map[string]*node{} // a node that gets a new connection meanwhile counts once
	for _, id := range ids {
		n, err := g.nodeOf(what, id)
		if err != nil {
			return nil, err
		}
		if first[n.key()] == nil {
			first[n.key()] = n
		}
		n = first[n.key()]
		nodes[n] = append(nodes[n], id)
	}
	return nodes, nil
}

// sorted returns nodes in the order of their keys.
func sorted[T any](nodes map[*node]T) []*node {
	return slices.SortedFunc(maps.Keys(nodes), func(a, b *node) int { return strings.Compare(a.key(), b.key()) })
}

// groupRequest is a group snapshot over several nodes that is being made.
type groupRequest struct {
	*groupController
	nodes []*node
	parts map[*node]*partRequest
}

// partRequest is a part that is being made.
type partRequest struct {
	group   string   // ID of the group
	volumes []string // the source volumes of the part
	stream  peer.Peer_SnapshotPartClient
	part    *peer.Part // when the node has recorded it
}

// createOverNodes makes a group snapshot, or finds it. createOverNodes returns nil if it found
// parts of an earlier call and deleted them.
func (g *groupController) createOverNodes(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest, nodes []*node,
	volumes map[*node][]string, all []string) (*csi.VolumeGroupSnapshot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the streams
	m := &groupRequest{groupController: g, nodes: nodes, parts: map[*node]*partRequest{}}
	for _, n := range nodes {
		m.parts[n] = &partRequest{group: volumeid.New(volumeid.Group, volumeid.SeveralNodes, req.GetName()),
			volumes: volumes[n]}
		n.calls.Add(1) // keeps the connection open between two steps
		defer n.calls.Add(-1)
	}
	attemptID := rand.Text()
	err := m.step(ctx, func(ctx context.Context, n *node, p *partRequest) (err error) {
		one := proto.Clone(req).(*csi.CreateVolumeGroupSnapshotRequest)
		one.SourceVolumeIds = p.volumes
		if p.stream, err = peer.NewPeerClient(n.conn).SnapshotPart(onward(ctx)); err != nil {
			return n.judge(ctx, err, nil)
		}
		return p.step(ctx, m.Router, n,
			&peer.SnapshotPartRequest{Step: peer.SnapshotPartRequest_BEGIN, Group: one, VolumeIds: all,
				Cut: attemptID})
	})
	if err != nil {
		m.undo(ctx)
		return nil, m.abandon(ctx, err)
	}
	if found := m.found(); len(found) > 0 {
		m.undo(ctx)
		return m.resume(ctx, found)
	}
	if err := m.step(ctx, func(ctx context.Context, n *node, p *partRequest) error {
		return p.step(ctx, m.Router, n, &peer.SnapshotPartRequest{Step: peer.SnapshotPartRequest_CUT})
	}); err != nil {
		m.undo(ctx)
		return nil, err
	}
	if err := m.step(ctx, func(ctx context.Context, n *node, p *partRequest) error {
		return p.step(ctx, m.Router, n, &peer.SnapshotPartRequest{Step: peer.SnapshotPartRequest_COMMIT})
	}); err != nil {
		return nil, retryable(err)
	}
	return m.commitParts(ctx)
}

// retryable returns err as UNAVAILABLE, after which the caller repeats the call: some parts may
// exist.
func retryable(err error) error {
	return status.Errorf(codes.Unavailable, "the group is not made on all of its nodes yet: %s",
		status.Convert(err).Message())
}

// step calls do for all nodes at the same time.
func (m *groupRequest) step(ctx context.Context, do func(context.Context, *node, *partRequest) error) error {
	_, err := each(ctx, m.nodes, func(ctx context.Context, n *node) (struct{}, error) {
		return struct{}{}, do(ctx, n, m.parts[n])
	})
	return err
}

// step requests a step, and waits until it is done.
func (p *partRequest) step(ctx context.Context, r *Router, n *node, req *peer.SnapshotPartRequest) (err error) {
	start := time.Now()
	defer func() { r.metrics.count(n.id, status.Code(err), time.Since(start)) }()
	p.stream.Send(req) // Recv returns its error
	resp, err := p.stream.Recv()
	switch {
	case err != nil:
		return n.judge(ctx, err, p.stream.Trailer())
	case resp.GetDone() == peer.SnapshotPartRequest_COMMIT:
		p.part = resp.GetPart()
		if wrong := cmp.Or(n.foreignContent(p.part), p.mismatch()); wrong != "" {
			return status.Errorf(codes.Unavailable, "node %s answered with %s", n, wrong)
		}
	case resp.GetDone() != req.GetStep():
		return status.Errorf(codes.Unavailable, "node %s answered step %s with %s", n, req.GetStep(), resp.GetDone())
	}
	return nil
}

// mismatch describes how the part of a node differs from the part that was requested. mismatch
// returns "" if they agree.
func (p *partRequest) mismatch() string {
	group := p.part.GetGroup()
	if group.GetGroupSnapshotId() != p.group {
		return fmt.Sprintf("a part of the group %.128q, and not of %s", group.GetGroupSnapshotId(), p.group)
	}
	if sources := sourcesOf(group); !slices.Equal(sources, slices.Sorted(slices.Values(p.volumes))) {
		return fmt.Sprintf("a part with snapshots of %.500q, and not of %s", sources, strings.Join(p.volumes, ", "))
	}
	return ""
}

// undo ends the parts that are not recorded on all nodes, and waits until the nodes have deleted
// them.
func (m *groupRequest) undo(ctx context.Context) {
	m.step(ctx, func(_ context.Context, _ *node, p *partRequest) error {
		if p.stream != nil && p.part == nil && p.stream.CloseSend() == nil {
			p.stream.Recv() // returns an error when the stream ends
		}
		return nil
	})
}

// found returns the nodes that had a part already.
func (m *groupRequest) found() (nodes []*node) {
	for _, n := range m.nodes {
		if m.parts[n].part != nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// abandon returns the error of a group snapshot that cannot be made. After a final error the caller
// does not return, so abandon deletes the parts of an earlier call. A committed part was
// acknowledged and stays.
func (m *groupRequest) abandon(ctx context.Context, reason error) error {
	found := m.found()
	if !final(reason) || m.committedNode(found) != nil {
		return reason
	}
	if err := m.discard(ctx, found); err != nil {
		return retryable(err)
	}
	return reason
}

// committedNode returns a node whose part is committed, or nil.
func (m *groupRequest) committedNode(found []*node) *node {
	for _, n := range found {
		if m.parts[n].part.GetSettled() {
			return n
		}
	}
	return nil
}

// discard deletes the parts on these nodes.
func (m *groupRequest) discard(ctx context.Context, found []*node) error {
	for _, n := range found {
		part := m.parts[n].part
		_, err := peerCall(ctx, m.Router, n, peer.PeerClient.DiscardPart, &peer.DiscardPartRequest{
			GroupSnapshotId: part.GetGroup().GetGroupSnapshotId(), Cut: part.GetCut(),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// resume continues with the parts of an earlier call. All parts of the same attempt are the
// group snapshot. An incomplete set was not acknowledged, unless a part is committed: then another
// part has been lost.
func (m *groupRequest) resume(ctx context.Context, found []*node) (*csi.VolumeGroupSnapshot, error) {
	attemptID, complete := m.parts[found[0]].part.GetCut(), len(found) == len(m.nodes)
	for _, n := range found {
		complete = complete && m.parts[n].part.GetCut() == attemptID
	}
	if complete {
		return m.commitParts(ctx)
	}
	if n := m.committedNode(found); n != nil {
		return nil, status.Errorf(codes.DataLoss,
			"the group was made, and node %s has its part, but another node has lost its own: restore what you "+
				"need from the snapshots that are left, then delete the group snapshot, which deletes them, too", n)
	}
	if err := m.discard(ctx, found); err != nil {
		return nil, retryable(err)
	}
	return nil, nil
}

// commitParts commits all parts and returns the group snapshot. commitParts calls the nodes in
// turn, in the same order as discard: if a router commits while another discards, the first node
// decides.
func (m *groupRequest) commitParts(ctx context.Context) (*csi.VolumeGroupSnapshot, error) {
	var parts []*peer.Part
	for _, n := range m.nodes {
		part := m.parts[n].part
		parts = append(parts, part)
		_, err := peerCall(ctx, m.Router, n, peer.PeerClient.SettlePart, &peer.SettlePartRequest{
			GroupSnapshotId: part.GetGroup().GetGroupSnapshotId(), Cut: part.GetCut(),
		})
		if err != nil {
			return nil, retryable(err)
		}
	}
	return merged(parts), nil
}

// merged returns the group snapshot of at least one part.
func merged(parts []*peer.Part) *csi.VolumeGroupSnapshot {
	group := proto.Clone(parts[0].GetGroup()).(*csi.VolumeGroupSnapshot)
	for _, p := range parts[1:] {
		group.Snapshots = append(group.Snapshots, p.GetGroup().GetSnapshots()...)
		if t := p.GetGroup().GetCreationTime(); t.AsTime().Before(group.CreationTime.AsTime()) {
			group.CreationTime = t
		}
		group.ReadyToUse = group.ReadyToUse && p.GetGroup().GetReadyToUse()
	}
	slices.SortFunc(group.Snapshots,
		func(a, b *csi.Snapshot) int { return strings.Compare(a.GetSnapshotId(), b.GetSnapshotId()) })
	return group
}

// overNodes reports whether an ID is that of a group snapshot over several nodes.
func overNodes(id string) bool {
	parsed, err := volumeid.Parse(id)
	return err == nil && parsed.Kind == volumeid.Group && parsed.Node == volumeid.NodeDigest(volumeid.SeveralNodes)
}

// GetVolumeGroupSnapshot asks the nodes of the snapshots, or all nodes if the request has none.
func (g *groupController) GetVolumeGroupSnapshot(ctx context.Context,
	req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	id := req.GetGroupSnapshotId()
	if !overNodes(id) {
		n, err := g.nodeOf("group snapshot ID", id)
		if err != nil {
			return nil, err
		}
		return groupCall(ctx, g.Router, n, csi.GroupControllerClient.GetVolumeGroupSnapshot, req)
	}
	nodes, err := g.partNodes(req.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	parts, err := g.lookUp(ctx, id, nodes)
	if err != nil {
		return nil, err
	}
	var there []*peer.Part
	for _, n := range sorted(parts) {
		there = append(there, parts[n])
	}
	if !complete(there) {
		return nil, status.Errorf(codes.NotFound, "group snapshot %s: there is none, or not all of it", id)
	}
	group := merged(there)
	if ids := req.GetSnapshotIds(); len(ids) > 0 &&
		!slices.Equal(slices.Sorted(slices.Values(ids)), snapshotIDs(group)) {
		return nil, status.Errorf(codes.InvalidArgument, "the members of group %s are %s", id,
			strings.Join(snapshotIDs(group), ", "))
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: group}, nil
}

// partNodes returns the nodes that may have a part. Errors: UNAVAILABLE if a node does not answer.
func (g *groupController) partNodes(snapshots []string) (map[*node][]string, error) {
	if len(snapshots) > 0 {
		return g.byNode("snapshot ID", snapshots)
	}
	v := g.view.Load()
	nodes := map[*node][]string{}
	for _, n := range v.nodes {
		nodes[n] = nil
	}
	return nodes, v.requireAll()
}

// lookUp returns the parts of a group snapshot that exist.
func (g *groupController) lookUp(ctx context.Context, id string,
	nodes map[*node][]string) (map[*node]*peer.Part, error) {
	order := sorted(nodes)
	found, err := each(ctx, order, func(ctx context.Context, n *node) (*peer.Part, error) {
		part, err := peerCall(ctx, g.Router, n, peer.PeerClient.GetPart, &peer.GetPartRequest{GroupSnapshotId: id})
		switch {
		case status.Code(err) == codes.NotFound:
			return nil, nil
		case err == nil && part.GetGroup().GetGroupSnapshotId() != id:
			err = status.Errorf(codes.Unavailable, "node %s answered with a part of the group %.128q, and not of %s", n,
				part.GetGroup().GetGroupSnapshotId(), id)
		}
		return part, err
	})
	parts := map[*node]*peer.Part{}
	for i, n := range order {
		if found[i] != nil {
			parts[n] = found[i]
		}
	}
	return parts, err
}

// complete reports whether parts are all parts of a group snapshot.
func complete(parts []*peer.Part) bool {
	if len(parts) == 0 {
		return false
	}
	var sources []string
	for _, p := range parts {
		if p.GetCut() != parts[0].GetCut() {
			return false
		}
		sources = append(sources, sourcesOf(p.GetGroup())...)
	}
	return slices.Equal(slices.Sorted(slices.Values(sources)), parts[0].GetVolumeIds())
}

// sourcesOf returns the IDs of the source volumes, in ascending order.
func sourcesOf(group *csi.VolumeGroupSnapshot) (ids []string) {
	for _, s := range group.GetSnapshots() {
		ids = append(ids, s.GetSourceVolumeId())
	}
	return slices.Sorted(slices.Values(ids))
}

func snapshotIDs(group *csi.VolumeGroupSnapshot) (ids []string) {
	for _, s := range group.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return slices.Sorted(slices.Values(ids))
}

// DeleteVolumeGroupSnapshot deletes the parts on the nodes of the snapshots, or on all nodes if the
// request has none. The part of a forgotten node counts as deleted.
func (g *groupController) DeleteVolumeGroupSnapshot(ctx context.Context,
	req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id := req.GetGroupSnapshotId()
	if !overNodes(id) {
		n, err := g.nodeOf("group snapshot ID", id)
		if g.isDeleted(id, err) {
			return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		return groupCall(ctx, g.Router, n, csi.GroupControllerClient.DeleteVolumeGroupSnapshot, req)
	}
	ids := slices.DeleteFunc(slices.Clone(req.GetSnapshotIds()), func(id string) bool {
		_, err := g.nodeOf("snapshot ID", id)
		return g.isDeleted(id, err)
	})
	if len(ids) == 0 && len(req.GetSnapshotIds()) > 0 {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	nodes, err := g.partNodes(ids)
	if err != nil {
		return nil, err
	}
	parts, err := g.lookUp(ctx, id, nodes)
	if err != nil {
		return nil, err
	}
	for _, part := range parts { // before anything is deleted
		if got, want := len(req.GetSnapshotIds()), len(part.GetVolumeIds()); got > 0 && got != want {
			return nil, status.Errorf(codes.InvalidArgument, "group %s has %d members, and the request %d", id, want,
				got)
		}
		for _, member := range snapshotIDs(part.GetGroup()) {
			if len(ids) > 0 && !slices.Contains(ids, member) {
				return nil, status.Errorf(codes.InvalidArgument, "group %s has the member %s too", id, member)
			}
		}
	}
	_, err = each(ctx, sorted(parts),
		func(ctx context.Context, n *node) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
			one := proto.Clone(req).(*csi.DeleteVolumeGroupSnapshotRequest)
			one.SnapshotIds = nodes[n]
			return groupCall(ctx, g.Router, n, csi.GroupControllerClient.DeleteVolumeGroupSnapshot, one)
		})
	if err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}
