// Package crash kills the driver, at every named point and at random, and looks at what the next one finds: every
// acknowledged volume with its data, nothing half-made, and a retry of the interrupted call that succeeds.
package crash

import (
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

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/namespace"
)

const patience = 30 * time.Second

var noNamespace error

func TestMain(m *testing.M) {
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// buildDriver builds a driver that knows its crash points.
func buildDriver(t *testing.T) string {
	t.Helper()
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	bin := filepath.Join(t.TempDir(), "driver")
	out, err := exec.Command("go", "build", "-tags", "crashpoints", "-o", bin, "github.com/causeway-csi/causeway/cmd/driver").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
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

// world is a node with its kubelet directory, on which one driver after another runs.
type world struct {
	*testing.T
	bin, dir, root, kubelet string
	cmd                     *exec.Cmd
	exited                  chan error
	conn                    *grpc.ClientConn
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
}

func newWorld(t *testing.T, bin string) *world {
	dir, err := os.MkdirTemp("", "crash")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // as the kernel will tell what is mounted there
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

// start starts a driver that dies at the point called crashAt, or lives if that is "". It returns false if the driver
// died before it was ready.
func (w *world) start(crashAt string) bool {
	w.Helper()
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.Fatal(err)
	}
	defer log.Close()
	endpoint := "unix://" + filepath.Join(w.dir, "csi.sock")
	cmd := exec.Command(w.bin, "--endpoint="+endpoint, "--root="+w.root, "--init-root", "--kubelet-dir="+w.kubelet, "--state-dir="+filepath.Join(w.dir, "state"), "--node-id=n")
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
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		resp, err := w.Probe(context.Background(), &csi.ProbeRequest{})
		if err == nil && resp.GetReady().GetValue() {
			return true
		}
		select {
		case <-exited:
			exited <- nil
			return false
		default:
			w.conn.ResetConnectBackoff()
		}
	}
	w.Fatalf("the driver is not ready: %s", w.logged())
	return false
}

func (w *world) logged() string {
	log, _ := os.ReadFile(filepath.Join(w.dir, "log"))
	return string(log[max(0, len(log)-4000):])
}

// gone waits until the driver has died of SIGKILL.
func (w *world) gone() {
	w.Helper()
	select {
	case <-w.exited:
	case <-time.After(patience):
		w.Fatal("the driver lives")
	}
	w.conn.Close()
	if s, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		w.Fatalf("the driver ended by itself, with %v: %s", w.cmd.ProcessState, w.logged())
	}
	w.cmd = nil
}

// stop ends the driver in good order.
func (w *world) stop() {
	w.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.Fatal(err)
	}
	if err := <-w.exited; err != nil {
		w.Fatalf("the driver ended with %v: %s", err, w.logged())
	}
	w.conn.Close()
	w.cmd = nil
}

func (w *world) cleanUp() {
	if w.cmd != nil {
		w.cmd.Process.Kill()
		<-w.exited
		w.conn.Close()
	}
	mounts, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(w.dir))
	for _, m := range slices.Backward(mounts) {
		syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH)
	}
	for _, file := range loopsOf(w.T, w.root+"/") { // devices of a test that failed
		if err := detach("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))); err != nil {
			w.Error(err)
		}
	}
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
}

// kind is what a volume is made of, and how it is used.
type kind string

const (
	directory kind = "directory"
	image     kind = "image"
	device    kind = "device" // an image as a block device
)

func (w *world) newLife(name string, k kind) *life {
	l := &life{world: w, name: name, kind: k, staging: filepath.Join(w.kubelet, "staging-"+name), target: filepath.Join(w.kubelet, "target-"+name)}
	if err := os.Mkdir(l.staging, 0o750); err != nil {
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

// data returns the path of what the driver keeps of the volume.
func (l *life) data() string {
	if l.kind == directory {
		return filepath.Join(l.root, "volumes", l.id, "data")
	}
	return filepath.Join(l.root, "volumes", l.id, "image.raw")
}

// files is how many files a pod writes: more than the trash removes in one go.
const files = 300

func (l *life) create(ctx context.Context) error {
	resp, err := l.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: l.name, Parameters: l.parameters(), CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{l.use()},
	})
	if id := resp.GetVolume().GetVolumeId(); err == nil && l.id != "" && l.id != id {
		return fmt.Errorf("%s was %s and is now %s", l.name, l.id, id)
	}
	l.id = resp.GetVolume().GetVolumeId()
	return err
}

func (l *life) stage(ctx context.Context) error {
	_, err := l.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: l.id, StagingTargetPath: l.staging, VolumeCapability: l.use()})
	return err
}

func (l *life) publish(ctx context.Context) error {
	_, err := l.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: l.id, StagingTargetPath: l.staging, TargetPath: l.target, VolumeCapability: l.use()})
	return err
}

// write is what a pod does.
func (l *life) write(context.Context) error {
	if l.kind == device {
		return l.writeDevice()
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(l.target, fmt.Sprint(i)), []byte(l.name), 0o600); err != nil {
			return err
		}
	}
	return l.check(l.target)
}

func (l *life) writeDevice() error {
	dev, err := os.OpenFile(l.target, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = dev.WriteAt([]byte(l.name), 4096)
	return errors.Join(err, dev.Sync(), dev.Close(), l.check(l.target))
}

// publishAgain finds what was written.
func (l *life) publishAgain(ctx context.Context) error {
	if err := l.publish(ctx); err != nil {
		return err
	}
	return l.check(l.target)
}

// sizes of a volume before and after it grows, in bytes.
const size, expanded = 8 << 20, 16 << 20

func (l *life) expand(ctx context.Context) error {
	_, err := l.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: l.id, CapacityRange: &csi.CapacityRange{RequiredBytes: expanded}})
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

