// Command demo starts a cluster of two nodes, installs the driver, and uses it with kubectl, as
// users do: pods with volumes on both nodes, a snapshot and its restore, an expansion of a volume
// in use, a pod that is replaced. demo verifies the result of each step, and at the end that
// nothing is left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

func main() {
	local.Main()
	keep := flag.Bool("keep", false, "leave the cluster as it is when something fails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	start := time.Now()
	if err := run(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		stop()
		os.Exit(1)
	}
	fmt.Printf("\nAll steps succeeded, in %d s.\n", int(time.Since(start).Seconds()))
}

// name is the demo's cluster, which differs from that of a developer.
const name = "demo"

func run(ctx context.Context, keep bool) (err error) {
	c, err := local.New(name)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("A cluster: two Linux nodes on this machine, and a simulated Windows node")
	if err := c.Up(ctx, provider.Options{Nodes: 2, Windows: 1, Keep: keep, Log: os.Stdout}); err != nil {
		return err
	}
	defer func() {
		if err != nil && keep {
			fmt.Printf("\nThe cluster is as it was: go -C test/cluster run . --name=%s kubectl …, and down\n", name)
			return
		}
		err = errors.Join(err, down(c))
	}()
	k, err := kubectl.New(ctx, c, dir)
	if err != nil {
		return err
	}
	say("The driver: its images, built from these sources, and its chart")
	if err := install.Driver(ctx, c, k, os.Stdout); err != nil {
		return err
	}
	return play{ctx: ctx, kubectl: k, cluster: c}.all()
}

// down ends the cluster, even if the demo was interrupted, and looks at the machine. A lent cluster
// stays.
func down(c *local.Cluster) error {
	if c.Lent() {
		return nil
	}
	say("The cluster is removed")
	if err := c.End(context.Background()); err != nil {
		return err
	}
	fmt.Println("No process, mount, control group, network device or loop device of it is left.")
	return nil
}

func say(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }
