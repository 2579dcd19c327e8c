package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

const testName = "hostpath.csi.causeway.dev"

// realMounter is set if this process can mount; see sanity_linux_test.go.
var realMounter func(dir string) (mounter.Host, error)

// inUserNamespace reports that even root cannot use loop devices in this process.
var inUserNamespace bool

// overTCP is set where sockets have no paths, as in Wine 8.
var overTCP bool

// newFakeWindows is set on systems that have symbolic links; see sanity_linux_test.go.
var newFakeWindows func(dir, state string) (mounter.Host, error)

// bindMount mounts without the driver, as other programs do. It is set if realMounter is set.
var bindMount func(from, at string) error

// forEachMounter runs a test with the fake mounter and, if possible, with the links of Windows and
// with real mounts.
func forEachMounter(t *testing.T, test func(t *testing.T, d *testDriver)) {
	t.Run("fake", func(t *testing.T) { test(t, startDriver(t)) })
	if newFakeWindows != nil {
		t.Run("links of Windows", func(t *testing.T) { test(t, startDriver(t, func(d *testDriver) { d.links = true })) })
	}
	t.Run("real", func(t *testing.T) {
		if realMounter == nil {
			namespace.Skip(t, "this process cannot mount")
		}
		test(t, startDriver(t, func(d *testDriver) { d.real = true }))
	})
}

// hasImages reports whether the mounter of d can mount images.
func (d *testDriver) hasImages() bool { return !d.links && (!d.real || canLoop()) }

// testDriver is a driver that serves a socket, in this process, with a client.
type testDriver struct {
	testing.TB
	real               bool // mounts
	links              bool // the mounts of Windows, as links of this machine
	cloneVHDX          bool // with links: see hostpath.Config.WindowsImageClone
	tcp                string
	node               string
	dir, root, kubelet string
	log                *logBuffer
	registry           *prometheus.Registry
	mounter            mounter.Host
	options            []grpc.ServerOption
	metadataBlock      int64
	backend            *hostpath.Backend
	memory             *memory.Backend // instead of hostpath; see inMemory
	local              bool            // see onOneNode
	disks              backend.Backend // instead of hostpath, if not nil; see startWithDisks
	driver             *Driver
	conn               *grpc.ClientConn
	stop               func()
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
}

func startDriver(t testing.TB, change ...func(*testDriver)) *testDriver {
	t.Helper()
	// The path is short, because the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil && !t.Failed() { // fails if a mount is left in it
			t.Error(err)
		}
	})
	d := &testDriver{TB: t, dir: dir, node: "node-1", root: filepath.Join(dir, "root"),
		kubelet: filepath.Join(dir, "kubelet"), log: &logBuffer{}}
	for _, sub := range []string{d.root, d.kubelet, d.path("state"), filepath.Join(dir, "volumes")} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range change {
		c(d)
	}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

// inMemory makes the driver serve volumes in memory, which survive a restart of the driver.
func inMemory(d *testDriver) {
	d.memory = memory.New(memory.Config{Dir: filepath.Join(d.dir, "volumes"), Size: 1 << 40,
		Nodes: []string{"node-1", "node-2", "node-3"}, Limit: 16})
}

// onOneNode gives the volumes in memory the topology of a single node.
func onOneNode(d *testDriver) { d.local = true }

// oneNode is storage whose topology is a single node.
type oneNode struct {
	*memory.Backend
	local
}

// local returns storage with the topology of node-1.
type local struct{}

func (local) Node() string { return "node-1" }

// start starts the driver, for the first time or again, and waits until it is ready.
func (d *testDriver) start() {
	d.Helper()
	d.serve()
	d.ready()
}

