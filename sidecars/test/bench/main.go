// Command bench measures csi-sidecars beside the binaries of upstream that it replaces: with a
// single API server with the objects of a cluster of 500 nodes, with a single driver, in a single
// run. docs/reference/benchmarks.md has the results.
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
)

// options are the flags.
type options struct {
	rounds, claims, percent int
	idle, window            time.Duration
	only                    string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often provisioning is timed, each way in turn; medians are printed")
	flag.IntVar(&o.claims, "claims", 200, "how many claims are provisioned in a round")
	flag.IntVar(&o.percent, "percent", 100, "load of the API server, in `percent` of the load that the goals name")
	flag.DurationVar(&o.idle, "idle", 40*time.Second, "how long after their start processes are looked at")
	flag.DurationVar(&o.window, "window", 30*time.Second, "how long requests are counted")
	flag.StringVar(&o.only, "only", "",
		"measure only the part of this `name`: size, idle, default (provisioning with upstream's limits), fast (with "+
			"higher ones), node, or calls (how often volumes are called again)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run makes all that is needed, measures, and removes it again.
func run(ctx context.Context, o options) (err error) {
	if o.rounds < 1 || o.claims < 1 || o.percent < 1 {
		return errors.New("-rounds, -claims and -percent are at least 1")
	}
	dir, err := os.MkdirTemp("", "bs-") // a short name, as sockets have it in theirs
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{options: o, dir: dir}
	if b.binaries, err = build(ctx, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, part := range []struct {
		name  string
		needs func(context.Context) error // makes missing prerequisites
		run   func(context.Context) error
	}{
		{"size", func(context.Context) error { return nil }, b.sizes},
		{"idle", b.needsCluster, b.idling},
		{"default", b.needsCluster, func(ctx context.Context) error {
			return b.provisioning(ctx, "upstream's limits",
				nil)
		}},
		{"fast", b.needsCluster, func(ctx context.Context) error {
			return b.provisioning(ctx, "50 requests a second, 100 at once",
				[]string{"--kube-api-qps=50", "--kube-api-burst=100"})
		}},
		{"node", b.needsDriver, b.node},
		{"calls", func(context.Context) error { return nil }, b.calls},
	} {
		if o.only != part.name && (o.only != "" || part.name == "calls") { // it takes an hour, and is seldom needed
			continue
		}
		if err := part.needs(ctx); err != nil {
			return err
		}
		if err := part.run(ctx); err != nil {
			b.table.print()
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	b.table.print()
	return nil
}
