package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// fails makes calls of a method fail on a node, until the test is over.
func (m *machine) fails(method string, code codes.Code) {
	m.fault.Store(&fault{method: method, err: status.Error(code, "as the test wants on "+m.node)})
}

func (m *machine) heals() { m.fault.Store(nil) }

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func TestAContentSourceDecidesTheNode(t *testing.T) {
	c := newCluster(t, "a", "b")
	source := c.volume("source", "b")
	for name, from := range map[string]*csi.VolumeContentSource{
		"restored": fromSnapshot(c.snapshot("snap", source)), "cloned": fromVolume(source),
	} {
		t.Run(name, func(t *testing.T) {
			for _, on := range [][]string{{"a", "b"}, {"b"}, {}} {
				req := create(fmt.Sprint(name, on), on...)
				req.VolumeContentSource = from
				resp, err := c.CreateVolume(context.Background(), req)
				if want := volumeid.New(volumeid.Volume, "b", req.Name); err != nil ||
					resp.GetVolume().GetVolumeId() != want {
					t.Errorf("wanted on %q: %v, %v", on, resp, err)
				}
			}
			before := c.all()
			req := create(name+" elsewhere", "a")
			req.VolumeContentSource = from
			_, err := c.CreateVolume(context.Background(), req)
			wantCode(t, err, codes.ResourceExhausted)
			if after := c.all(); len(after) != len(before) {
				t.Errorf("there are %q", after)
			}
		})
	}
}

func TestAContentSourceThatIsNone(t *testing.T) {
	c := newCluster(t, "a")
	for name, tc := range map[string]struct {
		from *csi.VolumeContentSource
		code codes.Code
	}{
		"no type":           {&csi.VolumeContentSource{}, codes.InvalidArgument},
		"no ID":             {fromSnapshot(""), codes.InvalidArgument},
		"malformed":         {fromVolume("../x"), codes.NotFound},
		"unknown":           {fromVolume(volumeid.New(volumeid.Volume, "a", "unknown")), codes.NotFound},
		"on an absent node": {fromVolume(volumeid.New(volumeid.Volume, "z", "v")), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			req := create("v", "a")
			req.VolumeContentSource = tc.from
			_, err := c.CreateVolume(context.Background(), req)
			wantCode(t, err, tc.code)
		})
	}
	if ids := c.all(); len(ids) > 0 {
		t.Errorf("there are %q", ids)
	}
}

func TestAnEmptyVolumeIsCreatedOnNoOtherNode(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		c.nodes["a"].fails("CreateVolume", codes.ResourceExhausted)
		_, err := c.CreateVolume(context.Background(), create("v", "a", "b"))
		wantCode(t, err, codes.ResourceExhausted)
		c.nodes["a"].heals()
		c.nodes["a"].stop()
		c.lost(1)
		_, err = c.CreateVolume(context.Background(), create("v", "a", "b"))
		wantCode(t, err, codes.Unavailable, "a ("+c.nodes["a"].address)
		if ids := c.all(); len(ids) > 0 {
			t.Errorf("there are %q", ids)
		}
		c.volume("another", "b") // which does not depend on a
	}, "a", "b")
}

func TestUnknownTopologies(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		requisite := func(name string, on ...string) *csi.CreateVolumeRequest {
			req := create(name, on...)
			req.AccessibilityRequirements.Preferred = nil
			return req
		}
		resp, err := c.CreateVolume(context.Background(), requisite("v", "not a node of ours", "b", "a"))
		if want := volumeid.New(volumeid.Volume, "b", "v"); err != nil || resp.GetVolume().GetVolumeId() != want {
			t.Errorf("got %v, %v", resp, err)
		}
		_, err = c.CreateVolume(context.Background(), requisite("w", "nobody"))
		wantCode(t, err, codes.ResourceExhausted)
		_, err = c.CreateVolume(context.Background(), create("w", "nobody", "b")) // where the pod is, there is a node
		wantCode(t, err, codes.Unavailable, "nobody")
		c.nodes["a"].stop()
		c.lost(1)
		_, err = c.CreateVolume(context.Background(), requisite("w", "nobody", "b")) // may be who is silent
		wantCode(t, err, codes.Unavailable, "a (")
		if ids := c.all(); len(ids) != 1 {
			t.Errorf("there are %q", ids)
		}
	}, "a", "b")
}

