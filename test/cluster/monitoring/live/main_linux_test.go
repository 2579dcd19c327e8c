package live

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/test/cluster/chart"
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
	hang.Main()
	flag.Parse()
	if testing.Short() { // without a cluster
		os.Exit(m.Run())
	}
	livetest.Main(m, livetest.Tests{
		Name: "monitoring", Options: provider.Options{Nodes: 2},
		Furnish: func(ctx context.Context, c *local.Cluster, k kubectl.Kubectl, kept bool) error {
			if _, err := k.Run(ctx, "-n", install.Namespace, "get", "daemonset", "causeway-node"); err == nil && kept {
				return nil
			}
			if err := install.Driver(ctx, c, k, os.Stderr); err != nil {
				return err
			}
			return upgrade(ctx, k, "--set-json=hostpath.controller.extraArgs="+
				`["--health-monitor-list-volumes-interval=5s"]`)
		},
		Enter: func(c *local.Cluster, k kubectl.Kubectl, n []local.Node) { cluster, kube, nodes = c, k, n },
	})
}

// upgrade upgrades the release with further values, and waits until its pods are ready.
func upgrade(ctx context.Context, k kubectl.Kubectl, args ...string) error {
	h, err := install.NewHelm(ctx, os.Stderr, k)
	if err != nil {
		return err
	}
	_, err = h.Run(ctx, append([]string{"upgrade", "causeway", chart.Directory(), "--reuse-values", "--wait", "--force-conflicts",
		"--timeout=180s"}, args...)...)
	return err
}
