package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// ControllerPublishVolume attaches a volume to a node.
func (c *controller) ControllerPublishVolume(ctx context.Context,
	req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	attacher, ok := c.backend.(backend.Attacher)
	if !ok {
		return c.UnimplementedControllerServer.ControllerPublishVolume(ctx, req)
	}
	o, err := c.topology.attachOptions(req)
	if err != nil {
		return nil, err
	}
	publishContext, err := c.attach(ctx, attacher, req.GetVolumeId(), o)
	if err != nil {
		return nil, fmt.Errorf("attach volume %.128q to node %.256q: %w", req.GetVolumeId(), req.GetNodeId(), err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext}, nil
}

func (c *controller) attach(ctx context.Context, a backend.Attacher, id string,
	o backend.AttachOptions) (map[string]string, error) {
	mount, err := c.backend.Mount(ctx, id, o.Access)
	if err != nil {
		return nil, err
	}
	if err := checkShared(mount, o.Access.SharedWrite && !o.Access.ReadOnly); err != nil {
		return nil, err
	}
	return a.Attach(ctx, id, o)
}

// checkShared returns ErrInvalid for a disk with a filesystem that several nodes would use while a
// node writes to it: each node has its own cache, and data would be lost. CreateVolume cannot call
// checkShared, because a new volume has no mount yet. There, the backend checks Access.SharedWrite.
func checkShared(mount mounter.Mount, shared bool) error {
	if mount.Kind == mounter.BlockDevice && mount.FSType != "" && shared {
		return fmt.Errorf("%w: several nodes cannot share an %s filesystem to which a node writes: attach the volume "+
			"read-only, or as a block device", backend.ErrInvalid, mount.FSType)
	}
	return nil
}

// ControllerUnpublishVolume detaches a volume from a node, or from all nodes if none is named.
func (c *controller) ControllerUnpublishVolume(ctx context.Context,
	req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
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
