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

// method is a unary call of a client C.
type method[C any, Req, Resp proto.Message] func(C, context.Context, Req, ...grpc.CallOption) (Resp, error)

// call makes a call of a node, and returns what that answers. clientOf makes the client of a connection. An error
// has the node's own code if a handler there gave it. Otherwise it is CANCELED or DEADLINE_EXCEEDED if ctx has ended, and
// else UNAVAILABLE: nobody knows what was done. That is so for a call that the node's driver is too old to know, too:
// UNIMPLEMENTED would be final, and soon it will be new.
func call[C any, Req, Resp proto.Message](ctx context.Context, r *Router, n *node, clientOf func(grpc.ClientConnInterface) C, m method[C, Req, Resp], req Req, options ...grpc.CallOption) (Resp, error) {
	n.calls.Add(1)
	defer n.calls.Add(-1)
	start := time.Now()
	var trailer metadata.MD
	resp, err := m(clientOf(n.conn), onward(ctx), req, append(options, grpc.Trailer(&trailer))...)
	if err != nil {
		err = n.judge(ctx, err, trailer)
	} else if lie := n.lies(resp); lie != "" {
		err = status.Errorf(codes.Unavailable, "node %s answered with %s", n, lie)
	}
	r.metrics.count(n.id, status.Code(err), time.Since(start))
	if err != nil {
		var none Resp
		return none, err
	}
	return resp, nil
}

// controllerCall makes a call of a node's Controller service.
func controllerCall[Req, Resp proto.Message](ctx context.Context, r *Router, n *node, m method[csi.ControllerClient, Req, Resp], req Req, options ...grpc.CallOption) (Resp, error) {
	return call(ctx, r, n, csi.NewControllerClient, m, req, options...)
}

// peerCall makes a call of a node's Peer service.
func peerCall[Req, Resp proto.Message](ctx context.Context, r *Router, n *node, m method[peer.PeerClient, Req, Resp], req Req) (Resp, error) {
	return call(ctx, r, n, peer.NewPeerClient, m, req)
}

// maxText is how much of a node's error is handed on, in bytes: it may get into logs and objects.
const maxText = 4 << 10

// lastCode is the highest status code that there is. A node may make up others without end, and each would be counted.
const lastCode = codes.Unauthenticated

// judge returns the error of a call as the router gives it on.
func (n *node) judge(ctx context.Context, err error, trailer metadata.MD) error {
	code, text := status.Code(err), status.Convert(err).Message()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	switch {
	case len(trailer.Get(peer.AnswerKey)) > 0 && code <= lastCode && code != codes.Canceled: // which is this end's word alone
		return status.Error(code, text)
	case ctx.Err() != nil:
		return status.Errorf(status.FromContextError(ctx.Err()).Code(), "node %s: %s", n, text)
	case code == codes.DeadlineExceeded:
		return status.Error(code, text)
	case code == codes.Unimplemented:
		return status.Errorf(codes.Unavailable, "the driver of node %s is too old for this call: %s", n, text)
	}
	return status.Errorf(codes.Unavailable, "node %s: what became of the call is not known: %s", n, text)
}

// onward returns the context of a call that is made because of another one: with its deadline, and with what it said of
// itself, such as the context of a trace. Credentials aren't handed on.
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

// lies returns what is wrong with an answer that speaks of what another node holds, or "".
func (n *node) lies(resp proto.Message) string {
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
			if lie := n.foreign(e.GetVolume().GetVolumeId()); lie != "" {
				return lie
			}
		}
	case *csi.ControllerGetVolumeHealthResponse:
		return n.foreign(r.GetVolumeHealth().GetVolumeId())
	case *csi.ControllerListVolumeHealthResponse:
		for _, e := range r.GetEntries() {
			if lie := n.foreign(e.GetVolumeId()); lie != "" {
				return lie
			}
		}
	case *csi.CreateSnapshotResponse:
		return n.foreign(r.GetSnapshot().GetSnapshotId())
	case *csi.GetSnapshotResponse:
		return n.foreign(r.GetSnapshot().GetSnapshotId())
	case *csi.ListSnapshotsResponse:
		for _, e := range r.GetEntries() {
			if lie := n.foreign(e.GetSnapshot().GetSnapshotId()); lie != "" {
				return lie
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
		if lie := n.foreign(s.GetSnapshotId()); lie != "" {
			return lie
		}
	}
	return ""
}

// foreign returns what is wrong with an ID that a node gave out, or "".
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
