package outages

import (
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// The cluster, in the process that runs the tests.
var (
	cluster  *local.Cluster
	kube     kubectl.Kubectl
	guests   []local.Node
	ordinary local.Node // has the controllers
)

func TestMain(m *testing.M) {
	livetest.Main(m, livetest.Tests{
		Name: "outages", Options: provider.Options{Nodes: 1, Guests: []string{"6.1", "6.12"}},
		// jq is a program of the script that moves volumes from csi-driver-smb.
		Needs: []string{"outages", shares.Packages},
		Enter: func(c *local.Cluster, k kubectl.Kubectl, nodes []local.Node) {
			cluster, kube = c, k
			for _, n := range nodes {
				if n.Guest() {
					guests = append(guests, n)
				} else {
					ordinary = n
				}
			}
		},
	})
}
