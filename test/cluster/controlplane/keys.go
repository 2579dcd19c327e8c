package controlplane

import (
	"fmt"
	"net/netip"

	"github.com/causeway-csi/causeway/test/cluster/pki"
)

// keys makes the authority and the keys of the API server and its administrator.
func (p *Plane) keys() error {
	var err error
	if p.CA, err = pki.NewAuthority("causeway-test"); err != nil {
		return err
	}
	if p.ca, err = p.CA.Write(p.Dir, "ca"); err != nil {
		return err
	}
	key, err := pki.NewKey()
	if err != nil {
		return err
	}
	tokens, err := key.Write(p.Dir, "tokens")
	if err != nil {
		return err
	}
	p.server.CA, p.server.TokenKey = p.ca.Cert, tokens.Key
	hosts, err := p.options.hosts()
	if err != nil {
		return err
	}
	if p.server.Serving, err = p.serving(apiServer, hosts...); err != nil {
		return err
	}
	if p.server.FrontProxy, err = p.client(frontProxy); err != nil {
		return err
	}
	if p.server.Kubelets, err = p.client("kube-apiserver-kubelet-client", "system:masters"); err != nil {
		return err
	}
	p.admin, err = p.ConfigFor("admin", "system:masters")
	return err
}

// client writes a client's certificate into the plane's directory.
func (p *Plane) client(name string, groups ...string) (pki.Files, error) {
	pair, err := p.CA.Client(name, groups...)
	if err != nil {
		return pki.Files{}, err
	}
	return pair.Write(p.Dir, name)
}

// serving writes a server's certificate into the plane's directory.
func (p *Plane) serving(name string, hosts ...string) (pki.Files, error) {
	pair, err := p.CA.Server(name, hosts...)
	if err != nil {
		return pki.Files{}, err
	}
	return pair.Write(p.Dir, name)
}

// hosts returns the names and addresses that clients may call the API server by.
func (o Options) hosts() ([]string, error) {
	services, err := netip.ParsePrefix(o.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("range of services: %w", err)
	}
	hosts := []string{
		"localhost", "127.0.0.1", "::1", o.Bind,
		services.Masked().Addr().Next().String(), // Kubernetes gives its own service the first address
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	if o.Advertise != "" {
		hosts = append(hosts, o.Advertise)
	}
	return append(hosts, o.Hosts...), nil
}
