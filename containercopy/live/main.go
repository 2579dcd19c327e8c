// Command live starts a cluster on this machine, installs the driver and container copy, and uses
// kubectl copy as its users do: on pods without a shell, with volumes of both kinds, with and
// without permission, beyond the limits, and while parts of it end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

func main() {
	local.Main()
	keep := flag.Bool("keep", false, "leave the cluster as it is, and use a cluster that is up")
	bench := flag.Bool("bench", false, "compare kubectl copy with kubectl cp instead")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	start := time.Now()
	if err := run(ctx, *keep, *bench); err != nil {
		fmt.Fprintln(os.Stderr, "\nlive:", err)
		stop()
		os.Exit(1)
	}
	fmt.Printf("\nAll steps succeeded, in %d s.\n", int(time.Since(start).Seconds()))
}

func run(ctx context.Context, keep, bench bool) (err error) {
	c, err := local.New("copy")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-copy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("A cluster of two nodes")
	if err := c.Up(ctx, provider.Options{Nodes: 2, Keep: keep, Log: os.Stdout}); err != nil {
		return err
	}
	if !keep {
		defer func() { err = errors.Join(err, c.End(context.Background())) }()
	}
	k, err := kubectl.New(ctx, c, dir)
	if err != nil {
		return err
	}
	p := play{ctx: ctx, kubectl: k, cluster: c, dir: dir, plugin: filepath.Join(dir, "plugin-dev")}
	say("Container copy: its images, its chart, and the plugin of kubectl")
	if err := p.build("dev"); err != nil {
		return err
	}
	if p.helm, err = chart.Programs(ctx, os.Stdout); err != nil {
		return err
	}
	if bench {
		if err := p.install("--set=agent.containerCopySizeLimit=8Gi"); err != nil {
			return err
		}
		return p.bench()
	}
	if err := p.install(); err != nil {
		return err
	}
	say("The driver, for the volumes of the pods")
	if err := install.Driver(ctx, c, k, os.Stdout); err != nil {
		return err
	}
	if err := p.all(); err != nil || keep {
		return err
	}
	return p.planeEnds()
}

func say(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }
