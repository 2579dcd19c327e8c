package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// node is the Node service: the backend says what to mount, the mounter does it. What is staged and published is
// what the kernel says is mounted; only the capability that a volume was staged with is remembered beside it, as no
// mount shows an access mode. CSI spec v1.13, Node Service RPC.
type node struct {
	csi.UnimplementedNodeServer
	backend  backend.Backend
	mounter  mounter.Mounter
	place    *place
	stagings *stagings
	prober   *prober
	id       string
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	resp := &csi.NodeGetInfoResponse{NodeId: n.id, AccessibleTopology: n.place.topology}
	if l, ok := n.backend.(backend.Limiter); ok {
		resp.MaxVolumesPerNode = l.NodeLimit()
	}
	return resp, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return NodeCapabilities(n.backend), nil
}

func (n *node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := required("volume ID", id, "staging target path", path); err != nil {
		return nil, err
	}
	u, err := n.place.use(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	u.Context, u.Secrets, u.PublishContext = ownKeys(req.GetVolumeContext()), req.GetSecrets(), req.GetPublishContext()
	if err := n.stage(ctx, id, path, u); err != nil {
		return nil, fmt.Errorf("stage volume %.128q: %w", id, err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) stage(ctx context.Context, id, path string, u use) error {
	if err := n.notInline(ctx, id); err != nil {
		return err
	}
	what, err := n.backend.Mount(ctx, id, u.Access)
	if err != nil {
		return err
	}
	if err := checkShared(what, u.manyNodes() && !what.ReadOnly); err != nil {
		return err
	}
	attachment, err := attachmentText(u.PublishContext)
	if err != nil {
		return err
	}
	st := staging{VolumeID: id, Use: u.digest(), Attachment: attachment}
	if old, ok := n.stagings.at(path); ok && old != st {
		if there, err := n.mounter.Occupied(ctx, path); err != nil {
			return err
		} else if there {
			return fmt.Errorf("%w: another volume is staged there, or this one with another capability", mounter.ErrConflict)
		}
	}
	// First the record: a record without a mount means nothing, but a mount without one could be of any access mode.
	forget, err := n.stagings.put(path, st)
	if err != nil {
		return err
	}
	crashpoint.Reached("stage:recorded")
	if err := n.mounter.Mount(ctx, what, path); err != nil {
		if there, look := n.mounter.Occupied(ctx, path); look == nil && !there {
			err = errors.Join(err, forget())
		}
		return err
	}
	crashpoint.Reached("stage:mounted")
	n.stagings.setLive(path, true)
	return n.fillOut(ctx, what, path)
}

// fillOut grows what is staged to its volume's size: it may have been copied from a smaller one, or be one that couldn't
// grow while it was used. If it can't now, it is as good as it was.
func (n *node) fillOut(ctx context.Context, what mounter.Mount, path string) error {
	if _, ok := n.backend.(backend.Expander); !ok || what.ReadOnly {
		return nil
	}
	err := n.mounter.Grow(ctx, what, path)
	if errors.Is(err, mounter.ErrBusy) || errors.Is(err, mounter.ErrReadOnly) {
		return nil
	}
	return err
}

// NodeUnstageVolume unmounts the staging path, whatever is known of the volume: a CO must be able to clean up.
func (n *node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := required("volume ID", id, "staging target path", path); err != nil {
		return nil, err
	}
	n.stagings.setLive(path, false)
	if err := n.mounter.Unmount(ctx, path); err != nil {
		return nil, fmt.Errorf("unstage volume %.128q: %w", id, err)
	}
	crashpoint.Reached("unstage:unmounted")
	if err := n.stagings.remove(path); err != nil {
		return nil, fmt.Errorf("unstage volume %.128q: %w", id, err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, target := req.GetVolumeId(), req.GetTargetPath()
	if err := required("volume ID", id, "target path", target); err != nil {
		return nil, err
	}
	u, err := n.place.use(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	u.ReadOnly = u.ReadOnly || req.GetReadonly()
	if req.GetVolumeContext()[ephemeralKey] == "true" {
		err = n.publishInline(ctx, req, u)
	} else {
		err = n.publish(ctx, req, u)
	}
	if err != nil {
		return nil, fmt.Errorf("publish volume %.128q: %w", id, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publish mounts what is staged at the target. CSI spec v1.13, NodePublishVolume, has the table of what a second call
// is answered.
func (n *node) publish(ctx context.Context, req *csi.NodePublishVolumeRequest, u use) error {
	staging, target := req.GetStagingTargetPath(), req.GetTargetPath()
	switch staging {
	case "":
		return fmt.Errorf("%w: the staging target path is missing: stage the volume first", errPrecondition)
	case target:
		return fmt.Errorf("%w: the target path is the staging target path", backend.ErrInvalid)
	}
	if err := n.notInline(ctx, req.GetVolumeId()); err != nil {
		return err
	}
	u.Context, u.Secrets, u.PublishContext = ownKeys(req.GetVolumeContext()), req.GetSecrets(), req.GetPublishContext()
	what, err := n.backend.Mount(ctx, req.GetVolumeId(), u.Access)
	if err != nil {
		return err
	}
	if there, err := n.mounter.Mounted(ctx, what, staging); err != nil {
		return err
	} else if !there {
		return fmt.Errorf("%w: it is not staged at %s", errPrecondition, staging)
	}
	published, err := n.mounter.Mounted(ctx, what, target)
	if err != nil {
		return err
	}
	if err := n.asStaged(req, u, published); err != nil {
		return err
	}
	if what.ReadOnly && !u.ReadOnly {
		return fmt.Errorf("%w: it was attached, or is, for reading only", mounter.ErrReadOnly)
	}
	from := what.BindFrom(staging)
	from.ReadOnly = u.ReadOnly // a writable publish of a read-only volume fails
	if u.oneTarget() && !published {
		if err := n.onlyTarget(ctx, from.Source, target); err != nil {
			return err
		}
	}
	if err := n.mounter.Mount(ctx, from, target); err != nil {
		return err
	}
	crashpoint.Reached("publish:mounted")
	if published {
		return nil
	}
	// Had somebody unmounted the staging path meanwhile, a pod would now write to the node's own disk.
	there, err := n.mounter.Mounted(ctx, what, target)
	if err == nil && !there {
		err = fmt.Errorf("%w: it is no longer staged at %s", errPrecondition, staging)
	}
	if err != nil {
		return errors.Join(err, n.mounter.Remove(context.WithoutCancel(ctx), target))
	}
	return nil
}

// asStaged returns an error if the volume was staged with another capability than u, or elsewhere:
// its target in a pod is no staging path.
func (n *node) asStaged(req *csi.NodePublishVolumeRequest, u use, published bool) error {
	old, ok := n.stagings.at(req.GetStagingTargetPath())
	if !ok && len(n.stagings.liveOf(req.GetVolumeId())) > 0 {
		return fmt.Errorf("%w: it is not staged at %s", errPrecondition, req.GetStagingTargetPath())
	}
	if !ok || old.like(staging{VolumeID: req.GetVolumeId(), Use: u.digest()}) {
		return nil
	}
	class := errPrecondition
	if published {
		class = mounter.ErrConflict
	}
	return fmt.Errorf("%w: it is staged with another capability", class)
}

// onlyTarget returns an error if what is mounted at a path is published at another path than target.
func (n *node) onlyTarget(ctx context.Context, at, target string) error {
	others, err := n.mounter.OtherTargets(ctx, at)
	if err != nil {
		return err
	}
	for _, path := range others {
		if path != target && !n.isStaging(path) {
			return fmt.Errorf("%w: its access mode allows one target, and it is published at %s", errPrecondition, path)
		}
	}
	return nil
}

// isStaging reports whether something is staged at path, or in it as a device.
func (n *node) isStaging(path string) bool {
	_, ok := n.stagings.at(path)
	if dir, name := filepath.Split(path); !ok && name == mounter.DeviceName {
		_, ok = n.stagings.at(filepath.Clean(dir))
	}
	return ok
}

// publishInline makes the volume of a pod and mounts it at the target. A CO never stages it.
func (n *node) publishInline(ctx context.Context, req *csi.NodePublishVolumeRequest, u use) (err error) {
	inliner, ok := n.backend.(backend.Inliner)
	if !ok {
		return fmt.Errorf("%w: this driver has no inline volumes", backend.ErrInvalid)
	}
	if req.GetStagingTargetPath() != "" {
		return fmt.Errorf("%w: an inline volume is not staged", backend.ErrInvalid)
	}
	if u.Block {
		return fmt.Errorf("%w: an inline volume is no block device", backend.ErrInvalid)
	}
	o, err := inlineOptions(req.GetVolumeContext(), u)
	if err != nil {
		return err
	}
	_, err = n.backend.Get(ctx, req.GetVolumeId(), nil)
	isNew := errors.Is(err, backend.ErrNotFound)
	if _, err := inliner.CreateInline(ctx, req.GetVolumeId(), o); err != nil {
		return err
	}
	crashpoint.Reached("publish:inline-made")
	if err = n.mountInline(ctx, req, u); err != nil && isNew { // an old one may hold a pod's data
		err = errors.Join(err, inliner.DeleteInline(context.WithoutCancel(ctx), req.GetVolumeId()))
	}
	return err
}

func (n *node) mountInline(ctx context.Context, req *csi.NodePublishVolumeRequest, u use) error {
	what, err := n.backend.Mount(ctx, req.GetVolumeId(), u.Access)
	if err != nil {
		return err
	}
	target := req.GetTargetPath()
	published, err := n.mounter.Mounted(ctx, what, target)
	if err != nil {
		return err
	}
	if err := n.mounter.Mount(ctx, what, target); err != nil || published || !u.oneTarget() {
		return err
	}
	if err := n.onlyTarget(ctx, target, target); err != nil {
		return errors.Join(err, n.mounter.Remove(context.WithoutCancel(ctx), target))
	}
	return nil
}

// NodeUnpublishVolume unmounts the target, whatever is known of the volume, and removes it. An inline volume ends
// with it: this is the one call here in which the backend is asked to change something.
func (n *node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id, target := req.GetVolumeId(), req.GetTargetPath()
	if err := required("volume ID", id, "target path", target); err != nil {
		return nil, err
	}
	err := n.mounter.Remove(ctx, target)
	if inliner, ok := n.backend.(backend.Inliner); ok && err == nil {
		err = inliner.DeleteInline(ctx, id)
	}
	if err != nil {
		return nil, fmt.Errorf("unpublish volume %.128q: %w", id, err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	id, path := req.GetVolumeId(), req.GetVolumePath()
	if err := required("volume ID", id, "volume path", path); err != nil {
		return nil, err
	}
	if _, err := n.whatIsAt(ctx, id, path); err != nil {
		return nil, err
	}
	u, err := n.usage(ctx, id, path)
	if err != nil {
		return nil, fmt.Errorf("get the usage of volume %.128q: %w", id, err)
	}
	resp := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Used: u.UsedBytes, Available: u.AvailableBytes,
	}}}
	if u.TotalInodes > 0 {
		resp.Usage = append(resp.Usage, &csi.VolumeUsage{
			Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Used: u.UsedInodes, Available: u.AvailableInodes,
		})
	}
	return resp, nil
}

// usage asks the backend first: a mount may show more than the volume.
func (n *node) usage(ctx context.Context, id, path string) (mounter.Usage, error) {
	if m, ok := n.backend.(backend.UsageReporter); ok {
		if u, known, err := m.Usage(ctx, id); known || err != nil {
			return u, err
		}
	}
	return n.mounter.Usage(ctx, path)
}

// NodeGetVolumeHealth adds to what the backend knows whether a volume that was staged is mounted still.
func (n *node) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	doctor, ok := n.backend.(backend.HealthReporter)
	if !ok {
		return n.UnimplementedNodeServer.NodeGetVolumeHealth(ctx, req)
	}
	id := req.GetVolumeId()
	if err := required("volume ID", id); err != nil {
		return nil, err
	}
	conditions, err := doctor.Health(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get the health of volume %.128q: %w", id, err)
	}
	for path, time := range n.stagings.liveOf(id) {
		_, there, err := n.mountedAs(ctx, id, path) // of an error, the backend has said what is wrong
		// If that mount isn't live any more, this driver has begun to unstage it meanwhile.
		if err == nil && !there && n.stagings.liveOf(id)[path] == time {
			conditions = append(conditions, backend.Condition{
				Severity: backend.Inaccessible, Reason: "StagingMountLost",
				Message: fmt.Sprintf("%s is no longer mounted: delete the pods that use the volume, so that it is staged again", path),
			})
			break
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: volumeHealth(id, conditions)}, nil
}

func (n *node) NodeGetStorageHealth(ctx context.Context, req *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if !is[backend.HealthReporter](n.backend) {
		return n.UnimplementedNodeServer.NodeGetStorageHealth(ctx, req)
	}
	conditions, err := n.prober.storageHealth(ctx)
	if err != nil {
		return nil, fmt.Errorf("get the health of the storage: %w", err)
	}
	resp := &csi.NodeGetStorageHealthResponse{}
	for _, c := range conditions {
		status := csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		if c.Severity == backend.Degraded {
			status = csi.StorageHealthErrorType_STORAGE_DEGRADED
		}
		resp.BackendHealth = append(resp.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: status, Reason: c.Reason, Message: c.Message,
		})
	}
	return resp, nil
}

// mountedAs returns what a volume is mounted as at path, and whether it is mounted there. The backend
// gets the publish context with which the volume was staged. No request says whether the volume is
// used as a block device, and a backend may serve both uses.
func (n *node) mountedAs(ctx context.Context, id, path string) (what mounter.Mount, there bool, err error) {
	a := backend.Access{PublishContext: n.stagings.attachment(id)}
	what, err = n.backend.Mount(ctx, id, a)
	if err == nil {
		if there, err = n.mounter.Mounted(ctx, what, path); there || err != nil {
			return what, there, err
		}
	}
	noFilesystem := errors.Is(err, backend.ErrInvalid)
	if err != nil && !noFilesystem {
		return what, false, err
	}
	a.Block = true
	device, err := n.backend.Mount(ctx, id, a)
	if errors.Is(err, backend.ErrInvalid) && !noFilesystem {
		return what, false, nil
	}
	if err != nil {
		return what, false, err
	}
	there, err = n.mounter.Mounted(ctx, device, path)
	return device, there, err
}

// notInline returns an error if id is that of an inline volume: its pod has it for itself, and no
// PersistentVolume can name it.
func (n *node) notInline(ctx context.Context, id string) error {
	if !is[backend.Inliner](n.backend) {
		return nil
	}
	v, err := n.backend.Get(ctx, id, nil)
	if err == nil && v.Inline {
		err = fmt.Errorf("%w: it is a pod's inline volume", backend.ErrNotFound)
	}
	return err
}
