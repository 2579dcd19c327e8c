// Package router is the controller of storage that is on many nodes. The package forwards each CSI
// call to the node that holds the volume or snapshot. So sidecars run once for a cluster, and a
// node needs no access to the API.
//
// A router stores nothing. An ID carries a digest of its node (package volumeid), each node reports
// its own ID, and everything else is asked of the nodes. A restart or a second router changes
// nothing. In memory are the connections, and the time at which each silent node last answered.
//
// peers.go finds the nodes and keeps a connection to each (conn.go). view.go has the nodes that
// answer at a moment. controller.go, create.go, list.go, group.go and metadata.go are the calls.
// Their rules come from reading the sidecars: docs/explanation/router.md.
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

// Config configures a Router. All fields but the last four are required.
type Config struct {
	Name    string // of the driver, here and on the nodes; CSI spec v1.13, GetPluginInfo
	Release string

	// Plugin, Controller and Group are the capabilities of the nodes' backend, which the router
	// returns as its own. It does not ask the nodes for them: none may answer when a sidecar asks.
	// Group may be nil.
	Plugin     *csi.GetPluginCapabilitiesResponse
	Controller *csi.ControllerGetCapabilitiesResponse
	Group      *csi.GroupControllerGetCapabilitiesResponse

	TopologyKey string // whose value in a topology is the node
	Peers       Peers
	Credentials credentials.TransportCredentials

	// Names returns the names in a node's certificate. The ID of the node must be among them. If
	// Names is nil, a node that Credentials accept can have any ID.
	Names func(credentials.AuthInfo) []string

	Forgotten *Forgotten // nil: none
	// receives events for the operator; err is nil for good news; Report may be nil
	Report      func(message string, err error)
	DialOptions []grpc.DialOption // such as a stats handler that traces
	// Dial connects to the address of a node before the end of ctx. Nil: by TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Peers returns the addresses, host:port, of all nodes, also of those that do not answer. After an
// error the router keeps the addresses that it has.
type Peers func(context.Context) ([]string, error)

// Times of the connections to nodes.
const (
	lookEvery   = 10 * time.Second       // for the addresses of nodes
	lookSoon    = time.Second            // after a connection was lost
	meetLimit   = 5 * time.Second        // to connect, and again to identify the node
	againFirst  = 250 * time.Millisecond // first pause before a silent node is retried
	againLast   = 10 * time.Second       // last pause
	renewEvery  = 20 * time.Minute       // so that replaced certificates take effect; below the nodes' limit
	pingEvery   = 10 * time.Second       // on an idle connection; nodes allow a ping every 5 s
	pingLimit   = 5 * time.Second
	goneFor     = 5 * time.Minute // for so long a node that lost its address counts as gone
	reportEvery = time.Minute     // the router reports a single silent node at most
)

// meetings is the number of nodes that are identified at the same time.
const meetings = 32

// Router forwards calls to nodes. Run must run while the Router serves.
type Router struct {
	cfg     Config
	started time.Time
	metrics *metrics
	life    context.Context // ends with Run
	end     context.CancelFunc

	mu        sync.Mutex
	endpoints map[string]*endpoint // by address
	gone      map[string]gone      // nodes that lost their address, by ID; empty after a restart
	lookupErr error                // of the last lookup of addresses
	known     bool                 // a lookup has succeeded
	view      atomic.Pointer[view]
	meeting   chan struct{} // held while a node is identified
	soon      chan struct{} // a connection was lost: look up the addresses
	keeping   sync.WaitGroup

	// lastSeen is the time at which a node was lost, by the value of its topology key. It is empty
	// after a restart, and silentFor begins anew.
	lastSeen map[string]time.Time
}

// New returns a Router without connections.
func New(cfg Config) (*Router, error) {
	if cfg.Peers == nil || cfg.Credentials == nil || cfg.TopologyKey == "" {
		return nil, errors.New("a router needs peers, credentials and a topology key")
	}
	if cfg.Report == nil {
		cfg.Report = func(string, error) {}
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	r := &Router{cfg: cfg, started: time.Now(), endpoints: map[string]*endpoint{}, gone: map[string]gone{},
		lastSeen: map[string]time.Time{}, soon: make(chan struct{}, 1), meeting: make(chan struct{},
			meetings), metrics: newMetrics()}
	r.life, r.end = context.WithCancel(context.Background())
	r.view.Store(r.newView())
	return r, nil
}

// Register registers the router's services on server: Identity and Controller, and GroupController
// and SnapshotMetadata if the capabilities have them.
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

// Metrics returns a collector of the router's metrics, which have the node as a label.
func (r *Router) Metrics() prometheus.Collector { return collector{r} }

// Static returns Peers with fixed addresses.
func Static(addresses ...string) Peers {
	return func(context.Context) ([]string, error) { return addresses, nil }
}

// DNS returns Peers that resolve a name; all addresses have the same port. The name is that of a
// headless Service of Kubernetes with publishNotReadyAddresses: without that field the addresses of
// silent nodes vanish, and lists miss their volumes.
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

func (i *identity) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return i.cfg.Plugin, nil
}

// Probe reports on this process alone. A failure would also end the sidecars of the pod, which
// cannot help a node.
func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
