// Command bench-router measures the router: the time that it adds to calls of real node drivers,
// and its memory and CPU time before hundreds of simulated nodes. bench-router builds the driver,
// and runs it as nodes and as routers in processes of their own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/test/figures"
)

// options say how much is measured.
type options struct {
	rounds, calls int // calls of a kind in each round
	fleets        []fleet
	idle          time.Duration // for which a router is watched that has nothing to do
	only          string
}

// fleet is a number of simulated nodes. The other fleets are compared with the first.
type fleet struct {
	nodes, volumes int // volumes in all
	compared       bool
}

func main() {
	o := options{idle: 20 * time.Second, fleets: []fleet{
		{nodes: 10, volumes: 50_000},
		{nodes: 10, volumes: 1_000},
		{nodes: 500, volumes: 50_000, compared: true},
		{nodes: 1000, volumes: 100_000},
	}}
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is repeated; medians are printed")
	flag.IntVar(&o.calls, "calls", 200, "how many calls of a kind are in each round")
	flag.StringVar(&o.only, "only", "", "measure only the parts whose `title` has this in it, such as hundreds")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-router:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.rounds < 1 || o.calls < 1 {
		return errors.New("-rounds and -calls are at least 1")
	}
	if err := namespace.Enter(); err != nil {
		return fmt.Errorf("node drivers mount, which needs root or a user namespace: %w", err)
	}
	return suite(namespace.SignalContext(), o)
}

func suite(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "causeway-benchr-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, figures.CleanUp(dir)) }()
	bin, err := figures.BuildDriver(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Printf("medians of %d rounds of %d calls, one machine, one run\n", o.rounds, o.calls)
	for _, part := range []struct {
		title string
		run   func(ctx context.Context, dir, bin string, o options) error
	}{
		{"through the router, and directly to the same node", onDisk},
		{"the same with roots on an xfs", onXFS},
		{"before hundreds of nodes", hundreds},
	} {
		if !strings.Contains(part.title, o.only) {
			continue
		}
		fmt.Printf("\n%s\n", part.title)
		if err := part.run(ctx, dir, bin, o); err != nil {
			return fmt.Errorf("%s: %w", part.title, err)
		}
	}
	return nil
}
