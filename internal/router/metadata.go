package router

import (
	"errors"
	"io"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// snapshotMetadata is the SnapshotMetadata service. CSI spec v1.13, Snapshot Metadata Service RPCs.
type snapshotMetadata struct {
	csi.UnimplementedSnapshotMetadataServer
	*Router
}

func (m *snapshotMetadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest,
	out csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	n, err := m.nodeOf("snapshot ID", req.GetSnapshotId())
	if err != nil {
		return err
	}
	return pass(m.Router, n, out, func() (grpc.ServerStreamingClient[csi.GetMetadataAllocatedResponse], error) {
		return csi.NewSnapshotMetadataClient(n.conn).GetMetadataAllocated(onward(out.Context()), req)
	})
}

// GetMetadataDelta goes to the node of the target snapshot, which returns NOT_FOUND for a base on
// another node.
func (m *snapshotMetadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest,
	out csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	n, err := m.nodeOf("target snapshot ID", req.GetTargetSnapshotId())
	if err != nil {
		return err
	}
	return pass(m.Router, n, out, func() (grpc.ServerStreamingClient[csi.GetMetadataDeltaResponse], error) {
		return csi.NewSnapshotMetadataClient(n.conn).GetMetadataDelta(onward(out.Context()), req)
	})
}

// pass forwards the messages of a node's stream, as fast as the caller reads them.
func pass[T any](r *Router, n *node, out grpc.ServerStreamingServer[T],
	open func() (grpc.ServerStreamingClient[T], error)) (err error) {
	n.calls.Add(1)
	defer n.calls.Add(-1)
	start := time.Now()
	defer func() { r.metrics.count(n.id, status.Code(err), time.Since(start)) }()
	in, err := open()
	if err != nil {
		return n.judge(out.Context(), err, nil)
	}
	for {
		message, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return n.judge(out.Context(), err, in.Trailer())
		}
		if err := out.Send(message); err != nil {
			return err
		}
	}
}
