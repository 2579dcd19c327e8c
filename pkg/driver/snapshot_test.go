package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/causeway-csi/causeway/pkg/backend"
)

var (
	here  = &csi.Topology{Segments: map[string]string{testName + "/node": "node-1", testName + "/os": operatingSystem}}
	there = &csi.Topology{Segments: map[string]string{testName + "/node": "node-2"}}
	// onNode is the topology of a volume here.
	onNode = &csi.Topology{Segments: map[string]string{testName + "/node": "node-1"}}
)

// requisite returns a requirement for one of several topologies.
func requisite(topologies ...*csi.Topology) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: topologies, Preferred: topologies[:1]}
}

// snapshot creates a snapshot of the volume.
func (v *volume) snapshot(name string) *csi.Snapshot {
	v.Helper()
	resp, err := v.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: v.id})
	v.want(codes.OK, err)
	return resp.GetSnapshot()
}

func ofSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func ofVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func (d *testDriver) deleteSnapshot(id string) error {
	_, err := d.DeleteSnapshot(context.Background(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// listSnapshots returns the IDs that a request lists.
func (d *testDriver) listSnapshots(req *csi.ListSnapshotsRequest) (ids []string) {
	d.Helper()
	resp, err := d.ListSnapshots(context.Background(), req)
	d.want(codes.OK, err)
	for _, e := range resp.GetEntries() {
		ids = append(ids, e.GetSnapshot().GetSnapshotId())
	}
	return ids
}

func TestCreateSnapshotRequests(t *testing.T) {
	type request = csi.CreateSnapshotRequest
	for name, tc := range map[string]struct {
		change  func(*request) // changes a request for "v" with a free name
		code    codes.Code
		wantErr string
	}{
		"a request of Kubernetes": {func(r *request) {
			r.Parameters = map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "s",
				"storage.kubernetes.io/x": "y"}
		}, codes.OK, ""},
		"no name": {func(r *request) { r.Name = "" }, codes.InvalidArgument, "name"},
		"a name of 129 bytes": {func(r *request) { r.Name = strings.Repeat("n", 129) }, codes.InvalidArgument,
			"129"},
		"a NUL in the name": {func(r *request) { r.Name = "a\x00b" }, codes.InvalidArgument, "U+0000"},
		"no volume": {func(r *request) { r.SourceVolumeId = "" }, codes.InvalidArgument,
			"source volume ID"},
		"a volume that does not exist": {func(r *request) { r.SourceVolumeId = "none" }, codes.NotFound, `"none"`},
		"a path for a volume":          {func(r *request) { r.SourceVolumeId = "../v" }, codes.NotFound, ""},
		"a pod's inline volume":        {func(r *request) { r.SourceVolumeId = handle(1) }, codes.NotFound, ""},
		"an unknown parameter": {func(r *request) { r.Parameters = map[string]string{"color": "blue"} },
			codes.InvalidArgument, "color"},
		"the same again":             {func(r *request) { r.Name = "taken" }, codes.OK, ""},
		"a name of another volume's": {func(r *request) { r.Name = "other's" }, codes.AlreadyExists, ""},
		"to be usable on this node": {func(r *request) { r.AccessibilityRequirements = requisite(here) }, codes.OK,
			""},
		"to be usable on another node or here": {func(r *request) {
			r.AccessibilityRequirements = requisite(there,
				here)
		},
			codes.OK, ""},
		"to be usable on another node": {func(r *request) { r.AccessibilityRequirements = requisite(there) },
			codes.ResourceExhausted, "node-1"},
		"better there": {func(r *request) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: []*csi.Topology{there}}
		}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDriver(t, inMemory, onOneNode)
			v := d.create("v", capability(sharedMode))
			there := []string{v.snapshot("taken").GetSnapshotId(),
				d.create("other", capability(sharedMode)).snapshot("other's").GetSnapshotId()}
			inline := &volume{testDriver: d, id: handle(1), capability: capability(singleMode),
				context: map[string]string{ephemeralKey: "true"}}
			d.want(codes.OK, inline.publish("target"))
			req := &request{Name: "s", SourceVolumeId: v.id}
			tc.change(req)
			before := time.Now()
			resp, err := d.CreateSnapshot(context.Background(), req)
			d.want(tc.code, err)
			if err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v does not contain %q", err, tc.wantErr)
			}
			got := resp.GetSnapshot()
			if err == nil && !slices.Contains(there, got.GetSnapshotId()) {
				there = append(there, got.GetSnapshotId())
				if got.GetCreationTime().AsTime().Before(before) {
					t.Errorf("the creation time is %s, the request was sent at %s", got.GetCreationTime().AsTime(),
						before)
				}
			}
			if err == nil && (got.GetSourceVolumeId() != v.id || !got.GetReadyToUse() || got.GetSizeBytes() != 1<<20 ||
				got.GetGroupSnapshotId() != "" || !isHere(got.GetAccessibleTopology())) {
				t.Errorf("made %v", got)
			}
			slices.Sort(there)
			if all := d.listSnapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(all, there) {
				t.Errorf("there are %v, want %v", all, there)
			}
			d.want(codes.OK, inline.unpublish("target"))
		})
	}
}

