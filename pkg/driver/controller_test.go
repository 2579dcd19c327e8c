package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

func TestCreateVolumeRequests(t *testing.T) {
	block := device(sharedMode)
	withCapabilities := func(capabilities ...*csi.VolumeCapability) func(*csi.CreateVolumeRequest) {
		return func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = capabilities }
	}
	withRange := func(required, limit int64) func(*csi.CreateVolumeRequest) {
		return func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
		}
	}
	withParameter := func(key, value string) func(*csi.CreateVolumeRequest) {
		return func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{key: value} }
	}
	mount := func(change func(*csi.VolumeCapability_MountVolume)) *csi.VolumeCapability {
		c := capability(sharedMode)
		change(c.GetMount())
		return c
	}
	for name, tc := range map[string]struct {
		change  func(*csi.CreateVolumeRequest)
		code    codes.Code
		wantErr string
	}{
		"a request of Kubernetes": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{
				"kind": "directory", "csi.storage.k8s.io/pvc/name": "claim", "csi.storage.k8s.io/fstype": "",
				"csi.storage.k8s.io/provisioner-secret-name": "s", "storage.kubernetes.io/csiProvisionerIdentity": "x",
			}
			r.MutableParameters = map[string]string{"csi.storage.k8s.io/vac/name": "class"}
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{there, here},
				Preferred: []*csi.Topology{here}}
		}, codes.OK, ""},
		"no name": {func(r *csi.CreateVolumeRequest) { r.Name = "" }, codes.InvalidArgument, "name"},
		"a name of 129 bytes": {func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) },
			codes.InvalidArgument, "129"},
		"a name of 4 KiB": {func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 4096) },
			codes.InvalidArgument, "4096"},
		"a NUL in the name": {func(r *csi.CreateVolumeRequest) { r.Name = "a\x00b" }, codes.InvalidArgument,
			"U+0000"},
		"a C1 control": {func(r *csi.CreateVolumeRequest) { r.Name = "a\u0085b" }, codes.InvalidArgument,
			"U+0085"},
		"a line break is legal": {func(r *csi.CreateVolumeRequest) { r.Name = "a\n\t\r b" }, codes.OK, ""},
		"no capability":         {withCapabilities(), codes.InvalidArgument, "capabilities"},
		"a nil capability":      {withCapabilities(nil), codes.InvalidArgument, "block nor mount"},
		"neither block nor mount": {withCapabilities(&csi.VolumeCapability{AccessMode: block.GetAccessMode()}),
			codes.InvalidArgument, "block nor mount"},
		"a block device": {withCapabilities(block), codes.InvalidArgument, "block"},
		"a valid and an invalid capability": {withCapabilities(capability(sharedMode), block), codes.InvalidArgument,
			"block"},
		"a filesystem": {withCapabilities(mount(func(m *csi.VolumeCapability_MountVolume) { m.FsType = "ext4" })),
			codes.InvalidArgument, "ext4"},
		"a mount group": {
			withCapabilities(mount(func(m *csi.VolumeCapability_MountVolume) { m.VolumeMountGroup = "1000" })),
			codes.InvalidArgument, "VOLUME_MOUNT_GROUP",
		},
		"a mount flag": {withCapabilities(capability(sharedMode, "noexec", "noatime")), codes.OK, ""},
		"a forbidden mount flag": {withCapabilities(capability(sharedMode, "noexec", "bind")), codes.InvalidArgument,
			"option 2 of 2"},
		"5 KiB of mount flags": {withCapabilities(capability(sharedMode, strings.Repeat("x", 5<<10))),
			codes.InvalidArgument, "5120"},
		"no access mode": {withCapabilities(&csi.VolumeCapability{AccessType: block.GetAccessType()}),
			codes.InvalidArgument, "access mode"},
		"an unknown access mode": {withCapabilities(capability(99)), codes.InvalidArgument, "99"},
		"many nodes, one writer": {
			withCapabilities(capability(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER)),
			codes.InvalidArgument, "MULTI_NODE_SINGLE_WRITER",
		},
		"many nodes, readers": {withCapabilities(capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)),
			codes.InvalidArgument, "MULTI_NODE_READER_ONLY"},
		"many writers": {
			withCapabilities(capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)),
			codes.InvalidArgument, "MULTI_NODE_MULTI_WRITER",
		},
		"a negative size":        {withRange(-1, 0), codes.InvalidArgument, "negative"},
		"a negative limit":       {withRange(0, -1), codes.InvalidArgument, "negative"},
		"a limit below the size": {withRange(2, 1), codes.OutOfRange, "limit"},
		"an absurd size":         {withRange(1<<62, 0), codes.ResourceExhausted, "left"},
		"only a limit":           {withRange(0, 1<<20), codes.OK, ""},
		"an unknown parameter":   {withParameter("color", "blue"), codes.InvalidArgument, "color"},
		"an unknown kind":        {withParameter("kind", "tape"), codes.InvalidArgument, "tape"},
		"another prefix":         {withParameter("csi.storage.k8s.io.evil/x", "y"), codes.InvalidArgument, "evil"},
		"a mutable parameter": {func(r *csi.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"color": "blue"}
		}, codes.InvalidArgument, "color"},
		"a snapshot to restore": {func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = ofSnapshot("none")
		}, codes.NotFound, "snapshot"},
		"another node": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{there},
				Preferred: []*csi.Topology{there}}
		}, codes.ResourceExhausted, "node-1"},
		"another driver's topology": {func(r *csi.CreateVolumeRequest) {
			other := &csi.Topology{Segments: map[string]string{"other/node": "node-1"}}
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{other}}
		}, codes.ResourceExhausted, "node-1"},
		"only preferred": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: []*csi.Topology{there}}
		}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDriver(t)
			req := createRequest("pvc-1")
			tc.change(req)
			resp, err := d.CreateVolume(context.Background(), req)
			d.want(tc.code, err)
			if err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v does not contain %q", err, tc.wantErr)
			}
			left, readErr := os.ReadDir(filepath.Join(d.root, "volumes"))
			if readErr != nil || (err == nil) != (len(left) == 1) {
				t.Errorf("there are the volumes %v, %v", left, readErr)
			}
			if v := resp.GetVolume(); err == nil &&
				(len(v.GetAccessibleTopology()) != 1 || len(v.GetAccessibleTopology()[0].GetSegments()) != 1 ||
					v.GetAccessibleTopology()[0].GetSegments()[testName+"/node"] != "node-1") {
				t.Errorf("the topology is %v", v.GetAccessibleTopology())
			}
		})
	}
}

