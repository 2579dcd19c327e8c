package live

import (
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// The cluster, in the process that runs the tests.
var (
	cluster *local.Cluster
	kube    kubectl.Kubectl
	nodes   []local.Node
)

func TestMain(m *testing.M) {
	livetest.Main(m, livetest.Tests{
		Name: "chart", Options: provider.Options{Nodes: 2, Windows: 1},
		Enter: func(c *local.Cluster, k kubectl.Kubectl, n []local.Node) { cluster, kube, nodes = c, k, n },
	})
}
