package csidriver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/pkg/driver"
)

// listing has the flags of the command list. A test compares docs/reference/flags.md with them.
type listing struct {
	endpoint string
	volume   string
	calls    inventory.Options
}

func (l *listing) flags(set *flag.FlagSet) {
	set.StringVar(&l.endpoint, "endpoint", "",
		"CSI endpoint of the driver: `unix:///path.sock` (default: $CSI_ENDPOINT, else the default endpoint of the "+
			"driver)")
	set.StringVar(&l.volume, "volume", "",
		"Volume `ID`: list only this volume, with its health and its snapshots (default: list all volumes and "+
			"snapshots)")
	set.DurationVar(&l.calls.Call, "timeout", time.Minute, "Maximum time for each call to the driver.")
}

// parseList parses the command line of the command list. Usage goes to env.Stderr.
func parseList(p Program, args []string, env Environment) (listing, error) {
	l := listing{calls: inventory.Options{Page: 1000}}
	set := flag.NewFlagSet("list", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	l.flags(set)
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(env.Stderr, "%s list prints the volumes and snapshots of a running driver as JSON. kubectl "+
			"causeway runs it in the pod of the controller. Its flags:\n", env.Command)
		listFlags(set, env.Stderr)
		return l, err
	case err != nil:
		return l, fmt.Errorf("%w (list --help lists the flags)", err)
	case set.NArg() > 0:
		return l, fmt.Errorf("%q is not a flag: flags start with --, and switches take no value after a space",
			set.Arg(0))
	case l.calls.Call < 0:
		return l, errors.New("invalid --timeout: must not be negative")
	}
	env.Stderr = io.Discard
	defaults, err := parse(p, nil, env)
	if l.endpoint = cmp.Or(l.endpoint, defaults.endpoint); l.endpoint == "" {
		return l, fmt.Errorf("--endpoint is required: %w", err)
	}
	if err := driver.CheckEndpoint(l.endpoint, true); err != nil {
		return l, fmt.Errorf("--endpoint: %w", err)
	}
	return l, nil
}

// list runs the command list and returns the exit code. After an error nothing is printed.
func list(p Program, args []string, env Environment) int {
	l, err := parseList(p, args, env)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitUsage
	}
	env.tune(gcPercent) // the command runs in the container of a driver, with the limits of that container
	if err := l.run(env.Stdout); err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitError
	}
	return exitOK
}

// run asks the driver and prints the answer.
func (l listing) run(out io.Writer) error {
	conn, err := grpc.NewClient(strings.TrimPrefix(l.endpoint, "tcp://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	var answer any
	if l.volume != "" {
		answer, err = inventory.One(context.Background(), conn, l.volume, l.calls)
	} else {
		answer, err = inventory.List(context.Background(), conn, l.calls)
	}
	if err != nil {
		return fmt.Errorf("list the driver's volumes and snapshots: %w", err)
	}
	return json.NewEncoder(out).Encode(answer)
}
