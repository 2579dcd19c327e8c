package faults

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
	cluster *local.Cluster
	kube    kubectl.Kubectl
	nodes   []local.Node
)

func TestMain(m *testing.M) {
	livetest.Main(m, livetest.Tests{
		Name: "faults", Options: provider.Options{Nodes: 2},
		Furnish: func(ctx context.Context, c *local.Cluster, k kubectl.Kubectl, kept bool) error {
			if _, err := k.Run(ctx, "-n", install.Namespace, "get", "daemonset", "causeway-node"); err == nil && kept {
				return nil
			}
			return install.Driver(ctx, c, k, os.Stderr)
		},
		Enter: func(c *local.Cluster, k kubectl.Kubectl, n []local.Node) { cluster, kube, nodes = c, k, n },
	})
}
