package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/csidriver"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// driverEnv makes the binary of the tests the driver.
const driverEnv = "ATTACHED_TEST_DRIVER"

func TestMain(m *testing.M) {
	if os.Getenv(driverEnv) != "" {
		csidriver.Main(program())
	}
	if os.Getenv(stepEnv) != "" {
		if err := step(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	host.Main()
	os.Exit(m.Run())
}

// life returns a context for calls that are repeated until they succeed. It ends before the deadline
// of the test binary, after which no cleanup would run, and with the test, except in a cleanup: the
// context of the test has ended by then.
func life(t *testing.T) (context.Context, context.CancelFunc) {
	ctx := t.Context()
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	deadline, ok := t.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/10))
}

// process is a driver that runs: a controller, or the driver of a node.
type process struct {
	*testing.T
	dir, node string
	args      []string
	cmd       *exec.Cmd
	log       bytes.Buffer
	conn      *grpc.ClientConn
	csi.ControllerClient
	csi.NodeClient
}

// newProcess starts a driver. No mount of a node is left when the test is over.
func newProcess(t *testing.T, node, mode, cloud string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "attached") // the name of a test would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &process{T: t, dir: dir, node: node}
	p.args = []string{"--mode=" + mode, "--node-id=" + node, "--endpoint=unix://" + p.path("csi.sock"),
		"--kubelet-dir=" + dir,
		"--state-dir=" + p.path("state"), "--cloud-dir=" + cloud, "--cloud-nodes=a,b", "--attach-limit=2"}
	t.Cleanup(func() {
		p.kill()
		for _, path := range p.mounts() {
			if err := unix.Unmount(path, 0); err != nil {
				t.Errorf("unmount %s: %v", path, err)
				unix.Unmount(path, unix.MNT_DETACH)
			}
		}
		if t.Failed() {
			t.Logf("the log of %s:\n%s", node, p.log.Bytes())
		}
		os.RemoveAll(dir)
	})
	if p.conn, err = grpc.NewClient("unix://"+p.path("csi.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond,
			Multiplier: 1, MaxDelay: 10 * time.Millisecond}, MinConnectTimeout: time.Minute}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.conn.Close() })
	p.ControllerClient, p.NodeClient = csi.NewControllerClient(p.conn), csi.NewNodeClient(p.conn)
	p.start()
	return p
}

func (p *process) path(name string) string { return filepath.Join(p.dir, name) }

func (p *process) start() {
	p.Helper()
	p.cmd = exec.Command(os.Args[0], p.args...)
	p.cmd.Env = append(os.Environ(), driverEnv+"=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.Fatal(err)
	}
}

// kill ends the process with SIGKILL.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// mounts returns the mounts below the directory of the node, the last mount first.
func (p *process) mounts() (paths []string) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		p.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, p.dir+"/") {
			paths = append(paths, path)
		}
	}
	slices.Reverse(paths)
	return paths
}

// volume is a volume of the cloud.
type volume struct {
	*testing.T
	controller *process
	id         string
	use        *csi.VolumeCapability
}

func (p *process) create(name, fsType string, size int64) volume {
	p.Helper()
	use := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if fsType == "" {
		use.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		use.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}
	}
	resp, err := p.CreateVolume(p.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{use}, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	if err != nil {
		p.Fatal(err)
	}
	return volume{p.T, p, resp.GetVolume().GetVolumeId(), use}
}

func (v volume) attach(ctx context.Context, node string) (map[string]string, error) {
	resp, err := v.controller.ControllerPublishVolume(ctx,
		&csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: node, VolumeCapability: v.use})
	return resp.GetPublishContext(), err
}

func (v volume) detach(node string) error {
	_, err := v.controller.ControllerUnpublishVolume(v.Context(),
		&csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: node})
	return err
}

func (v volume) stage(ctx context.Context, n *process, publish map[string]string) error {
	_, err := n.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: n.path("staging"), VolumeCapability: v.use, PublishContext: publish,
	})
	return err
}

func (v volume) publish(n *process, publish map[string]string) error {
	_, err := n.NodePublishVolume(v.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: n.path("staging"), TargetPath: n.path("target"), VolumeCapability: v.use, PublishContext: publish,
	})
	return err
}

