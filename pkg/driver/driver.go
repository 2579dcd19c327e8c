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
	"net"
	"regexp"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// window is the flow control window of a connection, in bytes. A fixed one spares a ping for each request, by which
// gRPC would find out the best: a tenth of the time of a small call.
const window = 1 << 20

// streamWorkers are goroutines that stay, and spare each call the growing of a new one's stack. Calls beyond their
// number get goroutines of their own.
const streamWorkers = 4

// maxMessage is the largest message taken and sent, in bytes. Over the limit gRPC says RESOURCE_EXHAUSTED, which the
// provisioner takes for a full disk, so it is far from anything that is sent: pages are cut at maxPage volumes.
const maxMessage = 16 << 20

// Config is what a Driver needs. All fields but the last two are required.
type Config struct {
	Name     string // such as hostpath.csi.causeway.dev; CSI spec v1.13, GetPluginInfo
	Release  string
	Node     string // name of this node
	Backend  backend.Backend
	Mounter  mounter.Mounter
	StateDir string // an existing directory that outlives the process; the driver keeps to names of its own in it
	Log      *slog.Logger
	Registry *prometheus.Registry

	// MetadataBlock is how long the blocks are in which the SnapshotMetadata service reports, in bytes: a multiple of
	// 4096, and the answer's type is FIXED_LENGTH. If it is 0, and for a volume that isn't a whole number of them, it
	// is VARIABLE_LENGTH, which takes fewer messages.
	MetadataBlock int64
	ServerOptions []grpc.ServerOption // such as a stats handler that traces
}

// Driver serves the Identity, Controller and Node services for one backend on one node, GroupController if the backend
// is a GroupSnapshotter, and SnapshotMetadata if it is a Differ.
type Driver struct {
	cfg    Config
	server *grpc.Server
	prober *prober
	node   *node
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
	stagings, err := openStagings(cfg.StateDir, func(path string) (bool, error) { return isMount(cfg.Mounter, path) })
	if err != nil {
		return nil, fmt.Errorf("state of staged volumes: %w", err)
	}
	d := &Driver{cfg: cfg, prober: &prober{backend: cfg.Backend}}
	if meter, ok := cfg.Backend.(backend.Meter); ok {
		if err := cfg.Registry.Register(backendMetrics{meter}); err != nil {
			return nil, err
		}
	}
	count, err := countCalls(cfg.Registry)
	if err != nil {
		return nil, err
	}
	around := []grpc.UnaryServerInterceptor{count, logCalls(cfg.Log), mapErrors, recoverPanics, newLocks().intercept}
	options := append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.StaticConnWindowSize(window),
		grpc.StaticStreamWindowSize(window),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ChainUnaryInterceptor(around...),
		grpc.ChainStreamInterceptor(aroundStreams(around)),
	}, cfg.ServerOptions...)
	d.server = grpc.NewServer(options...)
	place := newPlace(cfg)
	csi.RegisterIdentityServer(d.server, &identity{cfg: cfg, prober: d.prober})
	csi.RegisterControllerServer(d.server, &controller{backend: cfg.Backend, place: place})
	d.node = &node{
		backend: cfg.Backend, mounter: cfg.Mounter, place: place, stagings: stagings, prober: d.prober, id: volumeid.NodeID(cfg.Node),
	}
	csi.RegisterNodeServer(d.server, d.node)
	registerGroups(d.server, cfg.Backend, place)
	if err := registerMetadata(d.server, cfg); err != nil {
		return nil, err
	}
	return d, nil
}

// isMount reports whether something is mounted at a path that an earlier driver staged to.
func isMount(m mounter.Mounter, path string) (bool, error) {
	there, err := m.Occupied(context.Background(), path)
	if errors.Is(err, mounter.ErrPath) { // it is below another kubelet directory, or gone
		return false, nil
	}
	return there, err
}

// Serve answers calls on l until ctx is done. Then it takes no new ones, waits for the running ones as long as drain,
// leaves behind what runs still, and returns nil. It closes l.
func (d *Driver) Serve(ctx context.Context, l net.Listener, drain time.Duration) error {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		d.watch(ctx)
	}()
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		d.drain(drain)
	})
	err := d.server.Serve(l)
	if !stop() {
		<-stopped
	}
	if ctx.Err() == nil {
		return err
	}
	select {
	case <-watched:
	case <-time.After(time.Second): // it hangs in the disk
	}
	return nil
}

// drain ends the server when no call runs any more, or after limit: a call may hang in a disk for ever.
func (d *Driver) drain(limit time.Duration) {
	d.cfg.Log.Info("draining", "for at most", limit)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		d.server.GracefulStop()
	}()
	select {
	case <-drained:
	case <-time.After(limit):
		d.cfg.Log.Warn("calls are running still and are left behind")
		d.server.Stop()
	}
}
