package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	header "google.golang.org/grpc/metadata"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// The services that a node with storage of its own offers to its router over the network: see
// internal/peer and internal/router.

// peerAge is the maximum age of a connection from the router. The router replaces its connections
// well before that age. So the limit ends connections of a client whose certificate is no longer
// valid.
const peerAge = time.Hour

// minPing is the minimum time between two keepalive pings of the router.
const minPing = 5 * time.Second

// peerOptions returns the options of a server for the router.
func peerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.WriteBufferSize(peer.WriteBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: peerAge, Time: 30 * time.Second,
			Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// markAnswers adds a trailer to every reply, errors included. A reply without this trailer came
// from the transport, not from a handler, and does not show whether the call had an effect.
func markAnswers(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	grpc.SetTrailer(ctx, answerMark) // fails only outside of a call
	return resp, err
}

var answerMark = header.Pairs(peer.AnswerKey, "1")

// nodeInfo is the Node service for the router, with NodeGetInfo only.
type nodeInfo struct {
	csi.UnimplementedNodeServer
	node *node
}

func (s nodeInfo) NodeGetInfo(ctx context.Context, req *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return s.node.NodeGetInfo(ctx, req)
}

func (d *Driver) registerPeer(server *grpc.Server) {
	csi.RegisterNodeServer(server, nodeInfo{node: d.node})
	if local, ok := d.cfg.Backend.(backend.NodeLocal); ok {
		peer.RegisterPeerServer(server, &peerService{controller: d.controller, node: local.Node()})
	}
}

// peerService is the Peer service of a backend whose storage is on this node.
type peerService struct {
	peer.UnimplementedPeerServer
	controller *controller
	node       string
}

// Locate runs with the lock of the name, so it does not miss a volume that is being created.
func (p *peerService) Locate(ctx context.Context, req *peer.LocateRequest) (*peer.LocateResponse, error) {
	create := req.GetCreate()
	if err := required("name", create.GetName()); err != nil {
		return nil, err
	}
	id := volumeid.New(volumeid.Volume, p.node, create.GetName())
	switch _, err := p.controller.backend.Get(ctx, id, nil); {
	case err == nil:
		return &peer.LocateResponse{VolumeId: id}, nil
	case !errors.Is(err, backend.ErrNotFound):
		return nil, fmt.Errorf("look for the volume %q: %w", create.GetName(), err)
	}
	if !is[backend.CapacityReporter](p.controller.backend) {
		return &peer.LocateResponse{}, nil
	}
	capacity, err := p.controller.GetCapacity(ctx, &csi.GetCapacityRequest{
		VolumeCapabilities: create.GetVolumeCapabilities(), Parameters: create.GetParameters(),
	})
	if err != nil {
		return nil, err
	}
	return &peer.LocateResponse{Room: capacity}, nil
}

// parts returns the backend as a PartSnapshotter.
func (p *peerService) parts() (backend.PartSnapshotter, error) {
	parts, ok := p.controller.backend.(backend.PartSnapshotter)
	if !ok {
		return nil, fmt.Errorf("%w: parts of a group snapshot", errors.ErrUnsupported)
	}
	return parts, nil
}

// SnapshotPart creates a part of a group snapshot, in the steps that the router sends.
func (p *peerService) SnapshotPart(stream peer.Peer_SnapshotPartServer) error {
	parts, err := p.parts()
	if err != nil {
		return err
	}
	begin, err := stream.Recv()
	if err != nil {
		return err
	}
	if begin.GetStep() != peer.SnapshotPartRequest_BEGIN {
		return fmt.Errorf("%w: the first step is %s, must be BEGIN", backend.ErrInvalid, begin.GetStep())
	}
	o, err := groupOptions(begin.GetGroup())
	if err != nil {
		return err
	}
	s := steps{stream: stream, done: peer.SnapshotPartRequest_BEGIN}
	part, err := parts.SnapshotPart(stream.Context(), backend.PartOptions{
		GroupOptions: o, All: begin.GetVolumeIds(), AttemptID: begin.GetCut(),
		Frozen:  func(ctx context.Context) error { return s.next(ctx, peer.SnapshotPartRequest_CUT) },
		Durable: func(ctx context.Context) error { return s.next(ctx, peer.SnapshotPartRequest_COMMIT) },
	})
	if err != nil {
		return fmt.Errorf("part of group snapshot %q: %w", o.Name, err)
	}
	return stream.Send(&peer.SnapshotPartResponse{Done: peer.SnapshotPartRequest_COMMIT, Part: p.part(part)})
}

// steps tracks the steps of a part.
type steps struct {
	stream peer.Peer_SnapshotPartServer
	done   peer.SnapshotPartRequest_Step
}

// next reports that a step is done, and waits for the next step, which must be want. Errors: the
// cause of ctx; ErrUnavailable if the router has ended the stream.
func (s *steps) next(ctx context.Context, want peer.SnapshotPartRequest_Step) error {
	if err := s.stream.Send(&peer.SnapshotPartResponse{Done: s.done}); err != nil {
		return err
	}
	type received struct {
		req *peer.SnapshotPartRequest
		err error
	}
	got := make(chan received, 1)
	go func() { // ends at the latest with the stream
		req, err := guard.Value(s.stream.Recv)
		got <- received{req, err}
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case r := <-got:
		switch {
		case errors.Is(r.err, io.EOF):
			return fmt.Errorf("%w: the router has abandoned the group snapshot", backend.ErrUnavailable)
		case r.err != nil:
			return r.err
		case r.req.GetStep() != want:
			return fmt.Errorf("%w: unexpected step %s after %s", backend.ErrInvalid, r.req.GetStep(), s.done)
		}
	}
	s.done = want
	return nil
}

func (p *peerService) GetPart(ctx context.Context, req *peer.GetPartRequest) (*peer.Part, error) {
	parts, err := p.parts()
	if err != nil {
		return nil, err
	}
	part, err := parts.GetPart(ctx, req.GetGroupSnapshotId())
	if err != nil {
		return nil, fmt.Errorf("get part of group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return p.part(part), nil
}

func (p *peerService) SettlePart(ctx context.Context, req *peer.SettlePartRequest) (*peer.SettlePartResponse, error) {
	parts, err := p.parts()
	if err != nil {
		return nil, err
	}
	if err := parts.CommitPart(ctx, req.GetGroupSnapshotId(), req.GetCut()); err != nil {
		return nil, fmt.Errorf("commit part of group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return &peer.SettlePartResponse{}, nil
}

func (p *peerService) DiscardPart(ctx context.Context,
	req *peer.DiscardPartRequest) (*peer.DiscardPartResponse, error) {
	parts, err := p.parts()
	if err != nil {
		return nil, err
	}
	if err := parts.DiscardPart(ctx, req.GetGroupSnapshotId(), req.GetCut()); err != nil {
		return nil, fmt.Errorf("discard part of group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return &peer.DiscardPartResponse{}, nil
}

// part converts a part to the message for the router.
func (p *peerService) part(part backend.Part) *peer.Part {
	return &peer.Part{
		Group: p.controller.topology.group(part.Group), VolumeIds: part.All, Cut: part.AttemptID,
		Settled: part.Committed,
	}
}
