// Command hostile attacks the driver as a tenant can, with the driver's real binary and socket, and
// measures the effect on other tenants.
//
// For each class of attack it makes four hostile volumes, and measures each call on innocent
// volumes before and during the attack; then the duration of SIGTERM, and of the start of the next
// driver. docs/explanation/security.md names the trial that proves each of its lines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/test/figures"
)

func main() {
	hang.Main()
	attackerMain()
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often the calls on innocent volumes are repeated; medians are printed")
	flag.IntVar(&o.races, "races", 10000, "how many mounts are raced by a link")
	flag.IntVar(&o.levels, "levels", 20000, "how many levels the deep trees have")
	flag.DurationVar(&o.least, "least", 15*time.Second,
		"how long each attack lasts at least: a freeze is given up after 6 s")
	flag.StringVar(&o.only, "only", "", "run only the trials whose `title` has this in it")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	rounds, races, levels int
	least                 time.Duration
	only                  string
	short                 bool   // too few races to require that the driver wins one
	bin                   string // of the driver
}

func run(o options) error {
	if err := namespace.Enter(); err != nil {
		return fmt.Errorf("the driver mounts, which needs root: %w", err)
	}
	return runAll(namespace.SignalContext(), o)
}

// trial is a class of attack.
type trial struct {
	title string
	run   func(ctx context.Context, t *bench) error
}

// trials returns the trials, in the order in which they run.
func trials() (all []trial) {
	for _, title := range slices.Sorted(maps.Keys(copyAttacks)) {
		all = append(all, trial{title, func(ctx context.Context,
			b *bench) error {
			return copyAttacks[title](b.options).run(ctx, b)
		}})
	}
	return append(all,
		trial{"links in place of targets", linkRaces},
		trial{"records that are spoiled", spoiledRecords},
		trial{"idle connections", idleConnections})
}

// bench is where a trial runs.
type bench struct {
	options
	dir    string
	missed int // goals
}

// row prints a figure and the most that it may be, and counts a goal that is missed.
func (b *bench) row(what string, figure float64, unit string, most float64) {
	figures.Row(what, figure, unit, figures.AtMost(most))
	if figure > most {
		b.missed++
	}
}

// workplace makes a directory, which figures.CleanUp removes.
func workplace() (string, error) {
	dir, err := os.MkdirTemp("", "causeway-hostile-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // attackers are not root
}

// runAll runs the trials. Goals that are missed are an error, after the last trial.
func runAll(ctx context.Context, o options) (err error) {
	dir, err := workplace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, figures.CleanUp(dir)) }()
	if o.bin, err = figures.BuildDriver(ctx, dir); err != nil {
		return err
	}
	missed := 0
	for _, t := range trials() {
		if !strings.Contains(t.title, o.only) {
			continue
		}
		fmt.Printf("\n%s\n", t.title)
		b := &bench{options: o, dir: dir}
		if err := t.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", t.title, err)
		}
		missed += b.missed
	}
	if missed > 0 {
		return fmt.Errorf("%d goals are missed", missed)
	}
	return nil
}
