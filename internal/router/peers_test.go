package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// wantSaid waits until a single message to the operator has all of the words.
func (c *cluster) wantSaid(words ...string) {
	c.Helper()
	await.NoError(c.TB, fmt.Sprintf("a message has %q", words), func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, said := range c.said {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(said, w) }) {
				return nil
			}
		}
		return fmt.Errorf("the messages are %q", c.said)
	})
}

func (c *cluster) ready() string {
	how, err := c.router.Ready(context.Background())
	if err != nil {
		c.Error(err)
	}
	return how
}

func TestANodeComesAndGoes(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		a := c.nodes["a"]
		id := c.volume("v", "a")
		get := func() error {
			_, err := c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
			return err
		}
		if how := c.ready(); how != "ok: 2 of 2 nodes answer" {
			t.Error(how)
		}
		a.stop()
		c.lost(1)
		wantCode(t, get(), codes.Unavailable, "node a ("+a.address)
		if how := c.ready(); !strings.Contains(how, "ok: 1 of 2 nodes answer\na ("+a.address) {
			t.Error(how)
		}
		if _, err := c.Probe(context.Background(), &csi.ProbeRequest{}); err != nil {
			t.Error(err)
		}
		a.start()
		c.settled(2)
		if err := get(); err != nil {
			t.Error(err)
		}
		c.wantSaid("a (" + a.address + ") answers")
		// At another address, with the old address still known for a while, and then not.
		a.stop()
		c.lost(1) // until then the view has two nodes, and calls go to the old address
		old := a.address
		a.address = ""
		a.start()
		c.setAddresses("a", "b", old)
		c.lost(2)
		if err := get(); err != nil {
			t.Error(err)
		}
		_, err := c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
		wantCode(t, err, codes.Unavailable, old)
		c.setAddresses("a", "b")
		c.settled(2)
		if _, err := c.ListVolumes(context.Background(), &csi.ListVolumesRequest{}); err != nil {
			t.Error(err)
		}
		// Where it was is nothing to anybody once it is silent where it is.
		a.stop()
		c.lost(1)
		_, err = c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
		wantCode(t, err, codes.Unavailable, a.address)
		if strings.Contains(err.Error(), old) {
			t.Error(err)
		}
	}, "a", "b")
}

func TestARestartedRouterHasTheSameView(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		id := c.volume("v", "b")
		c.restart()
		if resp, err := c.ControllerGetVolume(context.Background(),
			&csi.ControllerGetVolumeRequest{VolumeId: id}); err != nil {
			t.Error(resp, err)
		}
		c.nodes["b"].stop()
		c.lost(1)
		c.stop()
		c.start()
		c.lost(1)
		_, err := c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		wantCode(t, err, codes.Unavailable, c.nodes["b"].address)
	}, "a", "b")
}

// TestAnAddressIsAnotherNodesNow: a call for a must not reach b, which has a's address now.
func TestAnAddressIsAnotherNodesNow(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		a, b := c.nodes["a"], c.nodes["b"]
		b.stop()
		c.setAddresses("a")
		c.later()
		c.settled(1)
		id := c.volume("v", "a")
		a.stop()
		b.address = a.address
		b.start()
		calls := b.calls.Load()
		for range 50 {
			_, err := c.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})
			wantCode(t, err, codes.Unavailable)
			time.Sleep(10 * time.Millisecond)
		}
		c.await(func(v *view) bool { return slices.Equal(v.ids(), []string{"b"}) })
		if got := b.calls.Load(); got != calls {
			t.Errorf("b got %d calls that were for a", got-calls)
		}
		// And a is between two pods: no node has its address.
		_, err := c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
		wantCode(t, err, codes.Unavailable, "a (", errNoAddress.Error())
		a.address = ""
		a.start()
		c.setAddresses("a", "b")
		c.settled(2)
		if ids := c.listed(0); !slices.Equal(ids, []string{id}) {
			t.Errorf("listed are %q", ids)
		}
	}, "a", "b")
}

// TestAnAttackIsLoggedOnceAMinute: of a node that is lost again and again, for reasons that differ
// by a port.
func TestAnAttackIsLoggedOnceAMinute(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		p := &endpoint{address: "10.0.0.1:1"}
		attack := func(reason error) {
			c.router.mu.Lock()
			defer c.router.mu.Unlock()
			c.router.reportSilence(p, reason)
			p.err = reason
		}
		told := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.said)
		}
		for port := range 59 {
			attack(fmt.Errorf("from port %d", port))
			time.Sleep(time.Second)
		}
		if got := told(); got != 1 {
			t.Errorf("told %d times in a minute", got)
		}
		time.Sleep(time.Second)
		attack(errors.New("from port 58")) // as before
		attack(errors.New("another reason"))
		if got := told(); got != 2 {
			t.Errorf("a minute later: told %d times", got)
		}
	})
}

