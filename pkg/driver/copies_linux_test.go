package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/internal/testdisk"
)

// imageOf creates a volume with a filesystem, and stages it until the end of the test.
func (d *testDriver) imageOf(name, fsType string, size int64, source *csi.VolumeContentSource) *volume {
	d.Helper()
	vc := capability(sharedMode)
	vc.GetMount().FsType = fsType
	resp, err := d.CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{vc},
		Parameters:         map[string]string{"kind": "image"}, VolumeContentSource: source,
	})
	d.want(codes.OK, err)
	v := &volume{testDriver: d, id: resp.GetVolume().GetVolumeId(), context: resp.GetVolume().GetVolumeContext(),
		capability: vc, staging: filepath.Join(d.kubelet, "staging-"+name)}
	d.Cleanup(func() {
		if err := v.unstage(); err != nil {
			d.Error(err)
		}
	})
	d.want(codes.OK, v.stage())
	return v
}

func (v *volume) write(name, text string) {
	v.Helper()
	f, err := os.Create(filepath.Join(v.staging, name))
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err != nil || closed != nil {
		v.Fatal(err, closed)
	}
}

func (v *volume) wantFile(name, text string) {
	v.Helper()
	if got, err := os.ReadFile(filepath.Join(v.staging, name)); err != nil || string(got) != text {
		v.Errorf("%s of %s holds %q, %v, want %q", name, v.staging, got, err, text)
	}
}

// busily writes to a volume until stop is called.
func (v *volume) busily() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			if err := os.WriteFile(filepath.Join(v.staging, fmt.Sprint("busy-", i%20)), make([]byte, 64<<10),
				0o600); err != nil {
				v.Error(err)
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// TestCopiesAreMountedBesideTheirSource creates the copies during writes to the source.
func TestCopiesAreMountedBesideTheirSource(t *testing.T) {
	if realMounter == nil {
		t.Skip("this process cannot mount")
	}
	for fsType, size := range map[string]int64{"ext4": 64 << 20, "xfs": 320 << 20, "btrfs": 256 << 20} {
		for _, root := range []string{"xfs", "btrfs"} {
			t.Run(fsType+" on "+root, func(t *testing.T) {
				d := startDriver(t, func(d *testDriver) {
					d.real = true
					testdisk.Filesystem{Type: root}.Mount(t, d.root)
				})
				t.Cleanup(func() { d.stop() }) // before its root is removed
				source := d.imageOf("source", fsType, size, nil)
				source.write("file", "old")
				stop := source.busily()
				defer stop()
				n := source.snapshot("n")
				source.write("file", "new")
				clone := d.imageOf("clone", fsType, size, ofVolume(source.id))
				restored := d.imageOf("restored", fsType, 2*size, ofSnapshot(n.GetSnapshotId()))
				beside := d.imageOf("beside", fsType, size, ofSnapshot(n.GetSnapshotId()))
				group := d.group("g", source, clone)
				stop()
				source.write("file", "newest")
				clone.wantFile("file", "new")
				restored.wantFile("file", "old")
				beside.wantFile("file", "old")
				beside.write("file", "its own")
				source.wantFile("file", "newest")
				restored.wantFile("file", "old")
				for i, v := range []*volume{source, clone} { // the order of the IDs may differ
					for _, member := range group.GetSnapshots() {
						if member.GetSourceVolumeId() == v.id {
							copied := d.imageOf(fmt.Sprint("member-", i), fsType, size,
								ofSnapshot(member.GetSnapshotId()))
							copied.wantFile("file", "new")
						}
					}
				}
				stats, err := d.NodeGetVolumeStats(context.Background(),
					&csi.NodeGetVolumeStatsRequest{VolumeId: restored.id, VolumePath: restored.staging})
				if total := stats.GetUsage()[0].GetTotal(); err != nil || total < size*3/2 {
					t.Errorf("the larger copy has %d bytes, %v", total, err)
				}
				if left, err := os.ReadDir(d.kubelet + ".frozen"); err != nil || len(left) > 0 {
					t.Errorf("records of freezes: %v, %v", left, err)
				}
			})
		}
	}
}

func TestSnapshotsOfManyVolumesWhileOthersArePublished(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		const snapshots, publishes = 20, 200
		var sources, users []*volume
		for i := range snapshots {
			v := d.create(fmt.Sprint("source-", i), capability(sharedMode))
			if err := os.WriteFile(filepath.Join(v.data(), "file"), []byte(v.id), 0o600); err != nil {
				t.Fatal(err)
			}
			sources = append(sources, v)
		}
		for i := range 10 {
			v := d.create(fmt.Sprint("used-", i), capability(sharedMode))
			v.staging = filepath.Join(d.kubelet, fmt.Sprint("staging-", i))
			d.want(codes.OK, v.stage())
			users = append(users, v)
		}
		var wg sync.WaitGroup
		for i, v := range sources {
			wg.Go(func() {
				if _, err := d.CreateSnapshot(context.Background(),
					&csi.CreateSnapshotRequest{Name: fmt.Sprint("n", i), SourceVolumeId: v.id}); err != nil {
					t.Error(err)
				}
			})
		}
		for i, v := range users {
			wg.Go(func() {
				for j := range publishes / len(users) {
					target := fmt.Sprintf("target-%d-%d", i, j)
					if err := v.publish(target); err != nil {
						t.Error(err)
					}
					if err := v.unpublish(target); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for i, v := range sources {
			ids := d.listSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: v.id})
			if len(ids) != 1 {
				t.Fatalf("volume %d has the snapshots %v", i, ids)
			}
			if got, err := os.ReadFile(filepath.Join(d.root, "snapshots", ids[0], "data", "file")); err != nil ||
				string(got) != v.id {
				t.Errorf("snapshot %d holds %q, %v", i, got, err)
			}
		}
		for _, v := range users {
			d.want(codes.OK, v.unstage())
		}
	})
}
