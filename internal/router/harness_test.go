package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/internal/peer"
	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

const (
	testName   = "hostpath.csi.causeway.dev"
	testKey    = testName + "/node"
	routerName = "causeway-router"
	mib        = 1 << 20
)

// cluster is a router, and nodes with real drivers whose mounter is a fake, all in this process.
type cluster struct {
	testing.TB
	dir   string
	nodes map[string]*machine
	wires *wires // the network in memory; nil: TCP

	mu        sync.Mutex
	addresses []string
	lookErr   error
	said      []string // to the operator

	router *Router
	conn   *grpc.ClientConn
	stop   func()
	csi.IdentityClient
	csi.ControllerClient
	csi.GroupControllerClient
	csi.SnapshotMetadataClient
}

// newCluster starts a router before nodes with these names, and waits until all of them answer.
func newCluster(t testing.TB, names ...string) *cluster {
	t.Helper()
	return newClusterIn(t, shortDir(t), names...)
}

// shortDir returns a directory that is there until the test is over, with a short path: a socket's
// has 107 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newClusterIn is newCluster with all its files in a directory.
func newClusterIn(t testing.TB, dir string, names ...string) *cluster {
	t.Helper()
	c := &cluster{TB: t, dir: dir, nodes: map[string]*machine{}}
	c.boot(names...)
	return c
}

// boot starts the nodes and the router, and waits until all nodes answer.
func (c *cluster) boot(names ...string) {
	c.Helper()
	c.certify(names...)
	for _, name := range names {
		c.nodes[name] = c.newMachine(name)
		c.nodes[name].start()
	}
	c.start()
	c.settled(len(names))
}

// listen listens at an address of the network, or at a new address if address is "".
func (c *cluster) listen(address string) net.Listener {
	c.Helper()
	if c.wires != nil {
		return c.wires.listen(address)
	}
	if address == "" {
		address = freeport.Must(c) // also for the next start of the same node
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// certify makes certificates.
func (c *cluster) certify(names ...string) {
	c.Helper()
	if _, err := peertls.Make(c.dir, peertls.MakeOptions{Client: routerName, Nodes: names}); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) config() Config {
	c.Helper()
	id, err := peertls.Open(filepath.Join(c.dir, "router"), func(err error) { c.report("certificates", err) })
	if err != nil {
		c.Fatal(err)
	}
	kind := (*hostpath.Backend)(nil)
	var dial func(context.Context, string) (net.Conn, error)
	if c.wires != nil {
		dial = c.wires.dial
	}
	return Config{
		Name: testName, Release: "test", TopologyKey: testKey,
		Plugin: driver.PluginCapabilities(kind), Controller: driver.ControllerCapabilities(kind), Group: driver.GroupCapabilities(),
		Credentials: id.Client(""), Names: peertls.Names, Report: c.report, Peers: c.find, Dial: dial,
	}
}

// report is for the router's Config.Report.
func (c *cluster) report(message string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, fmt.Sprintf("%s: %v", message, err))
}

// find is for the router's Config.Peers.
func (c *cluster) find(context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.addresses), c.lookErr
}

// at makes the addresses those at which the nodes with these names are, and others, and has the
// router look.
func (c *cluster) setAddresses(names ...string) {
	c.mu.Lock()
	c.addresses = nil
	for _, name := range names {
		if m := c.nodes[name]; m != nil {
			name = m.address
		}
		c.addresses = append(c.addresses, name)
	}
	c.mu.Unlock()
	c.lookUpNodes()
}

// later waits until nodes without an address do not count any more. Outside of a simulation the
// time passes at once. The router must have missed the nodes.
func (c *cluster) later() {
	c.Helper()
	c.await(func(v *view) bool { return slices.ContainsFunc(v.silent, absent.gone) })
	if c.wires != nil {
		time.Sleep(goneFor + lookEvery)
		return
	}
	c.router.mu.Lock()
	for id, g := range c.router.gone {
		g.since = time.Now().Add(-goneFor)
		c.router.gone[id] = g
	}
	c.router.mu.Unlock()
	c.lookUpNodes()
}

