// Command attached does a step with an attached disk, as a node's driver does: it mounts the disk,
// or grows its filesystem. The crash tests kill it during the step. attached can also replace a
// program that this step runs, to be stopped during its run: trace.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

func main() {
	if len(os.Args) > 4 && os.Args[1] == "trace" {
		fmt.Fprintln(os.Stderr, "trace:", trace(os.Args[2:]))
		os.Exit(1)
	}
	host.Main()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "attached:", err)
		os.Exit(1)
	}
}

// run takes a step: mount or grow. Further arguments are the kubelet's directory, the state
// directory, the path of the mount, the block device, its filesystem and its serial number.
func run(args []string) error {
	const want = 7
	if len(args) != want {
		return fmt.Errorf("%d arguments: must be %d", len(args), want)
	}
	path := args[3]
	m := mounter.Mount{Kind: mounter.BlockDevice, Source: args[4], FSType: args[5], Serial: args[6]}
	h, err := host.New(args[1], args[2])
	if err != nil {
		return err
	}
	switch step := args[0]; step {
	case "mount":
		return h.Mount(context.Background(), m, path)
	case "grow":
		return h.Grow(context.Background(), m, path)
	default:
		return fmt.Errorf("invalid step %q: must be mount or grow", step)
	}
}
