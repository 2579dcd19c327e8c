package router

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

func TestAVolumeIsCreatedOnThePreferredNode(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	for _, node := range []string{"b", "c", "a"} {
		id := c.volume("on "+node, node)
		if want := volumeid.New(volumeid.Volume, node, "on "+node); id != want {
			t.Errorf("on %s: got %s, want %s", node, id, want)
		}
		if _, err := c.ControllerGetVolume(context.Background(),
			&csi.ControllerGetVolumeRequest{VolumeId: id}); err != nil {
			t.Error(err)
		}
	}
	calls := c.nodes["b"].calls.Load()
	c.volume("another", "a")
	if got := c.nodes["b"].calls.Load(); got != calls {
		t.Errorf("b was asked %d times for a volume of a's", got-calls)
	}
}

func TestDeleteOfAnUnknownObject(t *testing.T) {
	c := newCluster(t, "a")
	ctx := context.Background()
	for _, id := range []string{"x", "../..", volumeid.New(volumeid.Volume, "a", "unknown"),
		volumeid.New(volumeid.Volume, volumeid.SeveralNodes, "v")} {
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
	_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "of another node",
		"v")})
	wantCode(t, err, codes.Unavailable, "forgotten-nodes")
}

// TestANodeWithANewConnectionIsOneNode renews the connection while the IDs of a request are looked
// up.
func TestANodeWithANewConnectionIsOneNode(t *testing.T) {
	r := &Router{}
	var views [2]*view
	for i := range views {
		n := &node{id: "a", digests: volumeid.NodeDigests("a")}
		views[i] = &view{known: true, nodes: []*node{n}, byDigest: map[string]*node{n.key(): n}}
	}
	r.view.Store(views[0])
	done := make(chan struct{})
	defer close(done)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				r.view.Store(views[i%2])
			}
		}
	}()
	var ids []string
	for i := range 20000 {
		ids = append(ids, volumeid.New(volumeid.Volume, "a", string(rune(i))))
	}
	nodes, err := (&groupController{Router: r}).byNode("volume ID", ids)
	if err != nil || len(nodes) != 1 {
		t.Errorf("%d nodes, %v", len(nodes), err)
	}
	for _, its := range nodes {
		if !slices.Equal(its, ids) {
			t.Errorf("it has %d IDs of %d", len(its), len(ids))
		}
	}
}