func isHere(topology []*csi.Topology) bool {
	return len(topology) == 1 && proto.Equal(topology[0], here)
}

func TestASnapshotIsFoundListedAndDeleted(t *testing.T) {
	d := startDriver(t, inMemory)
	ctx := context.Background()
	v, other := d.create("v", capability(sharedMode)), d.create("other", capability(sharedMode))
	one, two, others := v.snapshot("one"), v.snapshot("two"), other.snapshot("three")
	if len(one.GetAccessibleTopology()) != 0 {
		t.Errorf("%v can be used on all nodes, but has a topology", one)
	}
	id := one.GetSnapshotId()
	for range 2 {
		got, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})
		d.want(codes.OK, err)
		if !proto.Equal(got.GetSnapshot(), one) {
			t.Errorf("GetSnapshot = %v, want %v", got, one)
		}
		d.restart()
	}
	sorted := func(snapshots ...*csi.Snapshot) (ids []string) {
		for _, s := range snapshots {
			ids = append(ids, s.GetSnapshotId())
		}
		slices.Sort(ids)
		return ids
	}
	for name, tc := range map[string]struct {
		req  *csi.ListSnapshotsRequest
		want []string
	}{
		"all":                             {&csi.ListSnapshotsRequest{}, sorted(one, two, others)},
		"of a volume":                     {&csi.ListSnapshotsRequest{SourceVolumeId: v.id}, sorted(one, two)},
		"of a volume that does not exist": {&csi.ListSnapshotsRequest{SourceVolumeId: "none"}, nil},
		"of a path":                       {&csi.ListSnapshotsRequest{SourceVolumeId: "../v"}, nil},
		"by ID":                           {&csi.ListSnapshotsRequest{SnapshotId: id}, sorted(one)},
		"by ID, one entry":                {&csi.ListSnapshotsRequest{SnapshotId: id, MaxEntries: 1}, sorted(one)},
		"by an unknown ID":                {&csi.ListSnapshotsRequest{SnapshotId: "none"}, nil},
		"by a path":                       {&csi.ListSnapshotsRequest{SnapshotId: "../" + id}, nil},
		"by ID and volume": {
			&csi.ListSnapshotsRequest{SnapshotId: id, SourceVolumeId: v.id}, sorted(one),
		},
		"by ID and another volume":    {&csi.ListSnapshotsRequest{SnapshotId: id, SourceVolumeId: other.id}, nil},
		"by an unknown ID and volume": {&csi.ListSnapshotsRequest{SnapshotId: "none", SourceVolumeId: v.id}, nil},
	} {
		if got := d.listSnapshots(tc.req); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	for range 2 {
		d.want(codes.OK, d.deleteSnapshot(id))
		_, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})
		d.want(codes.NotFound, err)
	}
	d.want(codes.OK, d.deleteSnapshot("../"+two.GetSnapshotId()))
	d.want(codes.OK, v.delete())
	if got, want := d.listSnapshots(&csi.ListSnapshotsRequest{}), sorted(two, others); !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	_, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{})
	d.want(codes.InvalidArgument, err)
	d.want(codes.InvalidArgument, d.deleteSnapshot(""))
}

