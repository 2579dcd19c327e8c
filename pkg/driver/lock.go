package driver

import (
	"context"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// locks prevents concurrent changes of a volume, snapshot, group snapshot or path. The second call
// does not wait, but fails with ABORTED, and the CO retries it (CSI spec v1.13, concurrency).
type locks struct {
	mu   sync.Mutex
	held map[string]struct{}
}

func newLocks() *locks { return &locks{held: map[string]struct{}{}} }

// lockKeys returns keys for the objects that a call changes.
//
// A call that creates an object from a volume or a snapshot does not lock the source: a copy may
// take long, and pods use the source meanwhile. The backend keeps the source unchanged as long as
// necessary, and prevents its deletion.
//
// Some calls change nothing and may run at any time, so they take no lock: GetPluginInfo, Probe and
// the capabilities, which concern no volume; ValidateVolumeCapabilities, ControllerGetVolume,
// GetSnapshot, GetVolumeGroupSnapshot, GetPart, the list calls, GetCapacity and the health calls,
// which read; NodeGetVolumeStats, which reads from the kernel; NodeGetInfo; GetMetadataAllocated
// and GetMetadataDelta, which read immutable data for a long time.
func lockKeys(req any) []string {
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		return []string{"name " + r.GetName()}
	case *peer.LocateRequest: // reads, but not while a volume with this name is being created
		return []string{"name " + r.GetCreate().GetName()}
	case *csi.DeleteVolumeRequest:
		return []string{"volume " + r.GetVolumeId()}
	case *csi.CreateSnapshotRequest:
		return []string{"snapshot name " + r.GetName()}
	case *csi.DeleteSnapshotRequest:
		return []string{"snapshot " + r.GetSnapshotId()}
	case *csi.CreateVolumeGroupSnapshotRequest:
		return []string{"group name " + r.GetName()}
	case *peer.SnapshotPartRequest:
		return []string{"group name " + r.GetGroup().GetName()}
	case *peer.SettlePartRequest:
		return []string{"group " + r.GetGroupSnapshotId()}
	case *peer.DiscardPartRequest:
		return []string{"group " + r.GetGroupSnapshotId()}
	case *csi.DeleteVolumeGroupSnapshotRequest:
		return []string{"group " + r.GetGroupSnapshotId()}
	case *csi.ControllerExpandVolumeRequest:
		return []string{"volume " + r.GetVolumeId()}
	case *csi.ControllerModifyVolumeRequest:
		return []string{"volume " + r.GetVolumeId()}
	case *csi.NodeExpandVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetVolumePath()}
	case *csi.ControllerPublishVolumeRequest: // for all nodes: a node with the volume can exclude other nodes
		return []string{"volume " + r.GetVolumeId()}
	case *csi.ControllerUnpublishVolumeRequest:
		return []string{"volume " + r.GetVolumeId()}
	case *csi.NodeStageVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetStagingTargetPath()}
	case *csi.NodeUnstageVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetStagingTargetPath()}
	case *csi.NodePublishVolumeRequest:
		keys := []string{"volume " + r.GetVolumeId(), "path " + r.GetTargetPath()}
		if r.GetStagingTargetPath() != "" { // inline volumes have no staging path
			keys = append(keys, "path "+r.GetStagingTargetPath())
		}
		return keys
	case *csi.NodeUnpublishVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetTargetPath()}
	}
	return nil
}

// intercept holds the locks of a call while it runs.
func (l *locks) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	keys := lockKeys(req)
	if busy, ok := l.try(keys); !ok {
		return nil, fmt.Errorf("%w for %.200q", backend.ErrBusy, busy)
	}
	defer l.release(keys)
	return handler(ctx, req)
}

// try locks all keys, or none. If a key is locked, try returns that key.
func (l *locks) try(keys []string) (busy string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		if _, ok := l.held[k]; ok {
			return k, false
		}
	}
	for _, k := range keys {
		l.held[k] = struct{}{}
	}
	return "", true
}

func (l *locks) release(keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		delete(l.held, k)
	}
}
