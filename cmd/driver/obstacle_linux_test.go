package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// calls is a client of a driver process. Each call must end before its deadline.
type calls struct {
	*process
	csi.ControllerClient
	csi.NodeClient
}

func (p *process) calls() *calls {
	p.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "csi.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { conn.Close() })
	return &calls{process: p, ControllerClient: csi.NewControllerClient(conn), NodeClient: csi.NewNodeClient(conn)}
}

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func (c *calls) deadline() context.Context { return await.Context(c.T) }

func (c *calls) create(name string, block bool) string {
	c.Helper()
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}}
	if block {
		req.VolumeCapabilities[0].AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		req.Parameters = map[string]string{"kind": "image"}
	}
	resp, err := c.CreateVolume(c.deadline(), req)
	if err != nil {
		c.Fatal(err)
	}
	return resp.GetVolume().GetVolumeId()
}

func (c *calls) staging(id string) string { return filepath.Join(c.dir, "kubelet", "staging", id) }

func (c *calls) stage(id string) error {
	c.Helper()
	if err := os.MkdirAll(c.staging(id), 0o755); err != nil {
		c.Fatal(err)
	}
	_, err := c.NodeStageVolume(c.deadline(),
		&csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: c.staging(id),
			VolumeCapability: mountCapability()})
	return err
}

func (c *calls) unstage(id string) error {
	_, err := c.NodeUnstageVolume(c.deadline(),
		&csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: c.staging(id)})
	return err
}

// end ends the process as the kubelet does.
func (p *process) end() {
	p.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 || !strings.Contains(p.said(), "drained and done") {
		p.Errorf("after SIGTERM: exit %d, %s", code, p.said())
	}
}

// TestObstaclesOnTheDiskStallNoCall restarts a driver after other objects have replaced files and
// directories of the root and of the state directory. A further volume is replaced with a link
// while the driver runs.
func TestObstaclesOnTheDiskStallNoCall(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			bin, dir := build(t), newDir(t)
			state, root := "--state-dir="+filepath.Join(dir, "state"), filepath.Join(dir, "root")
			p := start(t, bin, dir, state)
			if ready, err := p.probe(); !ready || err != nil {
				t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
			}
			c := p.calls()
			good, record, data := c.create("good", false), c.create("record", false), c.create("data", false)
			link, disk := c.create("link", false), c.create("disk", true)
			if err := errors.Join(c.stage(good), c.stage(record)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				syscall.Unmount(c.staging(good), 0)
				syscall.Unmount(c.staging(record), 0)
				syscall.Unmount(c.staging(link), 0)
			})
			p.end()

			staged, err := filepath.Glob(filepath.Join(dir, "state", "staged", "*.json"))
			if err != nil || len(staged) != 2 {
				t.Fatalf("staged are %v, %v", staged, err)
			}
			obstacles := []string{
				filepath.Join(root, "volumes", record, "record.json"),
				filepath.Join(root, "volumes", disk, "image.raw"),
				filepath.Join(root, "snapshots", volumeid.New(volumeid.Snapshot, "n", "s")),
				filepath.Join(root, "groups", volumeid.New(volumeid.Group, "n", "g")),
				filepath.Join(root, "staging", "x"),
				filepath.Join(root, "trash", "x"),
				filepath.Join(root, "identity.json.new"),
				filepath.Join(dir, "state", "root-identity.new"),
				filepath.Join(dir, "state", "frozen", "1.json"),
				filepath.Join(dir, "state", "staged", strings.Repeat("0", 32)+".json"),
				filepath.Join(dir, "state", "staged", strings.Repeat("0", 32)+".json.new"),
			}
			if name == "FIFO" {
				obstacles = append(obstacles, filepath.Join(root, "volumes", data, "data"))
			}
			for _, path := range obstacles {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				if err := put(path); err != nil {
					t.Fatal(err)
				}
			}

			p = start(t, bin, dir, state)
			if ready, err := p.probe(); !ready || err != nil {
				t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
			}
			c = p.calls()
			if err := errors.Join(c.stage(good), c.unstage(good), c.stage(good), c.unstage(good),
				c.unstage(record)); err != nil {
				t.Errorf("the valid volume, or unstaging the damaged volume: %v", err)
			}
			if err := os.RemoveAll(filepath.Join(root, "volumes", link)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(good, filepath.Join(root, "volumes", link)); err != nil {
				t.Fatal(err)
			}
			want := map[string]codes.Code{record: codes.Internal, link: codes.FailedPrecondition}
			if name == "FIFO" {
				want[data] = codes.FailedPrecondition
			}
			for id, code := range want {
				if err := c.stage(id); status.Code(err) != code {
					t.Errorf("NodeStageVolume = %v, want %s", err, code)
				}
			}
			_, err = c.CreateSnapshot(c.deadline(), &csi.CreateSnapshotRequest{Name: "of disk", SourceVolumeId: disk})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "unexpected file type") {
				t.Errorf("CreateSnapshot = %v, want FAILED_PRECONDITION that names the type", err)
			}
			if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(dir, "kubelet"))); err != nil ||
				len(mounts) != 0 {
				t.Errorf("mounted are %v, %v", mounts, err)
			}
			p.end()
		})
	}
}