// TestNodesOfSystems: a node of an earlier release does not report its operating system.
func TestNodesOfSystems(t *testing.T) {
	const system = "driver/os"
	at := func(segments ...string) *csi.Topology {
		t := &csi.Topology{Segments: map[string]string{}}
		for i := 0; i < len(segments); i += 2 {
			t.Segments[segments[i]] = segments[i+1]
		}
		return t
	}
	newNode := func(id string, segments ...string) *node {
		return &node{id: id, segments: at(append(segments, testKey, id)...).GetSegments()}
	}
	v := &view{known: true, nodes: []*node{newNode("l", system, "linux"), newNode("w", system, "windows"), newNode("old")}}
	r := &Router{cfg: Config{TopologyKey: testKey}}
	r.view.Store(v)
	c := &controller{Router: r}
	for name, tc := range map[string]struct {
		term *csi.Topology
		want string
		code codes.Code
	}{
		"a system":                                    {at(system, "windows"), "w", codes.OK},
		"a node and its system":                       {at(testKey, "l", system, "linux"), "l", codes.OK},
		"a node without a system":                     {at(testKey, "old"), "old", codes.OK},
		"a system that no node has":                   {at(system, "plan9"), "", codes.ResourceExhausted},
		"a system that the node has not reported yet": {at(testKey, "old", system, "linux"), "", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.candidates(&csi.TopologyRequirement{Preferred: []*csi.Topology{tc.term}})
			wantCode(t, err, tc.code)
			if err == nil && (len(got) != 1 || got[0].id != tc.want) {
				t.Errorf("got %d nodes, want %s", len(got), tc.want)
			}
		})
	}
}

// TestANodeWithoutAnAddress: between two pods of a DaemonSet a node has none, and DNS knows nothing
// of it.
func TestANodeWithoutAnAddress(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		ctx := context.Background()
		c.volume("v", "a")
		c.nodes["a"].stop()
		c.setAddresses("b")
		c.await(func(v *view) bool {
			return len(v.nodes) == 1 && len(v.silent) == 1 && errors.Is(v.silent[0].err, errNoAddress)
		})
		for name, err := range map[string]error{
			"list":     second(c.ListVolumes(ctx, &csi.ListVolumesRequest{})),
			"the same": second(c.CreateVolume(ctx, create("v", "a", "b"))),
			"anywhere": second(c.CreateVolume(ctx, create("w"))),
			"that volume": second(c.DeleteVolume(ctx,
				&csi.DeleteVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "a", "v")})),
		} {
			t.Log(name)
			wantCode(t, err, codes.Unavailable, "a (", errNoAddress.Error())
		}
		if how := c.ready(); !strings.Contains(how, "1 of 2") {
			t.Error(how)
		}
		c.volume("on b", "b")
		c.later()
		c.settled(1)
		if ids := c.listed(0); len(ids) != 1 {
			t.Errorf("listed are %q", ids)
		}
		_, err := c.CreateVolume(ctx, create("v", "a", "b"))
		wantCode(t, err, codes.Unavailable)
		c.nodes["a"].address = ""
		c.nodes["a"].start()
		c.lookUpNodes()
		c.settled(2)
		if _, err := c.CreateVolume(ctx, create("v", "a", "b")); err != nil {
			t.Error(err)
		}
		if ids := c.all(); len(ids) != 2 {
			t.Errorf("there are %q", ids)
		}
	}, "a", "b")
}

func TestWithoutARequirementTheNodeHasMostRoom(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		// only the reserved bytes differ
		for node, size := range map[string]int64{"a": 1 << 30, "b": 0, "c": 1 << 31} {
			if size == 0 {
				continue
			}
			req := create("filler "+node, node)
			req.CapacityRange.RequiredBytes = size
			if _, err := c.CreateVolume(context.Background(), req); err != nil {
				t.Fatal(err)
			}
		}
		where := func(name string) string {
			t.Helper()
			resp, err := c.CreateVolume(context.Background(), create(name))
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetVolume().GetAccessibleTopology()[0].GetSegments()[testKey]
		}
		if got := where("v"); got != "b" {
			t.Errorf("it is on %s, and b has most room", got)
		}
		c.nodes["b"].fails("CreateVolume", codes.ResourceExhausted)
		if got := where("w"); got != "a" {
			t.Errorf("with b full it is on %s, and a has more room than c", got)
		}
		c.nodes["b"].heals()
		for range 2 {
			if got := where("w"); got != "a" {
				t.Errorf("once more it is on %s, and was on a", got)
			}
		}
		for _, m := range c.nodes {
			m.fails("CreateVolume", codes.ResourceExhausted)
		}
		_, err := c.CreateVolume(context.Background(), create("x"))
		wantCode(t, err, codes.ResourceExhausted, "on b") // the reason of the node with the most space
		c.nodes["c"].stop()
		c.lost(2)
		_, err = c.CreateVolume(context.Background(), create("x"))
		wantCode(t, err, codes.Unavailable, "c (")
		if ids := c.all(); len(ids) != 4 {
			t.Errorf("there are %q", ids)
		}
	}, "a", "b", "c")
}

