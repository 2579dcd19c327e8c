package inventory

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

func ids(all []Object) (ids []string) {
	for _, o := range all {
		ids = append(ids, o.ID)
	}
	return ids
}

func TestAListHasAllObjectsSorted(t *testing.T) {
	for _, page := range []int32{0, 1, 2} {
		l := full()
		got, err := List(context.Background(), l.serve(t), Options{Page: page})
		if err != nil || got.Driver != "x" {
			t.Fatalf("%+v, %v", got, err)
		}
		volumes, snapshots := []string{v1, v2, v3}, []string{s1, s2, m1, m2, m3}
		slices.Sort(volumes)
		slices.Sort(snapshots)
		if !slices.Equal(ids(got.Volumes), volumes) || !slices.Equal(ids(got.Snapshots), snapshots) {
			t.Errorf("pages of %d: %v, %v", page, ids(got.Volumes), ids(got.Snapshots))
		}
		for _, v := range got.Volumes {
			if v.ID == v2 && (v.Size != 2<<30 || v.Source != s1 || !slices.Equal(v.Nodes, []string{"n1"})) {
				t.Errorf("%+v", v)
			}
		}
		for _, s := range got.Snapshots {
			if s.ID == m2 && (s.Group != g1 || s.Source != v2 || !s.Created.Equal(when)) {
				t.Errorf("%+v", s)
			}
		}
	}
}

func TestAListThatFailsIsNoList(t *testing.T) {
	for call := range int32(5) {
		l := full()
		l.failAt = call + 1
		if got, err := List(context.Background(), l.serve(t), Options{}); status.Code(err) != codes.Unavailable ||
			!strings.Contains(err.Error(), "node-2") || got != nil {
			t.Errorf("call %d fails: %+v, %v, want UNAVAILABLE", call+1, got, err)
		}
	}
	for name, change := range map[string]func(*lister){
		"no end": func(l *lister) { l.endless = true },
		"no list of volumes": func(l *lister) {
			l.cannot = append(l.cannot, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
		},
		"no list of snapshots": func(l *lister) {
			l.cannot = append(l.cannot, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
		},
		"a volume with another kind of ID":   func(l *lister) { l.volumes[2].VolumeId = "vol-1" },
		"a snapshot with another kind of ID": func(l *lister) { l.snapshots[1].SnapshotId = "snap-1" },
		"a group with another kind of ID":    func(l *lister) { l.snapshots[4].GroupSnapshotId = "group-1" },
		"no ID":                              func(l *lister) { l.volumes[0] = nil },
	} {
		l := full()
		change(l)
		if got, err := List(context.Background(), l.serve(t), Options{}); err == nil {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}

func TestWithoutSnapshotsThereAreVolumes(t *testing.T) {
	l := full()
	l.cannot = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT}
	got, err := List(context.Background(), l.serve(t), Options{Page: 1})
	if err != nil || len(got.Volumes) != 3 || got.Snapshots == nil || len(got.Snapshots) != 0 || l.calls.Load() != 3 {
		t.Errorf("%+v, %v after %d calls", got, err, l.calls.Load())
	}
}

func TestInlineVolumesAreNotListed(t *testing.T) {
	l := full()
	l.volumes = append(l.volumes, &csi.Volume{VolumeId: volumeid.New(volumeid.Inline, "n1", "csi-1")})
	if got, err := List(context.Background(), l.serve(t), Options{}); err != nil || len(got.Volumes) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The ID of central storage ends with the address of the volume.
func TestAnIDWithAnAddress(t *testing.T) {
	l := full()
	w := volumeid.New(volumeid.Volume, "//server/share", "1")
	l.volumes = []*csi.Volume{{VolumeId: w + "@server/share/base"}}
	got, err := List(context.Background(), l.serve(t), Options{})
	if err != nil || len(got.Volumes) != 1 || got.Volumes[0].ID != w+"@server/share/base" || Key(got.Volumes[0].ID) != w {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestOneVolumeHasItsSnapshotsAndTheErrorsOfCalls(t *testing.T) {
	conn := startDriver(t)
	v, s := makeBoth(t, conn, "pvc-1")
	makeBoth(t, conn, "pvc-2")
	got, err := One(context.Background(), conn, v, Options{Page: 1})
	if err != nil || got.Volume == nil || got.Volume.ID != v || got.Volume.Size != 1<<20 || len(got.Errors) > 0 ||
		len(got.Health) > 0 || !slices.Equal(ids(got.Snapshots), []string{s}) {
		t.Errorf("%+v, %v", got, err)
	}
	absent := volumeid.New(volumeid.Volume, "node-1", "pvc-3")
	got, err = One(context.Background(), conn, absent, Options{})
	if err != nil || got.Volume != nil || len(got.Errors) < 2 || !strings.Contains(got.Errors[0], "NotFound") {
		t.Errorf("%+v, %v", got, err)
	}
}
