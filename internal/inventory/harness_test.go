package inventory

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// lister is a driver that only lists. It makes pages of two entries at the most.
type lister struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer
	volumes   []*csi.Volume
	snapshots []*csi.Snapshot
	cannot    []csi.ControllerServiceCapability_RPC_Type
	failAt    int32 // the call to a list that fails, from 1 on; 0 is none
	endless   bool  // every page has the same token

	calls atomic.Int32
}

func (l *lister) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, can := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	} {
		if !slices.Contains(l.cannot, can) {
			resp.Capabilities = append(resp.Capabilities,
				&csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
					Rpc: &csi.ControllerServiceCapability_RPC{Type: can},
				}})
		}
	}
	return resp, nil
}

func (l *lister) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "x"}, nil
}

// page returns which of n entries are on the page with a token, and the token of the next.
func (l *lister) page(n int, token string, limit int32) (from, to int, next string, err error) {
	if call := l.calls.Add(1); call == l.failAt {
		return 0, 0, "", status.Error(codes.Unavailable, "node-2 does not answer")
	}
	if token != "" {
		if from, err = strconv.Atoi(token); err != nil {
			return 0, 0, "", status.Error(codes.Aborted, "bad token")
		}
	}
	if to = from + 2; limit == 1 {
		to = from + 1
	}
	if l.endless {
		return 0, min(n, 1), "0", nil
	}
	if to < n {
		return from, to, strconv.Itoa(to), nil
	}
	return from, n, "", nil
}

func (l *lister) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	from, to, next, err := l.page(len(l.volumes), req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range l.volumes[from:to] {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: v})
	}
	return resp, nil
}

func (l *lister) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	from, to, next, err := l.page(len(l.snapshots), req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, s := range l.snapshots[from:to] {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s})
	}
	return resp, nil
}

// serve serves the driver and returns a connection to it.
func (l *lister) serve(t testing.TB) *grpc.ClientConn {
	t.Helper()
	pipe := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, l)
	csi.RegisterIdentityServer(server, l)
	go server.Serve(pipe)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func node(name string) []*csi.Topology {
	return []*csi.Topology{{Segments: map[string]string{"x/node": name}}}
}

var (
	v1, v2, v3 = volumeid.New(volumeid.Volume, "n1", "1"), volumeid.New(volumeid.Volume, "n1",
		"2"), volumeid.New(volumeid.Volume, "n2", "3")
	s1, s2     = volumeid.New(volumeid.Snapshot, "n1", "1"), volumeid.New(volumeid.Snapshot, "n2", "2")
	g1, g2     = volumeid.New(volumeid.Group, "n1", "1"), volumeid.New(volumeid.Group, "n1", "2")
	m1, m2, m3 = volumeid.New(volumeid.Snapshot, "n1", "m1"), volumeid.New(volumeid.Snapshot, "n1",
		"m2"), volumeid.New(volumeid.Snapshot, "n1", "m3")
)

// full is a driver with three volumes, two snapshots, a group of two snapshots and a group of a
// single snapshot.
func full() *lister {
	made := timestamppb.New(when)
	return &lister{
		volumes: []*csi.Volume{
			{VolumeId: v1, CapacityBytes: 1 << 30, AccessibleTopology: node("n1")},
			{VolumeId: v2, CapacityBytes: 2 << 30, AccessibleTopology: node("n1"),
				ContentSource: &csi.VolumeContentSource{
					Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s1}}}},
			{VolumeId: v3, CapacityBytes: 3 << 30, AccessibleTopology: node("n2")},
		},
		snapshots: []*csi.Snapshot{
			{SnapshotId: s1, SourceVolumeId: v1, SizeBytes: 1 << 30, AccessibleTopology: node("n1"),
				CreationTime: made},
			{SnapshotId: s2, SourceVolumeId: v3, SizeBytes: 3 << 30, AccessibleTopology: node("n2"),
				CreationTime: made},
			{SnapshotId: m1, SourceVolumeId: v1, GroupSnapshotId: g1, CreationTime: made},
			{SnapshotId: m2, SourceVolumeId: v2, GroupSnapshotId: g1, CreationTime: made},
			{SnapshotId: m3, SourceVolumeId: v2, GroupSnapshotId: g2, CreationTime: made},
		},
	}
}

var when = time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)
