// Command csi-sidecars-node is what of csi-sidecars runs on every node, without all that talks to the API server: it is to be
// small there. KEP-4958.
package main

import (
	"os"
	"runtime/debug"

	"github.com/causeway-csi/causeway/sidecars/internal/livenessprobe"
	"github.com/causeway-csi/causeway/sidecars/internal/registrar"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// gcPercent is less than Go's 100: the process runs on every node, where memory is the pods', and it keeps next to nothing. GOGC
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
	return &sidecar.Command{
		Name:        "csi-sidecars-node",
		Controllers: []sidecar.Controller{registrar.New(), livenessprobe.New()},
		Default:     "node-driver-registrar,livenessprobe", // * wouldn't include the first
	}
}
