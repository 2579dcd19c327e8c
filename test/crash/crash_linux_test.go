// Package crash kills the driver, at every crash point and at random, and checks the state that the
// next driver finds: every acknowledged volume with its data, no incomplete object, and success of
// another attempt of the interrupted call.
package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/parallel"
	"github.com/causeway-csi/causeway/internal/quietlog"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

var (
	noNamespace error
	programDir  string
)

// Programs that know their crash points.
var (
	driver   = program("cmd/driver")
	attached = program("test/crash/attached")
	parts    = program("test/crash/parts")
)

func TestMain(m *testing.M) {
	quietlog.Discard()
	noNamespace = namespace.Enter()
	parallel.Tests()
	dir, err := os.MkdirTemp("", "crash")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// program returns a function that builds a program at its first call, and returns the path.
func program(command string) func(*testing.T) string {
	build := sync.OnceValues(func() (string, error) {
		bin := filepath.Join(programDir, filepath.Base(command))
		p := gobuild.Program{Package: "github.com/causeway-csi/causeway/" + command,
			Flags: []string{"-tags=crashpoints"}}
		return bin, p.Copy(context.Background(), bin)
	})
	return func(t *testing.T) string {
		t.Helper()
		if noNamespace != nil {
			namespace.Skip(t, noNamespace)
		}
		bin, err := build()
		if err != nil {
			t.Fatal(err)
		}
		return bin
	}
}

// points finds the crash points in the source, so that none is forgotten.
func points(t *testing.T) []string {
	t.Helper()
	reached := regexp.MustCompile(`crashpoint\.Reached\("([^"]+)"\)`)
	var names []string
	for _, dir := range []string{"pkg", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range reached.FindAllSubmatch(source, -1) {
				names = append(names, string(m[1]))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	if unique := slices.Compact(slices.Clone(names)); len(unique) != len(names) || len(names) < 15 {
		t.Fatalf("%d points, %d of them different: %v", len(names), len(unique), names)
	}
	return names
}

// world is a node with its kubelet directory, for a sequence of drivers.
type world struct {
	*testing.T
	bin, dir, root, kubelet string
	cmd                     *exec.Cmd
	exited                  chan error
	conn                    *grpc.ClientConn
	csi.IdentityClient
	csi.ControllerClient
	csi.GroupControllerClient
	csi.NodeClient
}

func newWorld(t *testing.T, bin string) *world {
	dir, err := os.MkdirTemp("", "crash")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // as the kernel will report the mount
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, bin: bin, dir: dir, root: filepath.Join(dir, "root"), kubelet: filepath.Join(dir, "kubelet")}
	t.Cleanup(w.cleanUp)
	for _, d := range []string{w.root, w.kubelet} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// start starts a driver that dies at the point called crashAt, or lives if that is "". It returns
// false if the driver died before it was ready.
func (w *world) start(crashAt string) bool {
	w.Helper()
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.Fatal(err)
	}
	defer log.Close()
	endpoint := "unix://" + filepath.Join(w.dir, "csi.sock")
	cmd := exec.Command(w.bin, "--endpoint="+endpoint, "--root="+w.root, "--init-root", "--kubelet-dir="+w.kubelet,
		"--state-dir="+filepath.Join(w.dir, "state"), "--node-id=n")
	cmd.Env = append(os.Environ(), crashpoint.Env+"="+crashAt)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	w.cmd, w.exited = cmd, exited
	w.conn, err = grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.Fatal(err)
	}
	w.IdentityClient, w.ControllerClient, w.NodeClient = csi.NewIdentityClient(w.conn), csi.NewControllerClient(w.conn), csi.NewNodeClient(w.conn)
	w.GroupControllerClient = csi.NewGroupControllerClient(w.conn)
	return await.Value(w, "the driver is ready, or has ended", func() (ready bool, err error) {
		resp, err := w.Probe(context.Background(), &csi.ProbeRequest{})
		if err == nil && resp.GetReady().GetValue() {
			return true, nil
		}
		select {
		case <-exited:
			exited <- nil
			return false, nil
		default:
			w.conn.ResetConnectBackoff()
			return false, fmt.Errorf("%w: %s", cmp.Or(err, errors.New("not ready")), w.logged())
		}
	})
}

func (w *world) logged() string {
	log, _ := os.ReadFile(filepath.Join(w.dir, "log"))
	return string(log[max(0, len(log)-4000):])
}

// gone waits until the driver has died of SIGKILL.
func (w *world) gone() {
	w.Helper()
	await.Receive(w, "the driver dies", w.exited)
	state := w.ended()
	if s, ok := state.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		w.Fatalf("the driver ended by itself, with %v: %s", state, w.logged())
	}
}