// look has the router look for nodes now.
func (c *cluster) lookUpNodes() {
	if c.router != nil {
		select {
		case c.router.soon <- struct{}{}:
		default:
		}
	}
}

// start starts the router, for the first time or again.
func (c *cluster) start(change ...func(*Config)) {
	c.Helper()
	cfg := c.config()
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if c.router, err = New(cfg); err != nil {
		c.Fatal(err)
	}
	interceptors, err := driver.NewInterceptors(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		c.Fatal(err)
	}
	server := interceptors.Server()
	c.router.Register(server)
	l, target, options := c.endpoint()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.router.Run(ctx) })
	running.Go(func() {
		driver.Serve(ctx, slog.New(slog.DiscardHandler), time.Second, driver.Endpoint{Server: server, Listener: l})
	})
	c.conn, err = grpc.NewClient(target, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))...)
	if err != nil {
		c.Fatal(err)
	}
	c.IdentityClient, c.ControllerClient = csi.NewIdentityClient(c.conn), csi.NewControllerClient(c.conn)
	c.GroupControllerClient, c.SnapshotMetadataClient = csi.NewGroupControllerClient(c.conn), csi.NewSnapshotMetadataClient(c.conn)
	c.stop = sync.OnceFunc(func() {
		c.conn.Close()
		cancel()
		running.Wait()
	})
	c.Cleanup(c.stop)
}

// endpoint listens where the router serves, and returns the target for a client.
func (c *cluster) endpoint() (l net.Listener, target string, options []grpc.DialOption) {
	c.Helper()
	if c.wires != nil {
		l = c.wires.listen("router")
		return l, "passthrough:///router", []grpc.DialOption{grpc.WithContextDialer(c.wires.dial)}
	}
	target = "unix://" + filepath.Join(c.dir, "csi.sock")
	l, err := driver.Listen(target, false)
	if err != nil {
		c.Fatal(err)
	}
	return l, target, nil
}

// restart starts the router again, with as many nodes.
func (c *cluster) restart(change ...func(*Config)) {
	c.Helper()
	n := len(c.router.view.Load().nodes)
	c.stop()
	c.start(change...)
	c.settled(n)
}

// settled waits until so many nodes answer, and no node is silent.
func (c *cluster) settled(n int) {
	c.Helper()
	c.await(func(v *view) bool { return len(v.nodes) == n && v.requireAll() == nil })
}

// lost waits until so many nodes answer.
func (c *cluster) lost(n int) { c.await(func(v *view) bool { return len(v.nodes) == n }) }

// await waits until a view of the router is as wanted.
func (c *cluster) await(is func(*view) bool) {
	c.Helper()
	await.NoError(c.TB, "the router sees its nodes as wanted", func() error {
		if is(c.router.view.Load()) {
			return nil
		}
		how, err := c.router.Ready(context.Background())
		return errors.Join(err, fmt.Errorf("the router has %s", how))
	})
}

// ids returns the node IDs of the nodes that answer.
func (v *view) ids() (ids []string) {
	for _, n := range v.nodes {
		ids = append(ids, n.id)
	}
	return slices.Sorted(slices.Values(ids))
}

// machine is a node.
type machine struct {
	*cluster
	name    string // of its certificate
	node    string // that it says it is
	dir     string
	address string
	fault   atomic.Pointer[fault]
	calls   atomic.Int64 // of its controller services
	header  atomic.Pointer[metadata.MD]
	stop    func()
	conns   *conns
	storage *hostpath.Backend // nil in a simulation, which has a shelf
	shelf   *shelfBackend
	mounter mounter.Host
}

// fault is the fault of calls of a method.
type fault struct {
	method  string // its last part; "" is all
	before  func()
	request func(req any)
	enter   func(context.Context)
	after   func()
	err     error // the response instead of the call
	lost    error // the response instead of the node's, after the call
}

