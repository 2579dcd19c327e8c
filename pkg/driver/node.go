package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// node is the Node service: the backend returns the Mount of a volume, and the mounter mounts it.
// The mount table of the kernel shows which volumes are staged and published. Records hold the
// capability and the publish context with which a volume was staged, because no mount shows them,
// and its Mount, so that calls about a staged volume do not wait for the storage.
// CSI spec v1.13, Node Service RPC.
type node struct {
	csi.UnimplementedNodeServer
	backend  backend.Backend
	mounter  mounter.Mounter
	topology *topology
	records  *stagingRecords
	renewals renewals
	prober   *prober
	id       string
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	resp := &csi.NodeGetInfoResponse{NodeId: n.id, AccessibleTopology: n.topology.node}
	if l, ok := n.backend.(backend.Limiter); ok {
		resp.MaxVolumesPerNode = l.NodeLimit()
	}
	return resp, nil
}

func (n *node) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return NodeCapabilities(n.backend), nil
}

func (n *node) NodeStageVolume(ctx context.Context,
	req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := required("volume ID", id, "staging target path", path); err != nil {
		return nil, err
	}
	vc, err := n.topology.parseCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	vc.Context, vc.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
	vc.PublishContext = req.GetPublishContext()
	if err := n.stage(ctx, id, path, vc); err != nil {
		return nil, fmt.Errorf("stage volume %.128q: %w", id, err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) stage(ctx context.Context, id, path string, vc volumeCapability) error {
	if err := n.notInline(ctx, id); err != nil {
		return err
	}
	mount, err := n.mountOf(ctx, id, vc)
	if err != nil {
		return err
	}
	if err := checkShared(mount, vc.manyNodes() && !mount.ReadOnly); err != nil {
		return err
	}
	publishContext, err := publishContextText(vc.PublishContext)
	if err != nil {
		return err
	}
	// The record contains the options: an option that no mount may have can be a secret.
	if err := mounter.CheckOptions(mount.Kind, mount.FSType, mount.Options); err != nil {
		return err
	}
	old, wasRecorded := n.records.recordAt(path)
	st := stagingRecord{VolumeID: id, Capability: vc.digest(), PublishContext: publishContext,
		Mount: newStagedMount(mount), OldCredentials: old.OldCredentials}
	if wasRecorded && !old.sameUse(st) {
		if occupied, err := n.mounter.Occupied(ctx, path); err != nil {
			return err
		} else if occupied {
			return fmt.Errorf("%w: another volume is staged at this path, or this volume with another capability",
				mounter.ErrConflict)
		}
	}
	// The record comes first: a record without a mount has no effect, but a mount without a record
	// could be of any access mode.
	forget, err := n.records.put(path, st)
	if err != nil {
		return err
	}
	crashpoint.Reached("stage:recorded")
	_, known := n.renewals.changed(path, vc.Secrets)
	err = n.mounter.Mount(ctx, mount, path)
	kept := errors.Is(err, mounter.ErrCredentials)
	if err != nil && !kept {
		if occupied, look := n.mounter.Occupied(ctx, path); look == nil && (!occupied || wasRecorded) {
			err = errors.Join(err, forget())
		}
		return err
	}
	crashpoint.Reached("stage:mounted")
	n.records.setLive(path, true)
	n.renewed(path, vc.Secrets, known, err)
	return n.growToSize(ctx, mount, path)
}

// mountOf returns the Mount of a volume for a capability, with its volume mount group.
func (n *node) mountOf(ctx context.Context, id string, vc volumeCapability) (mounter.Mount, error) {
	mount, err := n.backend.Mount(ctx, id, vc.Access)
	grouper, ok := n.backend.(backend.Grouper)
	if err != nil || !ok || vc.group == "" {
		return mount, err
	}
	gid, err := strconv.ParseUint(vc.group, 10, 32)
	if err != nil {
		return mount, err
	}
	return grouper.Owned(mount, uint32(gid))
}

// growToSize grows the content of a staged volume to the size of the volume. The content may be a
// copy of a smaller source, or may have been unable to grow while the volume was in use. If the
// content still cannot grow, growToSize returns nil: the volume is as usable as before.
func (n *node) growToSize(ctx context.Context, mount mounter.Mount, path string) error {
	if _, ok := n.backend.(backend.Expander); !ok || mount.ReadOnly {
		return nil
	}
	err := n.mounter.Grow(ctx, mount, path)
	if errors.Is(err, mounter.ErrBusy) || errors.Is(err, mounter.ErrReadOnly) {
		return nil
	}
	return err
}

// NodeUnstageVolume unmounts the staging path even if the volume is unknown: a CO must be able to
// clean up.
func (n *node) NodeUnstageVolume(ctx context.Context,
	req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := required("volume ID", id, "staging target path", path); err != nil {
		return nil, err
	}
	n.records.setLive(path, false)
	if err := n.mounter.Unmount(ctx, path); err != nil {
		return nil, fmt.Errorf("unstage volume %.128q: %w", id, err)
	}
	crashpoint.Reached("unstage:unmounted")
	n.renewals.forget(path)
	if err := n.records.remove(path); err != nil {
		return nil, fmt.Errorf("unstage volume %.128q: %w", id, err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(ctx context.Context,
	req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, target := req.GetVolumeId(), req.GetTargetPath()
	if err := required("volume ID", id, "target path", target); err != nil {
		return nil, err
	}
	vc, err := n.topology.parseCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if err := n.checkReadOnly(req, vc); err != nil {
		return nil, fmt.Errorf("publish volume %.128q: %w", id, err)
	}
	vc.ReadOnly = vc.ReadOnly || req.GetReadonly()
	if req.GetVolumeContext()[ephemeralKey] == "true" {
		err = n.publishInline(ctx, req, vc)
	} else {
		err = n.publish(ctx, req, vc)
	}
	if err != nil {
		return nil, fmt.Errorf("publish volume %.128q: %w", id, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// checkReadOnly rejects a read-only capability without readonly in the request. On Windows only the
// container runtime enforces read-only. Without readonly in the request the pod could write.
func (n *node) checkReadOnly(req *csi.NodePublishVolumeRequest, vc volumeCapability) error {
	m, ok := n.mounter.(mounter.RuntimeReadOnly)
	if !ok || !m.RuntimeReadOnly() || req.GetReadonly() || !vc.ReadOnly && !slices.Contains(vc.Options, "ro") {
		return nil
	}
	return fmt.Errorf("%w: the access mode or the mount option ro is read-only: set readOnly: true in the pod or its "+
		"PersistentVolume, because on Windows only the container runtime enforces read-only", backend.ErrInvalid)
}

// publish mounts a staged volume at the target path. CSI spec v1.13, NodePublishVolume, has a table
// of the results of a second call.
func (n *node) publish(ctx context.Context, req *csi.NodePublishVolumeRequest, vc volumeCapability) error {
	staging, target := req.GetStagingTargetPath(), req.GetTargetPath()
	switch staging {
	case "":
		return fmt.Errorf("%w: the staging target path is missing: stage the volume first", errPrecondition)
	case target:
		return fmt.Errorf("%w: the target path is the staging target path", backend.ErrInvalid)
	}
	mount, err := n.mountToPublish(ctx, req, vc)
	if err != nil {
		return err
	}
	if staged, err := n.isMounted(ctx, mount, staging); err != nil {
		return err
	} else if !staged {
		return fmt.Errorf("%w: the volume is not staged at %s", errPrecondition, staging)
	}
	published, err := n.mounter.Mounted(ctx, mount, target)
	if err != nil {
		return err
	}
	if err := n.asStaged(req, vc, published); err != nil {
		return err
	}
	if mount.ReadOnly && !vc.ReadOnly {
		return fmt.Errorf("%w: the volume is read-only, or attached read-only", mounter.ErrReadOnly)
	}
	from := mount.BindFrom(staging)
	from.ReadOnly = vc.ReadOnly // a writable publish of a read-only volume fails
	if vc.oneTarget() && !published {
		if err := n.onlyTarget(ctx, from.Source, target); err != nil {
			return err
		}
	}
	if err := n.mounter.Mount(ctx, from, target); err != nil {
		if staged, look := n.isMounted(ctx, mount, staging); look == nil && !staged {
			return fmt.Errorf("%w: the volume is no longer staged at %s", errPrecondition, staging)
		}
		return err
	}
	crashpoint.Reached("publish:mounted")
	if published {
		n.renew(ctx, req, vc)
		return nil
	}
	// If another program has unmounted the staging path meanwhile, the pod would now write to the
	// disk of the node.
	mounted, err := n.mounter.Mounted(ctx, mount, target)
	if err == nil && !mounted {
		err = fmt.Errorf("%w: the volume is no longer staged at %s", errPrecondition, staging)
	}
	if err != nil {
		return errors.Join(err, n.mounter.Remove(context.WithoutCancel(ctx), target))
	}
	return nil
}

// mountToPublish returns the Mount of the volume at the staging path. Without a record of this
// Mount the backend returns it, or an error for an unknown volume.
func (n *node) mountToPublish(ctx context.Context,
	req *csi.NodePublishVolumeRequest, vc volumeCapability) (mounter.Mount, error) {
	id := req.GetVolumeId()
	if mount, ok := n.records.mountAt(id, req.GetStagingTargetPath(), req.GetPublishContext()); ok {
		return mount, nil
	}
	if err := n.notInline(ctx, id); err != nil {
		return mounter.Mount{}, err
	}
	vc.Context, vc.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
	vc.PublishContext = req.GetPublishContext()
	return n.mountOf(ctx, id, vc)
}

// asStaged returns an error if the volume was staged with another capability than vc, or if the
// staging path of the request is not its staging path. The target path in a pod is not a staging
// path.
func (n *node) asStaged(req *csi.NodePublishVolumeRequest, vc volumeCapability, published bool) error {
	old, ok := n.records.recordAt(req.GetStagingTargetPath())
	if !ok && len(n.records.liveOf(req.GetVolumeId())) > 0 {
		return fmt.Errorf("%w: the volume is not staged at %s", errPrecondition, req.GetStagingTargetPath())
	}
	if !ok || old.sameCapability(stagingRecord{VolumeID: req.GetVolumeId(), Capability: vc.digest()}) {
		return nil
	}
	class := errPrecondition
	if published {
		class = mounter.ErrConflict
	}
	return fmt.Errorf("%w: the volume is staged with another capability: access mode, mount options or volume "+
		"mount group (fsGroup of a pod)", class)
}

// onlyTarget returns an error if the mount at path is published at another path than target.
func (n *node) onlyTarget(ctx context.Context, at, target string) error {
	others, err := n.mounter.OtherTargets(ctx, at)
	if err != nil {
		return err
	}
	for _, path := range others {
		if path != target && !n.isStaging(path) {
			return fmt.Errorf("%w: the access mode allows one target path, and the volume is published at %s",
				errPrecondition, path)
		}
	}
	return nil
}

// isStaging reports whether path is a staging path, or the block device in a staging path.
func (n *node) isStaging(path string) bool {
	_, ok := n.records.recordAt(path)
	if dir, name := filepath.Split(path); !ok && name == mounter.DeviceName {
		_, ok = n.records.recordAt(filepath.Clean(dir))
	}
	return ok
}

// publishInline creates the inline volume of a pod and mounts it at the target path. A CO never
// stages an inline volume.
func (n *node) publishInline(ctx context.Context, req *csi.NodePublishVolumeRequest, vc volumeCapability) (err error) {
	inliner, ok := n.backend.(backend.Inliner)
	if !ok {
		return fmt.Errorf("%w: this driver does not support inline volumes", backend.ErrInvalid)
	}
	if req.GetStagingTargetPath() != "" {
		return fmt.Errorf("%w: an inline volume has no staging path", backend.ErrInvalid)
	}
	if vc.Block {
		return fmt.Errorf("%w: an inline volume cannot be a block device", backend.ErrInvalid)
	}
	o, err := inlineOptions(req.GetVolumeContext(), vc)
	if err != nil {
		return err
	}
	_, err = n.backend.Get(ctx, req.GetVolumeId(), nil)
	isNew := errors.Is(err, backend.ErrNotFound)
	if _, err := inliner.CreateInline(ctx, req.GetVolumeId(), o); err != nil {
		return err
	}
	crashpoint.Reached("publish:inline-made")
	if err = n.mountInline(ctx, req, vc); err != nil && isNew { // an old volume may hold the data of a pod
		err = errors.Join(err, inliner.DeleteInline(context.WithoutCancel(ctx), req.GetVolumeId()))
	}
	return err
}

func (n *node) mountInline(ctx context.Context, req *csi.NodePublishVolumeRequest, vc volumeCapability) error {
	mount, err := n.backend.Mount(ctx, req.GetVolumeId(), vc.Access)
	if err != nil {
		return err
	}
	target := req.GetTargetPath()
	published, err := n.mounter.Mounted(ctx, mount, target)
	if err != nil {
		return err
	}
	if err := n.mounter.Mount(ctx, mount, target); err != nil || published || !vc.oneTarget() {
		return err
	}
	if err := n.onlyTarget(ctx, target, target); err != nil {
		return errors.Join(err, n.mounter.Remove(context.WithoutCancel(ctx), target))
	}
	return nil
}

// NodeUnpublishVolume unmounts and removes the target path even if the volume is unknown. An inline
// volume is deleted, too.
func (n *node) NodeUnpublishVolume(ctx context.Context,
	req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
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

func (n *node) NodeGetVolumeStats(ctx context.Context,
	req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	id, path := req.GetVolumeId(), req.GetVolumePath()
	if err := required("volume ID", id, "volume path", path); err != nil {
		return nil, err
	}
	if _, err := n.mountAt(ctx, id, path); err != nil {
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

// usage calls the backend first, because the filesystem of the mount may hold more than the volume.
func (n *node) usage(ctx context.Context, id, path string) (mounter.Usage, error) {
	if m, ok := n.backend.(backend.UsageReporter); ok {
		if u, known, err := m.Usage(ctx, id); known || err != nil {
			return u, err
		}
	}
	return n.mounter.Usage(ctx, path)
}

// mountedAs returns the Mount of a volume for path, and whether the volume is mounted at path. For
// a staged volume these are the Mounts of its records.
func (n *node) mountedAs(ctx context.Context, id, path string) (mount mounter.Mount, mounted bool, err error) {
	mounts, ok := n.records.mountsOf(id)
	if !ok {
		return n.mountedByBackend(ctx, id, path)
	}
	for _, mount = range mounts {
		if mounted, err = n.isMounted(ctx, mount, path); mounted || err != nil {
			return mount, mounted, err
		}
	}
	return mount, false, nil
}

// isMounted reports whether a staged volume is mounted at path. A missing source is ErrUnavailable:
// the backend, whose storage is away, was not asked.
func (n *node) isMounted(ctx context.Context, mount mounter.Mount, path string) (bool, error) {
	mounted, err := n.mounter.Mounted(ctx, mount, path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the source of the mount is missing: %w", backend.ErrUnavailable, err)
	}
	return mounted, err
}

// mountedByBackend is mountedAs for an inline volume, and for a volume that a release without
// mounts in its records staged. The backend gets the publish context with which the volume was
// staged. The requests do not have the access type, and a volume may support both: the filesystem
// comes first, then the block device.
func (n *node) mountedByBackend(ctx context.Context,
	id, path string) (mount mounter.Mount, mounted bool, err error) {
	a := backend.Access{PublishContext: n.records.publishContext(id)}
	mount, err = n.backend.Mount(ctx, id, a)
	if err == nil {
		if mounted, err = n.mounter.Mounted(ctx, mount, path); mounted || err != nil {
			return mount, mounted, err
		}
	}
	noFilesystem := errors.Is(err, backend.ErrInvalid)
	if err != nil && !noFilesystem {
		return mount, false, err
	}
	a.Block = true
	device, err := n.backend.Mount(ctx, id, a)
	if errors.Is(err, backend.ErrInvalid) && !noFilesystem {
		return mount, false, nil
	}
	if err != nil {
		return mount, false, err
	}
	mounted, err = n.mounter.Mounted(ctx, device, path)
	return device, mounted, err
}

// notInline returns an error if id is the ID of an inline volume. Such a volume belongs to its pod
// alone, and no PersistentVolume may name it.
func (n *node) notInline(ctx context.Context, id string) error {
	if !is[backend.Inliner](n.backend) {
		return nil
	}
	v, err := n.backend.Get(ctx, id, nil)
	if err == nil && v.Inline {
		err = fmt.Errorf("%w: the volume is a pod's inline volume", backend.ErrNotFound)
	}
	return err
}