func TestListSnapshotsPages(t *testing.T) {
	d := startDriver(t, inMemory)
	ctx := context.Background()
	v := d.create("v", capability(sharedMode))
	for i := range 7 {
		v.snapshot(fmt.Sprint("s", i))
	}
	all := d.listSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: v.id})
	var got []string
	for token, i := "", 0; i == 0 || token != ""; i++ {
		page, err := d.ListSnapshots(ctx,
			&csi.ListSnapshotsRequest{SourceVolumeId: v.id, MaxEntries: 2, StartingToken: token})
		d.want(codes.OK, err)
		if len(page.GetEntries()) > 2 || i > 10 {
			t.Fatalf("page %d has %d entries", i, len(page.GetEntries()))
		}
		for _, e := range page.GetEntries() {
			got = append(got, e.GetSnapshot().GetSnapshotId())
		}
		d.want(codes.OK, d.deleteSnapshot(got[len(got)-1])) // the snapshot after which the next page starts
		token = page.GetNextToken()
	}
	if len(all) != 7 || !slices.Equal(got, all) {
		t.Errorf("the pages have %v, want %v", got, all)
	}
	for _, bad := range []string{"invalid-token", "1", ".", strings.Repeat("9", 5000)} {
		for _, id := range []string{"", "none"} {
			_, err := d.ListSnapshots(ctx, &csi.ListSnapshotsRequest{StartingToken: bad, SnapshotId: id})
			d.want(codes.Aborted, err)
		}
	}
	_, err := d.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: -1})
	d.want(codes.InvalidArgument, err)
}

