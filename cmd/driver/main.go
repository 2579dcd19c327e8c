// Command driver is the Causeway CSI driver: it reads its flags, opens a backend and a mounter, and serves them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// gcPercent makes the garbage collector run twice as often as by default: it runs on every node, where memory is the
// pods', and there is little to collect. GOGC overrides it.
const gcPercent = 50

func main() {
	o, err := parse(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(2)
	case o.showVersion:
		fmt.Println(versionLine())
		return
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := o.logger(os.Stderr)
	if err := run(ctx, o, log); err != nil {
		log.Error("the driver can't go on", "error", err)
		os.Exit(1)
	}
}

// run serves until ctx is done.
func run(ctx context.Context, o options, log *slog.Logger) (err error) {
	if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
		return err
	}
	mount, err := mounter.New(o.kubeletDir)
	if err != nil {
		return err
	}
	store, closeStore, err := openBackend(o, mount)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	tracing, endTracing, err := driver.Tracing(ctx, o.driverName, release())
	if err != nil {
		return err
	}
	defer func() {
		// What the last calls left in the buffer: worth a moment, no more.
		flush, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := endTracing(flush); err != nil {
			log.Warn("spans were lost", "error", err)
		}
	}()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d, err := driver.New(driver.Config{
		Name: o.driverName, Release: release(), Node: o.nodeID,
		Backend: store, Mounter: mount, StateDir: o.stateDir,
		Log: log, Registry: registry, ServerOptions: tracing,
	})
	if err != nil {
		return err
	}
	return serve(ctx, o, log, d)
}

// openBackend is the only place that knows the names of backends.
func openBackend(o options, m mounter.Mounter) (backend.Backend, func() error, error) {
	switch o.backend {
	case "hostpath":
		b, err := hostpath.New(hostpath.Config{
			Root: o.root, Node: o.nodeID, Release: release(), Adopt: o.adoptRoot,
			Seen:  filepath.Join(o.stateDir, "root-identity"),
			Users: m.Users,
		})
		if err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	}
	return nil, nil, fmt.Errorf("--backend=%s: there is only hostpath", o.backend)
}

// serve answers on both endpoints until ctx is done or one of them fails.
func serve(ctx context.Context, o options, log *slog.Logger, d *driver.Driver) error {
	socket, err := driver.Listen(o.endpoint, o.allowTCP)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if o.httpEndpoint != "" {
		l, err := net.Listen("tcp", o.httpEndpoint)
		if err != nil {
			socket.Close()
			return fmt.Errorf("--http-endpoint: %w", err)
		}
		server := &http.Server{Handler: d.HTTP(), ReadHeaderTimeout: 10 * time.Second}
		defer server.Close()
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("--http-endpoint: %w", err))
			}
		}()
		log.Info("serving metrics", "endpoint", l.Addr().String())
	}
	log.Info("serving CSI", "endpoint", o.endpoint, "driver", o.driverName, "release", release(), "node", o.nodeID,
		"backend", o.backend, "root", o.root)
	if err := d.Serve(ctx, socket, o.drain); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	log.Info("drained and done")
	return nil
}
