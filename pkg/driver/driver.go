// Package driver implements CSI v1.13 for a [backend.Backend], which knows the volumes, and a
// [mounter.Mounter], which knows the mounts of the node.
//
// A handler of the controller checks its request, makes one call and returns the result.
// Interceptors do the tasks of all calls (interceptors.go): they recover from panics, count and log
// calls, and turn errors into status codes (errors.go). A further interceptor rejects a call while
// another call changes the same volume (lock.go). validate.go defines legal requests.
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Config configures a Driver. MetadataBlock and ServerOptions are optional, and so are Mounter and
// StateDir of a Driver without a Node service.
type Config struct {
	Name    string // such as hostpath.csi.causeway.dev; CSI spec v1.13, GetPluginInfo
	Release string
	Node    string // name of this node
	Backend backend.Backend
	Mounter mounter.Mounter // nil without a Node service
	// StateDir is an existing directory that outlives the process. The driver uses only names of
	// its own in StateDir.
	StateDir string
	Log      *slog.Logger
	Registry *prometheus.Registry

	// MetadataBlock is the length of the blocks that the SnapshotMetadata service reports, in
	// bytes: a multiple of 4096. The block type is FIXED_LENGTH for a volume whose size is a
	// multiple of MetadataBlock. For all other volumes, and if MetadataBlock is 0, the block type
	// is VARIABLE_LENGTH, which takes fewer messages.
	MetadataBlock int64
	ServerOptions []grpc.ServerOption // for example a stats handler for traces
}

// Driver has the Identity, Controller and Node services for a backend on a node, GroupController if
// the backend is a GroupSnapshotter, and SnapshotMetadata if the backend is a Differ. Its servers
// share locks, metrics and the log.
type Driver struct {
	cfg          Config
	interceptors *Interceptors
	locks        *locks
	prober       *prober
	last         atomic.Pointer[state] // nil until watch has seen a state
	node         *node
	controller   *controller
}

var validName = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)

// CheckName returns an error if name is not a legal driver name. CSI spec v1.13, GetPluginInfo.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("invalid driver name %q: must be a domain name of at most 63 characters", name)
	}
	return nil
}

// New returns a Driver that does not serve yet.
func New(cfg Config) (*Driver, error) {
	if err := CheckName(cfg.Name); err != nil {
		return nil, err
	}
	if err := volumeid.CheckNode(cfg.Node); err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, locks: newLocks(), prober: &prober{backend: cfg.Backend}}
	if err := d.registerMetrics(); err != nil {
		return nil, err
	}
	var err error
	if d.interceptors, err = NewInterceptors(cfg.Log, cfg.Registry, cfg.ServerOptions...); err != nil {
		return nil, err
	}
	if c, ok := cfg.Mounter.(mounter.PathCleaner); ok {
		d.interceptors.calls = append(d.interceptors.calls, cleanPaths(c))
	}
	d.interceptors.calls = append(d.interceptors.calls, d.locks.intercept)
	if err := CheckMetadataBlock(cfg.MetadataBlock); err != nil {
		return nil, err
	}
	topology := newTopology(cfg)
	d.controller = &controller{backend: cfg.Backend, topology: topology}
	d.node = &node{backend: cfg.Backend, mounter: cfg.Mounter, topology: topology, prober: d.prober,
		id: volumeid.NodeID(cfg.Node)}
	if cfg.Mounter == nil {
		return d, nil
	}
	mounted := func(path string) (bool, error) { return cfg.Mounter.Occupied(context.Background(), path) }
	d.node.records, err = openStagingRecords(cfg.StateDir, bootID(), mounted, func(err error) {
		cfg.Log.Error("an entry of the state directory is not a staging record", "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("read the staging records: %w", err)
	}
	return d, nil
}

// registerMetrics registers the metrics of the state and of the backend. All other metrics of the driver
// are registered before the first collection, which takes the names of those of the backend.
func (d *Driver) registerMetrics() error {
	err := d.cfg.Registry.Register(stateMetrics{&d.last})
	if source, ok := d.cfg.Backend.(backend.MetricsSource); ok {
		err = errors.Join(err, d.cfg.Registry.Register(&backendMetrics{MetricsSource: source,
			registry: d.cfg.Registry, names: map[string]error{}}))
	}
	return err
}

// All returns a server with all services, for a driver that runs as a single process.
func (d *Driver) All() *grpc.Server {
	server := d.Controller()
	csi.RegisterNodeServer(server, d.node)
	return server
}

// Controller returns a server with all services except Node, for the sidecars.
func (d *Driver) Controller() *grpc.Server {
	server := d.interceptors.Server()
	csi.RegisterIdentityServer(server,
		&identity{cfg: d.cfg, prober: d.prober, capabilities: PluginCapabilities(d.cfg.Backend)})
	d.registerControllers(server)
	return server
}

// Kubelet returns a server with only the Identity and Node services, for the kubelet.
func (d *Driver) Kubelet() *grpc.Server {
	server := d.interceptors.Server()
	csi.RegisterIdentityServer(server,
		&identity{cfg: d.cfg, prober: d.prober, capabilities: pluginCapabilities(d.cfg.Backend, false)})
	csi.RegisterNodeServer(server, d.node)
	return server
}

// Peer returns a server for the router, with the services of Controller, the Peer service, and a
// Node service that has only NodeGetInfo. options must contain transport credentials, because
// clients reach this server over the network.
func (d *Driver) Peer(options ...grpc.ServerOption) *grpc.Server {
	withMark := *d.interceptors
	withMark.calls = append([]grpc.UnaryServerInterceptor{markAnswers}, d.interceptors.calls...)
	server := withMark.Server(append(peerOptions(), options...)...)
	csi.RegisterIdentityServer(server,
		&identity{cfg: d.cfg, prober: d.prober, capabilities: PluginCapabilities(d.cfg.Backend)})
	d.registerControllers(server)
	d.registerPeer(server)
	return server
}

func (d *Driver) registerControllers(server *grpc.Server) {
	csi.RegisterControllerServer(server, d.controller)
	registerGroups(server, d.cfg.Backend, d.controller.topology)
	registerMetadata(server, d.cfg)
}

// Serve serves the endpoints as the function [Serve] does. Meanwhile, changes in the readiness of
// the driver and in the health of its storage are logged.
func (d *Driver) Serve(ctx context.Context, drain time.Duration, endpoints ...Endpoint) error {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		guard.Keep(ctx, logPanics(d.cfg.Log), func() { d.watch(ctx) })
	}()
	err := Serve(ctx, d.cfg.Log, drain, endpoints...)
	if ctx.Err() == nil {
		return err
	}
	select {
	case <-watched:
	case <-time.After(time.Second): // a system call of watch is stalled
	}
	return err
}

// Close closes the state directory. The caller first ends the servers.
func (d *Driver) Close() error {
	if d.node.records == nil {
		return nil
	}
	return d.node.records.dir.Close()
}

// HTTP returns the handler for --http-endpoint. The driver is ready when its backend is ready.
func (d *Driver) HTTP() http.Handler {
	return HTTP(d.cfg.Log, d.cfg.Registry, func(ctx context.Context) (string, error) {
		ready, err := d.prober.probe(ctx)
		if err == nil && !ready {
			err = errors.New("the driver is starting")
		}
		return "ok", err
	})
}
