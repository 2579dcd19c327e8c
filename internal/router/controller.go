package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controller is the Controller service. CSI spec v1.13, Controller Service RPC.
type controller struct {
	csi.UnimplementedControllerServer
	*Router
}

// hasVolumeID is a request about a volume.
type hasVolumeID interface {
	proto.Message
	GetVolumeId() string
}

// byVolume calls the node that holds a volume.
func byVolume[Req hasVolumeID, Resp proto.Message](ctx context.Context, c *controller,
	m method[csi.ControllerClient, Req, Resp], req Req) (Resp, error) {
	n, err := c.nodeOf("volume ID", req.GetVolumeId())
	if err != nil {
		var none Resp
		return none, err
	}
	return controllerCall(ctx, c.Router, n, m, req)
}

// isNothing reports whether err means that an object exists nowhere: no node can have made its ID,
// or its node is forgotten.
func isNothing(err error) bool {
	var m *malformed
	var f *forgotten
	return errors.As(err, &m) || errors.As(err, &f)
}

// isDeleted reports the same of an object that is to be deleted. If its node is forgotten,
// isDeleted tells the operator, as nothing was deleted.
func (r *Router) isDeleted(id string, err error) bool {
	var f *forgotten
	if errors.As(err, &f) {
		r.cfg.Report(fmt.Sprintf("%s is called deleted, as its node %s is forgotten", id, f.node), nil)
	}
	return isNothing(err)
}

func (c *controller) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return c.cfg.Controller, nil
}

func (c *controller) DeleteVolume(ctx context.Context,
	req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	resp, err := byVolume(ctx, c, csi.ControllerClient.DeleteVolume, req)
	if c.isDeleted(req.GetVolumeId(), err) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	return resp, err
}

func (c *controller) ControllerPublishVolume(ctx context.Context,
	req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerPublishVolume, req)
}

// ControllerUnpublishVolume does nothing for a volume whose node is forgotten.
func (c *controller) ControllerUnpublishVolume(ctx context.Context,
	req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	resp, err := byVolume(ctx, c, csi.ControllerClient.ControllerUnpublishVolume, req)
	var gone *forgotten
	if errors.As(err, &gone) {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return resp, err
}

func (c *controller) ValidateVolumeCapabilities(ctx context.Context,
	req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ValidateVolumeCapabilities, req)
}

func (c *controller) ControllerExpandVolume(ctx context.Context,
	req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerExpandVolume, req)
}

func (c *controller) ControllerModifyVolume(ctx context.Context,
	req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerModifyVolume, req)
}

func (c *controller) ControllerGetVolume(ctx context.Context,
	req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerGetVolume, req)
}

// ControllerGetVolumeHealth reports INACCESSIBLE for a volume whose node does not answer, and
// DATA_LOSS for a volume whose node is forgotten. Until a new router has asked all nodes, it
// returns the error. CSI spec v1.13, ControllerGetVolumeHealth.
func (c *controller) ControllerGetVolumeHealth(ctx context.Context,
	req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	resp, err := byVolume(ctx, c, csi.ControllerClient.ControllerGetVolumeHealth, req)
	entry := &csi.VolumeHealth_VolumeHealthEntry{Message: status.Convert(err).Message()}
	var gone *forgotten
	switch {
	case errors.As(err, &gone):
		entry.Status, entry.Reason = csi.VolumeHealthErrorType_DATA_LOSS, "NodeForgotten"
	case status.Code(err) == codes.Unavailable && !c.view.Load().early():
		entry.Status, entry.Reason = csi.VolumeHealthErrorType_INACCESSIBLE, "NodeUnreachable"
	default:
		return resp, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{
		VolumeId: req.GetVolumeId(), HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{entry},
	}}, nil
}

func (c *controller) CreateSnapshot(ctx context.Context,
	req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if req.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the name is missing")
	}
	n, err := c.nodeOf("source volume ID", req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.CreateSnapshot, req)
}

func (c *controller) DeleteSnapshot(ctx context.Context,
	req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	n, err := c.nodeOf("snapshot ID", req.GetSnapshotId())
	if c.isDeleted(req.GetSnapshotId(), err) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.DeleteSnapshot, req)
}

func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	n, err := c.nodeOf("snapshot ID", req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.GetSnapshot, req)
}

// silentFor is the time after which the capacity of a silent node is 0. Before, GetCapacity is an
// error, and the provisioner keeps the published capacity: a short absence does not change where
// pods are scheduled.
const silentFor = 30 * time.Second

// GetCapacity returns the sum of the capacities of the nodes in a topology, or of all nodes if the
// request has none. The maximum size of a volume is the largest of any node. CSI spec v1.13,
// GetCapacity.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	v := c.view.Load()
	nodes := v.within(req.GetAccessibleTopology())
	if len(nodes) == 0 {
		if !v.known { // capacity that was published before this router started must stay
			return nil, v.requireAll()
		}
		if silence := c.silence(req.GetAccessibleTopology()); silence < silentFor {
			return nil, status.Errorf(codes.Unavailable, "no node has answered in %s, for %s",
				describeTopology(req.GetAccessibleTopology()), silence.Round(time.Second))
		}
		return &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}, nil
	}
	capacities, err := each(ctx, nodes, func(ctx context.Context, n *node) (*csi.GetCapacityResponse, error) {
		return controllerCall(ctx, c.Router, n, csi.ControllerClient.GetCapacity, req)
	})
	if err != nil {
		return nil, err
	}
	if len(capacities) == 1 {
		return capacities[0], nil
	}
	total := &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}
	for _, capacity := range capacities {
		total.AvailableCapacity += min(max(0, capacity.GetAvailableCapacity()), math.MaxInt64-total.AvailableCapacity)
		total.MaximumVolumeSize.Value = max(total.MaximumVolumeSize.GetValue(), largest(capacity))
	}
	return total, nil
}

// largest returns the maximum size of a volume in bytes.
func largest(capacity *csi.GetCapacityResponse) int64 {
	if m := capacity.GetMaximumVolumeSize(); m != nil {
		return m.GetValue()
	}
	return capacity.GetAvailableCapacity()
}
