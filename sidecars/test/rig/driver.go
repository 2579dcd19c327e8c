// Package rig is the foundation of the tests and benchmarks of csi-sidecars: an API server, a CSI
// driver beside it, and the processes under test.
package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// Driver is pkg/driver with storage in memory, which has every optional interface of a backend,
// served on a socket by this process. It remembers the calls it got.
type Driver struct {
	Name    string
	Socket  string
	Storage *memory.Backend

	adapt func(answer proto.Message)
	dir   string
	stop  context.CancelFunc
	ended chan error

	mu    sync.Mutex
	calls []*Call
	hook  func(ctx context.Context, c *Call) error
	// foreign is nil for a driver of ours.
	foreign *foreign
}

// Call is a call that the driver received.
type Call struct {
	Method  string // such as CreateVolume
	Request any
	PID     int // of the process that made it; 0 if unknown
	Start   time.Time
	End     time.Time // of the call, or before that of its context; zero until then
	Err     error
}

// DriverOptions describe a driver.
type DriverOptions struct {
	Name     string   // default memory.csi.causeway.dev, or csi.vendor.example.org if Foreign
	Nodes    []string // that volumes can be attached to
	Topology bool     // report topologies, so that sidecars watch nodes
	// Foreign makes the driver pose as another vendor's driver of CSI v1.12: its socket has mode
	// 0755, it lacks the calls and capabilities of v1.13, and it reports VolumeCondition (see
	// SetCondition). Adapt comes after this.
	Foreign bool
	// Adapt changes answers, each of which is a copy of its own: a driver that can do less than
	// ours, for example.
	Adapt func(answer proto.Message)
}

// adapter is Adapt after the changes of the other options.
func (o DriverOptions) adapter() func(proto.Message) {
	return func(answer proto.Message) {
		if r, ok := answer.(*csi.GetPluginCapabilitiesResponse); ok && o.Topology {
			r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
				Service: &csi.PluginCapability_Service{
					Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}}})
		}
		if o.Adapt != nil {
			o.Adapt(answer)
		}
	}
}

// NewDriver makes storage and serves it in dir, which must exist and have a short name: a socket's
// is at most 107 bytes.
func NewDriver(dir string, o DriverOptions) (*Driver, error) {
	d := &Driver{Name: o.Name, Socket: filepath.Join(dir, "csi.sock"), dir: dir, adapt: o.adapter()}
	if o.Foreign {
		d.foreign = &foreign{conditions: map[string][]byte{}}
	}
	switch {
	case d.Name != "":
	case o.Foreign:
		d.Name = "csi.vendor.example.org"
	default:
		d.Name = "memory.csi.causeway.dev"
	}
	for _, sub := range []string{"data", "state"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	d.Storage = memory.New(memory.Config{Dir: filepath.Join(dir, "data"), Size: 1 << 50, Nodes: o.Nodes})
	return d, d.Serve()
}

// Serve serves the storage, again if it was served before.
func (d *Driver) Serve() error {
	os.Remove(d.Socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	if d.foreign != nil {
		if err := openSocket(d.Socket); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	served, err := driver.New(driver.Config{
		Name: d.Name, Release: "test", Node: "node-1", Backend: d.Storage,
		Mounter:  mountertest.NewFake(filepath.Join(d.dir, "data")),
		StateDir: filepath.Join(d.dir, "state"), Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		ServerOptions: []grpc.ServerOption{grpc.ChainUnaryInterceptor(d.intercept)},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop, d.ended = stop, make(chan error, 1)
	go func() { d.ended <- served.Serve(ctx, 0, driver.Endpoint{Server: served.All(), Listener: knowing{l}}) }()
	return nil
}

// Stop ends the service at once, as a crash of the driver would: connections break. The storage
// stays.
func (d *Driver) Stop() error {
	d.stop()
	return <-d.ended
}

// Hook is called in each call, before it is served. Its error is the answer; nil serves the call. A
// nil hook is none.
func (d *Driver) Hook(h func(ctx context.Context, c *Call) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = h
}

// Calls returns those of a method, in the order in which they came.
func (d *Driver) Calls(method string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var of []Call
	for _, c := range d.calls {
		if c.Method == method {
			of = append(of, *c)
		}
	}
	return of
}

// Forget forgets the calls so far, also those that still run.
func (d *Driver) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	d.mu.Lock()
	hook, kept := d.hook, &Call{Method: filepath.Base(info.FullMethod), Request: req, PID: callerOf(ctx),
		Start: time.Now()}
	d.calls = append(d.calls, kept)
	call := *kept
	d.mu.Unlock()
	defer context.AfterFunc(ctx, func() { // its caller may be followed by another before the handler is told
		d.mu.Lock()
		defer d.mu.Unlock()
		if kept.End.IsZero() {
			kept.End, kept.Err = time.Now(), ctx.Err()
		}
	})()
	var answer any
	err := error(nil)
	if hook != nil {
		err = hook(ctx, &call)
	}
	if err == nil && d.foreign != nil {
		err = refuse(call.Method)
	}
	if err == nil {
		answer, err = handle(ctx, req)
	}
	d.mu.Lock()
	if kept.Err = err; kept.End.IsZero() {
		kept.End = time.Now()
	}
	d.mu.Unlock()
	if m, ok := answer.(proto.Message); ok && err == nil {
		own := proto.Clone(m) // the driver returns some answers more than once
		if d.foreign != nil {
			d.pose(req, own)
		}
		d.adapt(own)
		return own, nil
	}
	return answer, err
}

// VolumeName is the name in a CreateVolume call.
func (c Call) VolumeName() string {
	r, ok := c.Request.(*csi.CreateVolumeRequest)
	if !ok {
		panic(fmt.Sprintf("%s is no CreateVolume", c.Method))
	}
	return r.GetName()
}
