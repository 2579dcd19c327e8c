// Command csi-sidecars-node has the sidecars that run on every node. csi-sidecars-node does not use
// the API server, so that it stays small. KEP-4958.
package main

import (
	"os"
	"runtime/debug"

	"github.com/causeway-csi/causeway/sidecars/internal/livenessprobe"
	"github.com/causeway-csi/causeway/sidecars/internal/registrar"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// gcPercent is below Go's 100: on a node the memory belongs to the pods, and the process has a
// small heap. GOGC overrides it.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(command().Main(os.Args[1:]))
}

// command is the registry of the binary.
func command() *sidecar.Command {
	return &sidecar.Command{
		Name:        "csi-sidecars-node",
		Controllers: []sidecar.Controller{registrar.New(), livenessprobe.New()},
		Default:     "node-driver-registrar,livenessprobe", // "*" does not include the first
	}
}
