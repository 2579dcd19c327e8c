package csidriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/dacl"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/router"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// gcPercent is the percentage of debug.SetGCPercent. On a node the memory belongs to the pods, and
// a router holds hundreds of connections. Neither process produces much garbage. GOGC overrides
// gcPercent.
const gcPercent = 30

// run serves until ctx is done. It opens its endpoints first: while another driver serves there,
// run changes nothing. A driver that did not answer and was replaced ends itself when it resumes:
// see watchSocket.
func run(ctx context.Context, o options, log *slog.Logger, exit func(code int)) (err error) {
	if _, err := os.Stat(o.kubeletDir); err != nil && o.mode != modeController {
		return fmt.Errorf("--kubelet-dir: %w", err)
	}
	l, err := listen(o)
	if err != nil {
		return err
	}
	defer l.close()
	l.warn(log)
	p := instance{options: o, log: log, listeners: l, registry: prometheus.NewRegistry()}
	p.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.registry.MustRegister(buildInfo(o))
	l.measure(p.registry)
	if exit != nil {
		go p.watchSocket(exit)
	}
	if p.traces, err = driver.Tracing(ctx, o.driverName, o.program.version(), log); err != nil {
		return err
	}
	defer p.endTracing()
	if o.routes() {
		return p.route(ctx)
	}
	return p.drive(ctx)
}

// buildInfo returns a metric whose labels identify this process.
func buildInfo(o options) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "causeway_build_info", Help: "1, with the release of this process, its mode, its backend and the name " +
			"of its driver.",
		ConstLabels: prometheus.Labels{"version": o.program.version(), "mode": string(o.mode), "backend": o.backend,
			"driver": o.driverName},
	}, func() float64 { return 1 })
}

// instance has the state that a driver and a router share.
type instance struct {
	options
	log       *slog.Logger
	listeners listeners
	registry  *prometheus.Registry
	traces    driver.Traces
}

// socketEvery is the interval of the checks of the socket. A process that was stopped checks at once
// when it resumes.
const socketEvery = time.Second

// watchSocket makes the socket again if it was removed: the kubelet makes a new connection for each
// call. watchSocket ends this process, with all calls in progress, if another driver has replaced
// its socket: the other driver mounts and unmounts now.
func (p *instance) watchSocket(exit func(code int)) {
	var last string
	for range time.Tick(socketEvery) {
		if driver.Replaced(p.listeners.csi) {
			p.log.Error("another process serves the endpoint now: this process must not change anything any more",
				"endpoint", p.endpoint)
			exit(exitError)
		}
		switch restored, err := driver.Restore(p.listeners.csi); {
		case err != nil && err.Error() != last:
			last = err.Error()
			p.log.Error("the socket was removed and cannot be made again: no client can connect", "endpoint",
				p.endpoint, "error", err)
		case restored:
			last = ""
			p.log.Warn("the socket was removed, though this process runs: it is made again", "endpoint", p.endpoint)
		}
	}
}

// endTracing sends the spans of the last calls, which are in the buffer. It takes 5 s at most.
func (p *instance) endTracing() {
	flush, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := p.traces.End(flush); err != nil {
		p.log.Warn("spans were lost", "error", err)
	}
}

// mounter returns the mounter of this machine, or nil for a process that mounts nothing.
func (p *instance) mounter() (mounter.Host, error) {
	if p.mode == modeController {
		return nil, nil
	}
	if err := dacl.MakePrivate(p.stateDir); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err := p.checkBackend(); err != nil {
		return nil, err
	}
	if shared, err := host.IsShared(p.kubeletDir); err == nil && !shared {
		p.log.Warn("mounts below the kubelet directory stay in this mount namespace: in a container, pods do not see "+
			"them without mountPropagation: Bidirectional", "directory", p.kubeletDir)
	}
	return host.New(p.kubeletDir, filepath.Join(p.stateDir, "frozen"))
}

