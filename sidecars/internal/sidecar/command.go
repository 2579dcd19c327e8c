package sidecar

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// Command is a binary: its registry of controllers and what they share.
type Command struct {
	Name        string       // of the binary
	Controllers []Controller // all it has
	Default     string       // what --controllers is when nothing is said
	Logging     Logging      // nil for klog's text or JSON
	Cluster     Cluster      // nil where no controller needs one
	// More are further subcommands. They see the controllers that the flags choose, and start nothing.
	More map[string]Subcommand

	table table
	options
}

// Subcommand is a command of the binary that prints something and starts no controller.
type Subcommand struct {
	About string
	Flags func(*Flags) // declares the flags that only this command has; nil for none
	// Run gets the controllers that --controllers chooses, and the arguments as given, without the
	// flags that only this command has.
	Run func(on []Controller, args []string, out io.Writer) error
}

// Cluster is what controllers for Kubernetes share: clients, informers, elections.
type Cluster interface {
	Flags(*Flags)
	// Validate reports flags that make no sense together, for those that are on.
	Validate(on []Controller) error
	// Connect makes clients. Controllers are built after it. What fails later, outside any controller, comes to fail.
	Connect(ctx context.Context, s *Server, driver string, fail func(error)) error
	// Run says when the process is ready, which one that waits for leadership is. It gives each part a context under which
	// it leads, by way of start, until ctx is done. It then waits for the parts, at most as long as patience, gives its
	// leases up, and returns. ErrLost: somebody else may lead by now.
	Run(ctx context.Context, driver string, parts []*Part, patience time.Duration, start func(context.Context, *Part) error) error
	// Leads returns an error while a lease under which parts run isn't this process's any more, or was given up: nothing is
	// asked of the driver for them then.
	Leads() error
	// Migrated is a label of CSI calls: whether a volume came from an in-tree driver. Empty where none can.
	Migrated(context.Context) string
}

// ErrLost means that a lease was lost, so nothing may be finished in peace: another replica may be at work.
var ErrLost = errors.New("the lease was lost")

// options are the flags of every binary of this kind.
type options struct {
	controllers    string
	csiAddress     string
	httpEndpoint   string
	metricsAddress string
	metricsPath    string
	patience       time.Duration
	maxProcs       bool
	maxLog         int // letters of an answer in the log
	showVersion    bool
}

func (o *options) flags(f *Flags, byDefault string) {
	f.String(&o.controllers, "controllers", byDefault, "which controllers run: names with commas between them, `*` for all but those that must be named, -name for one less")
	f.String(&o.csiAddress, "csi-address", "/run/csi/socket", "the CSI driver's socket: a path, unix:///path or unix:path")
	f.String(&o.httpEndpoint, "http-endpoint", "", "`host:port` for metrics, /healthz, /healthz/<controller> and /readyz, for all controllers; none if empty")
	f.String(&o.metricsAddress, "metrics-address", "", "what --http-endpoint was called before")
	f.String(&o.metricsPath, "metrics-path", "/metrics", "where --http-endpoint has the metrics")
	f.Duration(&o.patience, "shutdown-timeout", 4*time.Second, "how long controllers may finish what they do after SIGTERM; then leases are released and the process ends. Keep it below the pod's grace period")
	f.Int(&o.maxLog, "max-grpc-log-length", -1, "`letters` of the driver's answers that are logged at level 5; -1 for all")
	f.Bool(&o.maxProcs, "automaxprocs", true, "accepted as upstream's binaries have it, without effect: Go keeps to the container's CPU limit by itself")
	f.Bool(&o.showVersion, "version", false, "print the version and exit")
}

// parse reads the command line into the flags, and returns the controllers that are on.
func (c *Command) parse(args []string) ([]Controller, error) {
	c.declare()
	if err := c.table.parse(args); err != nil {
		return nil, err
	}
	if c.showVersion { // whatever else is missing
		return nil, errVersion
	}
	on, err := choose(c.controllers, c.Controllers)
	if err != nil {
		return nil, err
	}
	isOn := func(name string) bool { return slices.Contains(names(on), name) }
	if err := c.table.settle(isOn); err != nil {
		return nil, err
	}
	return on, c.validate(on)
}

