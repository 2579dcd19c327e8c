package nodes

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/internal/await"
)

// use mounts a volume on its node as the kubelet does, calls f with where a pod finds it, and
// unmounts it.
func (n *node) use(id string, f func(target string)) {
	n.Helper()
	ctx, staging, target := n.soon(), filepath.Join(n.kubelet, "staging"), filepath.Join(n.kubelet, "target")
	n.must(os.MkdirAll(staging, 0o750))
	n.must(second(n.NodeStageVolume(ctx,
		&csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: mountable()})))
	n.must(second(n.NodePublishVolume(ctx,
		&csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target,
			VolumeCapability: mountable()})))
	f(target)
	// A child that another test starts has the files of this process until its exec.
	await.NoError(n, "no process uses the target", func() error {
		return second(n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}))
	})
	n.must(second(n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})))
}

// nodeOf returns the node in the topology of a volume.
func (w *world) nodeOf(v *csi.Volume) *node {
	w.Helper()
	if len(v.GetAccessibleTopology()) != 1 || w.nodes[v.GetAccessibleTopology()[0].GetSegments()[nodeKey]] == nil {
		w.Fatalf("%v is on no node", v)
	}
	return w.nodes[v.GetAccessibleTopology()[0].GetSegments()[nodeKey]]
}

func TestAVolumeLivesItsWholeLifeThroughTheRouter(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	ctx, text := w.soon(), []byte("what a pod wrote")
	v := w.volume("v")
	id, n := v.GetVolumeId(), w.nodeOf(v)
	if again := w.volume("v"); again.GetVolumeId() != id {
		t.Errorf("asked again: %s, want %s", again.GetVolumeId(), id)
	}
	n.use(id, func(target string) {
		w.must(os.WriteFile(filepath.Join(target, "file"), text, 0o600))
		wantInUse := second(w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}))
		if wantInUse == nil {
			t.Error("a volume was deleted that is in use")
		}
	})
	s := w.snapshot("s", id)
	for _, other := range w.nodes { // a source decides the node, and where the volume may be nowhere else that is final
		if other != n {
			req := create("restored", other.id)
			req.VolumeContentSource = fromSnapshot(s)
			if _, err := w.CreateVolume(ctx, req); err == nil || again(err) {
				t.Errorf("restored on another node: %v", err)
			}
		}
	}
	req := create("restored")
	req.VolumeContentSource = fromSnapshot(s)
	restored := retry(w, func(ctx context.Context) (*csi.CreateVolumeResponse,
		error) {
		return w.CreateVolume(ctx, req)
	}).GetVolume()
	if w.nodeOf(restored) != n {
		t.Errorf("what was restored is on %s, and its source on %s", w.nodeOf(restored).id, n.id)
	}
	n.use(restored.GetVolumeId(), func(target string) {
		if got, err := os.ReadFile(filepath.Join(target, "file")); string(got) != string(text) {
			t.Errorf("what was restored has %q, %v", got, err)
		}
	})
	grown, err := w.ControllerExpandVolume(ctx,
		&csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mib}})
	if err != nil || grown.GetCapacityBytes() < 2*mib {
		t.Errorf("expanded: %v, %v", grown, err)
	}
	w.holds(id, restored.GetVolumeId())
	w.holdsSnapshots(s)
	w.must(second(w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s})))
	for _, v := range []string{id, restored.GetVolumeId()} {
		w.must(second(w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v})))
	}
	w.holds()
	w.holdsSnapshots()
}