// drive serves a backend.
func (p *instance) drive(ctx context.Context) (err error) {
	mount, err := p.mounter()
	if err != nil {
		return err
	}
	store, err := p.open(mount)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStorage(store)) }()
	d, err := driver.New(driver.Config{
		Name: p.driverName, Release: p.program.version(), Node: p.nodeID,
		Backend: store, Mounter: mount, StateDir: p.stateDir,
		Log: p.log, Registry: p.registry, MetadataBlock: p.block, ServerOptions: p.traces.Server,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	csi := map[mode]func() *grpc.Server{modeAll: d.All, modeController: d.Controller, modeNode: d.Kubelet}[p.mode]
	endpoints := []driver.Endpoint{{Server: csi(), Listener: p.listeners.csi}}
	if p.listeners.peer != nil {
		id, err := p.identity(func(err error) { p.log.Warn("connections to the router", guard.Attributes(err)...) })
		if err != nil {
			return err
		}
		p.log.Info("serving the router", "endpoint", p.listeners.peer.Addr().String(), "router", p.peers.client)
		endpoints = append(endpoints, driver.Endpoint{Server: d.Peer(grpc.Creds(id.Server(p.peers.client))),
			Listener: p.listeners.peer})
	}
	return p.serve(ctx, d.HTTP(), func(ctx context.Context) error { return d.Serve(ctx, p.drain, endpoints...) })
}

// open opens the backend. It returns an error if Type is not the type of the backend.
func (p *instance) open(images mounter.Images) (backend.Backend, error) {
	b, c := p.chosen(), p.config()
	c.Images, c.Log = images, p.log
	store, err := b.Open(c)
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, fmt.Errorf("invalid program: Open of backend %q returned neither a backend nor an error", b.Name)
	}
	_, local := store.(backend.NodeLocal)
	if b.Type == nil && local || b.Type != nil && reflect.TypeOf(b.Type) != reflect.TypeOf(store) {
		return nil, errors.Join(fmt.Errorf("invalid program: Type of backend %q is %T, must be (%T)(nil)", b.Name,
			b.Type, store), closeStorage(store))
	}
	return store, nil
}

// closeStorage closes a backend that is an io.Closer.
func closeStorage(store backend.Backend) error {
	if c, ok := store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// route serves a router to the nodes that have the storage.
func (p *instance) route(ctx context.Context) error {
	report := func(message string, err error) {
		if err == nil {
			p.log.Info(message)
			return
		}
		p.log.Warn(message, guard.Attributes(err)...)
	}
	cfg, err := p.router(report)
	if err != nil {
		return err
	}
	r, err := router.New(cfg)
	if err != nil {
		return err
	}
	interceptors, err := driver.NewInterceptors(p.log, p.registry, p.traces.Server...)
	if err != nil {
		return err
	}
	if err := p.registry.Register(r.Metrics()); err != nil {
		return err
	}
	server := interceptors.Server()
	r.Register(server)
	ctx, cancel := context.WithCancel(ctx)
	// outlives ctx, as calls in progress need their nodes
	routing, stopRouting := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		r.Run(routing)
	}()
	defer func() {
		cancel()
		stopRouting()
		<-ran
	}()
	return p.serve(ctx, driver.HTTP(p.log, p.registry, r.Ready), func(ctx context.Context) error {
		return driver.Serve(ctx, p.log, p.drain, driver.Endpoint{Server: server, Listener: p.listeners.csi})
	})
}

// serve serves HTTP, and the calls with the function calls, until ctx is done or a server fails.
func (p *instance) serve(ctx context.Context, handler http.Handler, calls func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	if l := p.listeners.http; l != nil {
		server := connlimit.ServerOf(handler)
		server.ErrorLog = slog.NewLogLogger(p.log.Handler(), slog.LevelWarn)
		defer server.Close()
		go func() {
			if err := guard.Do(func() error { return server.Serve(l) }); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("--http-endpoint: %w", err)
				cancel()
			}
		}()
		p.log.Info("serving metrics", "endpoint", l.Addr().String())
	}
	attributes := []any{"endpoint", p.endpoint, "driver", p.driverName, "release", p.program.version(), "backend",
		p.backend, "mode", p.mode}
	if p.mode != modeController {
		attributes = append(attributes, "node", p.nodeID)
	}
	p.log.Info("serving CSI", attributes...)
	if err := calls(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
	}
	p.log.Info("drained and done")
	return nil
}