// ended notes that no driver runs, and returns how it ended.
func (w *world) ended() *os.ProcessState {
	state := w.cmd.ProcessState
	w.conn.Close()
	w.cmd = nil
	return state
}

// stop ends the driver in good order.
func (w *world) stop() {
	w.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.Fatal(err)
	}
	err := await.Receive(w, "the driver has ended", w.exited)
	w.ended()
	if err != nil {
		w.Fatalf("the driver ended with %v: %s", err, w.logged())
	}
}

func (w *world) cleanUp() {
	if w.cmd != nil {
		w.cmd.Process.Kill()
		<-w.exited
		w.conn.Close()
	}
	mounts, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(w.dir))
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint != w.root {
			syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH)
		}
	}
	// The root goes later, or the images in it have other names.
	for _, device := range testdisk.Loops(w.T, w.root+"/") { // of a test that failed
		if err := detach(device); err != nil {
			w.Error(err)
		}
	}
	syscall.Unmount(w.root, syscall.MNT_DETACH)
	if err := os.RemoveAll(w.dir); err != nil {
		w.Error(err)
	}
}

func detach(device string) error {
	dev, err := os.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	_, err = unix.IoctlRetInt(int(dev.Fd()), unix.LOOP_CLR_FD)
	return err
}

// life is a volume with the calls that make and end it. An acknowledged step is never taken back.
type life struct {
	*world
	name, id        string
	kind            kind
	staging, target string
	next            int  // the step to do
	unwritten       bool // steps were left out: it has no data

	snapshot, group string // IDs
	copied          *life  // made from the snapshot, and later from the volume
}

// kind is the kind of a volume and its use.
type kind string

const (
	directory kind = "directory"
	image     kind = "image"
	device    kind = "device" // an image as a block device
)

func (w *world) newLife(name string, k kind) *life {
	l := &life{world: w, name: name, kind: k, staging: filepath.Join(w.kubelet, "staging-"+name),
		target: filepath.Join(w.kubelet, "target-"+name)}
	if err := os.MkdirAll(l.staging, 0o750); err != nil {
		w.Fatal(err)
	}
	return l
}

func (l *life) use() *csi.VolumeCapability {
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	if l.kind == device {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

// parameters are those of the volume's class.
func (l *life) parameters() map[string]string {
	if l.kind == directory {
		return nil
	}
	return map[string]string{"kind": "image"}
}

// data returns the path of the volume's data below the root.
func (l *life) data() string {
	if l.kind == directory {
		return filepath.Join(l.root, "volumes", l.id, "data")
	}
	return filepath.Join(l.root, "volumes", l.id, "image.raw")
}

// files is the number of files that a pod writes: more than the trash removes at once.
const files = 300

func (l *life) create(ctx context.Context) error { return l.createFrom(ctx, nil) }

func (l *life) createFrom(ctx context.Context, source *csi.VolumeContentSource) error {
	resp, err := l.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: l.name, Parameters: l.parameters(), CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{l.use()},
		VolumeContentSource: source,
	})
	if id := resp.GetVolume().GetVolumeId(); err == nil && l.id != "" && l.id != id {
		return fmt.Errorf("%s was %s and is now %s", l.name, l.id, id)
	}
	l.id = resp.GetVolume().GetVolumeId()
	return err
}

