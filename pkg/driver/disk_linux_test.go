package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// disks is a backend whose volumes are loop devices, as disks that are attached to nodes. It finds
// a disk only by the publish context that Attach returned.
type disks struct {
	dir string
	mu  sync.Mutex
	all map[string]*disk // by ID
}

type disk struct {
	backend.Volume
	device   string // its device node while it is attached
	readOnly bool
}

var (
	_ backend.Attacher = (*disks)(nil)
	_ backend.Expander = (*disks)(nil)
)

func (d *disks) path(id string) string { return filepath.Join(d.dir, id) }

func (d *disks) Create(_ context.Context, o backend.CreateOptions) (backend.Volume, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.all[o.Name]
	if !ok {
		v = &disk{Volume: backend.Volume{ID: o.Name, Size: 320 << 20}}
		if err := os.WriteFile(d.path(v.ID), nil, 0o600); err != nil {
			return backend.Volume{}, err
		}
		d.all[o.Name] = v
	}
	return v.Volume, os.Truncate(d.path(v.ID), v.Size)
}

func (d *disks) find(id string) (*disk, error) {
	if v, ok := d.all[id]; ok {
		return v, nil
	}
	return nil, fmt.Errorf("%w: volume %q", backend.ErrNotFound, id)
}

func (d *disks) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(id)
	if err != nil {
		return backend.Volume{}, err
	}
	return v.Volume, nil
}

func (d *disks) Delete(_ context.Context, id string, _ map[string]string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, id)
	return nil
}

func (d *disks) Mount(_ context.Context, id string, a backend.Access) (mounter.Mount, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(id)
	if err != nil {
		return mounter.Mount{}, err
	}
	m := mounter.Mount{Kind: mounter.BlockDevice, Options: a.Options, ReadOnly: a.ReadOnly, Size: 320 << 20}
	if !a.Block {
		m.FSType = "ext4"
	}
	if a.PublishContext == nil {
		return m, nil
	}
	if m.Serial = a.PublishContext["serial"]; m.Serial != "serial of "+id {
		return m, fmt.Errorf("%w: the attachment is another volume's", backend.ErrInvalid)
	}
	if v.device == "" {
		return m, fmt.Errorf("%w: %q is not attached", backend.ErrUnavailable, id)
	}
	m.Source, m.ReadOnly = v.device, m.ReadOnly || v.readOnly
	return m, nil
}

func (d *disks) Attach(_ context.Context, id string, o backend.AttachOptions) (map[string]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(id)
	if err != nil {
		return nil, err
	}
	if v.device == "" {
		out, err := exec.Command("losetup", "--show", "--find", d.path(id)).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("losetup: %w: %s", err, out)
		}
		v.device, v.readOnly = strings.TrimSpace(string(out)), o.Access.ReadOnly
	}
	return map[string]string{"serial": "serial of " + id}, nil
}

func (d *disks) Detach(_ context.Context, id, _ string, _ map[string]string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(id)
	if err != nil || v.device == "" {
		return nil
	}
	if out, err := exec.Command("losetup", "--detach", v.device).CombinedOutput(); err != nil {
		return fmt.Errorf("losetup: %w: %s", err, out)
	}
	v.device = ""
	return nil
}

func (d *disks) Expand(_ context.Context, id string, o backend.ExpandOptions) (int64, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(id)
	if err != nil {
		return 0, false, err
	}
	v.Size = max(v.Size, o.Required)
	if err := os.Truncate(d.path(id), v.Size); err != nil || v.device == "" {
		return v.Size, true, err
	}
	if out, err := exec.Command("losetup", "--set-capacity", v.device).CombinedOutput(); err != nil {
		return 0, true, fmt.Errorf("losetup: %w: %s", err, out)
	}
	return v.Size, true, nil
}

// startWithDisks starts a driver whose volumes are disks.
func startWithDisks(t *testing.T) *testDriver {
	t.Helper()
	testdisk.NeedLoops(t)
	if realMounter == nil || inUserNamespace {
		t.Skip("this process cannot mount a loop device")
	}
	return startDriver(t, func(d *testDriver) {
		d.real, d.disks = true, &disks{dir: filepath.Join(d.dir, "volumes"), all: map[string]*disk{}}
	})
}

// attached is a volume on this node, with its publish context.
type attached struct {
	*volume
	publish map[string]string
}

func (d *testDriver) attached(name string, vc *csi.VolumeCapability,
	change ...func(*csi.ControllerPublishVolumeRequest)) attached {
	d.Helper()
	v := d.create(name, vc)
	publish, err := v.attach("node-1", change...)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := d.disks.(*disks).Detach(context.Background(), v.id, "", nil); err != nil {
			d.Error(err)
		}
	})
	return attached{v, publish}
}

func (a attached) stage() error {
	_, err := a.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: a.id, StagingTargetPath: a.staging, VolumeCapability: a.capability, PublishContext: a.publish,
	})
	return err
}

func (a attached) publishAt(target string, change ...func(*csi.NodePublishVolumeRequest)) error {
	return a.volume.publish(target,
		append(change, func(r *csi.NodePublishVolumeRequest) { r.PublishContext = a.publish })...)
}

// size returns the size that NodeGetVolumeStats reports for a path.
func (a attached) size(path string) int64 {
	a.Helper()
	resp, err := a.NodeGetVolumeStats(context.Background(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: a.id, VolumePath: path})
	if err != nil || len(resp.GetUsage()) == 0 {
		a.Fatalf("NodeGetVolumeStats = %v, %v", resp, err)
	}
	return resp.GetUsage()[0].GetTotal()
}

