package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// groups is a client of the GroupController service.
func (d *testDriver) groups() csi.GroupControllerClient { return csi.NewGroupControllerClient(d.conn) }

// group makes a group of snapshots.
func (d *testDriver) group(name string, volumes ...*volume) *csi.VolumeGroupSnapshot {
	d.Helper()
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: name}
	for _, v := range volumes {
		req.SourceVolumeIds = append(req.SourceVolumeIds, v.id)
	}
	resp, err := d.groups().CreateVolumeGroupSnapshot(context.Background(), req)
	d.want(codes.OK, err)
	return resp.GetGroupSnapshot()
}

func memberIDs(g *csi.VolumeGroupSnapshot) []string {
	return each(g.GetSnapshots(), func(s *csi.Snapshot) string { return s.GetSnapshotId() })
}

func TestGroupControllerIsServedForAGroupSnapshotter(t *testing.T) {
	for name, tc := range map[string]struct {
		backend backend.Backend
		has     bool
	}{
		"a GroupSnapshotter": {&brokenGroups{}, true},
		"a Snapshotter":      {&broken{}, false},
	} {
		conn, _, _ := serveOdd(t, tc.backend, &logBuffer{}, time.Second)
		resp, err := csi.NewIdentityClient(conn).GetPluginCapabilities(context.Background(),
			&csi.GetPluginCapabilitiesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(resp.GetCapabilities(), func(c *csi.PluginCapability) bool {
			return c.GetService().GetType() == csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
		})
		capabilities, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(context.Background(),
			&csi.GroupControllerGetCapabilitiesRequest{})
		if has != tc.has || (err == nil) != tc.has || (status.Code(err) == codes.Unimplemented) == tc.has ||
			len(capabilities.GetCapabilities()) > 1 {
			t.Errorf("%s: advertised: %v; %v, %v", name, has, capabilities, err)
		}
	}
}

func TestCreateGroupRequests(t *testing.T) {
	type request = csi.CreateVolumeGroupSnapshotRequest
	for name, tc := range map[string]struct {
		change  func(r *request, one, two, three string) // changes a request for one and two with a free name
		code    codes.Code
		wantErr string
	}{
		"a request of Kubernetes": {func(r *request, one, two, three string) {
			r.Parameters = map[string]string{"csi.storage.k8s.io/volumegroupsnapshot/name": "g",
				"storage.kubernetes.io/x": "y"}
		}, codes.OK, ""},
		"a request of Kubernetes' tests": {func(r *request, one, two, three string) {
			r.Parameters = map[string]string{"deletionPolicy": "Retain"}
		}, codes.OK, ""},
		"another policy": {func(r *request, one, two, three string) {
			r.Parameters = map[string]string{"deletionPolicy": "Keep"}
		}, codes.InvalidArgument, "Keep"},
		"of one volume": {func(r *request, one, two, three string) { r.SourceVolumeIds = []string{one} },
			codes.OK, ""},
		"no name": {func(r *request, one, two, three string) { r.Name = "" }, codes.InvalidArgument,
			"name"},
		"a name of 129 bytes": {func(r *request, one, two, three string) { r.Name = strings.Repeat("n", 129) },
			codes.InvalidArgument, "129"},
		"a NUL in the name": {func(r *request, one, two, three string) { r.Name = "a\x00b" },
			codes.InvalidArgument, "U+0000"},
		"no volumes": {func(r *request, one, two, three string) { r.SourceVolumeIds = nil },
			codes.InvalidArgument, "volume IDs"},
		"an empty ID": {func(r *request, one, two, three string) { r.SourceVolumeIds[1] = "" },
			codes.InvalidArgument, "volume ID"},
		"a volume twice": {func(r *request, one, two, three string) { r.SourceVolumeIds[1] = one },
			codes.InvalidArgument, "twice"},
		"a volume that does not exist": {func(r *request, one, two, three string) { r.SourceVolumeIds[1] = "none" },
			codes.NotFound, `"none"`},
		"a path for a volume": {func(r *request, one, two, three string) { r.SourceVolumeIds[0] = "../v" },
			codes.NotFound, ""},
		"an unknown parameter": {func(r *request, one, two, three string) {
			r.Parameters = map[string]string{"color": "blue"}
		}, codes.InvalidArgument, "color"},
		"the same again": {func(r *request, one, two, three string) { r.Name = "taken" }, codes.OK, ""},
		"the same, in another order": {func(r *request, one, two, three string) {
			r.Name = "taken"
			slices.Reverse(r.SourceVolumeIds)
		}, codes.OK, ""},
		"the same, without a volume": {func(r *request, one, two, three string) {
			r.Name = "taken"
			r.SourceVolumeIds = []string{one}
		}, codes.AlreadyExists, ""},
		"the same, with another": {func(r *request, one, two, three string) {
			r.Name = "taken"
			r.SourceVolumeIds[1] = three
		}, codes.AlreadyExists, ""},
		"the name of a snapshot": {func(r *request, one, two, three string) { r.Name = "snapshot" }, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDriver(t, inMemory, onOneNode)
			vc := capability(sharedMode)
			one, two, three := d.create("one", vc), d.create("two", vc), d.create("three", vc)
			one.snapshot("snapshot")
			taken := d.group("taken", one, two)
			req := &request{Name: "new", SourceVolumeIds: []string{one.id, two.id}}
			tc.change(req, one.id, two.id, three.id)
			before := d.listSnapshots(&csi.ListSnapshotsRequest{})
			resp, err := d.groups().CreateVolumeGroupSnapshot(context.Background(), req)
			d.want(tc.code, err)
			if err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v does not contain %q", err, tc.wantErr)
			}
			want := before
			if id := resp.GetGroupSnapshot().GetGroupSnapshotId(); err == nil && id != taken.GetGroupSnapshotId() {
				want = append(slices.Clone(before), memberIDs(resp.GetGroupSnapshot())...)
			}
			slices.Sort(want)
			if after := d.listSnapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(after, want) {
				t.Errorf("there are the snapshots %v, want %v", after, want)
			}
			if err == nil {
				checkMembers(t, resp.GetGroupSnapshot(), req.GetSourceVolumeIds())
			}
		})
	}
}

