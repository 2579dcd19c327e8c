// Package livenessprobe answers the kubelet's HTTP probe with the result of Identity.Probe of the
// CSI driver.
package livenessprobe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// New returns the controller "livenessprobe".
func New() sidecar.Controller { return &controller{port: "9808"} } // upstream's

// upstreamTimeout is the default of --probe-timeout.
const upstreamTimeout = 3 * time.Second

type controller struct {
	timeout time.Duration
	port    sidecar.Address
}

func (*controller) Name() string { return "livenessprobe" }

func (*controller) About() string {
	return "Answers the kubelet's liveness probe of the driver's container by asking the driver itself."
}

func (c *controller) Flags(f *sidecar.Flags) {
	f.Duration(&c.timeout, "probe-timeout", upstreamTimeout, "time limit of a probe of the driver")
	f.Var(&c.port, "health-port", "port, or `host:port`, of a /healthz for the driver; 0 for none. It is "+
		"separate from --http-endpoint, whose /healthz is for this process: neither container should be "+
		"killed for a failure of the other. /healthz/livenessprobe of --http-endpoint has the same answer")
}

func (c *controller) Validate() error {
	if c.timeout <= 0 {
		return fmt.Errorf("probe-timeout %v: it must be more than nothing", c.timeout)
	}
	return nil
}

func (*controller) Needs() sidecar.Needs { return sidecar.Needs{Driver: true} }

func (c *controller) Build(_ context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	return &runner{controller: c, connect: env.Connect, socket: env.Socket}, nil
}

// runner asks the driver when the kubelet asks the runner.
type runner struct {
	*controller
	connect func() (*grpc.ClientConn, error)
	socket  *sidecar.Socket
	running singleflight.Group
	failing atomic.Bool
}

// Run serves the health port until ctx is done. Run does not need the driver.
func (r *runner) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if address := r.port.Listen(); address != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /healthz", r.healthz)
		if err := sidecar.Serve(ctx, address, mux, stop); err != nil {
			return fmt.Errorf("health-port: %w: give each controller that has one, and --http-endpoint, a port of "+
				"its own, or 0", err)
		}
		klog.FromContext(ctx).Info("Answering for the driver", "address", address, "path", "/healthz")
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (r *runner) healthz(w http.ResponseWriter, req *http.Request) {
	note, err := r.Check(req.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, cmp.Or(note, "ok"))
}

var errNotReady = errors.New("the driver is not ready")

// Check probes the driver, with the timeout of the probe. Callers during a probe share its result,
// so that a driver that hangs has a single probe at a time. The note is not empty if the driver
// could not be asked and may be healthy.
func (r *runner) Check(ctx context.Context) (note string, err error) {
	select {
	case answer := <-r.running.DoChan("", func() (any, error) { return r.probe() }):
		note, _ = answer.Val.(string)
		return note, answer.Err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// probe connects to the driver for each probe, as the kubelet does for each call: on an old
// connection a driver answers when no new connection reaches it any more (livenessprobe#68). probe
// does not use the context of a caller: it continues when the first caller hangs up. A missing
// permission of this process passes: after an error the kubelet would restart the driver, which
// does not help. Package sidecar logs it and is not ready.
func (r *runner) probe() (note string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	conn, err := r.connect()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ready, err := rpc.Probe(ctx, conn) // a driver that does not say is ready: CSI spec v1.13, ProbeResponse
	// UNAVAILABLE is also the code for a failed dial. The last dial succeeded if it came from the
	// driver.
	if denied := r.socket.Denied(); denied != nil && status.Code(err) == codes.Unavailable {
		return "the driver was not asked: " + denied.Error(), nil
	}
	if err == nil && !ready {
		err = errNotReady
	}
	// The kubelet asks every few seconds, and its event has no reason: log one line when it begins
	// and one when it ends.
	switch was := r.failing.Swap(err != nil); {
	case err != nil && !was:
		klog.Background().Error(err, "The driver fails its probe")
	case err == nil && was:
		klog.Background().Info("The driver passes its probe again")
	}
	return "", err
}
