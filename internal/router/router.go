// Package router is the controller of storage that lives on many nodes: it passes whole CSI calls to the node that they
// are for. So sidecars run once for a cluster, in the usual place, and a node needs no access to the API.
//
// It keeps nothing. IDs carry a digest of their node (package volumeid); the nodes say who they are; what else it must
// know it asks. A restart, or a second router beside it, changes nothing. What it holds in memory are connections, and
// since when somebody is silent.
//
// peers.go finds the nodes and keeps a connection to each (conn.go), view.go is who answers at one moment, controller.go,
// create.go, list.go, group.go and metadata.go are the calls. The rules that they follow were found by reading the
// sidecars: see docs/node-local-storage.md.
package router

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Config is what a Router needs. All fields but the last three are required.
type Config struct {
	Name    string // of the driver, here and on the nodes; CSI spec v1.13, GetPluginInfo
	Release string

	// Plugin, Controller and Group are what the router says it can do: what the nodes' backend can. They don't come from
	// the nodes, of which none may be there when a sidecar asks. Group may be nil.
	Plugin     *csi.GetPluginCapabilitiesResponse
	Controller *csi.ControllerGetCapabilitiesResponse
	Group      *csi.GroupControllerGetCapabilitiesResponse

	TopologyKey string // under which the nodes say which one they are
	Peers       Peers
	Credentials credentials.TransportCredentials

	// Names returns the names that a node's certificate has: the node's ID must be one of them. If it is nil, any node
	// that Credentials accept may be any node.
	Names func(credentials.AuthInfo) []string

	Forgotten   *Forgotten                      // nil: none
	Report      func(message string, err error) // what an operator should read, as it happens, with no error if it is good; nil: nobody does
	DialOptions []grpc.DialOption               // such as a stats handler that traces
}

// Peers returns the addresses, host:port, at which nodes are to be found, absent ones too. If it can't be told, the last
// ones that were known stay.
type Peers func(context.Context) ([]string, error)

// Times of the connections to nodes.
const (
	lookEvery  = 10 * time.Second       // for who is there
	lookSoon   = time.Second            // after a connection was lost
	meetLimit  = 5 * time.Second        // to connect, and then to hear who it is
	againFirst = 250 * time.Millisecond // after which a node that doesn't answer is tried again, at first
	againLast  = 10 * time.Second       // and in the end
	renewEvery = 20 * time.Minute       // so that certificates count which were replaced; below the nodes' limit
	pingEvery  = 10 * time.Second       // a connection on which nothing comes; nodes allow one every 5 s
	pingLimit  = 5 * time.Second
	goneFor    = 5 * time.Minute // a node that had an address, and has none, is taken for absent
	tellEvery  = time.Minute     // an operator is told of one silent node at the most
)

// meetings is how many nodes are asked who they are at the same time.
const meetings = 32

// Router passes calls to nodes. Run must run while it serves.
type Router struct {
	cfg     Config
	started time.Time
	metrics *metrics
	life    context.Context // ends with Run
	end     context.CancelFunc

	mu      sync.Mutex
	places  map[string]*place // by address
	gone    map[string]gone   // nodes whose address isn't known any more, by ID: more caution, and a restart does without
	looked  error             // why the last look for addresses failed, or nil
	known   bool              // a look has worked
	view    atomic.Pointer[view]
	meeting chan struct{} // held by those that ask who somebody is
	soon    chan struct{} // somebody was lost: look for addresses
	keeping sync.WaitGroup

	// lastSeen is when a node was lost, by the value of its topology key. A restart forgets it, and waits anew.
	lastSeen map[string]time.Time
}

// New returns a Router that isn't connected to anybody yet.
func New(cfg Config) (*Router, error) {
	if cfg.Peers == nil || cfg.Credentials == nil || cfg.TopologyKey == "" {
		return nil, errors.New("a router needs peers, credentials and a topology key")
	}
	if cfg.Report == nil {
		cfg.Report = func(string, error) {}
	}
	r := &Router{cfg: cfg, started: time.Now(), places: map[string]*place{}, gone: map[string]gone{}, lastSeen: map[string]time.Time{}, soon: make(chan struct{}, 1), meeting: make(chan struct{}, meetings), metrics: newMetrics()}
	r.life, r.end = context.WithCancel(context.Background())
	r.view.Store(r.look())
	return r, nil
}

// Register makes server serve the router's services: Identity, Controller, and GroupController and SnapshotMetadata if
// the capabilities have them.
func (r *Router) Register(server *grpc.Server) {
	csi.RegisterIdentityServer(server, &identity{cfg: r.cfg})
	csi.RegisterControllerServer(server, &controller{Router: r})
	if r.cfg.Group != nil {
		csi.RegisterGroupControllerServer(server, &groupController{Router: r})
	}
	if offers(r.cfg.Plugin, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE) {
		csi.RegisterSnapshotMetadataServer(server, &snapshotMetadata{Router: r})
	}
}

func offers(plugin *csi.GetPluginCapabilitiesResponse, service csi.PluginCapability_Service_Type) bool {
	for _, c := range plugin.GetCapabilities() {
		if c.GetService().GetType() == service {
			return true
		}
	}
	return false
}

// Metrics is what the router counts, by node.
func (r *Router) Metrics() prometheus.Collector { return collector{r} }

// Static returns the same addresses every time.
func Static(addresses ...string) Peers {
	return func(context.Context) ([]string, error) { return addresses, nil }
}

// DNS returns the addresses that a name has, all with one port. For a headless service of Kubernetes these are its pods,
// and it must have publishNotReadyAddresses: without it a node that is away vanishes, and lists come back short.
func DNS(resolver *net.Resolver, name, port string) Peers {
	return func(ctx context.Context) ([]string, error) {
		hosts, err := resolver.LookupHost(ctx, name)
		if err != nil {
			return nil, err
		}
		for i, host := range hosts {
			hosts[i] = net.JoinHostPort(host, port)
		}
		return hosts, nil
	}
}

// identity is the Identity service. It depends on no node. CSI spec v1.13, Identity Service RPC.
type identity struct {
	csi.UnimplementedIdentityServer
	cfg Config
}

func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.cfg.Name, VendorVersion: i.cfg.Release}, nil
}

func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return i.cfg.Plugin, nil
}

// Probe is about this process alone: the sidecars beside it would be ended with it, and none of them could help a node.
func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