func TestTwoWithOneIdentity(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		id := c.volume("v", "a")
		twin := c.newMachine("a")
		twin.dir = filepath.Join(c.dir, "twin")
		for _, sub := range []string{"root", "kubelet", "state"} {
			if err := os.MkdirAll(filepath.Join(twin.dir, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		twin.start()
		c.lookUpNodes()
		c.lost(1)
		_, err := c.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})
		wantCode(t, err, codes.Unavailable, "several addresses report", twin.address, c.nodes["a"].address)
		_, err = c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
		wantCode(t, err, codes.Unavailable, "several addresses report")
		_, err = c.CreateVolume(context.Background(), create("w", "a"))
		wantCode(t, err, codes.Unavailable, "no node answers in "+testKey+"=a: ")
		c.wantSaid("several addresses report", twin.address, c.nodes["a"].address)
		if how := c.ready(); !strings.Contains(how, "1 of 3") || !strings.Contains(how, "several addresses report") {
			t.Error(how)
		}
		for name, want := range map[string]float64{
			"causeway_router_node_up a " + c.nodes["a"].address: 0, "causeway_router_node_up a " + twin.address: 0,
			"causeway_router_node_up b " + c.nodes["b"].address: 1, "causeway_router_peers twice": 2,
		} {
			if got, ok := c.metrics()[name]; !ok || got != want {
				t.Errorf("%s is %v, %t, want %v", name, got, ok, want)
			}
		}
		twin.stop()
		c.setAddresses("a", "b")
		c.settled(2)
		if _, err := c.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Error(err)
		}
	}, "a", "b")
}

// metrics returns the values of the router's metrics, by name and label values. Labels are in the
// reverse order of their names.
func (c *cluster) metrics() map[string]float64 {
	c.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(c.router.Metrics()); err != nil {
		c.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		c.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range slices.Backward(m.GetLabel()) {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

func TestMetrics(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.nodes["a"].fault.Store(&fault{method: "CreateVolume", after: func() { time.Sleep(2 * time.Second) }})
		id := c.volume("v", "a")
		c.ControllerGetVolume(context.Background(),
			&csi.ControllerGetVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "b", "none")})
		c.nodes["a"].stop()
		c.lost(1)
		time.Sleep(3 * time.Second)
		c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id}) // which asks no node
		got := c.metrics()
		if seconds := got["causeway_router_call_seconds_total a"]; seconds != 2 {
			t.Errorf("a was waited for for %v seconds, want 2", seconds)
		}
		delete(got, "causeway_router_call_seconds_total a")
		delete(got, "causeway_router_call_seconds_total b")
		if seconds := got["causeway_router_silent_seconds"]; seconds < 3 || seconds > 4 {
			t.Errorf("a is silent for %v seconds, want 3", seconds)
		}
		delete(got, "causeway_router_silent_seconds")
		want := map[string]float64{
			"causeway_router_calls_total a OK": 1, "causeway_router_calls_total b NotFound": 1, "causeway_router_discovery_up": 1,
			"causeway_router_peers answers": 1, "causeway_router_peers silent": 1, "causeway_router_peers twice": 0,
			"causeway_router_peers gone":                        0,
			"causeway_router_node_up a " + c.nodes["a"].address: 0, "causeway_router_node_up b " + c.nodes["b"].address: 1,
		}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		c.setAddresses("b")
		c.await(func(v *view) bool { return len(v.silent) == 1 && errors.Is(v.silent[0].err, errNoAddress) })
		for name, want := range map[string]float64{"peers answers": 1, "peers silent": 0, "peers gone": 1,
			"peers twice": 0, "silent_seconds": 0} {
			if got := c.metrics()["causeway_router_"+name]; got != want {
				t.Errorf("without an address, %s are %v, want %v", name, got, want)
			}
		}
		c.later()
		c.settled(1)
		for name := range c.metrics() {
			if strings.Contains(name, " a ") || strings.HasSuffix(name, " a") {
				t.Errorf("%s is left of a node that is gone", name)
			}
		}
	}, "a", "b")
}