func TestCreateVolumeAgain(t *testing.T) {
	d := startDriver(t)
	first, err := d.CreateVolume(context.Background(), createRequest("pvc-1"))
	d.want(codes.OK, err)
	for name, tc := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
	}{
		"the same": {func(*csi.CreateVolumeRequest) {}, codes.OK},
		"other reserved keys": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"csi.storage.k8s.io/pvc/name": "x"}
		}, codes.OK},
		"the explicit default": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"kind": "directory"}
		}, codes.OK},
		"no size": {func(r *csi.CreateVolumeRequest) { r.CapacityRange = nil }, codes.OK},
		"larger": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes *= 2 },
			codes.AlreadyExists},
		"smaller": {func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 1} },
			codes.AlreadyExists},
		"another access mode": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{capability(singleMode)}
		}, codes.OK},
		"an impossible request": {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"kind": "tape"} },
			codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			req := createRequest("pvc-1")
			tc.change(req)
			again, err := d.CreateVolume(context.Background(), req)
			d.want(tc.code, err)
			if err == nil && again.GetVolume().GetVolumeId() != first.GetVolume().GetVolumeId() {
				t.Errorf("made %v, the first was %v", again, first)
			}
		})
	}
}

// TestStrangeIDs sends IDs that no driver created to every call with an ID.
func TestStrangeIDs(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		ctx, vc := context.Background(), capability(sharedMode)
		calls := map[string]func(id string) (code codes.Code, err error){
			"DeleteVolume": func(id string) (codes.Code, error) {
				_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
				return codes.OK, err
			},
			"ControllerGetVolume": func(id string) (codes.Code, error) {
				_, err := d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
				return codes.NotFound, err
			},
			"ControllerGetVolumeHealth": func(id string) (codes.Code, error) {
				_, err := d.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
				return codes.NotFound, err
			},
			"ValidateVolumeCapabilities": func(id string) (codes.Code, error) {
				_, err := d.ValidateVolumeCapabilities(ctx,
					&csi.ValidateVolumeCapabilitiesRequest{VolumeId: id,
						VolumeCapabilities: []*csi.VolumeCapability{vc}})
				return codes.NotFound, err
			},
			"NodeStageVolume": func(id string) (codes.Code, error) {
				_, err := d.NodeStageVolume(ctx,
					&csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: d.path("strange"),
						VolumeCapability: vc})
				return codes.NotFound, err
			},
			"NodePublishVolume": func(id string) (codes.Code, error) {
				_, err := d.NodePublishVolume(ctx,
					&csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: v.staging,
						TargetPath: d.path("strange"), VolumeCapability: vc})
				return codes.NotFound, err
			},
			"NodeGetVolumeStats": func(id string) (codes.Code, error) {
				_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: v.staging})
				return codes.NotFound, err
			},
			"NodeGetVolumeHealth": func(id string) (codes.Code, error) {
				_, err := d.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})
				return codes.NotFound, err
			},
			"ControllerModifyVolume": func(id string) (codes.Code, error) {
				_, err := d.ControllerModifyVolume(ctx,
					&csi.ControllerModifyVolumeRequest{VolumeId: id,
						MutableParameters: map[string]string{"label": "x"}})
				return codes.NotFound, err
			},
			"CreateSnapshot": func(id string) (codes.Code, error) {
				_, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "strange", SourceVolumeId: id})
				return codes.NotFound, err
			},
			"GetSnapshot": func(id string) (codes.Code, error) {
				_, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})
				return codes.NotFound, err
			},
			"DeleteSnapshot": func(id string) (codes.Code, error) {
				return codes.OK, d.deleteSnapshot(id)
			},
			"CreateVolume of a snapshot": func(id string) (codes.Code, error) {
				_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "strange",
					VolumeCapabilities: []*csi.VolumeCapability{vc}, VolumeContentSource: ofSnapshot(id)})
				return codes.NotFound, err
			},
			"CreateVolume of a volume": func(id string) (codes.Code, error) {
				_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "strange",
					VolumeCapabilities: []*csi.VolumeCapability{vc}, VolumeContentSource: ofVolume(id)})
				return codes.NotFound, err
			},
			"GetVolumeGroupSnapshot": func(id string) (codes.Code, error) {
				_, err := d.groups().GetVolumeGroupSnapshot(ctx,
					&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id})
				return codes.NotFound, err
			},
			"DeleteVolumeGroupSnapshot": func(id string) (codes.Code, error) {
				_, err := d.groups().DeleteVolumeGroupSnapshot(ctx,
					&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id})
				return codes.OK, err
			},
			"GetMetadataAllocated": func(id string) (codes.Code, error) {
				_, err := query{target: id}.call(ctx, d.conn)
				return codes.NotFound, err
			},
			// A CO must be able to clean up after a volume that is gone: then there is nothing to
			// do.
			"NodeUnpublishVolume": func(id string) (codes.Code, error) {
				_, err := d.NodeUnpublishVolume(ctx,
					&csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: d.path("strange")})
				return codes.OK, err
			},
			"NodeUnstageVolume": func(id string) (codes.Code, error) {
				_, err := d.NodeUnstageVolume(ctx,
					&csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: d.path("strange")})
				return codes.OK, err
			},
		}
		for name, call := range calls {
			for _, id := range []string{
				"..", ".", "/", "a/b", "../" + v.id, v.id + "/..", v.id + "/data", v.id + "\x00", "\x00", v.id[:56],
				v.id + "0",
				strings.ToUpper(v.id), strings.Repeat("x",
					4096), "ａ" + v.id[1:], "а" + v.id[1:], volumeid.New(volumeid.Volume, "node-1", "none"),
				volumeid.New(volumeid.Volume, "node-2", "v"), volumeid.New(volumeid.Inline, "node-1",
					"v"), handle(7), " ", "\u202e", "*", "record.json",
			} {
				if want, err := call(id); codeOf(err) != want && !(err == nil && want == codes.OK) {
					t.Errorf("%s(%.70q) = %v, want %s", name, id, err, want)
				}
			}
			if _, err := call(""); codeOf(err) != codes.InvalidArgument {
				t.Errorf("%s without an ID = %v", name, err)
			}
		}
		if !exists(v.data()) || exists(d.path("strange")) {
			t.Error("a call with a strange ID had an effect")
		}
		d.want(codes.OK, v.unstage())
	})
}