// checkMembers makes sure that a group has a snapshot of each volume.
func checkMembers(t *testing.T, g *csi.VolumeGroupSnapshot, volumes []string) {
	t.Helper()
	sources := each(g.GetSnapshots(), func(s *csi.Snapshot) string { return s.GetSourceVolumeId() })
	slices.Sort(sources)
	if want := slices.Sorted(slices.Values(volumes)); !slices.Equal(sources, want) || !g.GetReadyToUse() ||
		g.GetGroupSnapshotId() == "" || g.GetCreationTime() == nil {
		t.Errorf("%v is the group of %v", g, want)
	}
	for _, s := range g.GetSnapshots() {
		if s.GetGroupSnapshotId() != g.GetGroupSnapshotId() || !s.GetReadyToUse() || s.GetSizeBytes() != 1<<20 ||
			!isHere(s.GetAccessibleTopology()) {
			t.Errorf("a member of %s is %v", g.GetGroupSnapshotId(), s)
		}
	}
}

func TestAGroupIsFoundAndDeletedAsAWhole(t *testing.T) {
	d := startDriver(t, inMemory)
	ctx := context.Background()
	vc := capability(sharedMode)
	one, two, other := d.create("one", vc), d.create("two", vc), d.create("other", vc)
	g, others := d.group("g", one, two), other.snapshot("s")
	id, members := g.GetGroupSnapshotId(), memberIDs(g)
	d.restart()
	backwards := slices.Clone(members)
	slices.Reverse(backwards)
	for name, tc := range map[string]struct {
		id        string
		snapshots []string
		get, del  codes.Code
	}{
		"no ID":                     {"", members, codes.InvalidArgument, codes.InvalidArgument},
		"an ID that does not exist": {"none", members, codes.NotFound, codes.OK},
		"a path":                    {"../" + id, members, codes.NotFound, codes.OK},
		"a snapshot's ID":           {members[0], members, codes.NotFound, codes.OK},
		"too few snapshots":         {id, members[:1], codes.InvalidArgument, codes.InvalidArgument},
		"too many": {id, append(slices.Clone(members), others.GetSnapshotId()), codes.InvalidArgument,
			codes.InvalidArgument},
		"another snapshot": {id, []string{members[0], others.GetSnapshotId()}, codes.InvalidArgument,
			codes.InvalidArgument},
		"a snapshot that does not exist": {id, []string{members[0], "none"}, codes.InvalidArgument,
			codes.InvalidArgument},
		"a snapshot twice": {id, []string{members[0], members[0]}, codes.InvalidArgument,
			codes.InvalidArgument},
		"all, and a snapshot twice": {id, append(slices.Clone(members), members[0]), codes.InvalidArgument,
			codes.InvalidArgument},
		"an empty ID among them": {id, append(slices.Clone(members), ""), codes.InvalidArgument, codes.InvalidArgument},
		"an unknown ID alone":    {"none", nil, codes.NotFound, codes.OK},
	} {
		_, err := d.groups().GetVolumeGroupSnapshot(ctx,
			&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: tc.id, SnapshotIds: tc.snapshots})
		if status.Code(err) != tc.get {
			t.Errorf("%s: GetVolumeGroupSnapshot = %v, want %s", name, err, tc.get)
		}
		_, err = d.groups().DeleteVolumeGroupSnapshot(ctx,
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: tc.id, SnapshotIds: tc.snapshots})
		if status.Code(err) != tc.del {
			t.Errorf("%s: DeleteVolumeGroupSnapshot = %v, want %s", name, err, tc.del)
		}
	}
	for _, snapshots := range [][]string{nil, members, backwards} {
		got, err := d.groups().GetVolumeGroupSnapshot(ctx,
			&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snapshots})
		if d.want(codes.OK, err); !proto.Equal(got.GetGroupSnapshot(), g) {
			t.Errorf("GetVolumeGroupSnapshot = %v, want %v", got, g)
		}
	}
	for _, member := range g.GetSnapshots() {
		d.want(codes.InvalidArgument, d.deleteSnapshot(member.GetSnapshotId()))
		got, err := d.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: member.GetSnapshotId()})
		if d.want(codes.OK, err); !proto.Equal(got.GetSnapshot(), member) {
			t.Errorf("GetSnapshot of a member = %v, want %v", got, member)
		}
	}
	for _, snapshots := range [][]string{backwards, members, nil} {
		_, err := d.groups().DeleteVolumeGroupSnapshot(ctx,
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snapshots})
		d.want(codes.OK, err)
	}
	if left := d.listSnapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(left, []string{others.GetSnapshotId()}) {
		t.Errorf("the snapshots %v are left", left)
	}
}