func TestAnAttachedDiskIsStagedPublishedAndExpanded(t *testing.T) {
	d := startWithDisks(t)
	v := d.attached("v", capability(singleMode, "noatime"))
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.publishAt("target"))
	file := filepath.Join(v.path("target"), "file")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := v.size(v.path("target"))
	d.restart() // the new process reads the publish context from the record
	if got := v.size(v.path("target")); got != before || got < 250<<20 {
		t.Errorf("it has %d bytes, and %d after a restart", before, got)
	}
	wanted := &csi.CapacityRange{RequiredBytes: 640 << 20}
	_, err := v.nodeExpand(v.path("target"), wanted) // before ControllerExpandVolume
	d.want(codes.Unavailable, err)
	_, err = v.expand(wanted)
	d.want(codes.OK, err)
	_, err = v.nodeExpand(v.path("target"), wanted)
	if codeOf(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
		d.want(codes.OK, v.unpublish("target")) // an ext4 filesystem grows when it is staged again
		d.want(codes.OK, v.unstage())
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publishAt("target"))
	} else {
		d.want(codes.OK, err)
	}
	if got := v.size(v.path("target")); got < before+290<<20 {
		t.Errorf("it has %d bytes, and had %d before it grew", got, before)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
		t.Errorf("the file has %q, %v", data, err)
	}
	d.want(codes.OK, v.unpublish("target"))
	d.want(codes.OK, v.unstage())
	d.want(codes.OK, v.detach("node-1"))
	d.want(codes.Unavailable, v.stage())
}

func TestAnAttachedDiskIsPublishedAsADevice(t *testing.T) {
	d := startWithDisks(t)
	v := d.attached("v", blockUse(singleMode))
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.publishAt("target"))
	if err := os.WriteFile(v.path("target"), []byte("written by a pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	wanted := &csi.CapacityRange{RequiredBytes: 640 << 20}
	_, err := v.expand(wanted)
	d.want(codes.OK, err)
	_, err = v.nodeExpand(v.path("target"), wanted)
	d.want(codes.OK, err)
	if got := v.size(v.path("target")); got != 640<<20 {
		t.Errorf("it has %d bytes", got)
	}
	d.want(codes.OK, v.unpublish("target"))
	d.want(codes.OK, v.unstage())
	if exists(v.path("target")) {
		t.Error("the target is left")
	}

	only := d.attached("read-only", blockUse(singleMode),
		func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true })
	d.want(codes.OK, only.stage())
	d.want(codes.FailedPrecondition, only.publishAt("target"))
	d.want(codes.OK, only.publishAt("target", readOnly))
	if err := os.WriteFile(only.path("target"), []byte("x"), 0o600); err == nil {
		t.Error("a device that was attached read-only was written")
	}
	d.want(codes.OK, only.unpublish("target"))
	d.want(codes.OK, only.unstage())
}

func TestAnAttachedDiskWithOtherDataIsRefused(t *testing.T) {
	d := startWithDisks(t)
	v := d.attached("v", capability(singleMode))
	label := append(make([]byte, 512), "LABELONE"...)
	if err := os.WriteFile(d.disks.(*disks).all[v.id].device, label, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := v.stage()
		d.want(codes.FailedPrecondition, err)
		if !strings.Contains(err.Error(), "LVM2") {
			t.Errorf("stage = %v", err)
		}
	}
	if data, err := os.ReadFile(d.disks.(*disks).all[v.id].device); err != nil ||
		string(data[:len(label)]) != string(label) || strings.Trim(string(data[len(label):]), "\x00") != "" {
		t.Errorf("the disk was changed (%v)", err)
	}
	d.want(codes.FailedPrecondition, v.publishAt("target"))
	_, err := v.NodeGetVolumeStats(context.Background(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.staging})
	d.want(codes.NotFound, err)
	if err := d.disks.(*disks).Detach(context.Background(), v.id, "", nil); err != nil {
		t.Error(errors.Unwrap(err))
	}
}

// TestTheFilesystemOfADiskIsNotShared: several nodes that write to a filesystem would destroy it.
func TestTheFilesystemOfADiskIsNotShared(t *testing.T) {
	d := startWithDisks(t)
	for name, row := range map[string]struct {
		capability *csi.VolumeCapability
		readOnly   bool
		want       codes.Code
	}{
		"many writers": {capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), false,
			codes.InvalidArgument},
		"one writer beside readers": {capability(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER), false,
			codes.InvalidArgument},
		"attached for reading": {capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), true,
			codes.OK},
		"many readers": {capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY), false,
			codes.OK},
		"a block device": {blockUse(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), false,
			codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			v := d.create(name, row.capability)
			_, err := v.attach("node-1", func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = row.readOnly })
			if codeOf(err) != row.want {
				t.Errorf("attach = %v, want %v", err, row.want)
			}
			valid, err := d.ValidateVolumeCapabilities(t.Context(),
				&csi.ValidateVolumeCapabilitiesRequest{VolumeId: v.id,
					VolumeCapabilities: []*csi.VolumeCapability{row.capability}})
			if want := row.want == codes.OK && !row.readOnly; err != nil || (valid.GetConfirmed() != nil) != want {
				t.Errorf("ValidateVolumeCapabilities = %v, %v, want it confirmed: %v", valid, err, want)
			}
			if row.want == codes.OK {
				d.want(codes.OK, v.detach("node-1"))
				return
			}
			publish, err := d.disks.(*disks).Attach(context.Background(), v.id, backend.AttachOptions{Node: "node-1"})
			if err != nil {
				t.Fatal(err)
			}
			if err := (attached{v, publish}).stage(); codeOf(err) != row.want {
				t.Errorf("stage = %v, want %v", err, row.want)
			}
			d.want(codes.OK, v.detach("node-1"))
		})
	}
}
