package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// Pauses between two requests for the name of the driver. A driver that starts late may be
// unregistered for the longest pause.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// courtesy is the time in which the kubelet must complete a connection and, at the end, read the
// last answer. Both delay the end. The kubelet waits for an answer for as long.
const courtesy = time.Second

// runner registers a driver.
type runner struct {
	*controller
	conn    *grpc.ClientConn
	driver  *sidecar.Socket
	dir     directory
	served  atomic.Pointer[served]
	problem sidecar.Problem
	taken   atomic.Bool // the kubelet has registered the driver by the present socket
}

// served is the socket that the kubelet finds.
type served struct{ name, socket string }

// Run registers the driver when it reports its name, and keeps it registered until ctx is done. Run
// retries a failed registration, which is in the log and in Ready. Run does not end the process,
// which also answers the liveness probe of the driver: the kubelet would restart a healthy driver.
func (r *runner) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if err := r.serveHealth(ctx, stop); err != nil {
		return err
	}
	name, err := r.name(ctx)
	if err != nil {
		return err
	}
	return r.register(ctx, served{name: name, socket: filepath.Join(r.registry, name+"-reg.sock")}, stop)
}

// Ready returns why the driver is not registered, or why the kubelet cannot connect to it.
func (r *runner) Ready() error {
	switch err := r.problem.Err(); {
	case err != nil:
		return err
	case r.taken.Load():
		ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
		defer cancel()
		if err := r.driver.Check(ctx); err != nil {
			return fmt.Errorf("the driver is registered, but accepts no connection: %w", err)
		}
		return nil
	case r.served.Load() == nil:
		return errors.New("the driver's name is not known yet")
	}
	return fmt.Errorf("the kubelet has not registered the driver yet: %s must be plugins_registry below the "+
		"kubelet's --root-dir", r.registry)
}

// serveHealth serves the port of this controller, if it has one.
func (r *runner) serveHealth(ctx context.Context, failed func(error)) error {
	address := r.port.Listen()
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, req *http.Request) {
		if _, err := r.Check(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if err := sidecar.Serve(ctx, address, mux, failed); err != nil {
		return fmt.Errorf("health-port: %w: give each controller that has one, and --http-endpoint, a port of its "+
			"own, or 0", err)
	}
	return nil
}

// nameFormat is the form of a driver name: GetPluginInfoResponse, CSI spec v1.13. The name becomes
// part of a path.
var nameFormat = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)

