package csidriver

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/internal/router"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/driver"
)

// mode selects the services that a process runs.
type mode string

const (
	modeAll        mode = "all"        // every service, for one machine
	modeController mode = "controller" // the services for sidecars, of the backend itself or of a router to the nodes
	// the services for the kubelet, and the services of node-local storage for the router
	modeNode mode = "node"
)

// peerFlags are the flags for connections between the router and nodes.
type peerFlags struct {
	listen    string
	peers     string
	certs     string
	client    string
	server    string
	forgotten string
}

func (p *peerFlags) flags(set *flag.FlagSet) {
	set.StringVar(&p.listen, "peer-listen", "",
		"Address `host:port` at which the router reaches the storage of this node, with mutual TLS (--mode=node).")
	set.StringVar(&p.peers, "peers", "",
		"Addresses of the nodes (--mode=controller): `dns:name:port` of a headless service with "+
			"publishNotReadyAddresses, or host:port,host:port.")
	set.StringVar(&p.certs, "peer-certs", "",
		"Certificate `directory` with ca.crt, tls.crt and tls.key, for connections between the router and nodes. "+
			"Files that change are read again.")
	set.StringVar(&p.client, "peer-client", "causeway-router",
		"Client `name` in the router's certificate (--mode=node). The node rejects every other client.")
	set.StringVar(&p.server, "peer-server", "",
		"Server `name` in the certificate that all nodes share (--mode=controller). The nodes then trust each other "+
			"(default: each node's certificate has its node ID)")
	set.StringVar(&p.forgotten, "forgotten-nodes", "",
		"List `file` with a node on each line that is lost forever (--mode=controller). Objects on these nodes can "+
			"then be deleted. A file that changes is read again.")
}

// nodeLocal reports whether the chosen backend is a backend.NodeLocal. A controller for such a
// backend is a router. No other function decides that.
func (o *options) nodeLocal() bool {
	_, ok := o.chosen().Type.(backend.NodeLocal)
	return ok
}

// routes reports whether this process is a router.
func (o *options) routes() bool { return o.mode == modeController && o.nodeLocal() }

// checkMode returns an error for flags that are not valid together.
func (o *options) checkMode() error {
	if o.mode != modeAll && o.mode != modeController && o.mode != modeNode {
		return fmt.Errorf("invalid --mode %q: must be %s, %s or %s", o.mode, modeAll, modeController, modeNode)
	}
	p := &o.peers
	routes, routed := o.routes(), o.nodeLocal() && o.mode == modeNode
	for _, f := range []struct {
		name, value string
		can, must   bool
	}{
		{"peers", p.peers, routes, routes},
		{"peer-listen", p.listen, routed, routed},
		{"peer-certs", p.certs, routes || routed, routes || routed},
		{"peer-server", p.server, routes, false},
		{"forgotten-nodes", p.forgotten, routes, false},
	} {
		switch {
		case f.must && f.value == "":
			return fmt.Errorf("--mode=%s with --backend=%s needs --%s", o.mode, o.backend, f.name)
		case !f.can && f.value != "":
			why := ""
			if !o.nodeLocal() {
				why = ", which has no method Node: its storage is not local to a node"
			}
			return fmt.Errorf("--%s=%s has no effect with --mode=%s and --backend=%s%s", f.name, f.value, o.mode,
				o.backend, why)
		}
	}
	return p.check()
}

func (p *peerFlags) check() error {
	if _, _, err := net.SplitHostPort(p.listen); p.listen != "" && err != nil {
		return fmt.Errorf("--peer-listen: %w", err)
	}
	if p.client == "" {
		return errors.New("invalid --peer-client \"\": must be the name in the certificate of the router")
	}
	if p.peers != "" {
		if _, err := p.find(); err != nil {
			return fmt.Errorf("--peers=%s: %w", p.peers, err)
		}
	}
	for name, path := range map[string]*string{"forgotten-nodes": &p.forgotten, "peer-certs": &p.certs} {
		if *path == "" {
			continue
		}
		if err := cleanPath(name, path); err != nil {
			return err
		}
	}
	return nil
}

// find returns the source of the addresses of the nodes: DNS or a list.
func (p *peerFlags) find() (router.Peers, error) {
	if name, ok := strings.CutPrefix(p.peers, "dns:"); ok {
		host, port, err := hostPort(name)
		return router.DNS(net.DefaultResolver, host, port), err
	}
	seen := map[string]bool{}
	addresses := strings.Split(p.peers, ",")
	for _, a := range addresses {
		if _, _, err := hostPort(a); err != nil {
			return nil, err
		}
		if seen[a] {
			return nil, fmt.Errorf("the address %s occurs twice", a)
		}
		seen[a] = true
	}
	return router.Static(addresses...), nil
}

// router returns the configuration of the router. The capabilities of the nodes depend on the type
// of the backend.
func (p *instance) router(report func(message string, err error)) (router.Config, error) {
	kind := p.chosen().Type
	cfg := router.Config{
		Name: p.driverName, Release: p.program.version(), TopologyKey: driver.TopologyKey(p.driverName),
		Plugin: driver.PluginCapabilities(kind), Controller: driver.ControllerCapabilities(kind),
		Names: peertls.Names, Report: report, DialOptions: p.traces.Client,
	}
	if _, ok := kind.(backend.GroupSnapshotter); ok {
		cfg.Group = driver.GroupCapabilities()
	}
	if p.peers.server != "" {
		cfg.Names = nil
	}
	id, err := p.identity(func(err error) { report("connections to the nodes", err) })
	if err != nil {
		return cfg, err
	}
	cfg.Credentials = id.Client(p.peers.server)
	if p.peers.forgotten != "" {
		if cfg.Forgotten, err = router.OpenForgotten(p.peers.forgotten, report); err != nil {
			return cfg, fmt.Errorf("--forgotten-nodes: %w", err)
		}
	}
	cfg.Peers, err = p.peers.find()
	return cfg, err
}

// hostPort splits the address of another process, which needs a host and a port.
func hostPort(address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || strings.ContainsAny(host, " \t") ||
		bad != nil || n == 0 {
		return "", "", fmt.Errorf("invalid address %q: must be host:port", address)
	}
	return host, port, nil
}

// identity opens the certificates of this process, and registers a metric of their expiry.
func (p *instance) identity(report func(error)) (*peertls.Identity, error) {
	id, err := peertls.Open(p.peers.certs, report)
	if err != nil {
		return nil, fmt.Errorf("--peer-certs: %w", err)
	}
	return id, p.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "causeway_peer_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the certificate for connections between router and node, in seconds since 1970.",
	}, func() float64 { return float64(id.Until().Unix()) }))
}