// TestSilentSecondsAreOfOneNode: nodes that are silent one after the other do not add up, and a
// node that answers ends its own time.
func TestSilentSecondsAreOfOneNode(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		want := func(event string, least, most time.Duration) {
			t.Helper()
			got, ok := c.metrics()["causeway_router_silent_seconds"]
			if !ok || got < least.Seconds() || got > most.Seconds() {
				t.Errorf("%s: the longest silence is %v s, %t, want %v to %v", event, got, ok, least, most)
			}
		}
		want("all nodes answer", 0, 0)
		a, b := c.nodes["a"], c.nodes["b"]
		a.stop()
		c.lost(1)
		time.Sleep(time.Hour) // retries begin no new time
		b.stop()
		c.lost(0)
		want("a is silent for an hour", time.Hour, time.Hour+time.Minute)
		a.start()
		c.lost(1)
		time.Sleep(time.Second)
		want("a answers, and b is silent since now", time.Second, time.Minute)
		a.stop()
		c.lost(0)
		time.Sleep(time.Second)
		want("a is silent again", time.Second, time.Minute)
		c.stop()
		c.start()
		c.await(func(v *view) bool { return len(v.silent) == 2 })
		time.Sleep(time.Second)
		want("after a restart", time.Second, time.Minute)
	}, "a", "b")
}

// TestReadyNamesNodesWithAnAddressFirst: after a scale-down, 40 nodes without an address do not
// hide the reason of a node that does not answer. Each node has one line.
func TestReadyNamesNodesWithAnAddressFirst(t *testing.T) {
	r := &Router{known: true, gone: map[string]gone{}, endpoints: map[string]*endpoint{
		"9.0.0.1:9810": {address: "9.0.0.1:9810", last: "a",
			err: errors.New("refused\nnode-1 (1.0.0.1:9810): it has no address now")}}}
	for i := range 40 {
		r.gone["node-"+strconv.Itoa(i)] = gone{"1.0.0." + strconv.Itoa(i) + ":9810", time.Now()}
	}
	r.view.Store(r.newView())
	text, err := r.Ready(t.Context())
	lines := strings.Split(text, "\n")
	if err != nil || len(lines) != 2+maxShown || lines[0] != "ok: 0 of 41 nodes answer" ||
		!strings.HasPrefix(lines[1], "a (9.0.0.1:9810): refused; node-1") || lines[maxShown+1] != "and 21 more" {
		t.Errorf("%v: %s", err, text)
	}
}

func TestWhoIsNotBelieved(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.certify("liar")
		m := c.newMachine("liar")
		m.node = "b"
		m.start()
		c.lookUpNodes()
		c.wantSaid("node b has a certificate for", `for ["liar"]`, m.address)
		if got := c.router.view.Load().ids(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("the router believes %q", got)
		}
		if _, err := c.CreateVolume(context.Background(), create("v", "b")); err != nil {
			t.Errorf("b cannot be reached: %v", err)
		}
	}, "a", "b")
}

// impostor answers as a node does, with a false identity.
type impostor struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	peer.UnimplementedPeerServer
	name, node, segment string
	room                int64            // bytes that it says are left
	long                int              // bytes of an answer that is too long
	part                func(*peer.Part) // makes a lie of a part; if it is nil, there is no service for groups
}

func (i *impostor) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name}, nil
}

func (i *impostor) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: i.node,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{testKey: i.segment}}}, nil
}

// ControllerGetVolume answers with a volume of another node.
func (i *impostor) ControllerGetVolume(_ context.Context,
	req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if i.long > 0 {
		return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{
			VolumeId: req.GetVolumeId(), VolumeContext: map[string]string{"long": strings.Repeat("x", i.long)},
		}}, nil
	}
	return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: volumeid.New(volumeid.Volume, "b", "v")}}, nil
}

func (i *impostor) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: i.room}, nil
}

// CreateVolume answers with a volume of its own that is on another node.
func (i *impostor) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: volumeid.New(volumeid.Volume, i.node,
			req.GetName()), AccessibleTopology: []*csi.Topology{topology("b")},
	}}, nil
}