func (c *cluster) newMachine(name string) *machine {
	c.Helper()
	m := &machine{cluster: c, name: name, node: name, dir: filepath.Join(c.dir, "m-"+volumeid.NodeDigest(name))}
	for _, sub := range []string{"root", "kubelet", "state"} {
		if err := os.MkdirAll(filepath.Join(m.dir, sub), 0o755); err != nil {
			c.Fatal(err)
		}
	}
	return m
}

// start starts the node's driver, at an address of its own: the same address again if it had an
// address.
func (m *machine) start() {
	m.Helper()
	cfg := m.shelve()
	if m.wires == nil {
		cfg = m.store()
	}
	d, err := driver.New(cfg)
	if err != nil {
		m.Fatal(err)
	}
	id, err := peertls.Open(filepath.Join(m.cluster.dir, "nodes", m.name), func(error) {})
	if err != nil {
		m.Fatal(err)
	}
	server := d.Peer(grpc.Creds(id.Server(routerName)), grpc.ChainUnaryInterceptor(m.intercept),
		grpc.ChainStreamInterceptor(m.interceptStream))
	l := m.listen(m.address)
	m.address = l.Addr().String()
	m.conns = &conns{Listener: l, open: map[net.Conn]bool{}}
	endpoints := []driver.Endpoint{{Server: server, Listener: m.conns}}
	if m.wires == nil {
		socket, err := driver.Listen(m.socket(), false)
		if err != nil {
			m.Fatal(err)
		}
		endpoints = append(endpoints, driver.Endpoint{Server: d.Kubelet(), Listener: socket})
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		d.Serve(ctx, time.Second, endpoints...)
	}()
	storage := m.storage
	m.stop = sync.OnceFunc(func() {
		cancel()
		<-served
		err := d.Close()
		if storage != nil {
			err = errors.Join(err, storage.Close())
		}
		if err != nil {
			m.Error(err)
		}
	})
	m.Cleanup(m.stop)
	m.mu.Lock()
	if !slices.Contains(m.addresses, m.address) {
		m.addresses = append(m.addresses, m.address)
	}
	m.mu.Unlock()
	for ready := m.storage == nil; !ready && err == nil; {
		ready, err = m.storage.Probe(ctx)
	}
	if err != nil {
		m.Fatal(err)
	}
}

// store returns the configuration of a driver whose volumes are on the disk.
func (m *machine) store() driver.Config {
	m.Helper()
	mount := mountertest.NewFake(filepath.Join(m.dir, "kubelet"))
	m.mounter = mount
	var err error
	m.storage, err = hostpath.New(hostpath.Config{
		Root: filepath.Join(m.dir, "root"), Node: m.node, Release: "test", Init: true, RootRecord: filepath.Join(m.dir,
			"state", "root-identity"),
		Images: mount,
	})
	if err != nil {
		m.Fatal(err)
	}
	return driver.Config{
		Name: testName, Release: "test", Node: m.node, Backend: m.storage, Mounter: mount, StateDir: filepath.Join(m.dir, "state"),
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
	}
}

// shelve returns the configuration of a driver whose volumes are in memory.
func (m *machine) shelve() driver.Config {
	if m.shelf == nil || m.shelf.node != m.node {
		m.shelf = &shelfBackend{node: m.node, volumes: map[string]backend.Volume{}}
	}
	return driver.Config{Name: testName, Release: "test", Node: m.node, Backend: m.shelf,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}
}

// socket is the endpoint of the node's kubelet.
func (m *machine) socket() string { return "unix://" + filepath.Join(m.dir, "csi.sock") }

// intercept applies the fault. It runs inside of the interceptor that marks the responses, except
// for faults of the connection.
func (m *machine) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	if method != "GetPluginInfo" && method != "NodeGetInfo" {
		m.calls.Add(1)
		m.note(ctx)
	}
	f := m.fault.Load()
	if f == nil || f.method != "" && f.method != method {
		return handler(ctx, req)
	}
	if f.before != nil {
		f.before()
	}
	if f.request != nil {
		f.request(req)
	}
	if f.enter != nil {
		f.enter(ctx)
	}
	if f.err != nil {
		return nil, f.err
	}
	resp, err := handler(context.WithoutCancel(ctx), req) // a node is not always told in time
	if f.after != nil {
		f.after()
	}
	if f.lost != nil {
		return nil, f.lost
	}
	return resp, err
}

