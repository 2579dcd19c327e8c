// Command csi-sidecars runs all CSI sidecars in a process: upstream's controllers with a shared
// connection to the driver, shared informers, and a common port, lease and end. KEP-4958.
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

// gcPercent saves memory for a little CPU: most of the heap are objects of informers, and the
// process makes little garbage. GOGC overrides it.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(command().Main(os.Args[1:]))
}

// command is the registry of the binary.
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
