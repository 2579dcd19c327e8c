package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// cleanPaths returns an interceptor that brings the paths of a request into the one form of a
// mounter. It runs before the locks, whose keys are paths. A path that the mounter rejects stays as
// it is: the handler first checks the other fields of the request.
func cleanPaths(c mounter.PathCleaner) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, path := range pathFields(req) {
			if clean, err := c.CleanPath(*path); err == nil {
				*path = clean
			}
		}
		return handler(ctx, req)
	}
}

// pathFields returns the fields of a request that are paths of this node.
func pathFields(req any) []*string {
	switch r := req.(type) {
	case *csi.NodeStageVolumeRequest:
		return []*string{&r.StagingTargetPath}
	case *csi.NodeUnstageVolumeRequest:
		return []*string{&r.StagingTargetPath}
	case *csi.NodePublishVolumeRequest:
		return []*string{&r.StagingTargetPath, &r.TargetPath}
	case *csi.NodeUnpublishVolumeRequest:
		return []*string{&r.TargetPath}
	case *csi.NodeExpandVolumeRequest:
		return []*string{&r.VolumePath, &r.StagingTargetPath}
	case *csi.NodeGetVolumeStatsRequest:
		return []*string{&r.VolumePath, &r.StagingTargetPath}
	case *csi.NodeGetVolumeHealthRequest:
		return []*string{&r.VolumePublishPath, &r.StagingTargetPath}
	}
	return nil
}
