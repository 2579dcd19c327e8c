// Package driver speaks CSI v1.13: it turns calls into questions to a Backend (what is a volume?) and a Mounter (what
// is mounted?), and their answers into responses.
//
// A handler checks its request, makes one call and answers. What every call needs is done once, around the handlers:
// interceptors.go catches panics, counts, logs, turns errors into status codes (errors.go) and keeps two calls from
// changing one volume (lock.go). validate.go says what a legal request is.
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Config is what a Driver needs. All fields but the last two are required.
type Config struct {
	Name     string // such as hostpath.csi.causeway.dev; CSI spec v1.13, GetPluginInfo
	Release  string
	Node     string // name of this node
	Backend  backend.Backend
	Mounter  mounter.Mounter // nil where there is no Node service
	StateDir string          // an existing directory that outlives the process; the driver keeps to names of its own in it
	Log      *slog.Logger
	Registry *prometheus.Registry

	// MetadataBlock is how long the blocks are in which the SnapshotMetadata service reports, in bytes: a multiple of
	// 4096, and the answer's type is FIXED_LENGTH. If it is 0, and for a volume that isn't a whole number of them, it
	// is VARIABLE_LENGTH, which takes fewer messages.
	MetadataBlock int64
	ServerOptions []grpc.ServerOption // such as a stats handler that traces
}

// Driver has the Identity, Controller and Node services for one backend on one node, GroupController if the backend
// is a GroupSnapshotter, and SnapshotMetadata if it is a Differ. Its servers share locks, counts and the log.
type Driver struct {
	cfg        Config
	around     *Around
	locks      *locks
	prober     *prober
	node       *node
	controller *controller
}

var validName = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)

// CheckName returns an error for a name that no driver may have. CSI spec v1.13, GetPluginInfo.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("the driver name %q is no domain name of at most 63 characters", name)
	}
	return nil
}

// New returns a Driver that isn't serving yet.
func New(cfg Config) (*Driver, error) {
	if err := CheckName(cfg.Name); err != nil {
		return nil, err
	}
	if err := volumeid.CheckNode(cfg.Node); err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, locks: newLocks(), prober: &prober{backend: cfg.Backend}}
	if meter, ok := cfg.Backend.(backend.MetricsSource); ok {
		if err := cfg.Registry.Register(backendMetrics{meter}); err != nil {
			return nil, err
		}
	}
	var err error
	if d.around, err = NewAround(cfg.Log, cfg.Registry, cfg.ServerOptions...); err != nil {
		return nil, err
	}
	d.around.calls = append(d.around.calls, d.locks.intercept)
	if err := CheckMetadataBlock(cfg.MetadataBlock); err != nil {
		return nil, err
	}
	place := newPlace(cfg)
	d.controller = &controller{backend: cfg.Backend, place: place}
	d.node = &node{backend: cfg.Backend, mounter: cfg.Mounter, place: place, prober: d.prober, id: volumeid.NodeID(cfg.Node)}
	if cfg.Mounter == nil {
		return d, nil
	}
	mounted := func(path string) (bool, error) { return isMount(cfg.Mounter, path) }
	d.node.stagings, err = openStagings(cfg.StateDir, mounted, func(err error) {
		cfg.Log.Error("an entry of the state directory is no record of a staged volume", "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("state of staged volumes: %w", err)
	}
	return d, nil
}

// All returns a server of all services, for a driver that is the only one.
func (d *Driver) All() *grpc.Server {
	server := d.Controller()
	csi.RegisterNodeServer(server, d.node)
	return server
}

// Controller returns a server of all services but Node, for sidecars.
func (d *Driver) Controller() *grpc.Server {
	server := d.around.Server()
	csi.RegisterIdentityServer(server, &identity{cfg: d.cfg, prober: d.prober, offers: PluginCapabilities(d.cfg.Backend)})
	d.registerControllers(server)
	return server
}

// Kubelet returns a server of Identity and Node alone.
func (d *Driver) Kubelet() *grpc.Server {
	server := d.around.Server()
	csi.RegisterIdentityServer(server, &identity{cfg: d.cfg, prober: d.prober, offers: pluginCapabilities(d.cfg.Backend, false)})
	csi.RegisterNodeServer(server, d.node)
	return server
}

// Peer returns a server for the router: what Controller has, the Peer service, and of Node what says which node it is.
// options must have credentials: this server is reached over the network.
func (d *Driver) Peer(options ...grpc.ServerOption) *grpc.Server {
	marking := *d.around
	marking.calls = append([]grpc.UnaryServerInterceptor{markAnswers}, d.around.calls...)
	server := marking.Server(append(peerOptions(), options...)...)
	csi.RegisterIdentityServer(server, &identity{cfg: d.cfg, prober: d.prober, offers: PluginCapabilities(d.cfg.Backend)})
	d.registerControllers(server)
	d.registerPeer(server)
	return server
}

func (d *Driver) registerControllers(server *grpc.Server) {
	csi.RegisterControllerServer(server, d.controller)
	registerGroups(server, d.cfg.Backend, d.controller.place)
	registerMetadata(server, d.cfg)
}

// isMount reports whether something is mounted at a path that an earlier driver staged to.
func isMount(m mounter.Mounter, path string) (bool, error) {
	there, err := m.Occupied(context.Background(), path)
	if errors.Is(err, mounter.ErrPath) { // it is below another kubelet directory, or gone
		return false, nil
	}
	return there, err
}

// Serve answers calls until ctx is done, as the function of that name, and looks after what is mounted meanwhile.
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
	case <-time.After(time.Second): // it hangs in the disk
	}
	return err
}

// Close lets go of the state directory. It is called when nothing serves any more.
func (d *Driver) Close() error {
	if d.node.stagings == nil {
		return nil
	}
	return d.node.stagings.dir.Close()
}

// HTTP returns what --http-endpoint serves: ready is when the backend is.
func (d *Driver) HTTP() http.Handler {
	return HTTP(d.cfg.Registry, func(ctx context.Context) (string, error) {
		ready, err := d.prober.probe(ctx)
		if err == nil && !ready {
			err = errors.New("starting")
		}
		return "ok", err
	})
}
