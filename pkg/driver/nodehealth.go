package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// NodeGetVolumeHealth returns the conditions that the backend reports, and a further condition if a
// staged volume is no longer mounted.
func (n *node) NodeGetVolumeHealth(ctx context.Context,
	req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if !is[backend.HealthReporter](n.backend) && !is[backend.Reacher](n.backend) {
		return n.UnimplementedNodeServer.NodeGetVolumeHealth(ctx, req)
	}
	id := req.GetVolumeId()
	if err := required("volume ID", id); err != nil {
		return nil, err
	}
	conditions, err := n.health(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get the health of volume %.128q: %w", id, err)
	}
	for _, path := range n.records.lostOf(id) {
		conditions = append(conditions, mountLost(path))
	}
	for path, mount := range n.records.liveOf(id) {
		_, mounted, err := n.mountedAs(ctx, id, path) // the conditions of the backend explain an error
		// If another call has begun to unstage the volume meanwhile, the mount is no longer live.
		if err == nil && !mounted && n.records.liveOf(id)[path] == mount {
			conditions = append(conditions, mountLost(path))
			break
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: volumeHealth(id, conditions)}, nil
}

// mountLost returns the condition of a volume that another program has unmounted from its staging path.
func mountLost(path string) backend.Condition {
	return backend.Condition{Severity: backend.Inaccessible, Reason: "StagingMountLost",
		Message: fmt.Sprintf("%s is no longer mounted: delete the pods that use the volume, so that it is staged again",
			path)}
}

// health returns the conditions of a volume on this node. Errors: backend.ErrNotFound.
func (n *node) health(ctx context.Context, id string) ([]backend.Condition, error) {
	reacher, ok := n.backend.(backend.Reacher)
	if !ok {
		return n.backend.(backend.HealthReporter).Health(ctx, id)
	}
	live := n.records.liveOf(id)
	if len(live) == 0 && len(n.records.lostOf(id)) > 0 {
		return nil, nil
	}
	if len(live) == 0 {
		return nil, fmt.Errorf("%w: the volume is not staged on this node", backend.ErrNotFound)
	}
	var conditions []backend.Condition
	for path := range live {
		conditions = append(conditions, n.renewals.conditions(path)...)
	}
	mounts, _ := n.records.mountsOf(id)
	for _, m := range mounts {
		ctx, cancel := context.WithTimeout(ctx, reachLimit)
		more, err := reacher.Reach(ctx, m)
		cancel()
		if err != nil {
			return nil, err
		}
		conditions = addConditions(conditions, more)
	}
	return conditions, nil
}

// NodeGetStorageHealth returns the conditions of the storage of the backend, or of the servers of
// the staged volumes.
func (n *node) NodeGetStorageHealth(ctx context.Context,
	req *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	var conditions []backend.Condition
	var err error
	switch reacher, ok := n.backend.(backend.Reacher); {
	case ok:
		conditions, err = n.reachAll(ctx, reacher)
	case is[backend.HealthReporter](n.backend):
		conditions, err = n.prober.storageHealth(ctx)
	default:
		return n.UnimplementedNodeServer.NodeGetStorageHealth(ctx, req)
	}
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

const (
	reachLimit  = 5 * time.Second // of a call of Reach
	reachAtOnce = 16              // maximum number of calls of Reach at the same time
)

// reachAll returns the conditions of the servers of all staged volumes, each condition once.
func (n *node) reachAll(ctx context.Context, reacher backend.Reacher) ([]backend.Condition, error) {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	mounts := n.records.liveMounts()
	results := make([][]backend.Condition, len(mounts))
	var group errgroup.Group
	group.SetLimit(reachAtOnce)
	for i, m := range mounts {
		group.Go(func() (err error) {
			results[i], err = reacher.Reach(ctx, m)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var conditions []backend.Condition
	for _, more := range results {
		conditions = addConditions(conditions, more)
	}
	return conditions, nil
}

// addConditions returns all with those of more that it does not have.
func addConditions(all, more []backend.Condition) []backend.Condition {
	for _, c := range more {
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// renew gives a published volume the secrets of a repeated publish, if they differ from those that
// the volume was staged with. The kubelet repeats the publish of a volume if its CSIDriver has
// requiresRepublish. A failure is a condition of the volume and never an error of the call: the
// kubelet before kubernetes/kubernetes#121271 removes the target path after an error.
func (n *node) renew(ctx context.Context, req *csi.NodePublishVolumeRequest, vc volumeCapability) {
	path := req.GetStagingTargetPath()
	changed, known := n.renewals.changed(path, req.GetSecrets())
	if !changed {
		return
	}
	vc.Context, vc.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
	vc.PublishContext = req.GetPublishContext()
	vc.ReadOnly = vc.readOnlyMode() // as at the stage
	mount, err := n.mountOf(ctx, req.GetVolumeId(), vc)
	if err == nil && mount.Credentials != (mounter.Credentials{}) {
		err = n.mounter.Mount(ctx, mount, path)
	}
	n.renewed(path, req.GetSecrets(), known, err)
}

// renewed records the result err of a change of the secrets of the mount at a staging path. known
// reports that this process knew the secrets of the mount. The staging record remembers that the
// kernel has kept the old ones: the next process cannot compare them.
func (n *node) renewed(path string, secrets map[string]string, known bool, err error) {
	st, recorded := n.records.recordAt(path)
	kept := errors.Is(err, mounter.ErrCredentials)
	if kept && !known && !st.OldCredentials { // they may be those that the mount has
		kept, err = false, nil
	}
	if recorded && st.OldCredentials != kept && (kept || err == nil) {
		st.OldCredentials = kept
		_, failed := n.records.put(path, st)
		err = errors.Join(err, failed)
	}
	n.renewals.done(path, secrets, err)
}
