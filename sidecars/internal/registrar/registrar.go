// Package registrar registers a CSI driver with the kubelet: it serves a socket in the kubelet's
// plugin registry, over which the kubelet asks for the name and the socket of the driver.
// k8s.io/kubelet/pkg/apis/pluginregistration/v1.
package registrar

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// probeMode is the rest of upstream's exec probe: since v2.9 it always succeeds.
const probeMode = "kubelet-registration-probe"

// upstreamTimeout is the default of --timeout.
const upstreamTimeout = time.Second

// New returns the controller "node-driver-registrar".
func New() sidecar.Controller { return &controller{port: "0", every: 5 * time.Second} }

type controller struct {
	registry   string // the kubelet's directory, as this process sees it
	endpoint   string // the driver's socket, as the kubelet sees it
	timeout    time.Duration
	deprecated time.Duration
	port       sidecar.Address
	mode       string
	every      time.Duration // interval between two checks of the socket
}

func (*controller) Name() string { return "node-driver-registrar" }

func (*controller) About() string { return "Registers the driver with the kubelet of its node." }

func (c *controller) Flags(f *sidecar.Flags) {
	f.String(&c.endpoint, "kubelet-registration-path", "",
		"path of the driver's socket on the host, such as /var/lib/kubelet/plugins/<driver>/csi.sock. Required")
	f.String(&c.registry, "plugin-registration-path", "/registration",
		"path at which the kubelet's directory plugins_registry is mounted; usually C:\\registration on Windows")
	f.Duration(&c.timeout, "timeout", upstreamTimeout,
		"time limit of a call for the driver's name; the call is repeated until it succeeds")
	f.Duration(&c.deprecated, "connection-timeout", 0, "accepted for old manifests, without effect")
	f.Var(&c.port, "health-port", "port, or `host:port`, of a /healthz that fails when the registration "+
		"socket is gone or does not answer; 0 for none. /healthz/node-driver-registrar of --http-endpoint "+
		"has the same answer")
	f.String(&c.mode, "mode", "", "with "+probeMode+", as old manifests have it in an exec probe, the process ends "+
		"with success at once. Use /healthz/node-driver-registrar instead")
}

// Validate also rejects a socket to which the kubelet could not connect.
func (c *controller) Validate() error {
	switch {
	case c.endpoint == "":
		return errors.New("kubelet-registration-path is required: say where the kubelet finds the driver's socket on " +
			"the host")
	case strings.HasPrefix(c.endpoint, "unix:"):
		return fmt.Errorf("kubelet-registration-path %s: the kubelet takes a plain path, not a URL", c.endpoint)
	case c.endpoint[0] != '/' && !windowsPath.MatchString(c.endpoint):
		return fmt.Errorf("kubelet-registration-path %s: it must be the whole path on the host, such as "+
			"/var/lib/kubelet/plugins/<driver>/csi.sock", c.endpoint)
	case len(c.endpoint) > maxSocketPath:
		return fmt.Errorf("kubelet-registration-path %s has %d bytes, but a socket's path has at most %d: put the "+
			"driver's socket into a directory with a shorter path", c.endpoint, len(c.endpoint), maxSocketPath)
	case c.registry == "":
		return errors.New("plugin-registration-path is empty: say where the kubelet's plugins_registry is mounted")
	case c.timeout <= 0:
		return fmt.Errorf("timeout %v: it must be more than nothing", c.timeout)
	case c.mode == probeMode:
		return fmt.Errorf("mode %s: %w", c.mode, sidecar.ErrDone)
	}
	return nil
}

// windowsPath matches an absolute path on Windows.
var windowsPath = regexp.MustCompile(`^[A-Za-z]:[\\/]`)

// Needs returns ByName, as the pod of the controller plugin has no kubelet directory.
func (*controller) Needs() sidecar.Needs { return sidecar.Needs{Driver: true, ByName: true} }

func (c *controller) Build(ctx context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	if c.deprecated != 0 {
		klog.FromContext(ctx).Info("--connection-timeout has no effect")
	}
	return &runner{controller: c, conn: env.Conn, driver: env.Socket, dir: files{}}, nil
}