func TestContentSources(t *testing.T) {
	type request = csi.CreateVolumeRequest
	size := func(required, limit int64) func(*request) {
		return func(r *request) { r.CapacityRange = newSize(required, limit) }
	}
	as := func(change func(*request)) func(*request) { return change }
	for name, tc := range map[string]struct {
		id     string // "": the ID of a snapshot or a volume
		change func(*request)
		code   codes.Code
	}{
		"as large as it":       {"", as(func(*request) {}), codes.OK},
		"larger":               {"", size(5<<20, 6<<20), codes.OK},
		"of any size":          {"", size(0, 0), codes.OK},
		"smaller":              {"", size(1, 0), codes.OutOfRange},
		"of a smaller limit":   {"", size(0, 1), codes.OutOfRange},
		"larger than the disk": {"", size(1<<60, 0), codes.ResourceExhausted},
		"of an unknown source": {"none", as(func(*request) {}), codes.NotFound},
		"of a path":            {"../v", as(func(*request) {}), codes.NotFound},
		"of nothing":           {" ", as(func(*request) {}), codes.InvalidArgument},
		"a taken name":         {"", as(func(r *request) { r.Name = "v" }), codes.AlreadyExists},
		"here":                 {"", as(func(r *request) { r.AccessibilityRequirements = requisite(here) }), codes.OK},
		"here, better there": {"", as(func(r *request) { r.AccessibilityRequirements = requisite(there, here) }),
			codes.OK},
		"there": {"", as(func(r *request) { r.AccessibilityRequirements = requisite(there) }),
			codes.ResourceExhausted},
		"with a parameter": {"", as(func(r *request) { r.Parameters = map[string]string{"color": "blue"} }),
			codes.InvalidArgument},
		"as a device": {"", as(func(r *request) {
			r.VolumeCapabilities = []*csi.VolumeCapability{device(sharedMode)}
		}), codes.InvalidArgument},
		"with a reserved key": {"", as(func(r *request) {
			r.Parameters = map[string]string{"csi.storage.k8s.io/x": "y"}
		}), codes.OK},
		"without a capability": {"", as(func(r *request) { r.VolumeCapabilities = nil }), codes.InvalidArgument},
		"with too long a name": {"", as(func(r *request) { r.Name = strings.Repeat("n", 129) }),
			codes.InvalidArgument},
		"with too low a limit":  {"", size(6<<20, 5<<20), codes.OutOfRange},
		"with a negative limit": {"", size(0, -1), codes.InvalidArgument},
	} {
		for kind, of := range map[string]func(string) *csi.VolumeContentSource{"snapshot": ofSnapshot,
			"volume": ofVolume} {
			t.Run(name+", from a "+kind, func(t *testing.T) {
				d := startDriver(t, inMemory, onOneNode)
				v := d.create("v", capability(sharedMode))
				id := tc.id
				if id == "" {
					if id = v.id; kind == "snapshot" {
						id = v.snapshot("s").GetSnapshotId()
					}
				}
				req := createRequest("new")
				req.VolumeContentSource = of(strings.TrimSpace(id))
				tc.change(req)
				resp, err := d.CreateVolume(context.Background(), req)
				d.want(tc.code, err)
				all, listErr := d.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
				d.want(codes.OK, listErr)
				if err != nil {
					if len(all.GetEntries()) != 1 {
						t.Errorf("left are %v", all)
					}
					return
				}
				again, err := d.CreateVolume(context.Background(), req)
				d.want(codes.OK, err)
				got, err := d.ControllerGetVolume(context.Background(),
					&csi.ControllerGetVolumeRequest{VolumeId: resp.GetVolume().GetVolumeId()})
				d.want(codes.OK, err)
				answers := []*csi.Volume{resp.GetVolume(), again.GetVolume(), got.GetVolume()}
				for _, e := range all.GetEntries() {
					if e.GetVolume().GetVolumeId() != v.id {
						answers = append(answers, e.GetVolume())
					} else if e.GetVolume().GetContentSource() != nil {
						t.Errorf("an empty volume is %v", e)
					}
				}
				for _, a := range answers {
					if !proto.Equal(a.GetContentSource(), req.GetVolumeContentSource()) ||
						a.GetVolumeId() != resp.GetVolume().GetVolumeId() || len(a.GetAccessibleTopology()) != 1 ||
						!proto.Equal(a.GetAccessibleTopology()[0], onNode) {
						t.Errorf("made %v of %v", a, req.GetVolumeContentSource())
					}
				}
			})
		}
	}
}

func device(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func TestAnUnsupportedContentSourceIsRejected(t *testing.T) {
	conn, _, _ := serveOdd(t, &struct {
		slow
		local
	}{}, &logBuffer{}, time.Second)
	for wantErr, source := range map[string]*csi.VolumeContentSource{
		"cannot restore snapshots":    ofSnapshot("s"),
		"cannot clone volumes":        ofVolume("v"),
		"neither snapshot nor volume": {},
	} {
		req := createRequest("new")
		// retrying on another node would not help
		req.VolumeContentSource, req.AccessibilityRequirements = source, requisite(there)
		_, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%v = %v, want InvalidArgument with %q", source, err, wantErr)
		}
	}
}

func TestTheSameSnapshotManyTimesMakesOneSnapshot(t *testing.T) {
	d := startDriver(t, inMemory)
	v := d.create("v", capability(sharedMode))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, err := d.CreateSnapshot(context.Background(),
				&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.id})
			if code := status.Code(err); code != codes.OK && code != codes.Aborted {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all := d.listSnapshots(&csi.ListSnapshotsRequest{}); len(all) != 1 {
		t.Errorf("there are %v", all)
	}
}

// broken is storage whose methods return an error.
type broken struct {
	backend.Backend
	err error
}

func (b *broken) Snapshot(context.Context, backend.SnapshotOptions) (backend.Snapshot, error) {
	return backend.Snapshot{}, b.err
}

func (b *broken) DeleteSnapshot(context.Context, string, map[string]string) error { return b.err }

func (b *broken) GetSnapshot(context.Context, string, map[string]string) (backend.Snapshot, error) {
	return backend.Snapshot{}, b.err
}

