package router

import (
	"cmp"
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/peer"
)

// CreateVolume goes to the node of the content source, if the request has a source: no sidecar
// passes on the topology of a snapshot, and after a refusal the scheduler would choose the same
// node again. An empty volume goes to the first preferred topology and to no other, as its pod is
// scheduled there already. Without a requirement it goes to the node with the largest capacity. CSI
// spec v1.13, CreateVolume.
func (c *controller) CreateVolume(ctx context.Context,
	req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if req.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the name is missing")
	}
	switch source := req.GetVolumeContentSource(); {
	case source.GetVolume() != nil:
		return c.createFrom(ctx, req, "source volume ID", source.GetVolume().GetVolumeId())
	case source.GetSnapshot() != nil:
		return c.createFrom(ctx, req, "source snapshot ID", source.GetSnapshot().GetSnapshotId())
	case source != nil:
		return nil, status.Error(codes.InvalidArgument, "the content source is neither a volume nor a snapshot")
	}
	nodes, err := c.candidates(req.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	if len(nodes) == 1 {
		return controllerCall(ctx, c.Router, nodes[0], csi.ControllerClient.CreateVolume, req)
	}
	return c.createOnAny(ctx, req, nodes)
}

// createFrom makes a volume on the node of its source. If the requirement excludes that node, the
// node returns RESOURCE_EXHAUSTED.
func (c *controller) createFrom(ctx context.Context, req *csi.CreateVolumeRequest,
	what, id string) (*csi.CreateVolumeResponse, error) {
	n, err := c.nodeOf(what, id)
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.CreateVolume, req)
}

// candidates returns the nodes in the first term of the requirement, so that a retry gets the same
// nodes. Without a requirement, these are all nodes. Errors: UNAVAILABLE if a silent node may be a
// candidate; RESOURCE_EXHAUSTED if there is no candidate, so that the scheduler chooses another
// node.
func (c *controller) candidates(r *csi.TopologyRequirement) ([]*node, error) {
	v := c.view.Load()
	wanted := r.GetPreferred()
	terms := wanted
	if len(terms) == 0 {
		terms = r.GetRequisite()
	}
	if len(terms) == 0 {
		return v.nodes, cmp.Or(v.requireAll(), v.requireOne())
	}
	for _, term := range terms {
		nodes := v.within(term)
		value, named := term.GetSegments()[c.cfg.TopologyKey]
		switch {
		case named && len(nodes) == 1: // the other nodes do not matter, silent or not
			return nodes, nil
		case named && c.cfg.Forgotten.segment(value):
			continue
		}
		if err := v.requireAll(); err != nil {
			return nil, status.Errorf(codes.Unavailable, "no node answers in %s: %s", describeTopology(term),
				status.Convert(err).Message())
		}
		if len(nodes) > 0 {
			return nodes, nil
		}
		if named && len(wanted) > 0 { // the pod is scheduled there, so the node exists; its address may be changing
			return nil, status.Errorf(codes.Unavailable, "none of the %d nodes is in %s", len(v.nodes),
				describeTopology(term))
		}
	}
	return nil, status.Errorf(codes.ResourceExhausted,
		"none of the %d nodes is in any topology that the volume may have", len(v.nodes))
}

// requireOne returns an error unless there is a node.
func (v *view) requireOne() error {
	if len(v.nodes) > 0 {
		return nil
	}
	return status.Error(codes.Unavailable, "there are no nodes")
}

// createOnAny makes a volume on the node that has a volume of that name already. All nodes are
// asked, as an earlier call may have made the volume on any of them. Otherwise the node with the
// largest capacity gets the call, and after RESOURCE_EXHAUSTED the next node.
func (c *controller) createOnAny(ctx context.Context, req *csi.CreateVolumeRequest,
	nodes []*node) (*csi.CreateVolumeResponse, error) {
	// The secrets are for the node that makes the volume alone.
	ask := &peer.LocateRequest{Create: &csi.CreateVolumeRequest{
		Name: req.GetName(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters(),
	}}
	located, err := each(ctx, nodes, func(ctx context.Context, n *node) (*peer.LocateResponse, error) {
		resp, err := peerCall(ctx, c.Router, n, peer.PeerClient.Locate, ask)
		// the node has no volume of that name
		if err != nil && final(err) && status.Code(err) != codes.InvalidArgument {
			err = status.Errorf(codes.Unavailable, "node %s cannot tell whether it has a volume of that name: %s", n,
				status.Convert(err).Message())
		}
		return resp, err
	})
	order := make([]int, len(nodes))
	for i := range nodes {
		if order[i] = i; located[i].GetVolumeId() != "" {
			return controllerCall(ctx, c.Router, nodes[i], csi.ControllerClient.CreateVolume, req)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(largest(located[b].GetRoom()), largest(located[a].GetRoom()))
	})
	var full error // of the node with the most space: the last one may only have another operating system
	for _, i := range order {
		resp, err := controllerCall(ctx, c.Router, nodes[i], csi.ControllerClient.CreateVolume, req)
		if status.Code(err) != codes.ResourceExhausted {
			return resp, err
		}
		full = cmp.Or(full, err)
	}
	return nil, full
}
