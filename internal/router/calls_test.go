package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// TestTheConnectionIsCut cuts the connection before a node gets a call, during the call, and before
// the response. The code of the response permits another attempt; after that attempt there is
// exactly one object, or none.
func TestTheConnectionIsCut(t *testing.T) {
	ctx := context.Background()
	type world struct {
		*cluster
		volume, snapshot string
	}
	for name, tc := range map[string]struct {
		call func(w world) error
		want func(w world) string // the difference from the expected objects
	}{
		"CreateVolume": {
			func(w world) error { _, err := w.CreateVolume(ctx, create("new", "a")); return err },
			func(w world) string { return w.has(2, 1) },
		},
		"Locate": {
			func(w world) error { _, err := w.CreateVolume(ctx, create("new")); return err },
			func(w world) string { return w.has(2, 1) },
		},
		"DeleteVolume": {
			func(w world) error {
				_, err := w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: w.volume})
				return err
			},
			func(w world) string { return w.has(0, 1) },
		},
		"CreateSnapshot": {
			func(w world) error {
				_, err := w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "new", SourceVolumeId: w.volume})
				return err
			},
			func(w world) string { return w.has(1, 2) },
		},
		"DeleteSnapshot": {
			func(w world) error {
				_, err := w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: w.snapshot})
				return err
			},
			func(w world) string { return w.has(1, 0) },
		},
		"ControllerExpandVolume": {
			func(w world) error {
				_, err := w.ControllerExpandVolume(ctx,
					&csi.ControllerExpandVolumeRequest{VolumeId: w.volume,
						CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mib}})
				return err
			},
			func(w world) string {
				v, err := w.nodes["a"].storage.Get(ctx, w.volume, nil)
				if err != nil || v.Size != 2*mib {
					return fmt.Sprintf("it has %d bytes, %v", v.Size, err)
				}
				return w.has(1, 1)
			},
		},
		"ControllerModifyVolume": {
			func(w world) error {
				_, err := w.ControllerModifyVolume(ctx,
					&csi.ControllerModifyVolumeRequest{VolumeId: w.volume,
						MutableParameters: map[string]string{"enforce": "preferred"}})
				return err
			},
			func(w world) string {
				v, err := w.nodes["a"].storage.Get(ctx, w.volume, nil)
				if err != nil || v.Mutable["enforce"] != "preferred" {
					return fmt.Sprintf("it has %v, %v", v.Mutable, err)
				}
				return w.has(1, 1)
			},
		},
		"ControllerGetVolume": {
			func(w world) error {
				_, err := w.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: w.volume})
				return err
			}, func(w world) string { return w.has(1, 1) },
		},
		"ValidateVolumeCapabilities": {
			func(w world) error {
				_, err := w.ValidateVolumeCapabilities(ctx,
					&csi.ValidateVolumeCapabilitiesRequest{VolumeId: w.volume, VolumeCapabilities: mountable()})
				return err
			}, func(w world) string { return w.has(1, 1) },
		},
		"ListVolumes": {
			func(w world) error { _, err := w.ListVolumes(ctx, &csi.ListVolumesRequest{}); return err },
			func(w world) string { return w.has(1, 1) },
		},
		"ListSnapshots": {
			func(w world) error { _, err := w.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}); return err },
			func(w world) string { return w.has(1, 1) },
		},
		"GetSnapshot": {
			func(w world) error {
				_, err := w.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: w.snapshot})
				return err
			},
			func(w world) string { return w.has(1, 1) },
		},
		"GetCapacity": {
			func(w world) error { _, err := w.GetCapacity(ctx, &csi.GetCapacityRequest{}); return err },
			func(w world) string { return w.has(1, 1) },
		},
		"ControllerListVolumeHealth": {
			func(w world) error {
				_, err := w.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{})
				return err
			}, func(w world) string { return w.has(1, 1) },
		},
	} {
		for when, cut := range map[string]func(m *machine) *fault{
			"before": func(m *machine) *fault {
				return &fault{err: status.Error(codes.Aborted, "it was not done"), before: m.conns.cut}
			},
			"during": func(m *machine) *fault { return &fault{before: m.conns.cut} },
			"after":  func(m *machine) *fault { return &fault{after: m.conns.cut} },
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				w := world{cluster: newCluster(t, "a", "b")}
				w.volume = w.cluster.volume("v", "a")
				w.snapshot = w.cluster.snapshot("s", w.volume)
				f := cut(w.nodes["a"])
				f.method = name
				w.nodes["a"].fault.Store(f)
				wantCode(t, tc.call(w), codes.Unavailable, "a (")
				w.nodes["a"].heals()
				w.settled(2)
				var err error
				await.True(t, "a repeated call ends", func() bool {
					err = tc.call(w)
					return status.Code(err) != codes.Aborted && status.Code(err) != codes.Unavailable
				})
				if err != nil {
					t.Fatal(err)
				}
				if wrong := tc.want(w); wrong != "" {
					t.Error(wrong)
				}
			})
		}
	}
}

