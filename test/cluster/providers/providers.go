// Package providers has all kinds of clusters, for programs that let people choose one.
package providers

import (
	"flag"
	"fmt"

	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/kind"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// Choice is what people say of a cluster.
type Choice struct {
	Provider   string // local, kind or existing
	Name       string
	Kubeconfig string // existing: a path, or "" for what KUBECONFIG names
}

// Flags adds the flags of a choice to set. A Name that is there is the default.
func (c *Choice) Flags(set *flag.FlagSet, aboutName string) {
	set.StringVar(&c.Provider, "provider", "local", "who runs the cluster: local (this machine), kind, or existing (the one that KUBECONFIG names)")
	set.StringVar(&c.Name, "name", c.Name, aboutName)
	set.StringVar(&c.Kubeconfig, "kubeconfig", "", "existing: the cluster's kubeconfig; by default, what KUBECONFIG names")
}

// Open returns the cluster. It isn't asked whether it is there. o is what else there is to say of an existing one. Errors: there is no
// such provider, a name isn't a cluster's, this machine isn't one for local or kind.
func (c Choice) Open(o existing.Options) (provider.Provider, error) {
	switch c.Provider {
	case "local":
		return local.New(c.Name)
	case "kind":
		return kind.New(c.Name)
	case "existing":
		o.Kubeconfig = c.Kubeconfig
		return existing.New(o)
	default:
		return nil, fmt.Errorf("--provider=%s: local, kind or existing", c.Provider)
	}
}
