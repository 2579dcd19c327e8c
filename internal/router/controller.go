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

// hasVolumeID is a request about one volume.
type hasVolumeID interface {
	proto.Message
	GetVolumeId() string
}

// byVolume makes a call of the node that holds a volume.
func byVolume[Req hasVolumeID, Resp proto.Message](ctx context.Context, c *controller, m method[csi.ControllerClient, Req, Resp], req Req) (Resp, error) {
	n, err := c.of("volume ID", req.GetVolumeId())
	if err != nil {
		var none Resp
		return none, err
	}
	return controllerCall(ctx, c.Router, n, m, req)
}

// isNothing reports whether an error says that what is to be deleted isn't anywhere: no node can have made it, or its node is
// gone for good.
func isNothing(err error) bool {
	var m *malformed
	var f *forgotten
	return errors.As(err, &m) || errors.As(err, &f)
}

// isDeleted reports the same of what is to be deleted. Where its node is gone for good, the operator is told: nobody has
// deleted anything.
func (r *Router) isDeleted(id string, err error) bool {
	var f *forgotten
	if errors.As(err, &f) {
		r.cfg.Report(fmt.Sprintf("%s is called deleted, as its node %s is forgotten", id, f.node), nil)
	}
	return isNothing(err)
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return c.cfg.Controller, nil
}

func (c *controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	resp, err := byVolume(ctx, c, csi.ControllerClient.DeleteVolume, req)
	if c.isDeleted(req.GetVolumeId(), err) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	return resp, err
}

func (c *controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerPublishVolume, req)
}

// ControllerUnpublishVolume of a volume whose node is gone for good has nothing left to do.
func (c *controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	resp, err := byVolume(ctx, c, csi.ControllerClient.ControllerUnpublishVolume, req)
	var gone *forgotten
	if errors.As(err, &gone) {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return resp, err
}

func (c *controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ValidateVolumeCapabilities, req)
}

func (c *controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerExpandVolume, req)
}

func (c *controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerModifyVolume, req)
}

func (c *controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	return byVolume(ctx, c, csi.ControllerClient.ControllerGetVolume, req)
}

// ControllerGetVolumeHealth says of a volume whose node is away that it is inaccessible, and of one whose node is gone
// for good that its data is lost. A router that has just begun says nothing of a node yet. CSI spec v1.13, ControllerGetVolumeHealth.
func (c *controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	resp, err := byVolume(ctx, c, csi.ControllerClient.ControllerGetVolumeHealth, req)
	sick := &csi.VolumeHealth_VolumeHealthEntry{Message: status.Convert(err).Message()}
	var gone *forgotten
	switch {
	case errors.As(err, &gone):
		sick.Status, sick.Reason = csi.VolumeHealthErrorType_DATA_LOSS, "NodeForgotten"
	case status.Code(err) == codes.Unavailable && !c.view.Load().early():
		sick.Status, sick.Reason = csi.VolumeHealthErrorType_INACCESSIBLE, "NodeUnreachable"
	default:
		return resp, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{
		VolumeId: req.GetVolumeId(), HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{sick},
	}}, nil
}

func (c *controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if req.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the name is missing")
	}
	n, err := c.of("source volume ID", req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.CreateSnapshot, req)
}

func (c *controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	n, err := c.of("snapshot ID", req.GetSnapshotId())
	if c.isDeleted(req.GetSnapshotId(), err) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.DeleteSnapshot, req)
}

func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	n, err := c.of("snapshot ID", req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return controllerCall(ctx, c.Router, n, csi.ControllerClient.GetSnapshot, req)
}

// silentFor is how long a node must have been silent for the room there to be none. Before that the answer is an error, on which the
// provisioner leaves what it has published: a short absence doesn't change where pods go.
const silentFor = 30 * time.Second

// GetCapacity returns the room on the nodes that a topology includes; all, if there is none. The room for one volume is
// that of the node which has most. CSI spec v1.13, GetCapacity.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	v := c.view.Load()
	nodes := v.within(req.GetAccessibleTopology())
	if len(nodes) == 0 {
		if !v.known { // whose room was published before this router was started, must keep it
			return nil, v.all()
		}
		if silence := c.silence(req.GetAccessibleTopology()); silence < silentFor {
			return nil, status.Errorf(codes.Unavailable, "no node has answered in %s, for %s", describeTopology(req.GetAccessibleTopology()), silence.Round(time.Second))
		}
		return &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}, nil
	}
	rooms, err := each(ctx, nodes, func(ctx context.Context, n *node) (*csi.GetCapacityResponse, error) {
		return controllerCall(ctx, c.Router, n, csi.ControllerClient.GetCapacity, req)
	})
	if err != nil {
		return nil, err
	}
	if len(rooms) == 1 {
		return rooms[0], nil
	}
	total := &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}
	for _, room := range rooms {
		total.AvailableCapacity += min(max(0, room.GetAvailableCapacity()), math.MaxInt64-total.AvailableCapacity)
		total.MaximumVolumeSize.Value = max(total.MaximumVolumeSize.GetValue(), largest(room))
	}
	return total, nil
}

// largest returns how large one volume can be, in bytes.
func largest(room *csi.GetCapacityResponse) int64 {
	if m := room.GetMaximumVolumeSize(); m != nil {
		return m.GetValue()
	}
	return room.GetAvailableCapacity()
}