func (l *life) stage(ctx context.Context) error {
	_, err := l.NodeStageVolume(ctx,
		&csi.NodeStageVolumeRequest{VolumeId: l.id, StagingTargetPath: l.staging, VolumeCapability: l.use()})
	return err
}

func (l *life) publish(ctx context.Context) error {
	_, err := l.NodePublishVolume(ctx,
		&csi.NodePublishVolumeRequest{VolumeId: l.id, StagingTargetPath: l.staging, TargetPath: l.target,
			VolumeCapability: l.use()})
	return err
}

// write makes the writes of a pod.
func (l *life) write(context.Context) error {
	write := l.writeFiles
	if l.kind == device {
		write = l.writeDevice
	}
	if err := write(); err != nil {
		return err
	}
	return l.check(l.target)
}

// noFork keeps the other tests from starting a process until its result is called. A new process
// holds all open files of this process for a moment, and their volume could not be unmounted.
func noFork() (end func()) {
	syscall.ForkLock.RLock()
	return syscall.ForkLock.RUnlock
}

func (l *life) writeFiles() error {
	defer noFork()()
	for i := range files {
		if err := os.WriteFile(filepath.Join(l.target, fmt.Sprint(i)), []byte(l.name), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) writeDevice() error {
	defer noFork()()
	dev, err := os.OpenFile(l.target, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = dev.WriteAt([]byte(l.name), 4096)
	return errors.Join(err, dev.Sync(), dev.Close())
}

// publishAgain checks the writes.
func (l *life) publishAgain(ctx context.Context) error {
	if err := l.publish(ctx); err != nil {
		return err
	}
	return l.check(l.target)
}

// sizes of a volume before and after it grows, in bytes.
const size, expanded = 8 << 20, 16 << 20

func (l *life) expand(ctx context.Context) error {
	_, err := l.ControllerExpandVolume(ctx,
		&csi.ControllerExpandVolumeRequest{VolumeId: l.id, CapacityRange: &csi.CapacityRange{RequiredBytes: expanded}})
	return err
}

func (l *life) unpublish(ctx context.Context) error {
	_, err := l.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: l.id, TargetPath: l.target})
	return err
}

func (l *life) unstage(ctx context.Context) error {
	_, err := l.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: l.id, StagingTargetPath: l.staging})
	return err
}

func (l *life) delete(ctx context.Context) error {
	_, err := l.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: l.id})
	return err
}

// inline adds a pod with an inline volume: made, used and ended at once.
func (l *life) inlineRequest() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: fmt.Sprintf("csi-%064x",
			l.name), TargetPath: l.target + "-inline", VolumeCapability: (&life{kind: directory}).use(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"},
	}
}

func (l *life) publishInline(ctx context.Context) error {
	_, err := l.NodePublishVolume(ctx, l.inlineRequest())
	return err
}

func (l *life) unpublishInline(ctx context.Context) error {
	_, err := l.NodeUnpublishVolume(ctx,
		&csi.NodeUnpublishVolumeRequest{VolumeId: l.inlineRequest().GetVolumeId(),
			TargetPath: l.inlineRequest().GetTargetPath()})
	return err
}

func (l *life) cut(ctx context.Context) error {
	resp, err := l.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "of " + l.name, SourceVolumeId: l.id})
	if err == nil && !resp.GetSnapshot().GetReadyToUse() {
		err = errors.New("the snapshot is not ready to use")
	}
	l.snapshot = resp.GetSnapshot().GetSnapshotId()
	return err
}

func (l *life) cutGroup(ctx context.Context) error {
	if l.kind != image {
		return nil
	}
	resp, err := l.CreateVolumeGroupSnapshot(ctx,
		&csi.CreateVolumeGroupSnapshotRequest{Name: "of " + l.name, SourceVolumeIds: []string{l.id}})
	if n := len(resp.GetGroupSnapshot().GetSnapshots()); err == nil && n != 1 {
		err = fmt.Errorf("%d members", n)
	}
	l.group = resp.GetGroupSnapshot().GetGroupSnapshotId()
	return err
}