func TestListVolumesPagesWhileVolumesComeAndGo(t *testing.T) {
	d := startDriver(t)
	ctx := context.Background()
	stays := map[string]bool{}
	for i := range 30 {
		stays[d.create(fmt.Sprint("v", i), capability(sharedMode)).id] = true
	}
	seen := map[string]bool{}
	for token, i := "", 0; i == 0 || token != ""; i++ {
		page, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 4, StartingToken: token})
		d.want(codes.OK, err)
		if len(page.GetEntries()) > 4 || i > 100 {
			t.Fatalf("page %d has %d entries", i, len(page.GetEntries()))
		}
		for n, e := range page.GetEntries() {
			id := e.GetVolume().GetVolumeId()
			if seen[id] {
				t.Errorf("%s is listed twice", id)
			}
			seen[id] = true
			if n == len(page.GetEntries())-1 { // the volume after which the next page starts
				delete(stays, id)
				_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
				d.want(codes.OK, err)
			}
		}
		d.create(fmt.Sprint("new", i), capability(sharedMode))
		if i == 3 {
			d.restart()
		}
		token = page.GetNextToken()
	}
	for id := range stays {
		if !seen[id] {
			t.Errorf("%s existed all the time and is not listed", id)
		}
	}
	for _, bad := range []string{"invalid-token", "1", "x." + volumeid.New(volumeid.Volume, "node-1", "v"), ".",
		"00000000.x", strings.Repeat("9", 5000)} {
		_, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: bad})
		d.want(codes.Aborted, err)
		_, err = d.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{StartingToken: bad})
		d.want(codes.Aborted, err)
	}
	_, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: -1})
	d.want(codes.InvalidArgument, err)
}

