// Command driver is the Causeway CSI driver: it reads its flags, opens a backend and a mounter, and serves them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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

	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// gcPercent makes the garbage collector run more than twice as often as by default: it runs on every node, where memory is the
// pods', and there is little to collect. GOGC overrides it.
const gcPercent = 40

func main() {
	mounter.Main()
	if len(os.Args) > 1 && os.Args[1] == "certs" {
		os.Exit(certs(os.Args[2:], os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "orphans" {
		os.Exit(findOrphans(os.Args[2:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
	}
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
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	log := o.logger(os.Stderr)
	if err := run(ctx, o, log); err != nil {
		log.Error("the driver can't go on", "error", err)
		os.Exit(1)
	}
}

// run serves until ctx is done. First of all it takes the endpoint: while another driver serves there, nothing here is
// touched, and what is mounted is read when nobody else changes it any more.
func run(ctx context.Context, o options, log *slog.Logger) (err error) {
	if _, err := os.Stat(o.kubeletDir); err != nil {
		return fmt.Errorf("--kubelet-dir: %w", err)
	}
	l, err := listen(o)
	if err != nil {
		return err
	}
	defer l.close()
	if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := o.backends[o.backend].check(o, resolved); err != nil {
		return err
	}
	mount, err := mounter.New(o.kubeletDir, filepath.Join(o.stateDir, "frozen"))
	if err != nil {
		return err
	}
	if shared, err := mounter.IsShared(o.kubeletDir); err == nil && !shared {
		log.Warn("mounts below the kubelet directory stay in this mount namespace: in a container, pods won't see them without mountPropagation: Bidirectional", "directory", o.kubeletDir)
	}
	tracing, endTracing, err := driver.Tracing(ctx, o.driverName, release(), log)
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
	store, err := o.backends[o.backend].open(o, mount, log)
	if err != nil {
		return err
	}
	if c, ok := store.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d, err := driver.New(driver.Config{
		Name: o.driverName, Release: release(), Node: o.nodeID,
		Backend: store, Mounter: mount, StateDir: o.stateDir,
		Log: log, Registry: registry, MetadataBlock: o.block, ServerOptions: tracing,
	})
	if err != nil {
		return err
	}
	return serve(ctx, o, log, d, l)
}

// listeners are the endpoints of the driver.
type listeners struct {
	csi, http net.Listener // http may be nil
}

func listen(o options) (l listeners, err error) {
	if l.csi, err = driver.Listen(o.endpoint, o.allowTCP); err != nil {
		return l, err
	}
	if o.httpEndpoint == "" {
		return l, nil
	}
	if l.http, err = net.Listen("tcp", o.httpEndpoint); err != nil {
		return l, errors.Join(fmt.Errorf("--http-endpoint: %w", err), l.csi.Close())
	}
	return l, nil
}

func (l listeners) close() {
	l.csi.Close()
	if l.http != nil {
		l.http.Close()
	}
}

// serve answers on both endpoints until ctx is done or one of them fails.
func serve(ctx context.Context, o options, log *slog.Logger, d *driver.Driver, l listeners) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if l.http != nil {
		server := &http.Server{Handler: d.HTTP(), ReadHeaderTimeout: 10 * time.Second}
		defer server.Close()
		go func() {
			if err := server.Serve(l.http); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("--http-endpoint: %w", err))
			}
		}()
		log.Info("serving metrics", "endpoint", l.http.Addr().String())
	}
	log.Info("serving CSI", "endpoint", o.endpoint, "driver", o.driverName, "release", release(), "node", o.nodeID,
		"backend", o.backend)
	if err := d.Serve(ctx, l.csi, o.drain); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	log.Info("drained and done")
	return nil
}
