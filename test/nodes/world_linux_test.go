// Package nodes runs the driver as a cluster does: a process on each of three nodes and a router
// before them, each on a network of its own machine, with a wire, a name server and certificates.
// Then it makes the faults of a cluster, and checks the nodes' disks: nothing lost, nothing there
// twice.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/parallel"
	"github.com/causeway-csi/causeway/internal/peertls"
)

const (
	driverName = "hostpath.csi.causeway.dev"
	nodeKey    = driverName + "/node"
	routerName = "causeway-router"
	peerPort   = 9000
	httpPort   = 9090
	mib        = 1 << 20
)

// missing is why none of this can be done here, or nil. driver is the path of the program, which
// build builds at most once.
var (
	missing error
	driver  string
	build   = sync.OnceValue(func() error {
		p := gobuild.Program{Package: gobuild.Driver, Flags: []string{"-tags=crashpoints", raceFlag}}
		return p.Copy(context.Background(), driver)
	})
)

func TestMain(m *testing.M) {
	runtime.LockOSThread() // so that no namespace gets the first thread, which is the process's own in /proc
	if missing = namespace.EnterAlone(); missing == nil {
		missing = check()
	}
	parallel.Tests()
	dir, err := os.MkdirTemp("", "nodes")
	driver = filepath.Join(dir, "driver")
	if err == nil && missing == nil {
		missing = useNameServer(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// useNameServer has processes in this mount namespace ask the name server on their wire.
func useNameServer(dir string) error {
	file := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver "+wireAddress+"\noptions timeout:1 attempts:2\n"),
		0o644); err != nil {
		return err
	}
	return os.NewSyscallError("mount over /etc/resolv.conf",
		syscall.Mount(file, "/etc/resolv.conf", "", syscall.MS_BIND, ""))
}

// world is a cluster: a wire, nodes on it, a name server and, mostly, a router.
type world struct {
	*testing.T
	dir, certs string
	wire       *wire
	dns        *nameServer
	nodes      map[string]*node
	*router
}

// newWorld starts nodes with these names and a router before them, and waits until all of them
// answer.
func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	if missing != nil {
		namespace.Skip(t, missing)
	}
	t.Parallel()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "nd") // short: a socket's path has 107 bytes
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, dir: dir, certs: filepath.Join(dir, "certs"), nodes: map[string]*node{}}
	t.Cleanup(w.cleanUp)
	if w.wire, err = newWire(); err != nil {
		t.Fatal(err)
	}
	if w.dns, err = newNameServer(w.wire); err != nil {
		t.Fatal(err)
	}
	w.certify(peertls.MakeOptions{Client: routerName, Nodes: names})
	var addresses []string
	for i, name := range names {
		n := w.newNode(name, name, fmt.Sprintf("10.9.0.%d", 11+i))
		n.start()
		addresses = append(addresses, n.host.address)
	}
	w.dns.say(addresses...)
	w.router = w.newRouter("router", "10.9.0.2")
	w.router.start()
	w.settled(len(names))
	return w
}

// must ends the test if err is not nil.
func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) certify(o peertls.MakeOptions) {
	w.Helper()
	_, err := peertls.Make(w.certs, o)
	w.must(err)
}

// cleanUp ends everything there is: processes end with the machine that they run on.
func (w *world) cleanUp() {
	hosts := []*host{}
	logs := map[string]string{}
	for _, n := range w.nodes {
		if n.process != nil {
			n.kill()
			logs[n.log] = n.said()
		}
		hosts = append(hosts, n.host)
	}
	if w.router != nil && w.router.process != nil {
		logs[w.router.log] = w.router.said()
	}
	for name, said := range logs {
		if strings.Contains(said, "DATA RACE") || strings.Contains(said, "panic") {
			w.Errorf("%s: %s", name, said)
		} else if w.Failed() {
			w.Logf("%s: %s", name, said[max(0, len(said)-4000):])
		}
	}
	for _, h := range hosts {
		h.end()
	}
	if w.dns != nil {
		w.dns.close()
	}
	if w.wire != nil {
		w.wire.end()
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.dir))
	for _, m := range slices.Backward(mounts) {
		if !w.Failed() {
			w.Errorf("%s is still mounted", m.Mountpoint)
		}
		syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH)
	}
	if err != nil {
		w.Error(err)
		return
	}
	if err := os.RemoveAll(w.dir); err != nil {
		w.Error(err)
	}
}

// node is a machine with a disk and a driver.
type node struct {
	*world
	*process
	host                    *host
	name, id, dir           string
	root, kubelet, endpoint string
	certificates            string // where its own are
	mortal                  bool   // it has a crash point
	csi.IdentityClient
	csi.NodeClient
	conn *grpc.ClientConn
}