func TestCapacityIsThatOfThisNode(t *testing.T) {
	d := startDriver(t)
	available := func(r *csi.GetCapacityRequest) int64 {
		t.Helper()
		resp, err := d.GetCapacity(context.Background(), r)
		d.want(codes.OK, err)
		if resp.GetMaximumVolumeSize().GetValue() != resp.GetAvailableCapacity() {
			t.Errorf("the largest volume has %d bytes, %d are left", resp.GetMaximumVolumeSize().GetValue(),
				resp.GetAvailableCapacity())
		}
		return resp.GetAvailableCapacity()
	}
	info, err := d.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	d.want(codes.OK, err)
	if info.GetNodeId() != "node-1" || info.GetMaxVolumesPerNode() != 0 {
		t.Errorf("NodeGetInfo = %v", info)
	}
	here := info.GetAccessibleTopology()
	if len(here.GetSegments()) != 2 || here.GetSegments()[SystemKey(testName)] != runtime.GOOS {
		t.Errorf("the topology of the node is %v, want its name and its operating system", here)
	}
	class := map[string]string{"csi.storage.k8s.io/fstype": "ext4", "csi.storage.k8s.io/provisioner-secret-name": "s",
		"kind": "directory"}
	if available(&csi.GetCapacityRequest{}) == 0 ||
		available(&csi.GetCapacityRequest{AccessibleTopology: here, Parameters: class}) == 0 {
		t.Error("no capacity on this node")
	}
	for name, tc := range map[string]struct {
		segments map[string]string
		want     bool
	}{
		"a node that was registered by an earlier release": {map[string]string{TopologyKey(testName): "node-1"}, true},
		"any node with this system":                        {map[string]string{SystemKey(testName): runtime.GOOS}, true},
		"any node with another system":                     {map[string]string{SystemKey(testName): "plan9"}, false},
		"another driver":                                   {map[string]string{"example.com/os": runtime.GOOS}, false},
	} {
		request := &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: tc.segments}}
		if got := available(request); (got > 0) != tc.want {
			t.Errorf("%s: %d bytes are left, want some: %t", name, got, tc.want)
		}
	}
	if got := available(&csi.GetCapacityRequest{AccessibleTopology: there}); got != 0 {
		t.Errorf("%d bytes are left on another node", got)
	}
	if got := available(&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{device(sharedMode)}}); got != 0 {
		t.Errorf("%d bytes are left for block volumes, want 0", got)
	}
	_, err = d.GetCapacity(context.Background(), &csi.GetCapacityRequest{Parameters: map[string]string{"kind": "tape"}})
	d.want(codes.InvalidArgument, err)
}

func TestValidateVolumeCapabilities(t *testing.T) {
	d := startDriver(t)
	v := d.create("v", capability(sharedMode))
	validate := func(change func(*csi.ValidateVolumeCapabilitiesRequest)) *csi.ValidateVolumeCapabilitiesResponse {
		t.Helper()
		req := &csi.ValidateVolumeCapabilitiesRequest{VolumeId: v.id,
			VolumeCapabilities: []*csi.VolumeCapability{capability(singleMode, "noexec")}}
		change(req)
		resp, err := d.ValidateVolumeCapabilities(context.Background(), req)
		d.want(codes.OK, err)
		return resp
	}
	if resp := validate(func(*csi.ValidateVolumeCapabilitiesRequest) {}); resp.GetConfirmed() == nil {
		t.Errorf("not confirmed: %v", resp)
	}
	for name, change := range map[string]func(*csi.ValidateVolumeCapabilitiesRequest){
		"another node's reader": func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities = append(r.VolumeCapabilities,
				capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY))
		},
		"a forbidden option": func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities[0] = capability(singleMode, "dev")
		},
		"another context": func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeContext = map[string]string{"color": "blue"}
		},
		"other parameters": func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.Parameters = map[string]string{"color": "blue"}
		},
		"mutable parameters": func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.MutableParameters = map[string]string{"color": "blue"}
		},
	} {
		if resp := validate(change); resp.GetConfirmed() != nil || resp.GetMessage() == "" {
			t.Errorf("%s: %v", name, resp)
		}
	}
	resp := validate(func(r *csi.ValidateVolumeCapabilitiesRequest) {
		// the explicit default
		r.Parameters = map[string]string{"kind": "directory", "csi.storage.k8s.io/pvc/name": "claim"}
	})
	if resp.GetConfirmed() == nil {
		t.Errorf("the default kind: %v", resp)
	}
	d.moveRoot()
	defer os.Rename(d.root+".away", d.root)
	_, err := d.ValidateVolumeCapabilities(context.Background(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: v.id, VolumeCapabilities: []*csi.VolumeCapability{capability(singleMode)},
	})
	d.want(codes.Unavailable, err) // not a response without confirmation
}

