// Command bench measures CSI drivers.
//
// With -endpoint it drives any driver through the life of many volumes and prints the duration of
// each call; with -endpoint2 as well, two drivers in turn, and their ratio. Without either it
// builds this project's driver and measures the figures of docs/reference/benchmarks.md, beside the
// cost of programs on the same machine in the same run.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/causeway-csi/causeway/internal/namespace"
)

func main() {
	var o options
	flag.StringVar(&o.endpoints[0], "endpoint", "", "`unix:///path.sock` of a driver to measure")
	flag.StringVar(&o.endpoints[1], "endpoint2", "", "`unix:///path.sock` of a second one to compare it with")
	flag.StringVar(&o.dir, "dir", "",
		"`directory` for staging and target paths, where the drivers may mount (with -endpoint)")
	flag.IntVar(&o.volumes, "volumes", 200, "how many volumes live at the same time (with -endpoint)")
	flag.IntVar(&o.callers, "callers", 1, "how many calls are made at the same time (with -endpoint)")
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is repeated; medians are printed")
	flag.StringVar(&o.only, "only", "",
		"measure only the parts whose `title` has this in it, such as creating (without -endpoint)")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	endpoints                [2]string
	dir                      string
	volumes, callers, rounds int
	only                     string
}

func run(o options) error {
	if o.volumes < 1 || o.callers < 1 || o.rounds < 1 {
		return fmt.Errorf("-volumes, -callers and -rounds are at least 1")
	}
	if o.endpoints[0] == "" {
		if err := namespace.Enter(); err != nil {
			return fmt.Errorf("the measured driver mounts, which needs root or a user namespace: %w", err)
		}
	}
	ctx := namespace.SignalContext()
	switch {
	case o.endpoints[0] == "":
		return suite(ctx, o.rounds, o.only)
	case o.dir == "":
		return fmt.Errorf("-dir is needed: a directory below the driver's kubelet directory")
	}
	return compare(ctx, o)
}