// inline is what a pod with an inline volume adds: made, used and ended at once.
func (l *life) inlineRequest() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: fmt.Sprintf("csi-%064x", l.name), TargetPath: l.target + "-inline", VolumeCapability: (&life{kind: directory}).use(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"},
	}
}

func (l *life) publishInline(ctx context.Context) error {
	_, err := l.NodePublishVolume(ctx, l.inlineRequest())
	return err
}

func (l *life) unpublishInline(ctx context.Context) error {
	_, err := l.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: l.inlineRequest().GetVolumeId(), TargetPath: l.inlineRequest().GetTargetPath()})
	return err
}

// steps are a whole life.
func (l *life) steps() []func(context.Context) error {
	return []func(context.Context) error{
		l.create, l.stage, l.publish, l.write, l.publishInline, l.unpublishInline, l.expand, l.unpublish, l.publishAgain, l.unpublish, l.unstage, l.delete,
	}
}

// step does the next step. One that fails stays the next.
func (l *life) step() error {
	err := l.steps()[l.next](context.Background())
	if err == nil {
		l.next++
	}
	return err
}

// The volume has its data after writtenAfter steps; from expandedFrom on it may be larger, from deletedFrom on gone.
const writtenAfter, expandedFrom, deletedFrom = 4, 6, 11

// check makes sure that all that the pod wrote is at a path.
func (l *life) check(path string) error {
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

// kept makes sure that what was acknowledged is there.
func (l *life) kept() {
	l.Helper()
	data := l.data()
	if l.next >= 1 && l.next < deletedFrom {
		if _, err := os.Stat(data); err != nil {
			l.Fatalf("an acknowledged volume: %v", err)
		}
	}
	if l.next >= writtenAfter && l.next < deletedFrom && l.kind != image && !l.unwritten { // which shows its files only where it is mounted
		if err := l.check(data); err != nil {
			l.Fatal(err)
		}
	}
	if l.next > deletedFrom {
		if _, err := os.Stat(filepath.Dir(data)); !errors.Is(err, fs.ErrNotExist) {
			l.Fatalf("a volume whose delete was acknowledged is there: %v", err)
		}
	}
}

// interrupted says that an error is the driver's death.
func interrupted(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled
}

// whole makes sure that every volume on disk is one that the driver lists, and whole.
func (w *world) whole() {
	w.Helper()
	list, err := w.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	if err != nil {
		w.Fatal(err)
	}
	listed := map[string]bool{}
	for _, e := range list.GetEntries() {
		listed[e.GetVolume().GetVolumeId()] = true
	}
	entries, err := os.ReadDir(filepath.Join(w.root, "volumes"))
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range entries {
		if !listed[e.Name()] && e.Name()[0] == 'a' {
			w.Errorf("%s is on disk and not listed", e.Name())
		}
		parts, err := filepath.Glob(filepath.Join(w.root, "volumes", e.Name(), "*"))
		parts = slices.DeleteFunc(parts, func(part string) bool { return strings.HasSuffix(part, ".new") }) // never put in place
		if err != nil || len(parts) != 2 || filepath.Base(parts[1]) != "record.json" {
			w.Errorf("half a volume: %v, %v", parts, err)
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
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		var left []string
		for _, dir := range []string{"volumes", "staging", "trash"} {
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
		left = append(left, loopsOf(w.T, w.root+"/")...)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("left: %v", left)
		}
	}
}

// death is a point at which the driver dies while it works on a volume.
type death struct {
	point string
	kind  kind
}

// deaths are all points, with each kind of volume that gets there.
func deaths(t *testing.T) []death {
	t.Helper()
	var all []death
	for _, point := range points(t) {
		switch kind, _, _ := strings.Cut(point, ":"); {
		case kind == "image", point == "create:formatted":
			all = append(all, death{point, image})
		case kind == "disk":
			all = append(all, death{point, device})
		case kind == "identity", kind == "sweep", kind == "trash", point == "mount:target-made", strings.Contains(point, "inline"):
			all = append(all, death{point, directory})
		default:
			all = append(all, death{point, directory}, death{point, image}, death{point, device})
		}
	}
	return all
}

func TestDeathAtEveryPoint(t *testing.T) {
	bin := buildDriver(t)
	for _, d := range deaths(t) {
		point := d.point
		t.Run(point+" of a "+string(d.kind), func(t *testing.T) {
			if d.kind != directory {
				needLoops(t)
			}
			w := newWorld(t, bin)
			other := w.newLife("other", d.kind)
			if point != "identity:made" { // all the others are on the way of a node that has been running
				w.start("")
				for other.next < writtenAfter {
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
			if !w.start(point) {
				died = true
				w.gone()
				w.start("")
			}
			for l.next < len(l.steps()) {
				err := l.step()
				if err == nil {
					continue
				}
				if !interrupted(err) || died {
					t.Fatalf("step %d: %v\n%s", l.next, err, w.logged())
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
				died = true
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
			for other.next > 0 && other.next < len(other.steps()) {
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
	w := newWorld(t, buildDriver(t))
	const callers, rounds = 4, 20
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kinds := []kind{directory}
	if noLoops(t) == "" {
		kinds = append(kinds, image, device)
	}
	lives := make([]*life, callers)
	ended, interruptions := 0, 0
	for round := range rounds {
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
					for l.next < len(l.steps()) {
						err := l.step()
						if interrupted(err) {
							mu.Lock()
							interruptions++
							mu.Unlock()
							return
						}
						if err != nil {
							t.Errorf("step %d of %s: %v", l.next, l.name, err)
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
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
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
		for l != nil && l.next < len(l.steps()) {
			if err := l.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.clean()
	w.stop()
	t.Logf("%d calls interrupted, %d lives ended", interruptions, ended)
}