// errVersion means that nothing is asked for but the version.
var errVersion = errors.New("only the version is asked for")

// Check reports what is wrong with a command line, without running anything. A command is for one command line only.
func (c *Command) Check(args []string) error {
	_, err := c.parse(args)
	return err
}

// declare fills the table, once.
func (c *Command) declare() {
	if len(c.table.entries) > 0 {
		return
	}
	if c.Logging == nil {
		c.Logging = &plainLog{}
	}
	all := &Flags{table: &c.table}
	c.options.flags(all, cmp.Or(c.Default, "*"))
	if c.Cluster != nil {
		c.Cluster.Flags(all)
	}
	c.Logging.Flags(all)
	for _, k := range c.Controllers {
		k.Flags(&Flags{table: &c.table, owner: k.Name()})
	}
}

func (c *Command) validate(on []Controller) error {
	if c.metricsAddress != "" && c.httpEndpoint != "" {
		return errors.New("--metrics-address is the old name of --http-endpoint: say only one of them")
	}
	c.httpEndpoint = cmp.Or(c.httpEndpoint, c.metricsAddress)
	if _, err := socketPath(c.csiAddress); err != nil {
		return err
	}
	if c.metricsPath == "" || c.metricsPath[0] != '/' || c.metricsPath == "/readyz" || strings.HasPrefix(c.metricsPath, "/healthz") {
		return fmt.Errorf("--metrics-path=%s: it must begin with /, and not be where health is", c.metricsPath)
	}
	if c.patience < 0 {
		return fmt.Errorf("--shutdown-timeout=%v: it can't be negative", c.patience)
	}
	if c.Cluster != nil {
		if err := c.Cluster.Validate(on); err != nil {
			return err
		}
	}
	for _, k := range on {
		if err := k.Validate(); err != nil {
			return fmt.Errorf("%s: %w", k.Name(), err)
		}
	}
	return nil
}

// Main is the program: it returns the exit code. 2 means that the command line is wrong and nothing was touched.
func (c *Command) Main(args []string) int {
	sub, args := subcommand(args)
	switch sub {
	case "help":
		return c.end(flag.ErrHelp)
	case "version":
		return c.end(errVersion)
	case "":
		return c.start(args)
	}
	more, known := c.More[sub]
	if !known {
		return c.end(fmt.Errorf("there is no command %q: help lists them", sub))
	}
	c.declare()
	if more.Flags != nil {
		more.Flags(&Flags{table: &c.table, apart: true})
	}
	on, err := c.parse(args)
	if err == nil {
		err = more.Run(on, c.table.given, os.Stdout)
	}
	return c.end(err)
}

// end says why nothing is run, or not any more, and returns the exit code for it.
func (c *Command) end(err error) int {
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		c.Help(os.Stdout)
	case errors.Is(err, errVersion):
		fmt.Println(c.Name, Version())
	case errors.Is(err, ErrDone):
		fmt.Println(err)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
		return 2
	}
	return 0
}

// start runs the controllers.
func (c *Command) start(args []string) int {
	on, err := c.parse(args)
	if err != nil {
		return c.end(err)
	}
	log, err := c.Logging.Apply()
	if err != nil {
		return c.end(err)
	}
	startLog(log)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return c.run(klog.NewContext(ctx, klog.Background()), on)
}

// subcommand takes a first word that is no flag off the arguments.
func subcommand(args []string) (string, []string) {
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		return args[0], args[1:]
	}
	return "", args
}

// version is set by the build of images: -ldflags "-X github.com/causeway-csi/causeway/sidecars/internal/sidecar.version=v1.2.3".
var version = ""

// Release is the version of a release, which is also the tag of its images. It is "dev" for any
// other build.
func Release() string { return cmp.Or(version, "dev") }

// Version is what the build said, or the module's, with the commit where it is known.
func Version() string {
	if version != "" {
		return version + " " + runtime.Version()
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := cmp.Or(info.Main.Version, "(devel)")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v + " " + runtime.Version()
}