// goes takes a volume off a node: unpublished, unstaged, detached. It repeats the detach while the
// volume is in use, as external-attacher does: a container that started while the volume was mounted
// has a copy of the mount, and keeps the filesystem until it has left it.
func (v volume) goes(n *process) {
	v.Helper()
	_, err := n.NodeUnpublishVolume(v.Context(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: n.path("target")})
	if err == nil {
		_, err = n.NodeUnstageVolume(v.Context(),
			&csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: n.path("staging")})
	}
	if err != nil {
		v.Fatal(err)
	}
	ctx, cancel := life(v.T)
	defer cancel()
	for {
		err := v.detach(n.node)
		if err == nil {
			return
		}
		if status.Code(err) != codes.FailedPrecondition || ctx.Err() != nil {
			v.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// comes attaches, stages and publishes a volume on a node.
func (v volume) comes(n *process) {
	v.Helper()
	publish, err := v.attach(v.Context(), n.node)
	if err == nil {
		err = v.stage(v.Context(), n, publish)
	}
	if err == nil {
		err = v.publish(n, publish)
	}
	if err != nil {
		v.Fatal(err)
	}
}

// data is the data of a pod: a file of the filesystem, or the device.
func (v volume) data(n *process) string {
	if v.use.GetBlock() != nil {
		return n.path("target")
	}
	return n.path("target/data")
}

const dataSize = 8 << 20

// write writes data as a pod does that syncs it, and returns its sum.
func (v volume) write(n *process) (sum [sha256.Size]byte) {
	v.Helper()
	data := make([]byte, dataSize)
	rand.Read(data)
	file, err := os.OpenFile(v.data(n), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = file.WriteAt(data, 0)
		err = errors.Join(err, file.Sync(), file.Close())
	}
	if err != nil {
		v.Fatal(err)
	}
	return sha256.Sum256(data)
}

func (v volume) holds(n *process, want [sha256.Size]byte) {
	v.Helper()
	file, err := os.Open(v.data(n))
	if err != nil {
		v.Fatal(err)
	}
	defer file.Close()
	data := make([]byte, dataSize)
	if _, err := io.ReadFull(file, data); err != nil || sha256.Sum256(data) != want {
		v.Errorf("other data than was written: %v", err)
	}
}

func TestADiskMovesBetweenNodes(t *testing.T) {
	cloud := cloudDir(t)
	c := newProcess(t, "controller", "controller", cloud)
	a, b := newProcess(t, "a", "node", cloud), newProcess(t, "b", "node", cloud)
	for _, fsType := range []string{"ext4", "xfs", "btrfs", ""} {
		t.Run("as "+fsType, func(t *testing.T) {
			v := c.create("moves as "+fsType, fsType, 320<<20)
			v.T = t
			v.comes(a)
			sum := v.write(a)
			if _, err := v.attach(t.Context(), "b"); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("attach to a second node: %v", err)
			}
			publish, err := v.attach(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if err := v.stage(t.Context(), b, publish); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("stage on a node that does not have the disk: %v", err)
			}
			if err := v.detach("a"); fsType != "" && status.Code(err) != codes.FailedPrecondition {
				t.Errorf("detach of what is mounted: %v", err)
			} else if fsType == "" {
				v.comes(a)
			}
			v.goes(a)
			v.comes(b)
			v.holds(b, sum)
			v.goes(b)
			if left := append(a.mounts(), b.mounts()...); len(left) > 0 {
				t.Errorf("mounted: %q", left)
			}
		})
	}
}

func TestANodeTakesItsLimit(t *testing.T) {
	c := newProcess(t, "controller", "controller", cloudDir(t))
	for i := range 2 {
		if _, err := c.create(fmt.Sprint("v", i), "", 1<<20).attach(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	third := c.create("third", "", 1<<20)
	if _, err := third.attach(t.Context(), "a"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third disk: %v", err)
	}
	if _, err := third.attach(t.Context(), "b"); err != nil {
		t.Error(err)
	}
}

// TestANodeRefusesASmallerDisk than the publish context says. The size there stays as it was when
// the disk was attached.
func TestANodeRefusesASmallerDisk(t *testing.T) {
	cloud := cloudDir(t)
	c, a := newProcess(t, "controller", "controller", cloud), newProcess(t, "a", "node", cloud)
	v := c.create("v", "ext4", 64<<20)
	publish, err := v.attach(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint(64 << 20); publish[sizeKey] != want {
		t.Errorf("the publish context is %q, want the size %s", publish, want)
	}
	for size, want := range map[string]codes.Code{
		"67108865": codes.FailedPrecondition, // a byte more
		"":         codes.InvalidArgument,
		"0":        codes.InvalidArgument,
		"-1":       codes.InvalidArgument,
		"64Mi":     codes.InvalidArgument,
	} {
		if err := v.stage(t.Context(), a,
			map[string]string{serialKey: publish[serialKey], sizeKey: size}); status.Code(err) != want {
			t.Errorf("stage with the size %q: %v, want %v", size, err, want)
		}
	}
	if err := v.stage(t.Context(), a,
		map[string]string{serialKey: publish[serialKey], "color": "blue"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("stage with an unknown key: %v", err)
	}
	if _, err := c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	if again, err := v.attach(t.Context(), "a"); err != nil || !maps.Equal(again, publish) {
		t.Errorf("attached again after growth, the publish context is %q, %v, before %q", again, err, publish)
	}
	for _, earlier := range []map[string]string{publish, {serialKey: publish[serialKey]}} { // from an earlier version
		if err := errors.Join(v.stage(t.Context(), a, earlier), v.publish(a, earlier)); err != nil {
			t.Errorf("with the publish context %q: %v", earlier, err)
		}
		v.goes(a)
		if publish, err = v.attach(t.Context(), "a"); err != nil || publish[sizeKey] != fmt.Sprint(128<<20) {
			t.Errorf("attached anew after growth, the publish context is %q, %v", publish, err)
		}
	}
}

// TestTwoDisksWithOneSerialNumberAreRefused and stay as they were.
func TestTwoDisksWithOneSerialNumberAreRefused(t *testing.T) {
	cloud := cloudDir(t)
	c, a := newProcess(t, "controller", "controller", cloud), newProcess(t, "a", "node", cloud)
	v := c.create("v", "ext4", 64<<20)
	publish, err := v.attach(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(cloud, "other")
	if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Truncate(other, 64<<20)); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(cloud, disksDir, v.id, imageName)
	before := [2]string{fileSum(t, image), fileSum(t, other)}
	same := label(publish[serialKey], v.id, "a")
	if err := plugTwice(other, same); err != nil {
		t.Fatal(err)
	}
	if err := v.stage(t.Context(), a, publish); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "same label") {
		t.Errorf("stage = %v", err)
	}
	if after := [2]string{fileSum(t, image), fileSum(t, other)}; after != before {
		t.Error("a disk has changed")
	}
}

// TestALoopDeviceHasANewSequenceNumberForEachFile, and it stays the same as long as the device has
// it.
func TestALoopDeviceHasANewSequenceNumberForEachFile(t *testing.T) {
	file := filepath.Join(cloudDir(t), "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, unit)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/block/loop0/diskseq"); err != nil {
		t.Skip("Linux before 5.15 has no sequence numbers")
	}
	seen := map[uint64]bool{0: true}
	for range 3 {
		if err := plug(file, t.Name(), false); err != nil {
			t.Fatal(err)
		}
		l, err := findLoop(t.Name())
		again, againErr := findLoop(t.Name())
		if err := errors.Join(err, againErr); err != nil || l != again || seen[l.sequence] {
			t.Errorf("found %+v and %+v, %v, want a new sequence number, not of %v", l, again, err, seen)
		}
		seen[l.sequence] = true
		if err := unplug(t.Context(), t.Name()); err != nil {
			t.Fatal(err)
		}
	}
}

// plugTwice attaches an image under a label that another image has.
func plugTwice(image, label string) error {
	if err := plug(image, "not yet "+label[:8], false); err != nil {
		return err
	}
	l, err := findLoop("not yet " + label[:8])
	if err != nil {
		return err
	}
	dev, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return err
	}
	clear(info.File_name[:])
	copy(info.File_name[:], label)
	return unix.IoctlLoopSetStatus64(int(dev.Fd()), info)
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// until makes a call during which a process is killed, at a random moment. Then it repeats the call
// until it succeeds, as a CO does.
func (p *process) until(call func(ctx context.Context) error) {
	p.Helper()
	done := make(chan error, 1)
	ctx, cancel := life(p.T)
	defer cancel()
	go func() { done <- call(ctx) }()
	time.Sleep(time.Duration(mathrand.Int64N(int64(80 * time.Millisecond))))
	p.kill()
	p.start() // before the end of the call: one that the killed process did not get waits for the next process
	<-done
	for {
		err := call(ctx)
		if err == nil {
			return
		}
		// Busy: a program of the driver that was killed may still run.
		if code := status.Code(err); code != codes.Unavailable && code != codes.Aborted &&
			!strings.Contains(err.Error(), "open exclusively") {
			p.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestADiskOutlivesItsDrivers: the controller is killed while it attaches and grows a disk, the
// node's driver while it formats, mounts and grows it.
func TestADiskOutlivesItsDrivers(t *testing.T) {
	cloud := cloudDir(t)
	c, a, b := newProcess(t, "controller", "controller", cloud), newProcess(t, "a", "node", cloud), newProcess(t, "b",
		"node", cloud)
	for i := range 8 {
		v := c.create(fmt.Sprint("v", i), "xfs", 300<<20)
		var publish map[string]string
		c.until(func(ctx context.Context) (err error) { publish, err = v.attach(ctx, "a"); return err })
		a.until(func(ctx context.Context) error { return v.stage(ctx, a, publish) })
		if err := v.publish(a, publish); err != nil {
			t.Fatal(err)
		}
		sum := v.write(a)
		grown := &csi.CapacityRange{RequiredBytes: 400 << 20}
		c.until(func(ctx context.Context) error {
			_, err := c.ControllerExpandVolume(ctx,
				&csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: grown})
			return err
		})
		a.until(func(ctx context.Context) error {
			_, err := a.NodeExpandVolume(ctx,
				&csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: a.path("target"),
					StagingTargetPath: a.path("staging"), CapacityRange: grown})
			return err
		})
		var fs unix.Statfs_t
		// without its log
		if err := unix.Statfs(a.path("target"), &fs); err != nil || int64(fs.Blocks)*fs.Bsize < 300<<20 {
			t.Errorf("the filesystem has %d bytes, %v", int64(fs.Blocks)*fs.Bsize, err)
		}
		a.until(func(ctx context.Context) error { return v.stage(ctx, a, publish) }) // once more: nothing is formatted
		v.holds(a, sum)
		v.goes(a)
		c.until(func(ctx context.Context) (err error) { publish, err = v.attach(ctx, "b"); return err })
		v.comes(b)
		v.holds(b, sum)
		v.goes(b)
		if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.id}); err != nil {
			t.Fatal(err)
		}
	}
}
