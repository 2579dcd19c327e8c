package kube

import (
	"cmp"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/pkg/sidecar"
)

// Rights is what rules depend on that no flag of a controller says: what the driver does. What it doesn't needs no rights.
type Rights struct {
	RBAC
	Secrets   bool // classes name secrets
	Topology  bool // volumes aren't everywhere
	Attach    bool // volumes are attached
	Snapshots bool // and volumes are made of them
	Groups    bool // snapshots of groups
}

// Ruled is a controller that needs rights.
type Ruled interface {
	sidecar.Controller
	Rules(Rights) Rules
}

// RBACCommand prints the objects that give a service account what the chosen controllers need with the given flags, and no more.
func (c *Cluster) RBACCommand() sidecar.Subcommand {
	var r Rights
	return sidecar.Subcommand{
		About: "print the rights that the controllers need with these flags, as kubectl apply takes them",
		Flags: func(f *sidecar.Flags) {
			f.String(&r.Prefix, "name", "", "what the objects' names begin with; two drivers must not have the same (default: <namespace>-<service-account>)")
			f.String(&r.ServiceAccount, "service-account", "csi-sidecars", "who gets the rights")
			f.String(&r.Namespace, "namespace", "", "where the pod is, with its service account, and its leases if --leader-election-namespace says nothing else (default: that one, else default)")
			f.Bool(&r.Secrets, "driver-secrets", false, "the driver's classes name secrets, which are read in every namespace")
			f.Bool(&r.Topology, "driver-topology", true, "the driver's volumes aren't everywhere, so nodes are watched")
			f.Bool(&r.Attach, "driver-attach", true, "the driver attaches volumes, so nothing is deleted that is attached")
			f.Bool(&r.Snapshots, "driver-snapshots", true, "the driver takes snapshots, and makes volumes of them")
			f.Bool(&r.Groups, "driver-groups", true, "the driver takes snapshots of groups")
		},
		Run: func(on []sidecar.Controller, out io.Writer) error { return c.print(r, on, out) },
	}
}

func (c *Cluster) print(r Rights, on []sidecar.Controller, out io.Writer) error {
	// The environment here is not the pod's.
	r.Namespace = cmp.Or(r.Namespace, c.election.namespace, metav1.NamespaceDefault)
	r.Prefix = cmp.Or(r.Prefix, r.Namespace+"-"+r.ServiceAccount)
	leases := cmp.Or(c.election.namespace, r.Namespace)
	var grants []Grant
	for _, k := range on {
		if ruled, ok := k.(Ruled); ok {
			grants = append(grants, Grant{k.Name(), ruled.Rules(r)})
		}
	}
	elected := Grant{"leader-election", ElectionRules()}
	apart := RBAC{Prefix: r.Prefix + "-leases", Namespace: leases, ServiceAccount: r.ServiceAccount, AccountIn: r.Namespace}
	var second []byte
	var err error
	switch {
	case !c.election.on:
	case leases == r.Namespace:
		grants = append(grants, elected)
	default: // the leases are in a namespace of their own
		if second, err = apart.YAML([]Grant{elected}); err != nil {
			return err
		}
		second = append([]byte("---\n"), second...)
	}
	first, err := r.YAML(grants)
	if err != nil {
		return err
	}
	_, err = out.Write(append(first, second...))
	return err
}