// name asks the driver for its name until the driver reports a valid name, or ctx is done.
func (r *runner) name(ctx context.Context) (string, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		name, err := r.driverName(ctx)
		switch {
		case err == nil && nameFormat.MatchString(name):
			r.problem.Report(ctx, "", nil)
			return name, nil
		case err == nil:
			r.problem.Report(ctx, "Cannot register the driver",
				fmt.Errorf("invalid driver name %q: CSI allows letters, digits, dots and dashes, at most 63", name))
		case r.driver.Denied() == nil: // the socket logs that itself
			klog.FromContext(ctx).Info("Waiting for the driver's name", "err", err, "again", pause)
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (r *runner) driverName(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return rpc.GetDriverName(ctx, r.conn)
}

// register serves the socket until ctx is done, and removes it then.
func (r *runner) register(ctx context.Context, s served, failed func(error)) error {
	server := grpc.NewServer(grpc.ConnectionTimeout(courtesy)) // else 2 minutes
	var serving sync.WaitGroup
	defer serving.Wait()
	defer end(server)
	refusals := make(chan error, 1)
	registerapi.RegisterRegistrationServer(server, &registration{
		info: &registerapi.PluginInfo{
			Type: registerapi.CSIPlugin, Name: s.name, Endpoint: r.endpoint,
			SupportedVersions: []string{"1.0.0"}, // of the registration API; there is no other
		},
		registered: func() {
			r.taken.Store(true)
			r.problem.Report(ctx, "", nil)
		},
		refusals: refusals,
	})
	open := func() (net.Listener, error) {
		r.taken.Store(false)
		l, err := r.open(s.socket)
		if err != nil {
			r.served.Store(nil) // a new process would not help
			return nil, err
		}
		now := s
		r.served.Store(&now) // before the kubelet can see the socket
		serving.Go(func() {
			if err := server.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
				failed(fmt.Errorf("the registration socket %s: %w", s.socket, err))
			}
		})
		klog.FromContext(ctx).Info("Serving the registration socket", "socket", s.socket, "driver", s.name)
		return l, nil
	}
	return r.watch(ctx, s, open, refusals)
}

// open makes the registration socket. An error has the remedy.
func (r *runner) open(socket string) (net.Listener, error) {
	if len(socket) > maxSocketPath {
		return nil,
			fmt.Errorf("the registration socket %s has a path of %d bytes, but a socket's has at most %d: "+
				"mount plugins_registry at a shorter path, and name that with --plugin-registration-path",
				socket, len(socket), maxSocketPath)
	}
	l, err := r.dir.listen(socket)
	if err == nil {
		return l, nil
	}
	err = fmt.Errorf("the registration socket %s: %w", socket,
		sidecar.ExplainDenied(err, r.registry, sidecar.MayAddFile))
	switch info, missing := os.Stat(r.registry); {
	case errors.Is(missing, fs.ErrNotExist), missing == nil && !info.IsDir():
		err = fmt.Errorf("%w: %s must be a directory: mount the kubelet's plugins_registry there, or name its path "+
			"with --plugin-registration-path", err, r.registry)
	case errors.Is(err, syscall.EROFS):
		err = fmt.Errorf("%w: remove readOnly from the mount of %s", err, r.registry)
	}
	return nil, err
}

// watch makes the socket, and makes it again when it is removed, until ctx is done. The kubelet
// forgets a driver when its socket is removed, also by another pod of the driver or an
// administrator (node-driver-registrar#57). The socket of another pod stays, so that two pods do
// not compete; when it is removed, watch makes a new one. The kubelet retries a rejected driver
// only with a new socket, so a rejection removes the socket until the next check.
func (r *runner) watch(ctx context.Context, s served, open func() (net.Listener, error), refusals <-chan error) error {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	var l net.Listener
	opened, refused := false, false
	for {
		if !opened || errors.Is(r.dir.stat(s.socket), fs.ErrNotExist) {
			if l != nil && r.problem.Err() == nil {
				klog.FromContext(ctx).Info("The registration socket is gone, though this process did not remove it",
					"socket", s.socket)
			}
			next, err := open()
			if err != nil || !refused { // a refusal lasts until the kubelet takes the driver
				r.problem.Report(ctx, "Cannot register the driver", err)
			}
			if err == nil {
				if l != nil {
					// after the new socket is made: until then the inode number is in use, so Close
					// does not remove the new socket
					l.Close()
				}
				l, opened = next, true
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-refusals:
			r.problem.Report(ctx, "Cannot register the driver", err)
			refused = true
			r.taken.Store(false)
			r.served.Store(nil)
			if l != nil {
				l.Close()
				l = nil
			}
			tick.Reset(r.every)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		case <-tick.C:
		}
	}
}

// end waits until pending answers are read, closes the socket and removes it.
func end(server *grpc.Server) {
	hard := time.AfterFunc(courtesy, server.Stop)
	defer hard.Stop()
	server.GracefulStop()
}

// Check asks the socket as the kubelet does. It passes while there is no socket: a new process
// would not help.
func (r *runner) Check(ctx context.Context) (note string, err error) { return "", r.check(ctx) }

func (r *runner) check(ctx context.Context) error {
	s := r.served.Load()
	if s == nil {
		return nil
	}
	err := r.checkSocket(ctx, s)
	if r.served.Load() != s { // this process closed the socket meanwhile, after a refusal
		return nil
	}
	return err
}

// checkSocket calls a registration socket as the kubelet does.
func (r *runner) checkSocket(ctx context.Context, s *served) error {
	if err := r.dir.stat(s.socket); err != nil {
		return fmt.Errorf("the registration socket: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	conn, err := connect(r.dir, s.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{}); err != nil {
		return fmt.Errorf("the registration socket %s: %w", s.socket, err)
	}
	return nil
}

// connect returns a channel to a socket. It connects with the first call.
func connect(dir directory, socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///registration", // otherwise gRPC takes Windows paths for URLs
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dir.dial(ctx, socket)
		}))
}

// registration is the service that the kubelet calls.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	info       *registerapi.PluginInfo
	registered func()
	refusals   chan<- error
}

func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

func (r *registration) NotifyRegistrationStatus(_ context.Context,
	s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		klog.Background().Info("The kubelet registered the driver", "driver", r.info.GetName())
		r.registered()
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	select {
	case r.refusals <- fmt.Errorf("the kubelet refused the driver %s: %s", r.info.GetName(), s.GetError()):
	default: // an earlier refusal is being handled
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