func TestTheTopologyKeyIsALabelsKey(t *testing.T) {
	p := newTopology(Config{Name: "HostPath.CSI.example", Backend: startDriver(t).backend})
	if p.key != "hostpath.csi.example/node" {
		t.Errorf("the key is %s, and labels are lower case", p.key)
	}
}

func TestHealthOfVolumes(t *testing.T) {
	d := startDriver(t)
	ctx := context.Background()
	var unhealthy []string
	for i := range 5 {
		v := d.create(fmt.Sprint("v", i), capability(sharedMode))
		if i%2 == 0 {
			unhealthy = append(unhealthy, v.id)
			if err := os.Remove(v.data()); err != nil {
				t.Fatal(err)
			}
		}
	}
	found := map[string]bool{}
	for token, i := "", 0; i == 0 || token != ""; i++ {
		page, err := d.ControllerListVolumeHealth(ctx,
			&csi.ControllerListVolumeHealthRequest{MaxEntries: 2, StartingToken: token})
		d.want(codes.OK, err)
		for _, e := range page.GetEntries() {
			found[e.GetVolumeId()] = true
			if s := e.GetHealthStatuses(); len(s) != 1 || s[0].GetStatus() != csi.VolumeHealthErrorType_DATA_LOSS ||
				s[0].GetReason() == "" {
				t.Errorf("%v", e)
			}
		}
		token = page.GetNextToken()
	}
	if len(found) != len(unhealthy) {
		t.Errorf("unhealthy are %v, want %v", found, unhealthy)
	}
	one, err := d.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: unhealthy[0]})
	if err != nil || len(one.GetVolumeHealth().GetHealthStatuses()) != 1 {
		t.Errorf("ControllerGetVolumeHealth = %v, %v", one, err)
	}
	storage, err := d.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range storage.GetBackendHealth() {
		if h.GetReason() != "StorageAlmostFull" { // the disk of the tests may be
			t.Errorf("NodeGetStorageHealth = %v", h)
		}
	}
	d.moveRoot()
	storage, err = d.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	if err != nil || len(storage.GetBackendHealth()) != 1 ||
		storage.GetBackendHealth()[0].GetStatus() != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
		t.Errorf("NodeGetStorageHealth = %v, %v", storage, err)
	}
	_, err = d.Probe(ctx, &csi.ProbeRequest{})
	d.want(codes.FailedPrecondition, err)
	if err := os.Rename(d.root+".away", d.root); err != nil {
		t.Fatal(err)
	}
}

func TestANodeWithANameOf253Bytes(t *testing.T) {
	long := strings.Repeat("n", 63) + "." + strings.Repeat("o", 63) + "." + strings.Repeat("d",
		63) + "." + strings.Repeat("e", 61)
	d := startDriver(t, func(d *testDriver) { d.node = long })
	info, err := d.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	d.want(codes.OK, err)
	if len(info.GetNodeId()) > 128 {
		t.Errorf("the node ID has %d bytes", len(info.GetNodeId()))
	}
	for _, value := range info.GetAccessibleTopology().GetSegments() {
		if len(value) > 63 {
			t.Errorf("the segment %s has %d bytes", value, len(value))
		}
	}
	req := createRequest("v")
	req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{info.GetAccessibleTopology()}}
	resp, err := d.CreateVolume(context.Background(), req)
	d.want(codes.OK, err)
	if len(resp.GetVolume().GetVolumeId()) > 64 {
		t.Errorf("the ID %s has %d bytes", resp.GetVolume().GetVolumeId(), len(resp.GetVolume().GetVolumeId()))
	}
}
