package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// ControllerExpandVolume grows a volume, used or not. CSI spec v1.13, ControllerExpandVolume.
func (c *controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	expander, ok := c.backend.(backend.Expander)
	if !ok {
		return c.UnimplementedControllerServer.ControllerExpandVolume(ctx, req)
	}
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	o, err := expandOptions(req)
	if err != nil {
		return nil, err
	}
	if req.GetVolumeCapability() != nil {
		if _, err := c.place.use(req.GetVolumeCapability()); err != nil {
			return nil, err
		}
	}
	size, node, err := expander.Expand(ctx, req.GetVolumeId(), o)
	if err != nil {
		return nil, fmt.Errorf("expand volume %.128q: %w", req.GetVolumeId(), err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: node}, nil
}

// expandOptions turns a checked request into what a backend is asked for.
func expandOptions(req *csi.ControllerExpandVolumeRequest) (backend.ExpandOptions, error) {
	r := req.GetCapacityRange()
	o := backend.ExpandOptions{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes(), Secrets: req.GetSecrets()}
	if o.Required == 0 && o.Limit == 0 {
		return o, fmt.Errorf("%w: the capacity range is missing", backend.ErrInvalid)
	}
	return o, checkRange(r)
}

// NodeExpandVolume grows what is in a volume to the size that the controller gave it. CSI spec v1.13, NodeExpandVolume.
func (n *node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if !is[backend.Expander](n.backend) {
		return n.UnimplementedNodeServer.NodeExpandVolume(ctx, req)
	}
	id, path := req.GetVolumeId(), req.GetVolumePath()
	if err := required("volume ID", id, "volume path", path); err != nil {
		return nil, err
	}
	if err := checkRange(req.GetCapacityRange()); err != nil {
		return nil, err
	}
	what, err := n.whatIsAt(ctx, id, path)
	if err != nil {
		return nil, err
	}
	size, err := n.sizeFor(ctx, req, &what)
	if err != nil {
		return nil, err
	}
	if staging := req.GetStagingTargetPath(); staging != "" { // which is writable where the target may not be
		if there, err := n.mounter.Mounted(ctx, what, staging); err == nil && there {
			path = staging
		}
	}
	err = n.mounter.Grow(ctx, what, path)
	if errors.Is(err, mounter.ErrDevice) { // the node may see later that its disk grew; after FAILED_PRECONDITION the kubelet gives up
		err = fmt.Errorf("%w: %v", backend.ErrUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("expand volume %.128q: %w", id, err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// sizeFor returns the size of a volume, in bytes, which must be large enough for the request. Of a
// disk, the Mounter asks the disk: on a node the backend may not reach its storage.
func (n *node) sizeFor(ctx context.Context, req *csi.NodeExpandVolumeRequest, what *mounter.Mount) (int64, error) {
	required := req.GetCapacityRange().GetRequiredBytes()
	if what.Kind == mounter.BlockDevice {
		what.Size = max(what.Size, required)
		return what.Size, nil
	}
	v, err := n.backend.Get(ctx, req.GetVolumeId(), req.GetSecrets())
	if err == nil && v.Size < required {
		err = fmt.Errorf("%w: volume %.128q has %d bytes: the controller has to expand it first", backend.ErrOutOfRange, req.GetVolumeId(), v.Size)
	}
	return v.Size, err
}

// whatIsAt returns what is mounted at path, if that is the volume. Errors: ErrNotFound.
func (n *node) whatIsAt(ctx context.Context, id, path string) (mounter.Mount, error) {
	what, there, err := n.mountedAs(ctx, id, path)
	if errors.Is(err, mounter.ErrPath) || (err == nil && !there) {
		err = fmt.Errorf("%w: volume %.128q at %.128q", backend.ErrNotFound, id, path)
	}
	return what, err
}
