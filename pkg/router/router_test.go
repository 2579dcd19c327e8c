package router

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

func TestAVolumeGoesWhereItIsWantedMost(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	for _, node := range []string{"b", "c", "a"} {
		id := c.volume("on "+node, node)
		if want := volumeid.New(volumeid.Volume, node, "on "+node); id != want {
			t.Errorf("on %s: got %s, want %s", node, id, want)
		}
		if _, err := c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id}); err != nil {
			t.Error(err)
		}
	}
	calls := c.nodes["b"].calls.Load()
	c.volume("another", "a")
	if got := c.nodes["b"].calls.Load(); got != calls {
		t.Errorf("b was asked %d times for a volume of a's", got-calls)
	}
}

func TestDeleteOfWhatNobodyMade(t *testing.T) {
	c := newCluster(t, "a")
	ctx := context.Background()
	for _, id := range []string{"x", "../..", volumeid.New(volumeid.Volume, "a", "unknown"), volumeid.New(volumeid.Volume, volumeid.SeveralNodes, "v")} {
		if _, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Error(err)
		}
		if _, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
			t.Error(err)
		}
		_, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		wantCode(t, err, codes.NotFound)
	}
	_, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})
	wantCode(t, err, codes.InvalidArgument, "volume ID")
	_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "of another node", "v")})
	wantCode(t, err, codes.Unavailable, "forgotten-nodes")
}
