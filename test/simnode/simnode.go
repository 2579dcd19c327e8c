// Package simnode simulates nodes for tests and benchmarks of the router. Each answers from memory,
// as a driver with storage of its own does, and there can be hundreds in a process. The package
// implements the calls of a router, and none of Node.
package simnode

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Node is a simulated node.
type Node struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	peer.UnimplementedPeerServer

	driver, name string
	topology     []*csi.Topology
	room         int64

	mu  sync.Mutex
	ids []string // of volumes, in order
}

// New returns a node of a driver that holds so many volumes, and has room bytes left.
func New(driver, name string, volumes int, room int64) *Node {
	n := &Node{driver: driver, name: name, room: room}
	n.topology = []*csi.Topology{{Segments: map[string]string{driver + "/node": volumeid.Segment(name)}}}
	for i := range volumes {
		n.ids = append(n.ids, volumeid.New(volumeid.Volume, name, fmt.Sprint("volume-", i)))
	}
	slices.Sort(n.ids)
	return n
}

// Serve answers at l until the server that it returns is stopped.
func (n *Node) Serve(l net.Listener, creds credentials.TransportCredentials) *grpc.Server {
	mark := metadata.Pairs(peer.AnswerKey, "1")
	server := grpc.NewServer(grpc.Creds(creds),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(peer.WriteBuffer),
		// The policy of pkg/driver: the router pings connections without a call, too.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			grpc.SetTrailer(ctx, mark)
			return handler(ctx, req)
		}))
	csi.RegisterIdentityServer(server, n)
	csi.RegisterControllerServer(server, n)
	csi.RegisterNodeServer(server, n)
	peer.RegisterPeerServer(server, n)
	go server.Serve(l)
	return server
}

// IDs returns the IDs of the volumes that it holds.
func (n *Node) IDs() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ids)
}

// GetPluginInfo is csi.IdentityServer.
func (n *Node) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: n.driver, VendorVersion: "simulated"}, nil
}

// NodeGetInfo is csi.NodeServer.
func (n *Node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: volumeid.NodeID(n.name), AccessibleTopology: n.topology[0]}, nil
}

func (n *Node) volume(id string) *csi.Volume {
	return &csi.Volume{VolumeId: id, CapacityBytes: 1 << 30, AccessibleTopology: n.topology}
}

// CreateVolume is csi.ControllerServer.
func (n *Node) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	id := volumeid.New(volumeid.Volume, n.name, req.GetName())
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, found := slices.BinarySearch(n.ids, id); !found {
		n.ids = slices.Insert(n.ids, i, id)
	}
	return &csi.CreateVolumeResponse{Volume: n.volume(id)}, nil
}

// DeleteVolume is csi.ControllerServer.
func (n *Node) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, found := slices.BinarySearch(n.ids, req.GetVolumeId()); found {
		n.ids = slices.Delete(n.ids, i, i+1)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerGetVolume is csi.ControllerServer.
func (n *Node) ControllerGetVolume(_ context.Context,
	req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, found := slices.BinarySearch(n.ids, req.GetVolumeId()); !found {
		return nil, status.Errorf(codes.NotFound, "volume %q", req.GetVolumeId())
	}
	return &csi.ControllerGetVolumeResponse{Volume: n.volume(req.GetVolumeId()),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// ListVolumes is csi.ControllerServer. A token is the last ID of the previous page.
func (n *Node) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, found := slices.BinarySearch(n.ids, req.GetStartingToken())
	if found {
		at++
	}
	end := len(n.ids)
	if limit := int(req.GetMaxEntries()); limit > 0 {
		end = min(at+limit, end)
	}
	resp := &csi.ListVolumesResponse{}
	for _, id := range n.ids[at:end] {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: n.volume(id)})
	}
	if end < len(n.ids) && end > 0 {
		resp.NextToken = n.ids[end-1]
	}
	return resp, nil
}

// GetCapacity is csi.ControllerServer.
func (n *Node) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: n.room, MaximumVolumeSize: wrapperspb.Int64(n.room)}, nil
}

// Locate is peer.PeerServer.
func (n *Node) Locate(ctx context.Context, req *peer.LocateRequest) (*peer.LocateResponse, error) {
	id := volumeid.New(volumeid.Volume, n.name, req.GetCreate().GetName())
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, found := slices.BinarySearch(n.ids, id); found {
		return &peer.LocateResponse{VolumeId: id}, nil
	}
	room, err := n.GetCapacity(ctx, nil)
	return &peer.LocateResponse{Room: room}, err
}
