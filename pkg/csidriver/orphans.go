package csidriver

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/orphans"
	"github.com/causeway-csi/causeway/pkg/driver"
)

// Exit codes of the command orphans, besides 0 and 2.
const (
	exitNoConclusion = 1
	exitOrphans      = 3
)

// orphansFlags are the flags of the command orphans. A test compares docs/how-to/orphans.md with
// them.
type orphansFlags struct {
	endpoint string
	output   string
	find     orphans.Options
}

func (o *orphansFlags) flags(set *flag.FlagSet) {
	set.StringVar(&o.endpoint, "endpoint", "",
		"CSI endpoint of the driver: `unix:///path.sock` (default: $CSI_ENDPOINT, else the default endpoint of the "+
			"driver)")
	set.StringVar(&o.output, "output", "text", "Format of the report: text or json.")
	set.DurationVar(&o.find.Call, "timeout", time.Minute, "Maximum time for each call to the driver.")
	set.DurationVar(&o.find.Settle, "settle", 30*time.Second,
		"Minimum time between the listing and the beginning of stdin. Earlier input is rejected.")
	set.BoolVar(&o.find.NoVolumes, "expect-no-volumes", false,
		"Judge volumes even if the cluster has no PersistentVolume at all.")
	set.BoolVar(&o.find.NoSnapshots, "expect-no-snapshots", false,
		"Judge snapshots even if the cluster has no VolumeSnapshotContent at all.")
	set.BoolVar(&o.find.NoGroups, "expect-no-groups", false,
		"Judge members of group snapshots even if the cluster has no VolumeGroupSnapshotContent at all.")
	set.BoolVar(&o.find.NoneNamed, "expect-none-named", false,
		"Report all volumes and snapshots of the driver as orphans if no object names any of them.")
}

// parseOrphans parses the command line of the command orphans. Usage goes to env.Stderr.
func parseOrphans(p Program, args []string, env Environment) (orphansFlags, error) {
	o := orphansFlags{find: orphans.Options{Page: 1000}}
	set := flag.NewFlagSet("orphans", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	o.flags(set)
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(env.Stderr, "%[1]s orphans lists volumes and snapshots that no object of the cluster names. It "+
			"reads the objects from stdin:\n  (sleep 60; kubectl get "+
			"pv,volumesnapshotcontents,volumegroupsnapshotcontents -o json && echo complete) | kubectl exec -i … "+
			"-- %[1]s orphans\nIts flags:\n", env.Command)
		listFlags(set, env.Stderr)
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (orphans --help lists the flags)", err)
	case set.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag: flags start with --, and switches take no value after a space",
			set.Arg(0))
	case o.output != "text" && o.output != "json":
		return o, fmt.Errorf("invalid --output %q: must be text or json", o.output)
	case o.find.Call < 0 || o.find.Settle < 0:
		return o, errors.New("invalid --timeout or --settle: must not be negative")
	}
	env.Stderr = io.Discard
	defaults, err := parse(p, nil, env)
	if o.endpoint = cmp.Or(o.endpoint, defaults.endpoint); o.endpoint == "" {
		return o, fmt.Errorf("--endpoint is required: %w", err)
	}
	if err := driver.CheckEndpoint(o.endpoint, true); err != nil {
		return o, fmt.Errorf("--endpoint: %w", err)
	}
	return o, nil
}

// findOrphans runs the command orphans and returns the exit code.
func findOrphans(p Program, args []string, env Environment) int {
	o, err := parseOrphans(p, args, env)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitUsage
	}
	env.tune(gcPercent) // the command runs in the container of a driver, with the limits of that container
	o.find.Listed = func(volumes, snapshots int) {
		fmt.Fprintf(env.Stderr, "the driver holds %d volumes and %d snapshots: now reading the objects from stdin\n",
			volumes, snapshots)
	}
	report, err := o.run(env.Stdin, env.Stdout)
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitNoConclusion
	}
	switch {
	case len(report.Orphans) > 0:
		return exitOrphans
	case !report.Judged():
		return exitNoConclusion
	}
	return exitOK
}

// run finds orphans and prints them.
func (o orphansFlags) run(in io.Reader, out io.Writer) (orphans.Report, error) {
	conn, err := grpc.NewClient(strings.TrimPrefix(o.endpoint, "tcp://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return orphans.Report{}, err
	}
	defer conn.Close()
	report, err := orphans.Find(context.Background(), conn, in, o.find)
	if err != nil {
		return report, err
	}
	if o.output == "json" {
		return report, report.JSON(out)
	}
	return report, report.Text(out)
}