// brokenGroups is storage with group snapshots whose methods return an error.
type brokenGroups struct{ broken }

func (b *brokenGroups) SnapshotGroup(context.Context, backend.GroupOptions) (backend.Group, error) {
	return backend.Group{}, b.err
}

func (b *brokenGroups) GetGroup(context.Context, string, []string, map[string]string) (backend.Group, error) {
	return backend.Group{}, b.err
}

func (b *brokenGroups) DeleteGroup(context.Context, string, []string, map[string]string) error {
	return b.err
}

func TestBackendErrorsOfGroups(t *testing.T) {
	b := &brokenGroups{}
	conn, _, _ := serveOdd(t, b, &logBuffer{}, time.Second)
	c, ctx := csi.NewGroupControllerClient(conn), context.Background()
	calls := map[string]func() error{
		"CreateVolumeGroupSnapshot": func() error {
			_, err := c.CreateVolumeGroupSnapshot(ctx,
				&csi.CreateVolumeGroupSnapshotRequest{Name: "subject", SourceVolumeIds: []string{"v"}})
			return err
		},
		"GetVolumeGroupSnapshot": func() error {
			_, err := c.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "subject"})
			return err
		},
		"DeleteVolumeGroupSnapshot": func() error {
			_, err := c.DeleteVolumeGroupSnapshot(ctx,
				&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "subject"})
			return err
		},
	}
	for _, snapshots := range [][]string{{"a", "a"}, {"a", ""}} { // which no backend gets to see
		_, err1 := c.GetVolumeGroupSnapshot(ctx,
			&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "subject", SnapshotIds: snapshots})
		_, err2 := c.DeleteVolumeGroupSnapshot(ctx,
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "subject", SnapshotIds: snapshots})
		if status.Code(err1) != codes.InvalidArgument || status.Code(err2) != codes.InvalidArgument {
			t.Errorf("with the snapshots %q: %v, %v", snapshots, err1, err2)
		}
	}
	for cause, code := range map[error]codes.Code{
		backend.ErrNotFound:     codes.NotFound,
		backend.ErrExists:       codes.AlreadyExists,
		backend.ErrInvalid:      codes.InvalidArgument,
		backend.ErrInUse:        codes.FailedPrecondition,
		backend.ErrPrecondition: codes.FailedPrecondition, // they cannot be snapshotted together
		backend.ErrExhausted:    codes.ResourceExhausted,
		backend.ErrBusy:         codes.Aborted,
		backend.ErrUnavailable:  codes.Unavailable,
		context.Canceled:        codes.Canceled,
		errors.New("anything"):  codes.Internal,
	} {
		b.err = fmt.Errorf("the disk: %w", cause)
		for name, call := range calls {
			if err := call(); status.Code(err) != code || !strings.Contains(err.Error(), "subject") {
				t.Errorf("%s, when the backend returns %v: %v, want %s", name, cause, err, code)
			}
		}
	}
}
