package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
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
	attachment, err := c.attach(ctx, attacher, req.GetVolumeId(), o)
	if err != nil {
		return nil, fmt.Errorf("attach volume %.128q to node %.256q: %w", req.GetVolumeId(), req.GetNodeId(), err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: attachment}, nil
}

func (c *controller) attach(ctx context.Context, a backend.Attacher, id string, o backend.AttachOptions) (map[string]string, error) {
	what, err := c.backend.Mount(ctx, id, o.Access)
	if err != nil {
		return nil, err
	}
	if err := checkShared(what, o.Access.SharedWrite && !o.Access.ReadOnly); err != nil {
		return nil, err
	}
	return a.Attach(ctx, id, o)
}

// checkShared returns ErrInvalid for a disk whose filesystem several nodes would use while one of them
// writes to it: each node has its own cache, and the data would be lost. CreateVolume cannot call it,
// because a volume has no mount before it exists: there the backend looks at Access.SharedWrite.
func checkShared(what mounter.Mount, shared bool) error {
	if what.Kind == mounter.BlockDevice && what.FSType != "" && shared {
		return fmt.Errorf("%w: several nodes cannot use the %s of a disk while one of them writes to it: attach it read-only, or as a block device", backend.ErrInvalid, what.FSType)
	}
	return nil
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
