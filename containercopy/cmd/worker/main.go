// Worker makes one copy to or from a container. The agent starts it: see package worker.
package main

import (
	"os"

	"github.com/causeway-csi/causeway/containercopy/worker"
)

func main() { os.Exit(worker.Main()) }
