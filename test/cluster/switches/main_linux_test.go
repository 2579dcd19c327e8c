package switches

import (
	"context"
	"os"
	"testing"

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

// driverLabel is the label of nodes that get a pod of the driver.
const driverLabel = "causeway.dev/test-driver"

// values are those of the release, beside the values of all test clusters.
const values = `hostpath:
  node: {nodeSelector: {` + driverLabel + `: "yes"}}
  controller: {capacity: {pollInterval: 2s}}
  storageClasses:
    xfs:
      kind: image
      fsType: xfs
    btrfs:
      kind: image
      fsType: btrfs
    growing:
      kind: image
      fsType: xfs
      annotations: {resize.topolvm.io/enabled: "true"}
`

func TestMain(m *testing.M) {
	livetest.Main(m, livetest.Tests{
		Name: "switches", Options: provider.Options{Nodes: 2},
		Needs: []string{"runc"}, // to compile it
		Furnish: func(ctx context.Context, c *local.Cluster, k kubectl.Kubectl, kept bool) error {
			if _, err := k.Run(ctx, "get", "storageclass", "growing"); err == nil && kept {
				return nil
			}
			if _, err := k.Run(ctx, "label", "nodes", "--all", "--overwrite", driverLabel+"=yes"); err != nil {
				return err
			}
			if err := install.Driver(ctx, c, k, os.Stderr); err != nil {
				return err
			}
			file, err := os.CreateTemp("", "causeway-switches-")
			if err != nil {
				return err
			}
			defer os.Remove(file.Name())
			if err := os.WriteFile(file.Name(), []byte(values), 0o600); err != nil {
				return err
			}
			return upgrade(ctx, k, "--values="+file.Name())
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
	_, err = h.Run(ctx, append([]string{"upgrade", "causeway", chart.Directory(), "--reset-then-reuse-values", "--wait",
		"--timeout=180s"}, args...)...)
	return err
}
