package driver

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

func TestTheClaimOfAVolume(t *testing.T) {
	long := strings.Repeat("a", maxObjectName)
	for _, c := range []struct {
		parameters map[string]string
		want       backend.Claim
	}{
		{nil, backend.Claim{}},
		{map[string]string{claimNamespace: "team-a", claimName: "data-db-0", claimVolume: "pvc-1"},
			backend.Claim{Namespace: "team-a", Name: "data-db-0", Volume: "pvc-1"}},
		{map[string]string{claimNamespace: "../b", claimName: "data/..", claimVolume: "PVC-1"}, backend.Claim{}},
		{map[string]string{claimNamespace: "a\x00", claimName: ".", claimVolume: "-a"}, backend.Claim{}},
		{map[string]string{claimName: long, claimVolume: long + "a"}, backend.Claim{Name: long}},
		{map[string]string{claimName: "db.example.com", claimVolume: "a..b"}, backend.Claim{Name: "db.example.com"}},
	} {
		if got := claimOf(c.parameters); got != c.want {
			t.Errorf("parameters %.200q: claim %+v, want %+v", c.parameters, got, c.want)
		}
	}
}

// silentStorage is storage whose server does not answer while silent is set.
type silentStorage struct {
	*memory.Backend
	silent atomic.Bool
	mounts atomic.Int64 // calls of Mount
}

func (s *silentStorage) answer() error {
	if s.silent.Load() {
		return fmt.Errorf("%w: the server does not answer", backend.ErrUnavailable)
	}
	return nil
}

func (s *silentStorage) Get(ctx context.Context, id string, secrets map[string]string) (backend.Volume, error) {
	if err := s.answer(); err != nil {
		return backend.Volume{}, err
	}
	return s.Backend.Get(ctx, id, secrets)
}

func (s *silentStorage) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	s.mounts.Add(1)
	if err := s.answer(); err != nil {
		return mounter.Mount{}, err
	}
	return s.Backend.Mount(ctx, id, a)
}

func (s *silentStorage) Usage(context.Context, string) (mounter.Usage, bool, error) {
	return mounter.Usage{}, false, nil
}

// A node does not need the storage for a staged volume, also after a restart of the driver.
func TestAStagedVolumeIsUsedWithoutItsStorage(t *testing.T) {
	storage := &silentStorage{}
	d := startDriver(t, inMemory, func(d *testDriver) { storage.Backend = d.memory; d.disks = storage })
	v := d.create("v", capability(sharedMode))
	d.want(codes.OK, v.stage())
	calls := storage.mounts.Load()
	storage.silent.Store(true)
	for range 2 {
		d.want(codes.OK, v.publish("one"))
		d.want(codes.OK, v.publish("two"))
		d.want(codes.OK, v.publish("two"))
		d.want(codes.OK, v.stats(d.path("one")))
		d.want(codes.OK, v.stats(v.staging))
		d.want(codes.NotFound, v.stats(d.path("elsewhere")))
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unpublish("two"))
		d.restart()
	}
	if n := storage.mounts.Load() - calls; n != 0 {
		t.Errorf("%d calls of Mount for a staged volume, want none", n)
	}
	d.want(codes.OK, v.unstage())
	d.want(codes.Unavailable, v.publish("one"))
}

// A release before this one staged the volume: its record has no mount.
func TestAStagedVolumeWhoseRecordHasNoMount(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		records := d.driver.node.records
		for path, st := range records.byPath {
			st.Mount = nil
			if err := records.write(path, st); err != nil {
				t.Fatal(err)
			}
		}
		d.restart()
		d.want(codes.OK, v.publish("one"))
		d.want(codes.OK, v.stats(d.path("one")))
		d.want(codes.OK, v.stage()) // completes the record
		for _, st := range d.driver.node.records.byPath {
			if st.Mount == nil {
				t.Error("the record has no mount after the volume was staged again")
			}
		}
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unstage())
	})
}

// An option that no mount may have can be a secret: no record contains it.
func TestAStagingRecordContainsNoRejectedOption(t *testing.T) {
	d := startDriver(t, inMemory)
	v := d.create("v", capability(sharedMode))
	v.capability = capability(sharedMode, "password=hunter2")
	d.want(codes.InvalidArgument, v.stage())
	if records := d.driver.node.records.byPath; len(records) != 0 {
		t.Errorf("records of a volume that was not staged: %v", records)
	}
}

func (v *volume) stats(path string) error {
	_, err := v.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: path})
	return err
}