// newNode makes a machine with an empty disk. id is the node ID that its driver reports.
func (w *world) newNode(name, id, address string) *node {
	w.Helper()
	h, err := w.wire.plug(name, address)
	w.must(err)
	dir := filepath.Join(w.dir, name)
	n := &node{
		world: w, host: h, name: name, id: id, dir: dir, root: filepath.Join(dir, "root"), kubelet: filepath.Join(dir,
			"kubelet"),
		endpoint: "unix://" + filepath.Join(dir, "csi.sock"), certificates: filepath.Join(w.certs, "nodes", id),
	}
	w.nodes[name] = n
	for _, d := range []string{n.root, n.kubelet} {
		w.must(os.MkdirAll(d, 0o755))
	}
	return n
}

// start starts the node's driver, for the first time or again, and waits until it is ready.
func (n *node) start() { n.startToDie("") }

// startToDie starts a driver that dies when it reaches a crash point.
func (n *node) startToDie(point string) {
	n.Helper()
	n.mortal = point != ""
	var err error
	n.process, err = n.host.run(filepath.Join(n.dir, "log"), []string{crashpoint.Env + "=" + point}, driver,
		"--mode=node", "--node-id="+n.id, "--root="+n.root, "--init-root", "--kubelet-dir="+n.kubelet,
		"--state-dir="+filepath.Join(n.dir, "state"), "--endpoint="+n.endpoint,
		fmt.Sprintf("--peer-listen=:%d", peerPort), "--peer-certs="+n.certificates)
	n.must(err)
	if n.conn != nil {
		n.conn.Close()
	}
	n.conn = n.connect(n.process, n.endpoint)
	n.IdentityClient, n.NodeClient = csi.NewIdentityClient(n.conn), csi.NewNodeClient(n.conn)
	await.True(n, n.name+" is ready", func() bool {
		resp, err := n.Probe(context.Background(), &csi.ProbeRequest{})
		return err == nil && resp.GetReady().GetValue()
	})
}

// peer is where the router reaches the node.
func (n *node) peer() string { return fmt.Sprintf("%s:%d", n.host.address, peerPort) }

// hasSaid reports whether the log has all of the words in the same line.
func (p *process) hasSaid(words ...string) bool {
	for line := range strings.Lines(p.said()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return true
		}
	}
	return false
}

// router is a machine with a router.
type router struct {
	world     *world
	host      *host
	endpoint  string
	forgotten string // the file of that name
	log       string
	csi.ControllerClient
	identity csi.IdentityClient
	conn     *grpc.ClientConn
	process  *process
}

func (w *world) newRouter(name, address string) *router {
	w.Helper()
	h, err := w.wire.plug(name, address)
	w.must(err)
	dir := filepath.Join(w.dir, name)
	w.must(os.Mkdir(dir, 0o755))
	r := &router{world: w, host: h, endpoint: "unix://" + filepath.Join(dir, "csi.sock"),
		log: filepath.Join(dir, "log"), forgotten: filepath.Join(dir, "forgotten")}
	w.must(os.WriteFile(r.forgotten, nil, 0o600))
	w.Cleanup(func() {
		if r.process != nil {
			r.process.kill()
		}
		h.end()
	})
	return r
}

// start starts the router, for the first time or again, and waits until it takes calls.
func (r *router) start() {
	r.world.Helper()
	var err error
	r.process, err = r.host.run(r.log, []string{"GODEBUG=netdns=go"}, driver, // as in the image, which has no C library
		"--mode=controller", "--endpoint="+r.endpoint, fmt.Sprintf("--peers=dns:%s:%d", nodesName, peerPort),
		"--peer-certs="+filepath.Join(r.world.certs, "router"), "--forgotten-nodes="+r.forgotten,
		fmt.Sprintf("--http-endpoint=%s:%d", r.host.address, httpPort))
	r.world.must(err)
	if r.conn != nil {
		r.conn.Close()
	}
	r.conn = r.world.connect(r.process, r.endpoint)
	r.ControllerClient, r.identity = csi.NewControllerClient(r.conn), csi.NewIdentityClient(r.conn)
}

// said returns the output of the router.
func (r *router) said() string { return r.process.said() }

// connect waits until a process listens at its endpoint.
func (w *world) connect(p *process, endpoint string) *grpc.ClientConn {
	w.Helper()
	await.True(w, "a driver listens at "+endpoint, func() bool {
		select {
		case <-p.exited:
			w.Fatalf("the driver has ended with %v: %s", p.cmd.ProcessState, p.said())
		default:
		}
		conn, err := net.Dial("unix", strings.TrimPrefix(endpoint, "unix://"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	return conn
}

// get returns the body from the router's HTTP endpoint, or an error.
func (r *router) get(path string) string {
	r.world.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return r.world.wire.dial(ctx, address)
		}}}
	req, err := http.NewRequestWithContext(r.world.soon(), http.MethodGet,
		"http://"+net.JoinHostPort(r.host.address, strconv.Itoa(httpPort))+path, nil)
	r.world.must(err)
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text) + errText(err)
}

// wantReady waits until /readyz has all of the words.
func (r *router) wantReady(words ...string) {
	r.world.Helper()
	await.NoError(r.world, fmt.Sprintf("/readyz has %q", words), func() error {
		how := r.get("/readyz")
		if slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(how, word) }) {
			return errors.New(how)
		}
		return nil
	})
}

