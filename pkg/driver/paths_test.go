package driver

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestPathFields: pathFields has every field of a Node request that is a path.
func TestPathFields(t *testing.T) {
	requests := 0
	for _, m := range []proto.Message{&csi.NodeStageVolumeRequest{}, &csi.NodeUnstageVolumeRequest{},
		&csi.NodePublishVolumeRequest{}, &csi.NodeUnpublishVolumeRequest{}, &csi.NodeExpandVolumeRequest{},
		&csi.NodeGetVolumeStatsRequest{}, &csi.NodeGetVolumeHealthRequest{}, &csi.NodeGetInfoRequest{},
		&csi.NodeGetCapabilitiesRequest{}, &csi.NodeGetStorageHealthRequest{}} {
		requests++
		for _, field := range pathFields(m) {
			*field = "cleaned"
		}
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			isPath := f.Kind() == protoreflect.StringKind && !f.IsMap() && strings.HasSuffix(string(f.Name()), "_path")
			if got := m.ProtoReflect().Get(f); isPath != (f.Kind() == protoreflect.StringKind && !f.IsMap() && got.String() == "cleaned") {
				t.Errorf("%T: %s is a path: %t, but has the value %v", m, f.Name(), isPath, got)
			}
		}
	}
	node := (&csi.NodeStageVolumeRequest{}).ProtoReflect().Descriptor().ParentFile().Services().ByName("Node")
	if n := node.Methods().Len(); n != requests {
		t.Errorf("the Node service has %d methods, and the test %d", n, requests)
	}
}

// TestPathsOfWindows: a volume is staged at a path without a drive, and used at the same path with
// one.
func TestPathsOfWindows(t *testing.T) {
	if newFakeWindows == nil {
		t.Skip("no symbolic links here")
	}
	d := startDriver(t, func(d *testDriver) { d.links = true })
	v := d.create("v", capability(singleMode))
	windows := func(path string) string { return "c:" + strings.ReplaceAll(strings.TrimPrefix(path, "C:"), "/", `\`) }
	staging, target := filepath.Join(d.kubelet, "staging"), filepath.Join(d.kubelet, "target")
	stage := &csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: strings.ReplaceAll(staging, "/", `\`),
		VolumeCapability: capability(singleMode)}
	publish := &csi.NodePublishVolumeRequest{VolumeId: v.id, StagingTargetPath: stage.GetStagingTargetPath(),
		TargetPath: windows(target), VolumeCapability: capability(singleMode)}
	for range 2 {
		if _, err := d.NodeStageVolume(context.Background(), stage); err != nil {
			t.Fatal(err)
		}
		if _, err := d.NodePublishVolume(context.Background(), publish); err != nil {
			t.Fatal(err)
		}
		stage.StagingTargetPath, publish.StagingTargetPath = windows(staging), staging
	}
	_, err := d.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: target})
	d.want(codes.OK, err)
	_, err = d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: target})
	d.want(codes.OK, err)
	_, err = d.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: staging})
	d.want(codes.OK, err)
	if exists(target) || !exists(staging) {
		t.Errorf("target: %t, staging path: %t, want the staging path only", exists(target), exists(staging))
	}
	d.want(codes.OK, v.delete())
}