func (l *life) endGroup(ctx context.Context) error {
	if l.kind != image {
		return nil
	}
	_, err := l.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: l.group})
	return err
}

// restore makes a volume of the snapshot, while this volume is used.
func (l *life) restore(ctx context.Context) error {
	return l.copyOf(ctx, "restored", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: l.snapshot},
	}})
}

func (l *life) clone(ctx context.Context) error {
	return l.copyOf(ctx, "clone", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: l.id},
	}})
}

func (l *life) copyOf(ctx context.Context, what string, source *csi.VolumeContentSource) error {
	if name := l.name + "-" + what; l.copied == nil || l.copied.name != name {
		l.copied = l.newLife(name, l.kind)
	}
	return l.copied.createFrom(ctx, source)
}

// checkCopy checks that the copy has the writes of its source.
func (l *life) checkCopy(ctx context.Context) error {
	c := l.copied
	for _, call := range []func(context.Context) error{c.stage, c.publish} {
		if err := call(ctx); err != nil {
			return err
		}
	}
	original := *c
	original.name = l.name // which are the writes
	err := original.check(c.target)
	return errors.Join(err, c.unpublish(ctx), c.unstage(ctx))
}

func (l *life) deleteCopy(ctx context.Context) error { return l.copied.delete(ctx) }

func (l *life) deleteSnapshot(ctx context.Context) error {
	_, err := l.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: l.snapshot})
	return err
}

func (l *life) modify(ctx context.Context) error {
	_, err := l.ControllerModifyVolume(ctx,
		&csi.ControllerModifyVolumeRequest{VolumeId: l.id, MutableParameters: map[string]string{"label": l.name}})
	return err
}

// step is a call of a life, or an action of a pod.
type step struct {
	name string
	do   func(*life, context.Context) error
}

// steps are a whole life.
var steps = []step{
	{"create", (*life).create},
	{"stage", (*life).stage},
	{"publish", (*life).publish},
	{"write", (*life).write},
	{"publish inline", (*life).publishInline},
	{"unpublish inline", (*life).unpublishInline},
	{"modify", (*life).modify},
	{"snapshot", (*life).cut},
	{"restore", (*life).restore},
	{"look at it", (*life).checkCopy},
	{"delete what was restored", (*life).deleteCopy},
	{"clone", (*life).clone},
	{"look at the clone", (*life).checkCopy},
	{"delete the clone", (*life).deleteCopy},
	{"group", (*life).cutGroup},
	{"end group", (*life).endGroup},
	{"delete snapshot", (*life).deleteSnapshot},
	{"expand", (*life).expand},
	{"unpublish", (*life).unpublish},
	{"publish again", (*life).publishAgain},
	{"unpublish again", (*life).unpublish},
	{"unstage", (*life).unstage},
	{"delete", (*life).delete},
}

// stepNumber returns the number of a step.
func (l *life) stepNumber(name string) int {
	i := slices.IndexFunc(steps, func(s step) bool { return s.name == name })
	if i < 0 {
		l.Fatalf("no step %s", name)
	}
	return i
}

func (l *life) after(name string) int { return l.stepNumber(name) + 1 }

// step makes the next step. A step that fails stays the next.
func (l *life) step() error {
	err := l.do(steps[l.next])
	if err == nil {
		l.next++
	}
	return err
}

// do makes a step. As a CO does, it repeats a call that a limit of the driver has ended: on a busy
// machine the driver, or the loop device of another test, can be late.
func (l *life) do(s step) (err error) {
	limits := []string{mounter.ErrNoAnswer.Error(), "no common point in time", "no progress for"}
	await.NoError(l, "the step ends within the limits of the driver", func() error {
		err = s.do(l, context.Background())
		if err != nil && slices.ContainsFunc(limits, func(l string) bool { return strings.Contains(err.Error(), l) }) {
			return err
		}
		return nil
	})
	return err
}