func TestANameOfAnotherSizeIsFoundWhereItIs(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	if _, err := c.CreateVolume(context.Background(), create("v", "c")); err != nil {
		t.Fatal(err)
	}
	req := create("v")
	req.CapacityRange.RequiredBytes *= 2
	_, err := c.CreateVolume(context.Background(), req)
	wantCode(t, err, codes.AlreadyExists)
	if ids := c.all(); len(ids) != 1 {
		t.Errorf("there are %q", ids)
	}
}

// TestOneNameIsMadeOnce makes a volume while another call makes it and its node cannot be told from
// the others by room.
func TestOneNameIsMadeOnce(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	begun, done := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(begun); <-done })
	for _, m := range c.nodes {
		m.fault.Store(&fault{method: "CreateVolume", before: first})
	}
	answered := make(chan error, 1)
	go func() {
		_, err := c.CreateVolume(context.Background(), create("v"))
		answered <- err
	}()
	<-begun
	_, err := c.CreateVolume(context.Background(), create("v"))
	wantCode(t, err, codes.Aborted)
	close(done)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if _, err := c.CreateVolume(context.Background(), create("v")); err != nil {
		t.Error(err)
	}
	if ids := c.all(); len(ids) != 1 {
		t.Errorf("there are %q", ids)
	}
}

// TestANameThatCantBeLookedForIsNotFinal: an earlier call may have made the volume on the node that
// does not answer, and after a final code no caller would look for the volume again.
func TestANameThatCantBeLookedForIsNotFinal(t *testing.T) {
	c := newCluster(t, "a", "b")
	order := c.router.view.Load().nodes
	for name, tc := range map[string]struct{ first, second codes.Code }{
		"one fails for good":                      {codes.OK, codes.Internal},
		"one fails for good, another for a while": {codes.Internal, codes.Unavailable},
		"one cannot make it, another is away":     {codes.InvalidArgument, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.volume(name, order[1].id) // and that answer was lost
			for i, code := range []codes.Code{tc.first, tc.second} {
				if code != codes.OK {
					c.nodes[order[i].id].fails("Locate", code)
				}
			}
			_, err := c.CreateVolume(context.Background(), create(name))
			wantCode(t, err, codes.Unavailable)
			for _, m := range c.nodes {
				m.heals()
			}
			resp, err := c.CreateVolume(context.Background(), create(name))
			if err != nil || resp.GetVolume().GetVolumeId() != id {
				t.Errorf("then: %v, %v", resp, err)
			}
		})
	}
	for _, m := range c.nodes {
		m.fails("Locate", codes.InvalidArgument)
	}
	_, err := c.CreateVolume(context.Background(), create("w"))
	wantCode(t, err, codes.InvalidArgument) // which a node says only of a name that it does not have
}

// TestSecretsAreForTheNodeThatMakesTheVolume: all are asked for the name, and the others need not
// know them.
func TestSecretsAreForTheNodeThatMakesTheVolume(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	var mu sync.Mutex
	heard := map[string]int{} // how often a method came with secrets, and without
	for _, m := range c.nodes {
		m.fault.Store(&fault{request: func(req any) {
			create, ok := req.(*csi.CreateVolumeRequest)
			if l, isLocate := req.(*peer.LocateRequest); isLocate {
				create, ok = l.GetCreate(), true
			}
			mu.Lock()
			defer mu.Unlock()
			if ok {
				heard[fmt.Sprintf("%T %t", req, len(create.GetSecrets()) > 0)]++
			}
		}})
	}
	req := create("v")
	req.Secrets = map[string]string{"password": "correct horse"}
	if _, err := c.CreateVolume(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"*peer.LocateRequest false": 3, "*csi.CreateVolumeRequest true": 1}
	if !maps.Equal(heard, want) {
		t.Errorf("the nodes heard %v, want %v", heard, want)
	}
}
