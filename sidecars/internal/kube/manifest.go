package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

const (
	// placeholder is an image that no registry has: RFC 2606 reserves the domain invalid.
	placeholder = "registry.invalid/replace-with-the-image-of-your-driver"
	registry    = "ghcr.io/causeway-csi/"
	// maxSocketPath is the longest path of a Unix socket in bytes: unix(7), sun_path without its
	// last byte.
	maxSocketPath = 107
)

// driverManifest has the values of "csi-sidecars manifest".
type driverManifest struct {
	Rights
	driver      string // "" if no controller needs a driver
	driverImage string
	image       string
	nodeImage   string
	kubeletDir  string

	controllers []string // of the Deployment
	args        []string // for csi-sidecars, without those that the manifest sets itself
	port        int      // of --http-endpoint
	probe       int      // of livenessprobe in the Deployment; 0 if it is off

	probeTimeout time.Duration // of livenessprobe; 0: its default
	shutdown     time.Duration // --shutdown-timeout; 0: its default
	elected      bool
	leases       string // --leader-election-namespace
	capacity     bool   // CSIStorageCapacity objects are published
}

// ManifestCommand prints the objects that run a CSI driver with csi-sidecars.
func (c *Cluster) ManifestCommand() sidecar.Subcommand {
	var m driverManifest
	return sidecar.Subcommand{
		About: "print a Deployment and a DaemonSet that run a CSI driver with these controllers, as kubectl apply " +
			"takes them",
		Flags: func(f *sidecar.Flags) {
			f.String(&m.driver, "driver", "",
				"name of the CSI driver, as its GetPluginInfo returns it. Required, unless snapshot-controller is "+
					"the only controller")
			f.String(&m.driverImage, "driver-image", placeholder, "image of the driver's containers")
			f.String(&m.image, "image", registry+"csi-sidecars:"+sidecar.Release(), "image of csi-sidecars")
			f.String(&m.nodeImage, "node-image", registry+"csi-sidecars-node:"+sidecar.Release(),
				"image of csi-sidecars-node")
			f.String(&m.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's --root-dir on the nodes")
			m.flags(f, "prefix of the objects' names: a DNS label of at most 52 characters (default: the "+
				"driver's name, with - for each dot; csi-snapshot without a driver)",
				"service account of the Deployment (default: <name>-controller)")
		},
		Run: func(on []sidecar.Controller, args []string, out io.Writer) error {
			if err := m.complete(c, on, args); err != nil {
				return err
			}
			text, err := m.yaml(c.rights(m.Rights, on))
			if err != nil {
				return err
			}
			_, err = out.Write(text)
			return err
		},
	}
}

// complete fills in the defaults that depend on other flags, and rejects flags for which no
// manifest can be right.
func (m *driverManifest) complete(c *Cluster, on []sidecar.Controller, args []string) error {
	withDriver := false
	for _, k := range on {
		m.controllers = append(m.controllers, k.Name())
		withDriver = withDriver || k.Needs().Driver
	}
	if err := m.checkDriver(withDriver); err != nil {
		return err
	}
	m.Namespace = c.namespaceFor(m.Rights)
	m.Prefix = cmp.Or(m.Prefix, strings.ReplaceAll(m.driver, ".", "-"), "csi-snapshot")
	m.ServiceAccount = cmp.Or(m.ServiceAccount, m.Prefix+"-controller")
	m.elected, m.leases = c.Elected(), c.election.namespace
	return errors.Join(m.checkNames(), m.checkPaths(), m.takeArgs(args))
}

// checkDriver checks the name of the driver and the flags for its features.
func (m *driverManifest) checkDriver(needed bool) error {
	switch {
	case !needed && m.driver != "":
		return fmt.Errorf("invalid --driver %q: none of the controllers %s talks to a driver: remove it, or add a "+
			"controller that does", m.driver, strings.Join(m.controllers, ", "))
	case !needed:
		return nil
	case m.driver == "":
		return errors.New("--driver is missing: give the name that the driver's GetPluginInfo returns, such as " +
			"disk.csi.example.com")
	// CSI spec v1.13, GetPluginInfoResponse.name, but for capital letters: no lease can have them
	// in its name.
	case len(m.driver) > 63 || len(validation.IsDNS1123Subdomain(m.driver)) > 0:
		return fmt.Errorf("invalid --driver %q: must have at most 63 lower-case letters, digits, dots and dashes, "+
			"with a letter or digit beside each dot and at both ends, such as disk.csi.example.com", m.driver)
	case slices.Contains(m.controllers, "node-driver-registrar"):
		return errors.New("invalid --controllers: node-driver-registrar runs in the DaemonSet, which is always " +
			"printed: remove it from the list")
	case m.Attach && !slices.Contains(m.controllers, "attacher"):
		return errors.New("invalid --controllers: without attacher no volume of a driver that attaches is ever " +
			"attached: add it, or --driver-attach=false")
	}
	return nil
}

// checkNames checks the names of objects as the API server does, and that images can be names of
// images.
func (m *driverManifest) checkNames() error {
	var wrong error
	// pods would get such a name
	if longest := validation.DNS1123LabelMaxLength - len("-controller"); len(m.Prefix) > longest {
		return fmt.Errorf("invalid --name %q: must have at most %d characters, as the Deployment is called "+
			"<name>-controller: set a shorter --name", m.Prefix, longest)
	}
	for _, n := range []struct {
		flag, value string
		check       func(string) []string
	}{
		{"name", m.Prefix, validation.IsDNS1123Label},
		{"namespace", m.Namespace, validation.IsDNS1123Label},
		{"leader-election-namespace", cmp.Or(m.leases, metav1.NamespaceDefault), validation.IsDNS1123Label},
		{"service-account", m.ServiceAccount, validation.IsDNS1123Subdomain},
	} {
		if why := n.check(n.value); len(why) > 0 {
			wrong = errors.Join(wrong, fmt.Errorf("invalid --%s %q: %s", n.flag, n.value, strings.Join(why, "; ")))
		}
	}
	for _, i := range []struct{ flag, value string }{{"driver-image", m.driverImage}, {"image", m.image},
		{"node-image", m.nodeImage}} {
		if i.value == "" || strings.ContainsFunc(i.value, unicode.IsSpace) {
			wrong = errors.Join(wrong, fmt.Errorf("invalid --%s %q: must be the name of an image, such as "+
				"registry.example.com/driver:v1.2.3", i.flag, i.value))
		}
	}
	return wrong
}

// pluginDir returns the host's directory of the driver's socket.
func (m *driverManifest) pluginDir() string { return path.Join(m.kubeletDir, "plugins", m.driver) }

func (m *driverManifest) checkPaths() error {
	if !path.IsAbs(m.kubeletDir) || path.Clean(m.kubeletDir) != m.kubeletDir || m.kubeletDir == "/" ||
		strings.Contains(m.kubeletDir, ":") {
		return fmt.Errorf("invalid --kubelet-dir %q: must be an absolute path without a colon, without .. and "+
			"without a slash at its end", m.kubeletDir)
	}
	if socket := path.Join(m.pluginDir(), socketName); len(socket) > maxSocketPath {
		return fmt.Errorf("invalid --kubelet-dir %q: the driver's socket %s has %d bytes, and a socket's path has at "+
			"most %d: use a shorter directory", m.kubeletDir, socket, len(socket), maxSocketPath)
	}
	return nil
}

// fixed are the flags of csi-sidecars that a user cannot set here, each with the reason.
var fixed = map[string]string{
	"csi-address":                 "the driver's socket is always " + socketDir + "/" + socketName,
	"kubeconfig":                  "a pod uses its service account",
	"master":                      "a pod uses its service account",
	"metrics-address":             "use --http-endpoint",
	"node-deployment":             "it is for a controller on every node, and manifest prints a Deployment",
	"provisioner-node-deployment": "it is for a controller on every node, and manifest prints a Deployment",
	"snapshotter-node-deployment": "it is for a controller on every node, and manifest prints a Deployment",
}

// takeArgs takes the manifest's own flags out of the arguments of csi-sidecars, and keeps the
// rest for the container.
func (m *driverManifest) takeArgs(args []string) (err error) {
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if why, ok := fixed[name]; ok {
			return fmt.Errorf("--%s cannot be set in a manifest: %s", name, why)
		}
		if name != "controllers" && name != "http-endpoint" {
			m.args = append(m.args, arg)
		}
	}
	if m.port, err = port("http-endpoint", cmp.Or(argument(args, "http-endpoint"), ":8080")); err != nil {
		return err
	}
	m.capacity, _ = strconv.ParseBool(cmp.Or(argument(args, "provisioner-enable-capacity"),
		argument(args, "enable-capacity")))
	for _, flag := range []string{"probe-timeout", "livenessprobe-probe-timeout"} {
		if d, err := time.ParseDuration(argument(args, flag)); err == nil {
			m.probeTimeout = d
		}
	}
	if d, err := time.ParseDuration(argument(args, "shutdown-timeout")); err == nil {
		m.shutdown = d
	}
	address := "9808"
	for _, flag := range []string{"health-port", "livenessprobe-health-port"} {
		if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--"+flag+"=") }) {
			address = argument(args, flag)
		}
	}
	return m.takeProbe(address)
}

