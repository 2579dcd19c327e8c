package driver

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcheader "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// serveAt serves a server of the driver on a socket of its own, and returns a connection to the
// server.
func (d *testDriver) serveAt(name string, server *grpc.Server) *grpc.ClientConn {
	d.Helper()
	l, address := d.listen(name)
	go server.Serve(l)
	conn, err := grpc.NewClient(address, insecureOption(), grpc.WithAuthority("localhost"))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { conn.Close(); server.Stop() })
	return conn
}

// peers returns a connection to the server for the router.
func (d *testDriver) peers() *grpc.ClientConn {
	return d.serveAt("peer", d.driver.Peer(grpc.Creds(insecure.NewCredentials())))
}

// lock holds a lock of the driver, as a call would, until it is released.
func (d *testDriver) lock(key string) (release func()) {
	d.Helper()
	if busy, ok := d.driver.locks.try([]string{key}); !ok {
		d.Fatalf("%s is held", busy)
	}
	return func() { d.driver.locks.release([]string{key}) }
}

func TestEachServerHasItsServices(t *testing.T) {
	d := startDriver(t)
	ctx := context.Background()
	calls := map[string]func(conn *grpc.ClientConn) error{
		"Identity": func(conn *grpc.ClientConn) error {
			_, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
			return err
		},
		"Controller": func(conn *grpc.ClientConn) error {
			_, err := csi.NewControllerClient(conn).ListVolumes(ctx, &csi.ListVolumesRequest{})
			return err
		},
		"GroupController": func(conn *grpc.ClientConn) error {
			_, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(ctx,
				&csi.GroupControllerGetCapabilitiesRequest{})
			return err
		},
		"NodeGetInfo": func(conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
			return err
		},
		"NodeGetCapabilities": func(conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
			return err
		},
		"Peer": func(conn *grpc.ClientConn) error {
			_, err := peer.NewPeerClient(conn).Locate(ctx,
				&peer.LocateRequest{Create: &csi.CreateVolumeRequest{Name: "v"}})
			return err
		},
	}
	for name, tc := range map[string]struct {
		conn *grpc.ClientConn
		has  []string
	}{
		"kubelet": {d.serveAt("kubelet", d.driver.Kubelet()), []string{"Identity", "NodeGetInfo", "NodeGetCapabilities"}},
		"controller": {d.serveAt("controller", d.driver.Controller()),
			[]string{"Identity", "Controller", "GroupController"}},
		"peer": {d.peers(), []string{"Identity", "Controller", "GroupController", "NodeGetInfo", "Peer"}},
		"all": {d.conn, []string{"Identity", "Controller", "GroupController", "NodeGetInfo",
			"NodeGetCapabilities"}},
	} {
		t.Run(name, func(t *testing.T) {
			has := map[string]bool{}
			for _, service := range tc.has {
				has[service] = true
			}
			for service, call := range calls {
				want := codes.OK
				if !has[service] {
					want = codes.Unimplemented
				}
				if err := call(tc.conn); status.Code(err) != want {
					t.Errorf("%s: %v, want %s", service, err, want)
				}
			}
			plugin, err := csi.NewIdentityClient(tc.conn).GetPluginCapabilities(context.Background(),
				&csi.GetPluginCapabilitiesRequest{})
			services := map[csi.PluginCapability_Service_Type]bool{}
			for _, c := range plugin.GetCapabilities() {
				services[c.GetService().GetType()] = true
			}
			if err != nil || services[csi.PluginCapability_Service_CONTROLLER_SERVICE] != has["Controller"] ||
				!services[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] {
				t.Errorf("the advertised services are %v, %v", services, err)
			}
		})
	}
}

// TestAControllerMountsNothing: if the storage of a backend is central, its controller plugin needs
// no mounter.
func TestAControllerMountsNothing(t *testing.T) {
	d := startDriver(t, inMemory)
	alone, err := New(Config{
		Name: testName, Release: "test", Node: "controller", Backend: d.memory, StateDir: filepath.Join(d.dir, "none"),
		Log: newTestLogger(d.log), Registry: newRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := d.serveAt("alone", alone.Controller())
	resp, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), createRequest("v"))
	if err != nil {
		t.Fatal(err)
	}
	v := &volume{testDriver: d, id: resp.GetVolume().GetVolumeId(), capability: capability(sharedMode),
		staging: d.path("staging")}
	d.makeDir(v.staging)
	if err := v.stage(); err != nil { // by the other driver
		t.Error(err)
	}
	if err := v.unstage(); err != nil {
		t.Error(err)
	}
	if _, err := csi.NewNodeClient(conn).NodeGetInfo(context.Background(),
		&csi.NodeGetInfoRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("NodeGetInfo = %v", err)
	}
	if err := alone.Close(); err != nil {
		t.Error(err)
	}
}

func (d *testDriver) makeDir(path string) {
	d.Helper()
	if err := os.MkdirAll(path, 0o750); err != nil {
		d.Fatal(err)
	}
}

