package kube

import (
	"cmp"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// Rights are the features of the driver on which the rules depend and which are no flags of a
// controller.
type Rights struct {
	RBAC
	Secrets   bool // classes name secrets
	Topology  bool // volumes have a topology
	Attach    bool // volumes are attached
	Snapshots bool // the driver has snapshots, and makes volumes from them
	Groups    bool // the driver has group snapshots
}

// Ruled is a controller that needs permissions.
type Ruled interface {
	sidecar.Controller
	Rules(Rights) Rules
}

// flags declares the flags for the names and for the features of the driver.
func (r *Rights) flags(f *sidecar.Flags, name, account string) {
	f.String(&r.Prefix, "name", "", name)
	f.String(&r.ServiceAccount, "service-account", "", account)
	f.String(&r.Namespace, "namespace", "",
		"namespace of the pods, of their service account, and of the leases unless --leader-election-namespace names "+
			"another (default: that one, else default)")
	f.Bool(&r.Secrets, "driver-secrets", false, "the driver's classes name secrets; these are read in every "+
		"namespace")
	f.Bool(&r.Topology, "driver-topology", true, "the driver's volumes have a topology, so nodes are watched")
	f.Bool(&r.Attach, "driver-attach", true, "the driver attaches volumes, so attached volumes are not deleted")
	f.Bool(&r.Snapshots, "driver-snapshots", true, "the driver makes snapshots, and volumes from snapshots")
	f.Bool(&r.Groups, "driver-groups", true, "the driver makes group snapshots")
}

// RBACCommand prints the permissions that the selected controllers need with the given flags, and
// no others.
func (c *Cluster) RBACCommand() sidecar.Subcommand {
	var r Rights
	return sidecar.Subcommand{
		About: "print the rights that the controllers need with these flags, as kubectl apply takes them",
		Flags: func(f *sidecar.Flags) {
			r.flags(f, "prefix of the objects' names; two drivers must have different prefixes (default: "+
				"<namespace>-<service-account>)",
				"service account that gets the rights (default: csi-sidecars)")
		},
		Run: func(on []sidecar.Controller, _ []string, out io.Writer) error {
			r.Namespace = c.namespaceFor(r)
			r.ServiceAccount = cmp.Or(r.ServiceAccount, "csi-sidecars")
			r.Prefix = cmp.Or(r.Prefix, r.Namespace+"-"+r.ServiceAccount)
			text, err := documents(c.rights(r, on))
			if err != nil {
				return err
			}
			_, err = out.Write(text)
			return err
		},
	}
}

// namespaceFor returns the namespace of the pods. namespaceFor reads flags only: the environment of
// the command is not the pod's.
func (c *Cluster) namespaceFor(r Rights) string {
	return cmp.Or(r.Namespace, c.election.namespace, metav1.NamespaceDefault)
}

// rights returns the roles that the controllers need, and their bindings. r has no empty name.
func (c *Cluster) rights(r Rights, on []sidecar.Controller) []any {
	var grants []Grant
	for _, k := range on {
		if ruled, ok := k.(Ruled); ok {
			grants = append(grants, Grant{k.Name(), ruled.Rules(r)})
		}
	}
	if !c.election.on {
		return r.objects(grants)
	}
	elected := Grant{"leader-election", ElectionRules()}
	leases := cmp.Or(c.election.namespace, r.Namespace)
	if leases == r.Namespace {
		return r.objects(append(grants, elected))
	}
	apart := RBAC{Prefix: r.Prefix + "-leases", Namespace: leases, ServiceAccount: r.ServiceAccount,
		AccountIn: r.Namespace}
	return append(r.objects(grants), apart.objects([]Grant{elected})...)
}
