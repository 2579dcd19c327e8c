// Command csi-sidecars is every CSI sidecar in one process: upstream's controllers with one connection to the driver, one set of
// informers, one port, one lease and one end. KEP-4958.
package main

import (
	"os"
	"runtime/debug"

	"github.com/causeway-csi/causeway/sidecars/internal/attacher"
	"github.com/causeway-csi/causeway/sidecars/internal/healthmonitor"
	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/livenessprobe"
	"github.com/causeway-csi/causeway/sidecars/internal/provisioner"
	"github.com/causeway-csi/causeway/sidecars/internal/registrar"
	"github.com/causeway-csi/causeway/sidecars/internal/resizer"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
	"github.com/causeway-csi/causeway/sidecars/internal/snapshotcontroller"
	"github.com/causeway-csi/causeway/sidecars/internal/snapshotter"
)

// gcPercent trades a little CPU for memory: what the process keeps are informers' objects, and it makes little garbage. GOGC
// overrides it.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(command().Main(os.Args[1:]))
}

// command is the registry: all that the binary has.
func command() *sidecar.Command {
	cluster := kube.New()
	return &sidecar.Command{
		Name: "csi-sidecars",
		Controllers: []sidecar.Controller{
			attacher.New(cluster),
			provisioner.New(cluster),
			resizer.New(cluster),
			snapshotter.New(cluster),
			snapshotcontroller.New(cluster),
			healthmonitor.New(cluster),
			livenessprobe.New(),
			registrar.New(),
		},
		Cluster: cluster,
		More:    map[string]sidecar.Subcommand{"manifest": cluster.ManifestCommand(), "rbac": cluster.RBACCommand()},
		Logging: &kube.Logging{},
	}
}