// has returns the difference unless the nodes have so many volumes and snapshots.
func (c *cluster) has(volumes, snapshots int) string {
	if v, s := c.all(), c.onDisk("snapshots"); len(v) != volumes || len(s) != snapshots {
		return fmt.Sprintf("there are the volumes %q, want %d, and the snapshots %q, want %d", v, volumes, s, snapshots)
	}
	return ""
}

// TestHealthOfWhatCantBeAsked: the health of a volume is an answer, not an error.
func TestHealthWhileTheNodeIsAway(t *testing.T) {
	c := newCluster(t, "a", "b")
	id := c.volume("v", "a")
	req := &csi.ControllerGetVolumeHealthRequest{VolumeId: id}
	resp, err := c.ControllerGetVolumeHealth(context.Background(), req)
	if err != nil || len(resp.GetVolumeHealth().GetHealthStatuses()) > 0 {
		t.Errorf("while it is well: %v, %v", resp, err)
	}
	c.nodes["a"].stop()
	c.lost(1)
	resp, err = c.ControllerGetVolumeHealth(context.Background(), req)
	sick := resp.GetVolumeHealth()
	if err != nil || sick.GetVolumeId() != id || len(sick.GetHealthStatuses()) != 1 || sick.HealthStatuses[0].Status != csi.VolumeHealthErrorType_INACCESSIBLE || sick.HealthStatuses[0].Message == "" {
		t.Errorf("while its node is away: %v, %v", resp, err)
	}
	_, err = c.ControllerListVolumeHealth(context.Background(), &csi.ControllerListVolumeHealthRequest{})
	wantCode(t, err, codes.Unavailable, "a (")
	_, err = c.ControllerGetVolumeHealth(context.Background(),
		&csi.ControllerGetVolumeHealthRequest{VolumeId: "malformed"})
	wantCode(t, err, codes.NotFound)
}

func TestCodesComeBackAsTheyAre(t *testing.T) {
	c := newCluster(t, "a")
	id := c.volume("v", "a")
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		c.nodes["a"].fails("ControllerGetVolume", code)
		_, err := c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		want := code
		if code == codes.Canceled { // the node canceled the call, not the caller
			want = codes.Unavailable
		}
		wantCode(t, err, want, "as the test wants")
	}
}

func TestDeadlinesAndMetadataOfACall(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		id := c.volume("v", "a")
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x-request-id", "4711", "traceparent",
			"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "authorization", "secret")
		get := func(ctx context.Context) error {
			_, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
			return err
		}
		if err := get(ctx); err != nil {
			t.Fatal(err)
		}
		got := c.nodes["a"].header.Load()
		for key, want := range map[string][]string{
			"x-request-id": {"4711"}, "traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "authorization": nil,
		} {
			if got == nil || !slices.Equal(got.Get(key), want) {
				t.Errorf("the node heard %v of a call with %s %q", got, key, want)
			}
		}
		entered, leave := make(chan context.Context, 2), make(chan struct{})
		defer close(leave)
		c.nodes["a"].hangs("ControllerGetVolume", entered, leave)
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		wantCode(t, get(short), codes.DeadlineExceeded)
		deadline, ok := (<-entered).Deadline()
		if want, _ := short.Deadline(); !ok || deadline.Sub(want).Abs() > time.Second {
			t.Errorf("the node's deadline is %v, %t, and the caller's %v", deadline, ok, want)
		}
		canceled, cancel := context.WithCancel(ctx)
		go func() {
			node := <-entered
			cancel()
			<-node.Done() // so the node hears of it
		}()
		wantCode(t, get(canceled), codes.Canceled)
	}, "a")
}

