package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// ControllerExpandVolume expands a volume, which may be in use. CSI spec v1.13,
// ControllerExpandVolume.
func (c *controller) ControllerExpandVolume(ctx context.Context,
	req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
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
		if _, err := c.topology.parseCapability(req.GetVolumeCapability()); err != nil {
			return nil, err
		}
	}
	size, node, err := expander.Expand(ctx, req.GetVolumeId(), o)
	if err != nil {
		return nil, fmt.Errorf("expand volume %.128q: %w", req.GetVolumeId(), err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: node}, nil
}

// expandOptions checks a request and returns the options for the backend.
func expandOptions(req *csi.ControllerExpandVolumeRequest) (backend.ExpandOptions, error) {
	r := req.GetCapacityRange()
	o := backend.ExpandOptions{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes(), Secrets: req.GetSecrets()}
	if o.Required == 0 && o.Limit == 0 {
		return o, fmt.Errorf("%w: the capacity range is missing", backend.ErrInvalid)
	}
	return o, checkRange(r)
}

// NodeExpandVolume grows the content of a volume to the size that the controller gave the volume.
// CSI spec v1.13, NodeExpandVolume.
func (n *node) NodeExpandVolume(ctx context.Context,
	req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
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
	mount, err := n.mountAt(ctx, id, path)
	if err != nil {
		return nil, err
	}
	size, err := n.sizeFor(ctx, req, &mount)
	if err != nil {
		return nil, err
	}
	// The staging path is writable; the target path may be read-only.
	if staging := req.GetStagingTargetPath(); staging != "" {
		if mounted, err := n.mounter.Mounted(ctx, mount, staging); err == nil && mounted {
			path = staging
		}
	}
	err = n.mounter.Grow(ctx, mount, path)
	// The node may see the new size of its disk later. After FAILED_PRECONDITION the kubelet would
	// not retry.
	if errors.Is(err, mounter.ErrDevice) {
		err = fmt.Errorf("%w: %v", backend.ErrUnavailable, err) //nolint:errorlint // its class would decide the code
	}
	if err != nil {
		return nil, fmt.Errorf("expand volume %.128q: %w", id, err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// sizeFor returns the size of a volume in bytes. A volume that is too small for the request is
// ErrOutOfRange. For a disk, sizeFor sets the size of the mount to the required size, and the
// Mounter compares this size with the disk: on a node the backend may have no access to its
// storage.
func (n *node) sizeFor(ctx context.Context, req *csi.NodeExpandVolumeRequest, mount *mounter.Mount) (int64, error) {
	required := req.GetCapacityRange().GetRequiredBytes()
	if mount.Kind == mounter.Share { // its size is a promise of the server, which may not answer
		return required, nil
	}
	if mount.Kind == mounter.BlockDevice {
		mount.Size = max(mount.Size, required)
		return mount.Size, nil
	}
	v, err := n.backend.Get(ctx, req.GetVolumeId(), req.GetSecrets())
	if err == nil && v.Size < required {
		err = fmt.Errorf("%w: volume %.128q has %d bytes: the controller has to expand it first", backend.ErrOutOfRange,
			req.GetVolumeId(), v.Size)
	}
	return v.Size, err
}

// mountAt returns the mount of a volume at path. If the volume is not mounted there, the error is
// ErrNotFound.
func (n *node) mountAt(ctx context.Context, id, path string) (mounter.Mount, error) {
	mount, mounted, err := n.mountedAs(ctx, id, path)
	if errors.Is(err, mounter.ErrPath) || (err == nil && !mounted) {
		err = fmt.Errorf("%w: volume %.128q at %.128q", backend.ErrNotFound, id, path)
	}
	return mount, err
}