// takeProbe takes the port of livenessprobe, which has the form :9808 or 9808. No port, and port 0,
// turn it off.
func (m *driverManifest) takeProbe(address string) (err error) {
	if !slices.Contains(m.controllers, "livenessprobe") || slices.Contains([]string{"", "0", ":0"}, address) {
		return nil
	}
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	if m.probe, err = port("livenessprobe-health-port", address); err != nil {
		return err
	}
	if m.probe == m.port {
		return fmt.Errorf("invalid --livenessprobe-health-port %d: --http-endpoint has the same port: choose another",
			m.probe)
	}
	return nil
}

// argument returns the last value of a flag in args. That of a bare flag is "true", and "" means
// that the flag is not there.
func argument(args []string, flag string) (value string) {
	for _, arg := range args {
		if name, v, given := strings.Cut(strings.TrimPrefix(arg, "--"), "="); name == flag {
			value = v
			if !given {
				value = "true"
			}
		}
	}
	return value
}

// port returns the port of an address that the kubelet can reach. The kubelet probes the address of
// the pod, so an address with a host is rejected.
func port(flag, address string) (int, error) {
	host, text, err := net.SplitHostPort(address)
	n, bad := strconv.Atoi(text)
	if err != nil || bad != nil || host != "" || len(validation.IsValidPortNum(n)) > 0 {
		return 0, fmt.Errorf("invalid --%s %q: must be a colon and a port from 1 to 65535, such as :8080, as the "+
			"kubelet probes it at the pod's address", flag, address)
	}
	return n, nil
}

// meta returns the name and the labels of an object of a part of the driver: the controller plugin
// or the node plugin.
func (m *driverManifest) meta(part string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Prefix + "-" + part, Namespace: m.Namespace, Labels: m.labels(part)}
}

func (m *driverManifest) labels(part string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": m.Prefix, "app.kubernetes.io/component": part}
}