func (b *broken) ListSnapshots(context.Context, string, string, int) ([]backend.Snapshot, bool, error) {
	return nil, false, b.err
}

func (b *broken) Restore(context.Context, string, backend.CreateOptions) (backend.Volume, error) {
	return backend.Volume{}, b.err
}

func (b *broken) Clone(context.Context, string, backend.CreateOptions) (backend.Volume, error) {
	return backend.Volume{}, b.err
}

// TestBackendErrorsOfSnapshots makes each call with each error of the contract, wrapped as backends
// wrap errors.
func TestBackendErrorsOfSnapshots(t *testing.T) {
	b := &broken{}
	conn, _, _ := serveOdd(t, b, &logBuffer{}, time.Second)
	c, ctx := csi.NewControllerClient(conn), context.Background()
	create := func(source *csi.VolumeContentSource) error {
		req := createRequest("subject")
		req.VolumeContentSource = source
		_, err := c.CreateVolume(ctx, req)
		return err
	}
	calls := map[string]func() error{
		"CreateSnapshot": func() error {
			_, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "new", SourceVolumeId: "subject"})
			return err
		},
		"DeleteSnapshot": func() error {
			_, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: "subject"})
			return err
		},
		"GetSnapshot": func() error {
			_, err := c.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: "subject"})
			return err
		},
		"ListSnapshots": func() error { _, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}); return err },
		"ListSnapshots by ID": func() error {
			_, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: "subject"})
			return err
		},
		"CreateVolume of a snapshot": func() error { return create(ofSnapshot("subject")) },
		"CreateVolume of a volume":   func() error { return create(ofVolume("subject")) },
	}
	for cause, code := range map[error]codes.Code{
		backend.ErrNotFound:      codes.NotFound,
		backend.ErrExists:        codes.AlreadyExists,
		backend.ErrInvalid:       codes.InvalidArgument, // for DeleteSnapshot: the snapshot is a member of a group
		backend.ErrInUse:         codes.FailedPrecondition,
		backend.ErrPrecondition:  codes.FailedPrecondition,
		backend.ErrExhausted:     codes.ResourceExhausted,
		backend.ErrOutOfRange:    codes.OutOfRange,
		backend.ErrBusy:          codes.Aborted,
		backend.ErrUnavailable:   codes.Unavailable,
		context.DeadlineExceeded: codes.DeadlineExceeded,
		errors.New("anything"):   codes.Internal,
	} {
		b.err = fmt.Errorf("the disk: %w", cause)
		for name, call := range calls {
			want, wantErr := code, "subject"
			switch {
			case name == "ListSnapshots by ID" && code == codes.NotFound:
				want = codes.OK
			case name == "ListSnapshots":
				wantErr = "list snapshots"
			}
			if err := call(); status.Code(err) != want ||
				(want != codes.OK && !strings.Contains(err.Error(), wantErr)) {
				t.Errorf("%s, when the backend returns %v: %v, want %s", name, cause, err, want)
			}
		}
	}
}

// onlyListsAreBroken is storage with a single valid snapshot.
type onlyListsAreBroken struct{ broken }

func (b *onlyListsAreBroken) GetSnapshot(context.Context, string, map[string]string) (backend.Snapshot, error) {
	return backend.Snapshot{ID: "subject"}, nil
}

func TestAListByIDNeverFailsBecauseOfOthers(t *testing.T) {
	conn, _, _ := serveOdd(t, &onlyListsAreBroken{broken{err: backend.ErrUnavailable}}, &logBuffer{}, time.Second)
	c := csi.NewControllerClient(conn)
	resp, err := c.ListSnapshots(context.Background(), &csi.ListSnapshotsRequest{SnapshotId: "subject"})
	if err != nil || len(resp.GetEntries()) != 1 {
		t.Errorf("ListSnapshots = %v, %v", resp, err)
	}
	if _, err := c.ListSnapshots(context.Background(),
		&csi.ListSnapshotsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("ListSnapshots of all = %v", err)
	}
}