// SnapshotPart reports that each step is done.
func (i *impostor) SnapshotPart(stream peer.Peer_SnapshotPartServer) error {
	part := &peer.Part{}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		resp := &peer.SnapshotPartResponse{Done: req.GetStep()}
		switch req.GetStep() {
		case peer.SnapshotPartRequest_BEGIN:
			part.Cut, part.VolumeIds = req.GetCut(), req.GetVolumeIds()
			part.Group = i.group(volumeid.New(volumeid.Group, volumeid.SeveralNodes, req.GetGroup().GetName()),
				req.GetGroup().GetSourceVolumeIds())
		case peer.SnapshotPartRequest_COMMIT:
			i.part(part)
			resp.Part = part
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (i *impostor) group(id string, volumes []string) *csi.VolumeGroupSnapshot {
	group := &csi.VolumeGroupSnapshot{GroupSnapshotId: id}
	for _, v := range volumes {
		group.Snapshots = append(group.Snapshots,
			&csi.Snapshot{SnapshotId: volumeid.New(volumeid.Snapshot, i.node, v), SourceVolumeId: v})
	}
	return group
}

func (i *impostor) GetPart(_ context.Context, req *peer.GetPartRequest) (*peer.Part, error) {
	part := &peer.Part{Group: i.group(req.GetGroupSnapshotId(), []string{volumeid.New(volumeid.Volume, i.node, "v")})}
	i.part(part)
	return part, nil
}

func (i *impostor) SettlePart(context.Context, *peer.SettlePartRequest) (*peer.SettlePartResponse, error) {
	return &peer.SettlePartResponse{}, nil
}

// CreateVolumeGroupSnapshot answers with the ID of another node's group.
func (i *impostor) CreateVolumeGroupSnapshot(_ context.Context,
	req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: i.group(volumeid.New(volumeid.Group, "b", "g"),
		req.GetSourceVolumeIds())}, nil
}

// ControllerExpandVolume fails with a code and a text that its request has as its size, both of
// which it may make up.
func (i *impostor) ControllerExpandVolume(ctx context.Context,
	req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	grpc.SetTrailer(ctx, metadata.Pairs(peer.AnswerKey, "1"))
	return nil, status.Error(codes.Code(req.GetCapacityRange().GetRequiredBytes()),
		strings.Repeat("ä", int(req.GetCapacityRange().GetLimitBytes())))
}

func (i *impostor) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	return &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: &csi.Volume{VolumeId: "../etc"}}}}, nil
}

// impersonate serves an impostor with the certificate of a node.
func (c *cluster) impersonate(i *impostor, certificate string) (address string) {
	c.Helper()
	c.certify(certificate)
	id, err := peertls.Open(filepath.Join(c.dir, "nodes", certificate), func(error) {})
	if err != nil {
		c.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(id.Server(routerName)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}))
	csi.RegisterIdentityServer(server, i)
	csi.RegisterNodeServer(server, i)
	csi.RegisterControllerServer(server, i)
	if i.part != nil {
		csi.RegisterGroupControllerServer(server, i)
		peer.RegisterPeerServer(server, i)
	}
	l := c.listen("")
	go server.Serve(l)
	c.Cleanup(server.Stop)
	return l.Addr().String()
}

func TestImpostors(t *testing.T) {
	for name, tc := range map[string]struct {
		impostor
		words []string
	}{
		"another driver": {impostor{name: "other.example", node: "liar", segment: "liar"},
			[]string{"other.example", testName}},
		"another's topology": {impostor{name: testName, node: "liar", segment: "b"},
			[]string{"liar", testKey + `="b"`}},
		"no node":        {impostor{name: testName}, []string{"1 to 253 bytes"}},
		"another's node": {impostor{name: testName, node: "b", segment: "b"}, []string{"node b", `for ["liar"]`}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, c *cluster) {
				address := c.impersonate(&tc.impostor, "liar")
				c.setAddresses("b", address)
				c.wantSaid(append(tc.words, address)...)
				if got := c.router.view.Load().ids(); !slices.Equal(got, []string{"b"}) {
					t.Errorf("the router believes %q", got)
				}
			}, "b")
		})
	}
}

func TestAnAnswerThatIsAnothers(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		address := c.impersonate(&impostor{name: testName, node: "liar", segment: "liar"}, "liar")
		c.setAddresses("b", address)
		c.settled(2)
		_, err := c.ControllerGetVolume(context.Background(),
			&csi.ControllerGetVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "liar", "v")})
		wantCode(t, err, codes.Unavailable, "liar (", "another node's")
		_, err = c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
		wantCode(t, err, codes.Unavailable, "liar (", "malformed")
		_, err = c.CreateVolume(context.Background(), create("v", "liar"))
		wantCode(t, err, codes.Unavailable, "liar (", "another node's")

		// It has no Peer service, nor others: its driver is of an older release, or none of ours.
		_, err = c.CreateVolume(context.Background(), create("v"))
		wantCode(t, err, codes.Unavailable, "liar (", "too old")
		_, err = c.CreateVolumeGroupSnapshot(context.Background(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: "g", SourceVolumeIds: []string{volumeid.New(volumeid.Volume, "liar", "v")},
		})
		wantCode(t, err, codes.Unavailable, "liar (", "too old")
	}, "b")
}

