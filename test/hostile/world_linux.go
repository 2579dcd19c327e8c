package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/test/figures"
)

// world is a driver with everything that it needs, on a filesystem of its own.
type world struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	conn     *grpc.ClientConn
	bin, dir string
	args     []string // more flags of the driver
	cmd      *exec.Cmd
	volumes  int // that were made
}

var errNoDisk = errors.New("this machine can make no filesystem")

// newWorld makes a filesystem of a type and starts a driver on it. The caller ends it.
func newWorld(ctx context.Context, b *bench, fsType string, args ...string) (*world, error) {
	dir, err := os.MkdirTemp(b.dir, "")
	if err != nil {
		return nil, err
	}
	disk, err := figures.Disk(ctx, dir, fsType)
	if err != nil {
		return nil, err
	}
	if disk == "" {
		return nil, fmt.Errorf("%w of type %s", errNoDisk, fsType)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(disk, 0o755)); err != nil { // attackers are not root
		return nil, err
	}
	w := &world{bin: b.bin, dir: filepath.Join(disk, "w"), args: args}
	for _, sub := range []string{"root", "kubelet/pods"} {
		if err := os.MkdirAll(filepath.Join(w.dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	return w, w.start(ctx)
}

func (w *world) socket() string { return filepath.Join(w.dir, "csi.sock") }
func (w *world) root() string   { return filepath.Join(w.dir, "root") }

// start starts a driver and waits until it is ready.
func (w *world) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	w.cmd = exec.Command(w.bin, append(w.args, "--endpoint=unix://"+w.socket(), "--root="+w.root(), "--init-root",
		"--kubelet-dir="+filepath.Join(w.dir, "kubelet"), "--state-dir="+filepath.Join(w.dir,
			"state"), "--node-id=hostile", "--drain-timeout=5s")...)
	w.cmd.Stdout, w.cmd.Stderr = log, log
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	w.conn, err = grpc.NewClient("unix://"+w.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	w.IdentityClient, w.ControllerClient, w.NodeClient = csi.NewIdentityClient(w.conn),
		csi.NewControllerClient(w.conn), csi.NewNodeClient(w.conn)
	return w.ready(ctx)
}

// ready waits until the driver that was started last serves.
func (w *world) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if w.servedByUs() {
			resp, err := w.Probe(ctx, &csi.ProbeRequest{})
			if err == nil && resp.GetReady().GetValue() {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the driver does not serve; its log is %s: %w", w.tail(), ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// servedByUs reports whether the socket belongs to the driver that was started last.
func (w *world) servedByUs() bool {
	c, err := net.Dial("unix", w.socket())
	if err != nil {
		return false
	}
	defer c.Close()
	return peerPID(c) == w.cmd.Process.Pid
}

// tail returns the end of the driver's log.
func (w *world) tail() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "log"))
	return string(text[max(0, len(text)-2000):])
}

// kill ends the driver after a failure. Else it does nothing.
func (w *world) kill() {
	w.cmd.Process.Kill()
	w.cmd.Wait()
}

// stop sends SIGTERM, waits for the end of the driver, and returns how long it took.
func (w *world) stop() (time.Duration, error) {
	start := time.Now()
	err := errors.Join(w.conn.Close(), w.cmd.Process.Signal(syscall.SIGTERM), w.cmd.Wait())
	return time.Since(start), err
}

// kind is the form of a volume.
type kind string

const (
	directory kind = "directory"
	image     kind = "image"
	device    kind = "device" // an image that is used as a block device
)

// volume is a volume in the middle of its life.
type volume struct {
	w               *world
	name, id        string
	kind            kind
	staging, target string
}

// newVolume returns a volume that is not made yet. Its name has the prefix.
func (w *world) newVolume(prefix string, k kind) *volume {
	w.volumes++
	name := fmt.Sprintf("%s-%d", prefix, w.volumes)
	at := filepath.Join(w.dir, "kubelet", "pods", name)
	return &volume{w: w, name: name, kind: k, staging: filepath.Join(at, "staging"),
		target: filepath.Join(at, "target")}
}

func (v *volume) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	if v.kind == device {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

// parameters are those of the volume's class. Each hostile volume belongs to the same namespace.
func (v *volume) parameters() map[string]string {
	p := map[string]string{"csi.storage.k8s.io/pvc/namespace": namespaceOf(v.name)}
	if v.kind != directory {
		p["kind"] = "image"
	}
	return p
}

func (v *volume) create(ctx context.Context, from *csi.VolumeContentSource) error {
	resp, err := v.w.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: v.name, CapacityRange: &csi.CapacityRange{RequiredBytes: 32 << 20}, Parameters: v.parameters(),
		VolumeCapabilities: []*csi.VolumeCapability{v.capability()}, VolumeContentSource: from,
	})
	v.id = resp.GetVolume().GetVolumeId()
	return err
}

func (v *volume) stage(ctx context.Context) error {
	if err := os.MkdirAll(v.staging, 0o755); err != nil {
		return err
	}
	_, err := v.w.NodeStageVolume(ctx,
		&csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability()})
	return err
}

func (v *volume) publish(ctx context.Context) error {
	_, err := v.w.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: v.capability(),
	})
	return err
}

// publishInline publishes an inline volume, whose ID is the name that the kubelet gives it.
func (v *volume) publishInline(ctx context.Context) error {
	v.id = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.name)))
	_, err := v.w.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.id, TargetPath: v.target, VolumeCapability: v.capability(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "32Mi",
			"kind": string(v.kind)},
	})
	return err
}

func (v *volume) unpublish(ctx context.Context) error {
	_, err := v.w.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	return err
}

func (v *volume) unstage(ctx context.Context) error {
	_, err := v.w.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

func (v *volume) delete(ctx context.Context) error {
	_, err := v.w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	return err
}

// snapshot makes a snapshot and returns its ID.
func (v *volume) snapshot(ctx context.Context, name string) (string, error) {
	resp, err := v.w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
		Name: name, SourceVolumeId: v.id,
		Parameters: map[string]string{"csi.storage.k8s.io/volumesnapshot/namespace": namespaceOf(v.name)},
	})
	return resp.GetSnapshot().GetSnapshotId(), err
}

func (v *volume) deleteSnapshot(ctx context.Context, id string) error {
	_, err := v.w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// health returns the reasons of the volume's conditions.
func (v *volume) health(ctx context.Context) (reasons []string, err error) {
	resp, err := v.w.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	for _, s := range resp.GetVolumeHealth().GetHealthStatuses() {
		reasons = append(reasons, s.GetReason())
	}
	return reasons, err
}

// made returns n volumes that are made, staged and published.
func (w *world) made(ctx context.Context, n int, prefix string, k kind) (all []*volume, err error) {
	for range n {
		v := w.newVolume(prefix, k)
		if err := v.begun(ctx); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// begun makes, stages and publishes a volume.
func (v *volume) begun(ctx context.Context) error {
	for _, step := range []func(context.Context) error{func(ctx context.Context) error { return v.create(ctx, nil) },
		v.stage, v.publish} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ended ends the life of volumes.
func ended(ctx context.Context, all []*volume) error {
	for _, v := range all {
		for _, step := range []func(context.Context) error{v.unpublish, v.unstage, v.delete} {
			if err := retried(ctx, step); err != nil {
				return fmt.Errorf("end %s: %w", v.name, err)
			}
		}
	}
	return nil
}

// retried repeats a call as a CO does: an error may be temporary.
func retried(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := call(ctx)
		switch status.Code(err) {
		case codes.OK, codes.InvalidArgument, codes.NotFound, codes.Internal:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}
