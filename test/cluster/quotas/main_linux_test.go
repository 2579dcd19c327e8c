package quotas

import (
	"context"
	"os"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// The cluster, in the process that runs the tests.
var (
	kube  kubectl.Kubectl
	guest local.Node
)

func TestMain(m *testing.M) {
	livetest.Main(m, livetest.Tests{
		Name: "quotas", Options: provider.Options{Nodes: 1, Guests: []string{"6.12"}},
		Furnish: func(ctx context.Context, c *local.Cluster, k kubectl.Kubectl, _ bool) error {
			return install.Driver(ctx, c, k, os.Stderr)
		},
		Enter: func(_ *local.Cluster, k kubectl.Kubectl, nodes []local.Node) {
			kube = k
			for _, n := range nodes {
				if n.Guest() {
					guest = n
				}
			}
		},
	})
}
