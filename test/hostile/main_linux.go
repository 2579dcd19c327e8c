// Command hostile does to the driver what a tenant can do, with the driver's real binary and
// socket, and measures what the others notice of it.
//
// For each class of attack it makes four hostile volumes, and measures each call on innocent
// volumes before and during the attack; then how long SIGTERM takes, and how soon the next driver
// serves. docs/security.md names the trial that proves each of its lines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
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
	flag.DurationVar(&o.least, "least", 15*time.Second, "how long each attack lasts at least: a freeze is given up after 6 s")
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
	bin                   string // of the driver; "": it is built
}

func run(o options) error {
	if err := namespace.Enter(); err != nil {
		return fmt.Errorf("the driver mounts, which needs root: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), append(namespace.Signals(), syscall.SIGPIPE)...)
	defer stop()
	return trials(ctx, o)
}

// trial is one class of attack.
type trial struct {
	title string
	run   func(ctx context.Context, t *bench) error
}

// all are the trials, in the order in which they run.
var all = []trial{
	{"leases on files", leases},
	{"deep trees", deepTrees},
	{"writes that do not end, in directories", hungDirectories},
	{"writes that do not end, in images", hungImages},
	{"links in place of targets", linkRaces},
}

// bench is where a trial runs.
type bench struct {
	options
	dir string
}

// trials runs all trials. The error tells of goals that were missed.
func trials(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "causeway-hostile-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, figures.CleanUp(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // attackers are not root
		return err
	}
	if o.bin == "" {
		if o.bin, err = figures.BuildDriver(ctx, dir); err != nil {
			return err
		}
	}
	for _, t := range all {
		if !strings.Contains(t.title, o.only) {
			continue
		}
		fmt.Printf("\n%s\n", t.title)
		if err := t.run(ctx, &bench{options: o, dir: dir}); err != nil {
			return fmt.Errorf("%s: %w", t.title, err)
		}
	}
	return nil
}
