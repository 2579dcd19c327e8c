package router

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/pkg/volumeid"
	"github.com/causeway-csi/causeway/test/simnode"
)

// TestFiveHundredNodes makes, lists and deletes volumes on 500 simulated nodes, with the same
// certificate for all.
func TestFiveHundredNodes(t *testing.T) {
	t.Parallel()
	const nodes, each, callers = 500, 20, 8
	c := newCluster(t)
	if _, err := peertls.Make(c.dir, peertls.MakeOptions{Shared: "causeway-nodes"}); err != nil {
		t.Fatal(err)
	}
	certificate, err := peertls.Open(filepath.Join(c.dir, "nodes-shared"), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	var addresses, want []string
	sims := map[string]*simnode.Node{}
	for i := range nodes {
		name := fmt.Sprintf("node-%03d", i)
		sim := simnode.New(testName, name, each, int64(i))
		sims[name] = sim
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sim.Serve(l, certificate.Server(routerName)).Stop)
		addresses, want = append(addresses, l.Addr().String()), append(want, sim.IDs()...)
	}
	c.stop()
	c.setAddresses(addresses...)
	c.start(func(cfg *Config) {
		id, err := peertls.Open(filepath.Join(c.dir, "router"), func(err error) { c.report("certificates", err) })
		if err != nil {
			t.Fatal(err)
		}
		cfg.Credentials, cfg.Names = id.Client("causeway-nodes"), nil
	})
	c.settled(nodes)

	slices.Sort(want)
	if got := c.listed(700); !slices.Equal(got, want) {
		t.Errorf("%d volumes are listed, want %d", len(got), len(want))
	}
	resp, err := c.CreateVolume(context.Background(), create("anywhere"))
	if id := volumeid.New(volumeid.Volume, "node-499", "anywhere"); err != nil || resp.GetVolume().GetVolumeId() != id {
		t.Errorf("where most room is: %v, %v", resp, err)
	}
	var calling sync.WaitGroup
	for caller := range callers {
		calling.Go(func() {
			for i := caller; i < nodes; i += callers {
				node := fmt.Sprintf("node-%03d", i)
				resp, err := c.CreateVolume(context.Background(), create("v", node))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := c.DeleteVolume(context.Background(),
					&csi.DeleteVolumeRequest{VolumeId: resp.GetVolume().GetVolumeId()}); err != nil {
					t.Error(err)
				}
				room, err := c.GetCapacity(context.Background(),
					&csi.GetCapacityRequest{AccessibleTopology: topology(node)})
				if err != nil || room.GetAvailableCapacity() != int64(i) {
					t.Errorf("%s has %v, %v", node, room, err)
				}
			}
		})
	}
	calling.Wait()
	if room, err := c.GetCapacity(context.Background(), &csi.GetCapacityRequest{}); err != nil ||
		room.GetAvailableCapacity() != nodes*(nodes-1)/2 || room.GetMaximumVolumeSize().GetValue() != nodes-1 {
		t.Errorf("all have %v, %v", room, err)
	}
	if got := c.listed(2000); len(got) != len(want)+1 {
		t.Errorf("%d volumes are listed at the end, want %d", len(got), len(want)+1)
	}
}

// listed returns the IDs of all volumes, by pages.
func (c *cluster) listed(limit int32) (ids []string) {
	c.Helper()
	for token := "?"; token != ""; {
		resp, err := c.ListVolumes(context.Background(),
			&csi.ListVolumesRequest{MaxEntries: limit, StartingToken: strings.Trim(token, "?")})
		if err != nil {
			c.Fatal(err)
		}
		for _, e := range resp.GetEntries() {
			ids = append(ids, e.GetVolume().GetVolumeId())
		}
		token = resp.GetNextToken()
	}
	return slices.Sorted(slices.Values(ids))
}