// TestGroupsThatAreAnothers: a delete of a group deletes the members of its ID, on all nodes of its
// snapshots.
func TestGroupsThatAreAnothers(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		var addresses, volumes []string
		lie := func(*peer.Part) {}
		for _, node := range []string{"honest", "liar"} {
			honest := node == "honest"
			addresses = append(addresses, c.impersonate(&impostor{name: testName, node: node, segment: node,
				part: func(part *peer.Part) {
					if !honest {
						lie(part)
					}
				}}, node))
			volumes = append(volumes, volumeid.New(volumeid.Volume, node, "v"))
		}
		c.setAddresses(addresses...)
		c.settled(2)
		ctx := context.Background()
		create := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: volumes}
		id := volumeid.New(volumeid.Group, volumeid.SeveralNodes, "g")
		if resp, err := c.CreateVolumeGroupSnapshot(ctx, create); err != nil ||
			resp.GetGroupSnapshot().GetGroupSnapshotId() != id || len(resp.GetGroupSnapshot().GetSnapshots()) != 2 {
			t.Errorf("without a lie: %v, %v", resp, err)
		}
		for name, tc := range map[string]struct {
			lie  func(*peer.Part)
			says string
		}{
			"another group over nodes": {func(p *peer.Part) {
				p.Group.GroupSnapshotId = volumeid.New(volumeid.Group, volumeid.SeveralNodes, "other")
			}, "a part of the group"},
			"another node's group": {func(p *peer.Part) {
				p.Group.GroupSnapshotId = volumeid.New(volumeid.Group, "honest",
					"g")
			}, "a part of the group"},
			"no group":     {func(p *peer.Part) { p.Group = nil }, "a part of the group"},
			"no snapshots": {func(p *peer.Part) { p.Group.Snapshots = nil }, "a part with snapshots of []"},
			"another's snapshot": {func(p *peer.Part) {
				p.Group.Snapshots[0].SnapshotId = volumeid.New(volumeid.Snapshot,
					"honest", "s")
			}, "another node's"},
		} {
			t.Log(name)
			lie = tc.lie
			_, err := c.CreateVolumeGroupSnapshot(ctx, create)
			wantCode(t, err, codes.Unavailable, "liar (", tc.says)
			if name != "no snapshots" {
				_, err = c.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id})
				wantCode(t, err, codes.Unavailable, "liar (", tc.says)
			}
		}
		_, err := c.CreateVolumeGroupSnapshot(ctx,
			&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: volumes[1:]})
		wantCode(t, err, codes.Unavailable, "liar (", "another node's")
	})
}

// TestAGroupKeepsItsConnections: a connection that no call uses may be closed, and a part is lost
// with its stream.
func TestAGroupKeepsItsConnections(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		answered := make(chan struct{})
		idle := func(*peer.Part) {
			<-answered
			time.Sleep(time.Minute) // the answer of the first node has come
			if c.router.view.Load().byDigest[volumeid.NodeDigest("first")].calls.Load() == 0 {
				t.Error("the connection to a node may be closed while another node takes its time")
			}
		}
		var addresses, volumes []string
		for node, part := range map[string]func(*peer.Part){"first": func(*peer.Part) { close(answered) }, "second": idle} {
			addresses = append(addresses, c.impersonate(&impostor{name: testName, node: node, segment: node, part: part},
				node))
			volumes = append(volumes, volumeid.New(volumeid.Volume, node, "v"))
		}
		c.setAddresses(addresses...)
		c.settled(2)
		if _, err := c.CreateVolumeGroupSnapshot(context.Background(),
			&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: volumes}); err != nil {
			t.Error(err)
		}
	})
}

