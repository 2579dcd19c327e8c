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

// locks keeps two calls from changing the same volume, snapshot, group or path at the same time. The second one doesn't wait: it is
// ABORTED, and the CO retries it (CSI spec v1.13, concurrency).
type locks struct {
	mu   sync.Mutex
	held map[string]struct{}
}

func newLocks() *locks { return &locks{held: map[string]struct{}{}} }

// lockKeys returns what a call changes.
//
// A call that makes something of a volume or a snapshot keeps nobody from that source: a copy may take long, and pods
// go on meanwhile. The backend sees to it that the source holds still as long as it must, and isn't deleted.
//
// These take no lock, since they change nothing and may come while anything goes on: GetPluginInfo, Probe and the
// capabilities, which know no volume; ValidateVolumeCapabilities, ControllerGetVolume, GetSnapshot, GetVolumeGroupSnapshot,
// the lists, GetCapacity and the health calls, which read; NodeGetVolumeStats, which asks the kernel; NodeGetInfo;
// GetMetadataAllocated and GetMetadataDelta, which read what never changes, for long; GetPart, which reads.
func lockKeys(req any) []string {
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		return []string{"name " + r.GetName()}
	case *peer.LocateRequest: // changes nothing, but must not run while a volume of that name is being made
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
	case *csi.ControllerPublishVolumeRequest: // for all nodes: one that is attached decides about another
		return []string{"volume " + r.GetVolumeId()}
	case *csi.ControllerUnpublishVolumeRequest:
		return []string{"volume " + r.GetVolumeId()}
	case *csi.NodeStageVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetStagingTargetPath()}
	case *csi.NodeUnstageVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetStagingTargetPath()}
	case *csi.NodePublishVolumeRequest:
		keys := []string{"volume " + r.GetVolumeId(), "path " + r.GetTargetPath()}
		if r.GetStagingTargetPath() != "" { // which an inline volume has not
			keys = append(keys, "path "+r.GetStagingTargetPath())
		}
		return keys
	case *csi.NodeUnpublishVolumeRequest:
		return []string{"volume " + r.GetVolumeId(), "path " + r.GetTargetPath()}
	}
	return nil
}

// intercept holds the locks of a call while it runs.
func (l *locks) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	keys := lockKeys(req)
	if busy, ok := l.try(keys); !ok {
		return nil, fmt.Errorf("%w for %.200q", backend.ErrBusy, busy)
	}
	defer l.release(keys)
	return handler(ctx, req)
}

// try takes all of keys or none. If one is held, it returns that.
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