// serve starts the driver.
func (d *testDriver) serve() {
	d.Helper()
	var err error
	if d.mounter == nil {
		d.mounter = mountertest.NewFake(d.kubelet)
	}
	if d.real {
		if d.mounter, err = realMounter(d.kubelet); err != nil {
			d.Fatal(err)
		}
	}
	if d.links {
		if d.mounter, err = newFakeWindows(d.kubelet, d.path("frozen")); err != nil {
			d.Fatal(err)
		}
	}
	storage, closeStorage := d.openStorage()
	d.registry = newRegistry()
	d.driver, err = New(Config{
		Name: testName, Release: "test", Node: d.node, Backend: storage, Mounter: d.mounter, StateDir: d.path("state"),
		Log:      newTestLogger(d.log),
		Registry: d.registry, ServerOptions: d.options, MetadataBlock: d.metadataBlock,
	})
	if err != nil {
		d.Fatal(err)
	}
	l, err := Listen(d.endpoint(), overTCP)
	if err != nil {
		d.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.driver.Serve(ctx, 10*time.Second, Endpoint{d.driver.All(), l}) }()
	d.conn, err = grpc.NewClient(d.address(), insecureOption(), grpc.WithAuthority("localhost"))
	if err != nil {
		d.Fatal(err)
	}
	d.IdentityClient = csi.NewIdentityClient(d.conn)
	d.ControllerClient, d.NodeClient = csi.NewControllerClient(d.conn), csi.NewNodeClient(d.conn)
	d.stop = sync.OnceFunc(func() {
		d.conn.Close()
		cancel()
		if err := <-served; err != nil {
			d.Error(err)
		}
		if err := errors.Join(d.driver.Close(), closeStorage()); err != nil {
			d.Error(err)
		}
	})
}

// openStorage opens the backend.
func (d *testDriver) openStorage() (storage backend.Backend, closeStorage func() error) {
	d.Helper()
	switch {
	case d.disks != nil:
		return d.disks, func() error { return nil }
	case d.memory != nil && d.local:
		return oneNode{Backend: d.memory}, func() error { return nil }
	case d.memory != nil:
		return d.memory, func() error { return nil }
	}
	var err error
	d.backend, err = hostpath.New(hostpath.Config{
		Root: d.root, Node: d.node, Init: true, RootRecord: filepath.Join(d.dir, "seen"), Images: d.mounter,
		WindowsImageClone: d.cloneVHDX,
	})
	if err != nil {
		d.Fatal(err)
	}
	return d.backend, d.backend.Close
}

// ready waits until the driver is ready.
func (d *testDriver) ready() {
	d.Helper()
	await.True(d.TB, "the driver is ready", func() bool {
		resp, err := d.Probe(context.Background(), &csi.ProbeRequest{})
		return err == nil && resp.GetReady().GetValue()
	})
}

// reboot makes the boot of the staging records an earlier one. Call it while the driver is stopped.
func (d *testDriver) reboot() {
	d.Helper()
	records, err := filepath.Glob(d.path("state", stagingRecordsDir, "*.json"))
	if err != nil || len(records) == 0 && bootID() != "" && !d.links { // else a restart has removed them
		d.Fatalf("the records are %q, %v", records, err)
	}
	for _, path := range records {
		data, err := os.ReadFile(path)
		if err != nil {
			d.Fatal(err)
		}
		var record stagingRecordFile
		if err := json.Unmarshal(data, &record); err != nil || record.Boot != bootID() {
			d.Fatalf("%s: %v", data, err)
		}
		record.Boot = "an earlier boot"
		if data, err = json.Marshal(record); err != nil {
			d.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			d.Fatal(err)
		}
	}
}

// restart stops the driver and starts a new driver. The fake mounter keeps its mounts, as a kernel
// does.
func (d *testDriver) restart() {
	d.Helper()
	d.stop()
	d.start()
}

func (d *testDriver) endpoint() string {
	d.Helper()
	switch {
	case !overTCP:
		return "unix://" + filepath.Join(d.dir, "csi.sock")
	case d.tcp == "":
		d.tcp = freeport.Must(d)
	}
	return "tcp://" + d.tcp
}

// listen opens a socket beside that of the driver, and returns its address for a client of gRPC.
func (d *testDriver) listen(name string) (l net.Listener, address string) {
	d.Helper()
	endpoint := "unix://" + filepath.Join(d.dir, name+".sock")
	if overTCP {
		endpoint = "tcp://127.0.0.1:0"
	}
	l, err := Listen(endpoint, overTCP)
	if err != nil {
		d.Fatal(err)
	}
	if overTCP {
		endpoint = "dns:///" + l.Addr().String()
	}
	return l, endpoint
}