// TestExaggeratedCapacitiesOfANode: a node reports an impossible capacity, or an endless response.
func TestExaggeratedCapacitiesOfANode(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.setAddresses(c.impersonate(&impostor{name: testName, node: "much", segment: "much", room: math.MaxInt64,
			long: 2 * maxAnswer}, "much"),
			c.impersonate(&impostor{name: testName, node: "more", segment: "more", room: math.MaxInt64 - 1, long: 1 << 10},
				"more"),
			c.impersonate(&impostor{name: testName, node: "less", segment: "less", room: -1}, "less"))
		c.settled(3)
		room, err := c.GetCapacity(context.Background(), &csi.GetCapacityRequest{})
		if err != nil || room.GetAvailableCapacity() != math.MaxInt64 ||
			room.GetMaximumVolumeSize().GetValue() != math.MaxInt64 {
			t.Errorf("all have %v, %v", room, err)
		}
		get := func(node string) error {
			return second(c.ControllerGetVolume(context.Background(),
				&csi.ControllerGetVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, node, "v")}))
		}
		wantCode(t, get("much"), codes.Unavailable, "much (")
		if err := get("more"); err != nil {
			t.Error(err)
		}
	})
}

// TestErrorsThatAreMadeUp: the router neither counts nor returns endless errors of a node.
func TestErrorsThatAreMadeUp(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.setAddresses(c.impersonate(&impostor{name: testName, node: "liar", segment: "liar"}, "liar"))
		c.settled(1)
		fail := func(code codes.Code, length int64) error {
			return second(c.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
				VolumeId: volumeid.New(volumeid.Volume, "liar",
					"v"), CapacityRange: &csi.CapacityRange{RequiredBytes: int64(code), LimitBytes: length},
			}))
		}
		wantCode(t, fail(codes.OutOfRange, 3), codes.OutOfRange, "äää")
		for code := codes.Unauthenticated + 1; code < 40; code++ {
			wantCode(t, fail(code, 3), codes.Unavailable, "liar (")
		}
		for _, code := range []codes.Code{codes.Internal, codes.Unavailable, codes.DeadlineExceeded, 4711} {
			if err := fail(code, 8<<10); len(err.Error()) > 2*maxText || !strings.Contains(err.Error(), "ää") {
				t.Errorf("%s has %d bytes", code, len(err.Error()))
			}
			if err := fail(code, 64<<10); len(err.Error()) > 2*maxText {
				t.Errorf("%s has %d bytes", code, len(err.Error()))
			} else {
				wantCode(t, err, codes.Unavailable, "liar (")
			}
		}
		for name := range c.metrics() {
			if strings.Contains(name, "Code(") {
				t.Errorf("%s is counted", name)
			}
		}
	})
}

// TestANodeThatIsLostAgainAndAgainIsLeftAlone: a node that identifies itself and hangs up causes no
// busy loop.
func TestANodeThatIsLostAgainAndAgainIsLeftAlone(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		a := c.nodes["a"]
		met := map[*node]bool{}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if v := c.router.view.Load(); len(v.nodes) == 1 && !met[v.nodes[0]] {
				met[v.nodes[0]] = true
				a.conns.cut()
			}
		}
		if met := len(met); met < 60 || met > 70 {
			t.Errorf("the router met the node %d times in a minute, want a pause of %v between two times", met, lookSoon)
		}
		c.settled(1)
	}, "a")
}

func TestAddressesThatCantBeFoundStay(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.mu.Lock()
		c.lookErr = errNoDNS
		c.mu.Unlock()
		c.lookUpNodes()
		c.wantSaid("stay", errNoDNS.Error())
		c.volume("v", "a")
		if how := c.ready(); !strings.Contains(how, "1 of 1") || !strings.Contains(how, errNoDNS.Error()) {
			t.Error(how)
		}
		c.stop()
		c.start()
		c.wantSaid("stay", errNoDNS.Error())
		_, err := c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
		wantCode(t, err, codes.Unavailable, "not known yet")
		_, err = c.CreateVolume(context.Background(), create("w"))
		wantCode(t, err, codes.Unavailable)
		time.Sleep(silentFor)
		_, err = c.GetCapacity(context.Background(), &csi.GetCapacityRequest{AccessibleTopology: topology("a")})
		wantCode(t, err, codes.Unavailable, "not known yet") // published volumes stay
		_, err = c.DeleteVolume(context.Background(),
			&csi.DeleteVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "a", "v")})
		wantCode(t, err, codes.Unavailable)
		// Of the volume's node nothing is known, and so nothing bad.
		_, err = c.ControllerGetVolumeHealth(context.Background(),
			&csi.ControllerGetVolumeHealthRequest{VolumeId: volumeid.New(volumeid.Volume, "a", "v")})
		wantCode(t, err, codes.Unavailable, "not known yet")
	}, "a")
}