// hangs makes calls of a method tell their context, and wait.
func (m *machine) hangs(method string, entered chan<- context.Context, leave <-chan struct{}) {
	m.fault.Store(&fault{method: method, enter: func(ctx context.Context) {
		entered <- ctx
		<-leave
	}})
}

func TestCapacity(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		ctx := context.Background()
		room := func(t *csi.Topology) *csi.GetCapacityResponse {
			c.Helper()
			resp, err := c.GetCapacity(ctx, &csi.GetCapacityRequest{AccessibleTopology: t})
			if err != nil {
				c.Fatal(err)
			}
			return resp
		}
		req := create("half", "a")
		req.CapacityRange.RequiredBytes = room(topology("a")).GetAvailableCapacity() / 2 / mib * mib
		if _, err := c.CreateVolume(ctx, req); err != nil {
			t.Fatal(err)
		}
		a, b, all := room(topology("a")), room(topology("b")), room(nil)
		if a.GetAvailableCapacity() >= b.GetAvailableCapacity()*3/4 {
			t.Errorf("a has %d bytes left, b %d", a.GetAvailableCapacity(), b.GetAvailableCapacity())
		}
		if got, want := all.GetAvailableCapacity(), a.GetAvailableCapacity()+b.GetAvailableCapacity(); got < want/10*9 ||
			got > want/10*11 {
			t.Errorf("all have %d bytes, want some %d", got, want)
		}
		if got, want := all.GetMaximumVolumeSize().GetValue(), b.GetMaximumVolumeSize().GetValue(); got < want/10*9 ||
			got > want/10*11 {
			t.Errorf("the largest volume has %d bytes, want some %d", got, want)
		}
		c.nodes["a"].stop()
		c.lost(1)
		_, err := c.GetCapacity(ctx, &csi.GetCapacityRequest{AccessibleTopology: topology("a")})
		wantCode(t, err, codes.Unavailable) // so that published volumes stay
		time.Sleep(silentFor)
		for _, silent := range []*csi.Topology{topology("a"), topology("unknown"),
			{Segments: map[string]string{"zone": "x"}}} {
			if got := room(silent); got.GetAvailableCapacity() != 0 || got.GetMaximumVolumeSize() == nil ||
				got.GetMaximumVolumeSize().GetValue() != 0 {
				t.Errorf("after a long silence %s has %v", silent, got)
			}
		}
		if got := room(topology("b")); got.GetAvailableCapacity() == 0 {
			t.Errorf("b has no room")
		}
	}, "a", "b")
}

func TestSnapshotMetadataIsPassedOn(t *testing.T) {
	c := newCluster(t, "a", "b")
	id := volumeid.New(volumeid.Snapshot, "a", "unknown")
	for name, open := range map[string]func(id string) (interface{ next() error }, error){
		"allocated": func(id string) (interface{ next() error }, error) {
			s, err := c.GetMetadataAllocated(context.Background(), &csi.GetMetadataAllocatedRequest{SnapshotId: id})
			return received[csi.GetMetadataAllocatedResponse]{s}, err
		},
		"delta": func(id string) (interface{ next() error }, error) {
			s, err := c.GetMetadataDelta(context.Background(),
				&csi.GetMetadataDeltaRequest{BaseSnapshotId: id, TargetSnapshotId: id})
			return received[csi.GetMetadataDeltaResponse]{s}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for id, code := range map[string]codes.Code{
				id: codes.NotFound, "malformed": codes.NotFound, "": codes.InvalidArgument,
				volumeid.New(volumeid.Snapshot, "z", "s"): codes.Unavailable,
			} {
				s, err := open(id)
				if err != nil {
					t.Fatal(err)
				}
				wantCode(t, s.next(), code)
			}
		})
	}
}

type received[T any] struct {
	grpc.ServerStreamingClient[T]
}

func (r received[T]) next() error {
	_, err := r.Recv()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