func (m *machine) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	m.note(stream.Context())
	return handler(srv, faultyStream{stream, m})
}

// faultyStream is a stream on which messages may be the last.
type faultyStream struct {
	grpc.ServerStream
	machine *machine
}

func (f faultyStream) RecvMsg(message any) error {
	if err := f.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if r, ok := message.(*peer.SnapshotPartRequest); ok {
		return f.machine.step("recv " + r.GetStep().String())
	}
	return nil
}

func (f faultyStream) SendMsg(message any) error {
	if r, ok := message.(*peer.SnapshotPartResponse); ok {
		if err := f.machine.step("send " + r.GetDone().String()); err != nil {
			return err
		}
	}
	return f.ServerStream.SendMsg(message)
}

// step applies the fault at a message of a stream.
func (m *machine) step(at string) error {
	f := m.fault.Load()
	if f == nil || f.method != at {
		return nil
	}
	if f.before != nil {
		f.before()
	}
	return f.err
}

// conns is a listener whose connections can be cut.
type conns struct {
	net.Listener
	mu   sync.Mutex
	open map[net.Conn]bool
}

func (c *conns) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = true
	return conn, nil
}

// cut ends all connections at once, without a word of the protocol.
func (c *conns) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		conn.Close()
		delete(c.open, conn)
	}
}

// Requests.

func mountable() []*csi.VolumeCapability {
	return []*csi.VolumeCapability{{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}}
}

func create(name string, on ...string) *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: mountable(),
		CapacityRange: &csi.CapacityRange{RequiredBytes: mib}}
	for i, node := range on {
		if i == 0 {
			req.AccessibilityRequirements = &csi.TopologyRequirement{}
		}
		req.AccessibilityRequirements.Preferred = append(req.AccessibilityRequirements.Preferred, topology(node))
		req.AccessibilityRequirements.Requisite = append(req.AccessibilityRequirements.Requisite, topology(node))
	}
	return req
}

func topology(node string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{testKey: volumeid.Segment(node)}}
}

// volume makes a volume on a node and returns its ID.
func (c *cluster) volume(name, node string) string {
	c.Helper()
	resp, err := c.CreateVolume(context.Background(), create(name, node))
	if err != nil {
		c.Fatal(err)
	}
	return resp.GetVolume().GetVolumeId()
}

// snapshot makes a snapshot and returns its ID.
func (c *cluster) snapshot(name, volume string) string {
	c.Helper()
	resp, err := c.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	if err != nil {
		c.Fatal(err)
	}
	return resp.GetSnapshot().GetSnapshotId()
}

// all returns the IDs of all volumes on the nodes' disks, from the disks alone.
func (c *cluster) all() []string { return c.onDisk("volumes") }

// onDisk returns the IDs in a directory of the nodes' roots.
func (c *cluster) onDisk(what string) (ids []string) {
	c.Helper()
	for _, m := range c.nodes {
		if m.wires != nil {
			volumes, _, _ := m.shelf.List(context.Background(), "", math.MaxInt)
			for _, v := range volumes {
				ids = append(ids, v.ID)
			}
			continue
		}
		entries, err := os.ReadDir(filepath.Join(m.dir, "root", what))
		if err != nil {
			c.Fatal(err)
		}
		for _, e := range entries {
			ids = append(ids, e.Name())
		}
	}
	return slices.Sorted(slices.Values(ids))
}

// wantCode fails the test unless err has the code and its text has all of the words.
func wantCode(t testing.TB, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %s", err, code)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %v", w, err)
		}
	}
}

var errNoDNS = errors.New("no such host")

// note records the metadata of a call.
func (m *machine) note(ctx context.Context) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("x-request-id")) > 0 {
		m.header.Store(&md)
	}
}