// check makes sure that all that the pod wrote is at a path.
func (l *life) check(path string) error {
	defer noFork()()
	if l.kind == device {
		dev, err := os.Open(path)
		if err != nil {
			return err
		}
		defer dev.Close()
		got := make([]byte, len(l.name))
		if _, err := dev.ReadAt(got, 4096); err != nil || string(got) != l.name {
			return fmt.Errorf("%s holds %q: %w", l.name, got, err)
		}
		return nil
	}
	for i := range files {
		if got, err := os.ReadFile(filepath.Join(path, fmt.Sprint(i))); err != nil || string(got) != l.name {
			return fmt.Errorf("file %d of %s holds %q: %w", i, l.name, got, err)
		}
	}
	return nil
}

// between reports whether a step was acknowledged, and another step has not begun.
func (l *life) between(done, begun string) bool {
	return l.next >= l.after(done) && l.next < l.stepNumber(begun)
}

// kept checks that acknowledged objects exist.
func (l *life) kept() {
	l.Helper()
	data := l.data()
	if l.between("create", "delete") {
		if _, err := os.Stat(data); err != nil {
			l.Fatalf("an acknowledged volume: %v", err)
		}
	}
	// which shows its files only where it is mounted
	if l.between("write", "delete") && l.kind != image && !l.unwritten {
		if err := l.check(data); err != nil {
			l.Fatal(err)
		}
	}
	for done, begun := range map[string]string{"restore": "delete what was restored", "clone": "delete the clone"} {
		if l.between(done, begun) && l.copied != nil {
			if _, err := os.Stat(l.copied.data()); err != nil {
				l.Fatalf("an acknowledged copy: %v", err)
			}
		}
	}
	if l.between("snapshot", "delete snapshot") && l.snapshot != "" {
		if _, err := l.GetSnapshot(context.Background(), &csi.GetSnapshotRequest{SnapshotId: l.snapshot}); err != nil {
			l.Fatalf("an acknowledged snapshot: %v", err)
		}
	}
	if l.between("group", "end group") && l.group != "" {
		g, err := l.GetVolumeGroupSnapshot(context.Background(),
			&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: l.group})
		if err != nil || len(g.GetGroupSnapshot().GetSnapshots()) != 1 {
			l.Fatalf("an acknowledged group: %v, %v", g, err)
		}
	}
	if l.next >= l.after("delete") {
		if _, err := os.Stat(filepath.Dir(data)); !errors.Is(err, fs.ErrNotExist) {
			l.Fatalf("a volume whose delete was acknowledged is there: %v", err)
		}
	}
}

// interrupted reports whether an error is the death of the driver.
func interrupted(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled
}