// settled waits until so many nodes answer, and no node is silent.
func (r *router) settled(n int) {
	r.world.Helper()
	await.NoError(r.world, fmt.Sprintf("all of %d nodes answer", n), func() error {
		if how := r.get("/readyz"); how != fmt.Sprintf("ok: %d of %d nodes answer\n", n, n) {
			return errors.New(how)
		}
		return nil
	})
}

// lost waits until a node does not answer any more.
func (r *router) lost(n *node) {
	r.world.Helper()
	r.wantReady("\n" + n.id + " (" + n.peer())
}

// wantMetrics waits until /metrics has these lines.
func (r *router) wantMetrics(lines ...string) {
	r.world.Helper()
	await.True(r.world, fmt.Sprintf("/metrics has %q", lines), func() bool {
		got := r.get("/metrics")
		return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(got, "\n"+l+"\n") })
	})
}

// Calls.

func mountable() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func topology(node string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{nodeKey: node}}
}

// create is a request for an empty volume, on a node if the caller names it.
func create(name string, on ...string) *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountable()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: mib}}
	for _, node := range on {
		req.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: []*csi.Topology{topology(node)},
			Requisite: []*csi.Topology{topology(node)}}
	}
	return req
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

// soon is the context of a call that gets an answer of any kind before the deadline of the test.
func (w *world) soon() context.Context { return await.Context(w) }

// volume makes a volume and returns it, as a sidecar does: again and again.
func (w *world) volume(name string, on ...string) *csi.Volume {
	w.Helper()
	return w.router.volume(name, on...)
}

func (r *router) volume(name string, on ...string) *csi.Volume {
	r.world.Helper()
	return retry(r.world, func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		return r.CreateVolume(ctx, create(name, on...))
	}).GetVolume()
}

// snapshot makes a snapshot and returns its ID, in the same way.
func (w *world) snapshot(name, volume string) string {
	w.Helper()
	return retry(w, func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
		return w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	}).GetSnapshot().GetSnapshotId()
}

// retry makes a call until it works, as a sidecar does: with a deadline each time, and not after a
// final code.
func retry[T any](w *world, call func(context.Context) (T, error)) (resp T) {
	w.Helper()
	await.NoError(w, "a call has a final answer", func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if resp, err = call(ctx); err != nil && !again(err) {
			w.Errorf("a retry: %v", err)
			return nil
		}
		return err
	})
	return resp
}

// again reports whether a sidecar repeats the call after an error that leaves its effect open.
func again(err error) bool {
	return slices.Contains([]codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted},
		status.Code(err))
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// wantCode fails the test unless err has the code and its text has all of the words.
func wantCode(t testing.TB, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %s", err, code)
	}
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not in %v", word, err)
		}
	}
}

// onDisk returns the IDs in a directory of the nodes' roots, from the disks alone.
func (w *world) onDisk(what string) (ids []string) {
	w.Helper()
	for _, n := range w.nodes {
		entries, err := os.ReadDir(filepath.Join(n.root, what))
		w.must(err)
		for _, e := range entries {
			ids = append(ids, e.Name())
		}
	}
	return slices.Sorted(slices.Values(ids))
}

// holds fails the test unless these volumes are on the disks, and no others; and listed through the
// router.
func (w *world) holds(volumes ...string) {
	w.Helper()
	w.same("volumes", volumes)
	var listed []string
	for _, e := range retry(w, func(ctx context.Context) (*csi.ListVolumesResponse, error) {
		return w.ListVolumes(ctx, &csi.ListVolumesRequest{})
	}).GetEntries() {
		listed = append(listed, e.GetVolume().GetVolumeId())
	}
	if slices.Sort(listed); !slices.Equal(listed, w.onDisk("volumes")) {
		w.Errorf("listed are %q, on the disks %q", listed, w.onDisk("volumes"))
	}
}

// holdsSnapshots is the same for snapshots.
func (w *world) holdsSnapshots(snapshots ...string) {
	w.Helper()
	w.same("snapshots", snapshots)
	var listed []string
	for _, e := range retry(w, func(ctx context.Context) (*csi.ListSnapshotsResponse, error) {
		return w.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	}).GetEntries() {
		listed = append(listed, e.GetSnapshot().GetSnapshotId())
	}
	if slices.Sort(listed); !slices.Equal(listed, w.onDisk("snapshots")) {
		w.Errorf("listed are %q, on the disks %q", listed, w.onDisk("snapshots"))
	}
}

func (w *world) same(what string, want []string) {
	w.Helper()
	want = slices.Sorted(slices.Values(want))
	if got := w.onDisk(what); !slices.Equal(got, want) {
		w.Errorf("on the disks are the %s %q, want %q", what, got, want)
	}
}

// both runs functions at the same time.
func both(all ...func()) {
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(f)
	}
	running.Wait()
}

// pauseIn waits until a moment in the middle of a call, another in each round.
func pauseIn(round int) { time.Sleep(time.Duration(round) * 600 * time.Microsecond) }
