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

// Command is a binary: its registry of controllers, and the parts that they share.
type Command struct {
	Name        string       // of the binary
	Controllers []Controller // all controllers of the binary
	Default     string       // default of --controllers
	Logging     Logging      // nil: the text or JSON of klog
	Cluster     Cluster      // nil if no controller needs an API server
	// More has further subcommands, by name.
	More map[string]Subcommand

	table table
	options
}

// Subcommand is a command of the binary that prints something and starts no controller.
type Subcommand struct {
	About string
	Flags func(*Flags) // declares the flags of this command alone; may be nil
	// Run gets the controllers that --controllers selects, and the arguments without the flags of
	// this command.
	Run func(on []Controller, args []string, out io.Writer) error
}

// Cluster is the part that controllers for Kubernetes share: clients, informers, elections.
type Cluster interface {
	Flags(*Flags)
	// Validate returns an error for flags that contradict each other. on are the selected
	// controllers.
	Validate(on []Controller) error
	// Connect makes clients. Controllers are built after it. fail gets later errors that belong to
	// no controller.
	Connect(ctx context.Context, s *Server, driver string, fail func(error)) error
	// Run reports when the process is ready; a process that waits for leadership is. Run calls
	// start for each part with a context that lasts while the part leads, until ctx is done. Then
	// it waits for the parts, for patience at most, releases its leases, and returns. Errors:
	// ErrLost if another process may lead.
	Run(ctx context.Context, driver string, parts []*Part, patience time.Duration,
		start func(context.Context, *Part) error) error
	// Leads returns an error after this process has lost or released a lease under which parts run.
	// No CSI call is made for them then.
	Leads() error
	// Migrated returns a label of CSI calls: whether the volume is migrated from an in-tree driver,
	// or "".
	Migrated(context.Context) string
}

// ErrLost reports that a lease was lost. Controllers must stop at once: another replica may lead.
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
	maxLog         int // bytes of a response in the log
	showVersion    bool
}

func (o *options) flags(f *Flags, byDefault string) {
	f.String(&o.controllers, "controllers", byDefault,
		"controllers to run: a comma-separated list of names; `*` for all controllers that need not be "+
			"named, -name to exclude a controller")
	f.String(&o.csiAddress, "csi-address", "/run/csi/socket",
		"the CSI driver's socket: a path, unix:///path or unix:path")
	f.String(&o.httpEndpoint, "http-endpoint", "",
		"`host:port` for metrics, /healthz, /healthz/<controller> and /readyz, for all controllers; none if empty")
	f.String(&o.metricsAddress, "metrics-address", "", "deprecated: the old name of --http-endpoint")
	f.String(&o.metricsPath, "metrics-path", "/metrics", "path of the metrics at --http-endpoint")
	f.Duration(&o.patience, "shutdown-timeout", 4*time.Second,
		"time for which controllers may complete their work after SIGTERM; then leases are released and the "+
			"process ends. It must be shorter than the pod's grace period")
	f.Int(&o.maxLog, "max-grpc-log-length", -1,
		"maximum `length` of a driver's response in the log at level 5; -1: no limit")
	f.Bool(&o.maxProcs, "automaxprocs", true,
		"accepted for compatibility with upstream, without effect: Go respects the container's CPU limit")
	f.Bool(&o.showVersion, "version", false, "print the version and exit")
}

// parse parses the command line, and returns the selected controllers.
func (c *Command) parse(args []string) ([]Controller, error) {
	c.declare()
	if err := c.table.parse(args); err != nil {
		return nil, err
	}
	if c.showVersion { // even if required flags are missing
		return nil, errVersion
	}
	on, err := choose(c.controllers, c.Controllers)
	if err != nil {
		return nil, err
	}
	isOn := func(name string) bool { return slices.Contains(names(on), name) }
	if err := c.table.assign(isOn); err != nil {
		return nil, err
	}
	return on, c.validate(on)
}

// errVersion reports that the command line asks for the version.
var errVersion = errors.New("only the version is asked for")

// Check returns the error of a command line, without running anything. A Command parses a single
// command line.
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
		return errors.New("--metrics-address is the old name of --http-endpoint: set only --http-endpoint")
	}
	c.httpEndpoint = cmp.Or(c.httpEndpoint, c.metricsAddress)
	if _, err := socketPath(c.csiAddress); err != nil {
		return err
	}
	if c.metricsPath == "" || c.metricsPath[0] != '/' || c.metricsPath == "/readyz" ||
		strings.HasPrefix(c.metricsPath, "/healthz") {
		return fmt.Errorf("invalid --metrics-path %q: must begin with /, and be neither /readyz nor below /healthz",
			c.metricsPath)
	}
	if c.patience < 0 {
		return fmt.Errorf("invalid --shutdown-timeout %v: must not be negative", c.patience)
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

// Main runs the program and returns the exit code: 2 for an invalid command line, in which case
// nothing was changed.
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
		return c.end(fmt.Errorf("unknown command %q: help lists the commands", sub))
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

// end prints err, and returns its exit code.
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

// subcommand splits off the first argument if it is not a flag.
func subcommand(args []string) (string, []string) {
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		return args[0], args[1:]
	}
	return "", args
}

// version is set by the build of images: -ldflags "-X
// github.com/causeway-csi/causeway/sidecars/internal/sidecar.version=v1.2.3".
var version = ""

// Release returns the version of a release, which is also the tag of its images, or "dev" for other
// builds.
func Release() string { return cmp.Or(version, "dev") }

// Version returns the version from the build or from the module, the commit if known, and the
// version of Go.
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