// TestALongName: of a name with 253 bytes NodeGetInfo has but a digest.
func TestALongName(t *testing.T) {
	long := strings.Repeat(strings.Repeat("n", 49)+".", 5) + "end"
	simulate(t, func(t *testing.T, c *cluster) {
		c.certify(volumeid.NodeID(long))
		m := c.newMachine(volumeid.NodeID(long))
		m.node = long
		c.nodes[long] = m
		m.start()
		c.lookUpNodes()
		c.settled(1)
		id := c.volume("v", long)
		for _, err := range []error{
			second(c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id})),
			second(c.ListVolumes(context.Background(), &csi.ListVolumesRequest{})),
			second(c.CreateVolume(context.Background(), create("v"))),
			second(c.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		if ids := c.all(); len(ids) > 0 {
			t.Errorf("there are %q", ids)
		}
	})
}

// TestALongNameIsForgotten: by the name that the cluster has for it, and by that which the router
// has, and says.
func TestALongNameIsForgotten(t *testing.T) {
	long := strings.Repeat(strings.Repeat("n", 49)+".", 5) + "end"
	for name, line := range map[string]string{"the cluster's": long, "the router's": volumeid.NodeID(long)} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, c *cluster) {
				c.certify(volumeid.NodeID(long))
				m := c.newMachine(volumeid.NodeID(long))
				m.node = long
				c.nodes[long] = m
				m.start()
				c.lookUpNodes()
				c.settled(2)
				id := c.volume("v", long)
				file := filepath.Join(c.dir, "forgotten")
				if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				c.restart(func(cfg *Config) {
					var err error
					if cfg.Forgotten, err = OpenForgotten(file, c.report); err != nil {
						t.Fatal(err)
					}
				})
				m.stop()
				c.lost(1)
				if _, err := c.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
					t.Error(err)
				}
				c.setAddresses("a")
				c.settled(1) // at once, and not after five minutes
				if _, err := c.ListVolumes(context.Background(), &csi.ListVolumesRequest{}); err != nil {
					t.Error(err)
				}
			}, "a")
		})
	}
}

func second[T any](_ T, err error) error { return err }

// TestRenewing: after 20 minutes at the latest a node has a new connection, and no call is lost.
func TestRenewing(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		id := c.volume("v", "a")
		first := c.router.view.Load().nodes[0]
		entered, leave := make(chan context.Context), make(chan struct{})
		c.nodes["a"].hangs("ControllerGetVolume", entered, leave)
		answered := make(chan error, 1)
		go func() {
			_, err := c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
			answered <- err
		}()
		<-entered
		c.nodes["a"].heals()
		for range renewEvery / time.Second {
			if _, err := c.ListVolumes(context.Background(), &csi.ListVolumesRequest{}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		second := c.router.view.Load().nodes[0]
		if second == first || first.conn.lost() {
			t.Errorf("after %v: the same connection: %t, the old connection is lost with its call: %t", renewEvery,
				second == first, first.conn.lost())
		}
		close(leave)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		if !first.conn.lost() || second.conn.lost() {
			t.Errorf("the old connection is open: %t; the new connection is open: %t", !first.conn.lost(),
				!second.conn.lost())
		}
	}, "a")
}

// TestANodeBehindASilentNetworkIsLost: nothing resets the connection, and a new connection gets no
// answer.
func TestANodeBehindASilentNetworkIsLost(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		a := c.nodes["a"]
		id := c.volume("v", "a")
		c.wires.silence(a.address, true)
		began := time.Now()
		answered := make(chan error, 1)
		go func() {
			answered <- second(c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id}))
		}()
		c.lost(1)
		if since := time.Since(began); since > pingEvery+pingLimit+time.Second {
			t.Errorf("the node is lost after %v, want at most %v", since, pingEvery+pingLimit)
		}
		wantCode(t, <-answered, codes.Unavailable, "a (")
		c.await(func(v *view) bool { return errors.Is(v.silent[0].err, context.DeadlineExceeded) })
		c.volume("w", "b")
		time.Sleep(10 * time.Minute)
		c.wires.silence(a.address, false)
		began = time.Now()
		c.settled(2)
		if since := time.Since(began); since > meetLimit+againLast {
			t.Errorf("the node answers again after %v, want at most %v", since, meetLimit+againLast)
		}
	}, "a", "b")
}