// TestAPeersAnswersAreMarked: the router distinguishes replies of a node from errors of the
// transport.
func TestAPeersAnswersAreMarked(t *testing.T) {
	d := startDriver(t)
	conn := d.peers()
	for name, call := range map[string]func(option grpc.CallOption) error{
		"a response": func(option grpc.CallOption) error {
			_, err := csi.NewControllerClient(conn).ListVolumes(context.Background(), &csi.ListVolumesRequest{}, option)
			return err
		},
		"an error": func(option grpc.CallOption) error {
			_, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), &csi.CreateVolumeRequest{},
				option)
			return err
		},
		"an error of a lock": func(option grpc.CallOption) error {
			defer d.lock("name v")()
			_, err := csi.NewControllerClient(conn).CreateVolume(context.Background(),
				&csi.CreateVolumeRequest{Name: "v"}, option)
			return err
		},
		"a stream": func(option grpc.CallOption) error {
			stream, err := csi.NewSnapshotMetadataClient(conn).GetMetadataAllocated(context.Background(),
				&csi.GetMetadataAllocatedRequest{}, option)
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	} {
		var trailer grpcheader.MD
		err := call(grpc.Trailer(&trailer))
		if len(trailer.Get(peer.AnswerKey)) != 1 {
			t.Errorf("%s (%v): the trailer is %v", name, err, trailer)
		}
	}
	var trailer grpcheader.MD
	err := conn.Invoke(context.Background(), "/csi.v1.Controller/Unheard", &csi.ProbeRequest{}, &csi.ProbeResponse{},
		grpc.Trailer(&trailer))
	if status.Code(err) != codes.Unimplemented || len(trailer.Get(peer.AnswerKey)) > 0 {
		t.Errorf("an unknown call: %v, %v", err, trailer)
	}
}

func TestLocate(t *testing.T) {
	d := startDriver(t)
	client := peer.NewPeerClient(d.peers())
	locate := func(req *csi.CreateVolumeRequest) (*peer.LocateResponse, error) {
		return client.Locate(context.Background(), &peer.LocateRequest{Create: req})
	}
	req := func(name string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability(sharedMode)}}
	}
	d.create("v", capability(sharedMode))
	got, err := locate(req("v"))
	if want := volumeid.New(volumeid.Volume, d.node, "v"); err != nil || got.GetVolumeId() != want ||
		got.GetRoom() != nil {
		t.Errorf("an existing volume: %v, %v", got, err)
	}
	got, err = locate(req("w"))
	if err != nil || got.GetVolumeId() != "" || got.GetRoom().GetAvailableCapacity() <= 0 ||
		got.GetRoom().GetMaximumVolumeSize().GetValue() <= 0 {
		t.Errorf("a missing volume: %v, %v", got, err)
	}
	_, err = locate(req(""))
	d.want(codes.InvalidArgument, err)
	unknown := req("w")
	unknown.Parameters = map[string]string{"no": "such"}
	_, err = locate(unknown)
	d.want(codes.InvalidArgument, err)
	release := d.lock("name w")
	_, err = locate(req("w"))
	d.want(codes.Aborted, err)
	release()
	if _, err = locate(req("w")); err != nil {
		t.Error(err)
	}
}

func TestStepsOutOfOrder(t *testing.T) {
	d := startDriver(t, inMemory, onOneNode)
	client := peer.NewPeerClient(d.peers())
	v := d.create("v", capability(sharedMode))
	begin := func() *peer.SnapshotPartRequest {
		return &peer.SnapshotPartRequest{
			Step: peer.SnapshotPartRequest_BEGIN, Cut: "1", VolumeIds: []string{v.id},
			Group: &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{v.id}},
		}
	}
	step := func(s peer.SnapshotPartRequest_Step) *peer.SnapshotPartRequest {
		return &peer.SnapshotPartRequest{Step: s}
	}
	noName, noCut := begin(), begin()
	noName.Group.Name, noCut.Cut = "", ""
	for name, tc := range map[string]struct {
		steps []*peer.SnapshotPartRequest
		code  codes.Code
	}{
		"nothing":   {nil, codes.Internal}, // the error of gRPC for a stream without a message
		"CUT first": {[]*peer.SnapshotPartRequest{step(peer.SnapshotPartRequest_CUT)}, codes.InvalidArgument},
		"no name":   {[]*peer.SnapshotPartRequest{noName}, codes.InvalidArgument},
		"no cut":    {[]*peer.SnapshotPartRequest{noCut}, codes.InvalidArgument},
		"COMMIT before CUT": {[]*peer.SnapshotPartRequest{begin(), step(peer.SnapshotPartRequest_COMMIT)},
			codes.InvalidArgument},
		"BEGIN twice": {[]*peer.SnapshotPartRequest{begin(), begin()}, codes.InvalidArgument},
		"abandoned after CUT": {[]*peer.SnapshotPartRequest{begin(), step(peer.SnapshotPartRequest_CUT)},
			codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := client.SnapshotPart(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range tc.steps {
				if err := stream.Send(s); err != nil {
					break
				}
			}
			stream.CloseSend()
			for err == nil {
				_, err = stream.Recv()
			}
			if tc.steps == nil {
				if err == nil || status.Code(err) == codes.OK {
					t.Errorf("got %v", err)
				}
			} else if status.Code(err) != tc.code {
				t.Errorf("got %v, want %s", err, tc.code)
			}
			if ids := d.listSnapshots(&csi.ListSnapshotsRequest{}); len(ids) > 0 {
				t.Errorf("there are the snapshots %q", ids)
			}
		})
	}
}