// moveRoot renames the root under the driver. The test is skipped where this is impossible.
func (d *testDriver) moveRoot() {
	d.Helper()
	notOnWindows(d, "an open root cannot be renamed there")
	if err := os.Rename(d.root, d.root+".away"); err != nil {
		d.Fatal(err)
	}
}

// renameClosed renames a directory that the driver does not have open any more. Under Wine this
// failed once in a hundred runs, for an unknown reason, so it is repeated there.
func (d *testDriver) renameClosed(from, to string) {
	d.Helper()
	if !winetest.Wine {
		if err := os.Rename(from, to); err != nil {
			d.Fatal(err)
		}
		return
	}
	await.NoError(d.TB, "Wine renames a closed directory", func() error { return os.Rename(from, to) })
}

// skipSlowLinks skips a test with very many links over the links of Wine, each of which starts a
// program.
func (d *testDriver) skipSlowLinks() {
	d.Helper()
	if winetest.Wine && d.links {
		d.Skip("links under Wine take too long")
	}
}

// notOnWindows skips a test that does not apply there, for a reason.
func notOnWindows(t testing.TB, reason string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip(reason)
	}
}

// address is the endpoint, for a client of gRPC.
func (d *testDriver) address() string {
	if overTCP {
		d.endpoint()
		return "dns:///" + d.tcp
	}
	return d.endpoint()
}

func (d *testDriver) path(elem ...string) string {
	return filepath.Join(append([]string{d.kubelet}, elem...)...)
}

// volume is a volume with the arguments of its calls.
type volume struct {
	*testDriver
	id         string
	context    map[string]string
	capability *csi.VolumeCapability
	staging    string
}

const (
	sharedMode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	singleMode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
)

func blockUse(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func capability(mode csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}},
	}
}

func createRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{capability(sharedMode)},
	}
}

// create creates a volume and its staging directory, as the kubelet does.
func (d *testDriver) create(name string, vc *csi.VolumeCapability) *volume {
	d.Helper()
	req := createRequest(name)
	req.VolumeCapabilities = []*csi.VolumeCapability{vc}
	resp, err := d.CreateVolume(context.Background(), req)
	if err != nil {
		d.Fatal(err)
	}
	v := &volume{testDriver: d, id: resp.GetVolume().GetVolumeId(), context: resp.GetVolume().GetVolumeContext(),
		capability: vc, staging: d.path("staging-" + name)}
	if err := os.MkdirAll(v.staging, 0o750); err != nil {
		d.Fatal(err)
	}
	return v
}

func (v *volume) stage() error {
	_, err := v.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability, VolumeContext: v.context,
	})
	return err
}

func (v *volume) publish(target string, change ...func(*csi.NodePublishVolumeRequest)) error {
	req := &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.path(target), VolumeCapability: v.capability,
		VolumeContext: v.context,
	}
	for _, c := range change {
		c(req)
	}
	_, err := v.NodePublishVolume(context.Background(), req)
	return err
}

func (v *volume) unpublish(target string) error {
	_, err := v.NodeUnpublishVolume(context.Background(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.path(target)})
	return err
}

func (v *volume) unstage() error {
	_, err := v.NodeUnstageVolume(context.Background(),
		&csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

func (v *volume) delete() error {
	_, err := v.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: v.id})
	return err
}

func readOnly(r *csi.NodePublishVolumeRequest) { r.Readonly = true }

// want fails the test unless err has this code.
func (d *testDriver) want(code codes.Code, err error) {
	d.Helper()
	if got := status.Code(err); got != code {
		d.Fatalf("%v: got %s, want %s", err, got, code)
	}
}

// data returns the directory of a volume's data.
func (v *volume) data() string { return filepath.Join(v.root, "volumes", v.id, "data") }

// logBuffer is a log for concurrent writers.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// exists reports whether a file exists at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func handle(n int) string { return fmt.Sprintf("csi-%064x", n) }

func newRegistry() *prometheus.Registry { return prometheus.NewRegistry() }

func newTestLogger(l *logBuffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func insecureOption() grpc.DialOption {
	return grpc.WithTransportCredentials(insecure.NewCredentials())
}
