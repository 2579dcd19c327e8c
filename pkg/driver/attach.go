package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// ControllerPublishVolume attaches a volume to a node.
func (c *controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	attacher, ok := c.backend.(backend.Attacher)
	if !ok {
		return c.UnimplementedControllerServer.ControllerPublishVolume(ctx, req)
	}
	o, err := c.place.attachOptions(req)
	if err != nil {
		return nil, err
	}
	attachment, err := attacher.Attach(ctx, req.GetVolumeId(), o)
	if err != nil {
		return nil, fmt.Errorf("attach volume %.128q to node %.256q: %w", req.GetVolumeId(), req.GetNodeId(), err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: attachment}, nil
}

// ControllerUnpublishVolume detaches a volume from a node, or from all nodes if none is named.
func (c *controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	attacher, ok := c.backend.(backend.Attacher)
	if !ok {
		return c.UnimplementedControllerServer.ControllerUnpublishVolume(ctx, req)
	}
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := attacher.Detach(ctx, req.GetVolumeId(), req.GetNodeId(), req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("detach volume %.128q from node %.256q: %w", req.GetVolumeId(), req.GetNodeId(), err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
