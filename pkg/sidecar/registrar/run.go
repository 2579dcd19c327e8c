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
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/causeway-csi/causeway/pkg/sidecar"
)

// Between two tries to get the driver's name. The longest is how long a driver that comes late may go unregistered.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// courtesy is how long the kubelet may take to begin a connection, and at the end to read its last answer. Both hold up the end.
// The kubelet itself waits as long for an answer.
const courtesy = time.Second

// runner registers one driver.
type runner struct {
	*controller
	conn   *grpc.ClientConn
	served atomic.Pointer[served]
}

// served is what the kubelet finds.
type served struct{ name, socket string }

// Run registers the driver, as soon as it tells its name, and keeps it registered until ctx is done. It ends with an error when
// the kubelet refuses the driver, so that the process ends, is started again and asks again.
func (r *runner) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if err := r.serveHealth(ctx, stop); err != nil {
		return err
	}
	name, err := r.driver(ctx)
	if err != nil {
		return err
	}
	s := served{name: name, socket: filepath.Join(r.registry, name+"-reg.sock")}
	if len(s.socket) > maxSocketPath {
		return fmt.Errorf("the registration socket %s has a path of %d bytes, but a socket's has at most %d: mount plugins_registry at a shorter path, and name that with --plugin-registration-path", s.socket, len(s.socket), maxSocketPath)
	}
	return r.register(ctx, s, stop)
}

// serveHealth answers on the port of our own, where there is one.
func (r *runner) serveHealth(ctx context.Context, failed func(error)) error {
	address := r.port.Listen()
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, req *http.Request) {
		if err := r.Check(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if err := sidecar.Serve(ctx, address, mux, failed); err != nil {
		return fmt.Errorf("health-port: %w: give each controller that has one, and --http-endpoint, a port of its own, or 0", err)
	}
	return nil
}

// nameFormat is CSI's of a driver's name: GetPluginInfoResponse, CSI spec v1.13. It becomes part of a path here.
var nameFormat = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)

// driver asks the driver for its name until it tells, or ctx is done.
func (r *runner) driver(ctx context.Context) (string, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		name, err := r.ask(ctx)
		switch {
		case err == nil && !nameFormat.MatchString(name):
			return "", fmt.Errorf("the driver calls itself %q, which CSI doesn't allow: letters, digits, dots and dashes, at most 63", name)
		case err == nil:
			return name, nil
		}
		klog.FromContext(ctx).Info("Waiting for the driver to tell its name", "err", err, "again", pause)
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (r *runner) ask(ctx context.Context) (string, error) {
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
	registerapi.RegisterRegistrationServer(server, &registration{
		info: &registerapi.PluginInfo{
			Type: registerapi.CSIPlugin, Name: s.name, Endpoint: r.endpoint,
			SupportedVersions: []string{"1.0.0"}, // of registration; all there is
		},
		refused: failed,
	})
	open := func() (net.Listener, error) {
		l, err := listen(s.socket)
		if err != nil {
			return nil, fmt.Errorf("the registration socket %s: %w", s.socket, err)
		}
		r.served.Store(&s) // before the kubelet can have it
		serving.Go(func() {
			if err := server.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
				failed(fmt.Errorf("the registration socket %s: %w", s.socket, err))
			}
		})
		klog.FromContext(ctx).Info("Serving the registration socket", "socket", s.socket, "driver", s.name)
		return l, nil
	}
	l, err := open()
	if err != nil {
		return err
	}
	return r.watch(ctx, s, l, open)
}

// watch serves the socket anew whenever it is gone, until ctx is done. The kubelet forgets a driver when its socket goes, whoever
// took it: another pod of the driver's that ended, or somebody who tidied up (upstream's issue 57). A socket that another pod put
// in our place is left alone, so two don't fight; ours comes back when it goes.
func (r *runner) watch(ctx context.Context, s served, l net.Listener, open func() (net.Listener, error)) error {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if _, err := os.Lstat(s.socket); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		klog.FromContext(ctx).Info("The registration socket is gone, though nobody here removed it", "socket", s.socket)
		next, err := open()
		if err != nil {
			klog.FromContext(ctx).Error(err, "Can't make the registration socket again yet")
			continue
		}
		l.Close() // after the new one: its inode's number is taken until then, so it doesn't remove the new one
		l = next
	}
}

// end lets answers under way be read, closes the socket and removes it.
func end(server *grpc.Server) {
	hard := time.AfterFunc(courtesy, server.Stop)
	defer hard.Stop()
	server.GracefulStop()
}

// Check asks the socket what the kubelet would ask. It is fine while the driver hasn't told its name: to start this process
// again would not make it.
func (r *runner) Check(ctx context.Context) error {
	s := r.served.Load()
	if s == nil {
		return nil
	}
	if _, err := os.Lstat(s.socket); err != nil {
		return fmt.Errorf("the registration socket: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	conn, err := connect(s.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{}); err != nil {
		return fmt.Errorf("the registration socket %s: %w", s.socket, err)
	}
	return nil
}

// connect returns a connection to a socket that is made when it is used first.
func connect(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///registration", // else Windows paths are taken for URLs
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
}

// registration is what the kubelet asks.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	info    *registerapi.PluginInfo
	refused func(error)
}

func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

func (r *registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		klog.Background().Info("The kubelet registered the driver", "driver", r.info.GetName())
	} else {
		r.refused(fmt.Errorf("the kubelet didn't register driver %s: %s", r.info.GetName(), s.GetError()))
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
