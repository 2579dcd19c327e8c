// Package providers has all kinds of clusters, for programs whose users select a kind.
package providers

import (
	"flag"
	"fmt"

	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/kind"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// Choice is a user's selection of a cluster.
type Choice struct {
	Provider   string // local, kind or existing
	Name       string
	Kubeconfig string // existing: a path, or "" for that in KUBECONFIG
}

// Flags adds the flags of a choice to set. A Name that is there is the default.
func (c *Choice) Flags(set *flag.FlagSet, aboutName string) {
	set.StringVar(&c.Provider, "provider", "local",
		"provider of the cluster: local (this machine), kind, or existing (the cluster that KUBECONFIG names)")
	set.StringVar(&c.Name, "name", c.Name, aboutName)
	set.StringVar(&c.Kubeconfig, "kubeconfig", "",
		"existing: the cluster's kubeconfig; by default, the file that KUBECONFIG names")
}

// Open returns the cluster, without a connection to it. o are further options of an existing
// cluster. Errors: an unknown provider, an invalid name, a machine that local or kind do not
// support.
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