func TestForgottenNodes(t *testing.T) {
	c := newCluster(t, "a", "gone")
	ctx := context.Background()
	volume := c.volume("v", "gone")
	snapshot := c.snapshot("s", volume)
	file := filepath.Join(c.dir, "forgotten")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("# none\n")
	c.restart(func(cfg *Config) {
		var err error
		if cfg.Forgotten, err = OpenForgotten(file, c.report); err != nil {
			t.Fatal(err)
		}
	})
	deletes := map[string]func() error{
		"volume": func() error {
			return second(c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volume}))
		},
		"snapshot": func() error {
			return second(c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshot}))
		},
		"group": func() error {
			return second(c.DeleteVolumeGroupSnapshot(ctx,
				&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: volumeid.New(volumeid.Group, "gone", "g")}))
		},
		"group over nodes": func() error {
			return second(c.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
				GroupSnapshotId: volumeid.New(volumeid.Group, volumeid.SeveralNodes,
					"g"), SnapshotIds: []string{snapshot},
			}))
		},
	}
	write("a # which answers, and so is not gone\n\n  gone\n")
	if resp, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: volume}); err != nil ||
		resp.GetVolume().GetVolumeId() != volume {
		t.Errorf("while it answers: %v, %v", resp, err)
	}
	c.nodes["gone"].stop()
	c.lost(1)
	for name, del := range deletes {
		if err := del(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, id := range []string{volume, snapshot, volumeid.New(volumeid.Group, "gone", "g")} {
		c.wantSaid(id, "called deleted", "gone")
	}
	for _, from := range []*csi.VolumeContentSource{fromSnapshot(snapshot), fromVolume(volume)} {
		req := create("w", "a")
		req.VolumeContentSource = from
		_, err := c.CreateVolume(ctx, req)
		wantCode(t, err, codes.NotFound, "gone")
	}
	_, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s2", SourceVolumeId: volume})
	wantCode(t, err, codes.NotFound, "gone")
	resp, err := c.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: volume})
	if sick := resp.GetVolumeHealth().GetHealthStatuses(); err != nil || len(sick) != 1 ||
		sick[0].GetStatus() != csi.VolumeHealthErrorType_DATA_LOSS {
		t.Errorf("health: %v, %v", resp, err)
	}
	if got, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: snapshot}); err != nil ||
		len(got.GetEntries()) > 0 {
		t.Errorf("its snapshot: %v, %v", got, err)
	}
	created, err := c.CreateVolume(ctx, create("x", "gone", "a"))
	if want := volumeid.New(volumeid.Volume, "a", "x"); err != nil || created.GetVolume().GetVolumeId() != want {
		t.Errorf("wanted on it: %v, %v", created, err)
	}

	write("bad name\n")
	wantNothing := deletes["volume"]()
	if wantNothing != nil { // the list of before stays
		t.Error(wantNothing)
	}
	c.wantSaid("stay as they were", "line 1")
	write("\n")
	for name, del := range deletes {
		if err := del(); err == nil {
			t.Errorf("%s: deleted, though its node is not forgotten any more", name)
		}
	}
	c.wantSaid("the forgotten nodes are now: none")
	if _, err := OpenForgotten(c.dir, c.report); !errors.Is(err, regular.ErrType) {
		t.Errorf("a directory as list = %v, want ErrType", err)
	}
	if _, err := OpenForgotten(filepath.Join(c.dir, "none"), c.report); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a list that is not there: %v", err)
	}
}

// TestAPanicInALoopOfTheRouterIsReportedAndTheLoopContinues panics once in discovery and once in
// the identification of a node.
func TestAPanicInALoopOfTheRouterIsReportedAndTheLoopContinues(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.stop()
		var looked, met atomic.Bool
		c.start(func(cfg *Config) {
			cfg.Peers = func(ctx context.Context) ([]string, error) {
				if looked.CompareAndSwap(false, true) {
					panic("no addresses")
				}
				return c.find(ctx)
			}
			cfg.Names = func(info credentials.AuthInfo) []string {
				if met.CompareAndSwap(false, true) {
					panic("no names")
				}
				return peertls.Names(info)
			}
		})
		c.wantSaid("background task", "no addresses")
		c.lookUpNodes()
		c.wantSaid("background task", "no names")
		c.wantSaid("no node answers at", "no names")
		c.settled(2)
	}, "a", "b")
}