// whole checks that every volume on disk is listed by the driver, and complete.
func (w *world) whole() {
	w.Helper()
	list, err := w.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	if err != nil {
		w.Fatal(err)
	}
	snapshots, err := w.ListSnapshots(context.Background(), &csi.ListSnapshotsRequest{})
	if err != nil {
		w.Fatal(err)
	}
	listed, groups := map[string]bool{}, map[string]bool{}
	for _, e := range list.GetEntries() {
		listed[e.GetVolume().GetVolumeId()] = true
	}
	for _, e := range snapshots.GetEntries() {
		listed[e.GetSnapshot().GetSnapshotId()] = true
		groups[e.GetSnapshot().GetGroupSnapshotId()] = true
	}
	for _, dir := range []string{"volumes", "snapshots"} {
		entries, err := os.ReadDir(filepath.Join(w.root, dir))
		if err != nil {
			w.Fatal(err)
		}
		for _, e := range entries {
			if !listed[e.Name()] && e.Name()[0] != 'i' {
				w.Errorf("%s is on disk and not listed", e.Name())
			}
			parts, err := filepath.Glob(filepath.Join(w.root, dir, e.Name(), "*"))
			// never put in place
			parts = slices.DeleteFunc(parts, func(part string) bool { return strings.HasSuffix(part, ".new") })
			if err != nil || len(parts) != 2 || filepath.Base(parts[1]) != "record.json" {
				w.Errorf("half of one: %v, %v", parts, err)
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(w.root, "groups"))
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range entries {
		if !groups[e.Name()] {
			w.Errorf("group %s has no members", e.Name())
		}
	}
	sick, err := w.ControllerListVolumeHealth(context.Background(), &csi.ControllerListVolumeHealthRequest{})
	if err != nil || len(sick.GetEntries()) > 0 {
		w.Errorf("not well: %v, %v", sick.GetEntries(), err)
	}
}

// clean makes sure that nothing is left when all lives have ended.
func (w *world) clean() {
	w.Helper()
	await.NoError(w, "nothing is left", func() error {
		var left []string
		for _, dir := range []string{"volumes", "snapshots", "groups", "staging", "trash"} {
			entries, err := os.ReadDir(filepath.Join(w.root, dir))
			if err != nil {
				w.Fatal(err)
			}
			for _, e := range entries {
				left = append(left, dir+"/"+e.Name())
			}
		}
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.kubelet))
		if err != nil {
			w.Fatal(err)
		}
		for _, m := range mounts {
			left = append(left, m.Mountpoint)
		}
		left = append(left, testdisk.Loops(w.T, w.root+"/")...)
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// death is a point at which the driver dies while it works on a volume, and which of the times that
// it gets there.
type death struct {
	point string
	time  int
	kind  kind
}

func (d death) String() string { return fmt.Sprintf("%s:%d", d.point, d.time) }

// often returns the number of times that a life reaches a crash point shared by several calls: a
// volume, an inline volume, a snapshot, a restored volume, a clone and a group are all created.
var often = map[string]int{"create": 6, "copy": 3, "delete": 3, "freeze": 2, "restore": 2}

// deaths are all points, with each kind of volume that gets there.
func deaths(t *testing.T) []death {
	t.Helper()
	var all []death
	for _, point := range points(t) {
		of := []kind{directory, image, device}
		call, _, _ := strings.Cut(point, ":")
		switch {
		case call == "part": // no call of CSI gets there: see parts_linux_test.go
			continue
		case call == "device": // hostpath has no attached disks: see attached_linux_test.go
			continue
		case call == "image", call == "freeze", call == "group", point == "create:formatted":
			of = []kind{image}
		case call == "restore", point == "copy:image":
			of = []kind{image, device}
		case call == "disk":
			of = []kind{device}
		case call == "identity", call == "sweep", call == "trash", point == "copy:tree", point == "copy:subvolume", call == "quota", point == "mount:target-made", strings.Contains(point, "inline"):
			of = []kind{directory}
		}
		for _, k := range of {
			times := max(1, often[call])
			if point == "create:formatted" {
				times = 1
			}
			for time := 1; time <= times; time++ {
				if call == "create" && time == 6 && k != image { // there is no group of them
					continue
				}
				all = append(all, death{point, time, k})
			}
		}
	}
	return all
}

// newWorldFor is a world whose root has the required capability: snapshots of mounted images, or
// copies of a directory file by file.
func newWorldFor(t *testing.T, bin string, d death) *world {
	t.Helper()
	if d.point == "copy:tree" || d.point == "trash:burst" ||
		(d.kind == directory && d.point != "copy:subvolume" && testdisk.Missing(t) != "") {
		return newWorld(t, bin)
	}
	testdisk.NeedLoops(t)
	f := filesystem{"btrfs", 512 << 20, "loop"}
	f.need(t)
	disk := newDisk(t, bin, f) // faster, too, than a disk on which many files were deleted just now
	if strings.HasPrefix(d.point, "quota:") {
		disk.run("btrfs", "quota", "enable", disk.root)
	}
	return disk.world
}

// all is set in the environment where nothing is to be left out: make crash does it.
const all = "CAUSEWAY_CRASH_ALL"

// part returns a part of the cases, another part in each run, as all of them take minutes.
func part[T any](t *testing.T, tries []T, one int) []T {
	t.Helper()
	if os.Getenv(all) != "" {
		return tries
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("one of %d, by the seed %d; all with %s=1", one, seed, all)
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	return tries[:max(1, len(tries)/one)]
}

func TestDeathAtEveryPoint(t *testing.T) {
	t.Parallel()
	bin := driver(t)
	for _, d := range part(t, deaths(t), 10) {
		point := d.point
		t.Run(fmt.Sprint(d, " of a ", d.kind), func(t *testing.T) {
			t.Parallel()
			w := newWorldFor(t, bin, d)
			other := w.newLife("other", d.kind)
			if point != "identity:made" { // all the others are on the way of a node that has been running
				w.start("")
				for other.next < other.after("write") {
					if err := other.step(); err != nil {
						t.Fatal(err)
					}
				}
				w.stop()
				if err := os.MkdirAll(filepath.Join(w.root, "staging", "half", "data"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			l, died := w.newLife("life", d.kind), false
			if !w.start(d.String()) {
				died = true
				w.gone()
				w.start("")
			}
			for l.next < len(steps) {
				err := l.step()
				if err == nil {
					continue
				}
				if !interrupted(err) || died {
					t.Fatalf("%s: %v\n%s", steps[l.next].name, err, w.logged())
				}
				died = true
				w.gone()
				w.start("")
				l.kept()
				other.kept()
				w.whole()
			}
			if !died { // the trash is emptied in the background
				w.gone()
				w.start("")
			}
			l.kept()
			other.kept()
			w.whole()
			if other.next > 0 { // was mounted all the time
				if err := other.check(other.target); err != nil {
					t.Error(err)
				}
			}
			for other.next > 0 && other.next < len(steps) {
				if err := other.step(); err != nil {
					t.Fatal(err)
				}
			}
			w.clean()
			w.stop()
		})
	}
}

func TestDeathAtRandom(t *testing.T) {
	t.Parallel()
	bin, kinds := driver(t), []kind{directory}
	w := newWorld(t, bin)
	if testdisk.Missing(t) == "" {
		w, kinds = newWorldFor(t, bin, death{kind: image}), append(kinds, image, device)
	}
	const callers, rounds = 4, 20
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	lives := make([]*life, callers)
	ended, interruptions := 0, 0
	// a machine may be slow
	for round := 0; round < rounds || ended == 0 && await.Context(t).Err() == nil; round++ {
		w.start("")
		w.whole()
		for _, l := range lives {
			if l != nil {
				l.kept()
			}
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		for i := range lives {
			wg.Go(func() {
				for n := 0; ; n++ {
					if lives[i] == nil {
						lives[i] = w.newLife(fmt.Sprintf("life-%d-%d-%d", round, i, n), kinds[(round+i+n)%len(kinds)])
					}
					l := lives[i]
					for l.next < len(steps) {
						err := l.step()
						if interrupted(err) {
							mu.Lock()
							interruptions++
							mu.Unlock()
							return
						}
						if err != nil {
							t.Errorf("%s of %s: %v", steps[l.next].name, l.name, err)
							return
						}
					}
					l.kept()
					lives[i] = nil
					mu.Lock()
					ended++
					mu.Unlock()
				}
			})
		}
		time.Sleep(time.Duration(random.IntN(600)*(1+round/rounds)) * time.Millisecond)
		w.cmd.Process.Kill()
		wg.Wait()
		w.gone()
		if t.Failed() {
			t.FailNow()
		}
	}
	if interruptions < rounds || ended == 0 {
		t.Errorf("%d calls interrupted, %d lives ended: that proves nothing", interruptions, ended)
	}
	w.start("")
	for _, l := range lives {
		for l != nil && l.next < len(steps) {
			if err := l.step(); err != nil {
				t.Fatalf("%s of %s: %v\n%s", steps[l.next].name, l.name, err, w.logged())
			}
		}
	}
	w.clean()
	w.stop()
	t.Logf("%d calls interrupted, %d lives ended", interruptions, ended)
}
