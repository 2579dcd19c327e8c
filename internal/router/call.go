package router

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// method is a unary RPC of a client C.
type method[C any, Req, Resp proto.Message] func(C, context.Context, Req, ...grpc.CallOption) (Resp, error)

// call calls a node and returns its answer. clientOf makes a client for a connection. An error of a
// handler on the node keeps its code. Any other error is CANCELED or DEADLINE_EXCEEDED if ctx has
// ended, and else UNAVAILABLE, as the outcome is unknown. A call that the node's driver does not
// know is also UNAVAILABLE: UNIMPLEMENTED would be final, and an update of the node will end soon.
func call[C any, Req, Resp proto.Message](ctx context.Context, r *Router, n *node,
	clientOf func(grpc.ClientConnInterface) C, m method[C, Req, Resp], req Req,
	options ...grpc.CallOption) (Resp, error) {
	n.calls.Add(1)
	defer n.calls.Add(-1)
	start := time.Now()
	var trailer metadata.MD
	resp, err := m(clientOf(n.conn), onward(ctx), req, append(options, grpc.Trailer(&trailer))...)
	if err != nil {
		err = n.judge(ctx, err, trailer)
	} else if foreign := n.foreignContent(resp); foreign != "" {
		err = status.Errorf(codes.Unavailable, "node %s answered with %s", n, foreign)
	}
	r.metrics.count(n.id, status.Code(err), time.Since(start))
	if err != nil {
		var none Resp
		return none, err
	}
	return resp, nil
}

// controllerCall makes a call of a node's Controller service.
func controllerCall[Req, Resp proto.Message](ctx context.Context, r *Router, n *node,
	m method[csi.ControllerClient, Req, Resp], req Req, options ...grpc.CallOption) (Resp, error) {
	return call(ctx, r, n, csi.NewControllerClient, m, req, options...)
}

// peerCall makes a call of a node's Peer service.
func peerCall[Req, Resp proto.Message](ctx context.Context, r *Router, n *node,
	m method[peer.PeerClient, Req, Resp], req Req) (Resp, error) {
	return call(ctx, r, n, peer.NewPeerClient, m, req)
}

// maxText is the length of a node's error message that the router passes on, in bytes: the message
// gets into logs and objects.
const maxText = 4 << 10

// lastCode is the highest status code of gRPC. A node could invent other codes without end, and
// each would be a metric.
const lastCode = codes.Unauthenticated

// judge returns the error that the router returns for an error of a call.
func (n *node) judge(ctx context.Context, err error, trailer metadata.MD) error {
	code, text := status.Code(err), status.Convert(err).Message()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	switch {
	case len(trailer.Get(peer.AnswerKey)) > 0 && code <= lastCode && code != codes.Canceled: // only this end cancels
		return status.Error(code, text)
	case ctx.Err() != nil:
		return status.Errorf(status.FromContextError(ctx.Err()).Code(), "node %s: %s", n, text)
	case code == codes.DeadlineExceeded:
		return status.Error(code, text)
	case code == codes.Unimplemented:
		return status.Errorf(codes.Unavailable, "the driver of node %s is too old for this call: %s", n, text)
	}
	return status.Errorf(codes.Unavailable, "node %s: the outcome of the call is not known: %s", n, text)
}

// onward returns the context of a call to a node: with the deadline and the metadata of the call
// that the router serves, such as the trace context, and without credentials.
func onward(ctx context.Context) context.Context {
	in, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	out := metadata.MD{}
	for key, values := range in {
		switch {
		case strings.HasPrefix(key, ":"), strings.HasPrefix(key, "grpc-"):
		case key == "content-type", key == "user-agent", key == "te", key == "authorization":
		default:
			out[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// foreignContent describes the part of an answer that belongs to another node. foreignContent
// returns "" if there is none.
func (n *node) foreignContent(resp proto.Message) string {
	switch r := resp.(type) {
	case *csi.CreateVolumeResponse:
		for _, t := range r.GetVolume().GetAccessibleTopology() {
			if !n.in(t) {
				return fmt.Sprintf("the topology %.200s, which is another node's", describeTopology(t))
			}
		}
		return n.foreign(r.GetVolume().GetVolumeId())
	case *csi.ControllerGetVolumeResponse:
		return n.foreign(r.GetVolume().GetVolumeId())
	case *csi.ListVolumesResponse:
		for _, e := range r.GetEntries() {
			if foreign := n.foreign(e.GetVolume().GetVolumeId()); foreign != "" {
				return foreign
			}
		}
	case *csi.ControllerGetVolumeHealthResponse:
		return n.foreign(r.GetVolumeHealth().GetVolumeId())
	case *csi.ControllerListVolumeHealthResponse:
		for _, e := range r.GetEntries() {
			if foreign := n.foreign(e.GetVolumeId()); foreign != "" {
				return foreign
			}
		}
	case *csi.CreateSnapshotResponse:
		return n.foreign(r.GetSnapshot().GetSnapshotId())
	case *csi.GetSnapshotResponse:
		return n.foreign(r.GetSnapshot().GetSnapshotId())
	case *csi.ListSnapshotsResponse:
		for _, e := range r.GetEntries() {
			if foreign := n.foreign(e.GetSnapshot().GetSnapshotId()); foreign != "" {
				return foreign
			}
		}
	case *peer.LocateResponse:
		if r.GetVolumeId() != "" {
			return n.foreign(r.GetVolumeId())
		}
	case *csi.CreateVolumeGroupSnapshotResponse:
		return n.foreignGroup(r.GetGroupSnapshot())
	case *csi.GetVolumeGroupSnapshotResponse:
		return n.foreignGroup(r.GetGroupSnapshot())
	case *peer.Part:
		return n.foreignMembers(r.GetGroup())
	}
	return ""
}

func (n *node) foreignGroup(group *csi.VolumeGroupSnapshot) string {
	return cmp.Or(n.foreign(group.GetGroupSnapshotId()), n.foreignMembers(group))
}

func (n *node) foreignMembers(group *csi.VolumeGroupSnapshot) string {
	for _, s := range group.GetSnapshots() {
		if foreign := n.foreign(s.GetSnapshotId()); foreign != "" {
			return foreign
		}
	}
	return ""
}

// foreign describes an ID that is not one of the node's. foreign returns "" for an ID of the node.
func (n *node) foreign(id string) string {
	parsed, err := volumeid.Parse(id)
	if err != nil {
		return "the malformed ID " + strings.ToValidUTF8(id[:min(len(id), 128)], "?")
	}
	for _, d := range n.digests {
		if parsed.Node == d {
			return ""
		}
	}
	return "the ID " + id + ", which is another node's"
}
