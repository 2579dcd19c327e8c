package csidriver

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/internal/logsafe"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// options are the values of the flags, with defaults for missing flags. A test compares
// docs/reference/flags.md with the flags.
type options struct {
	program      Program
	command      string // name of the program in messages
	mode         mode
	peers        peerFlags
	endpoint     string
	allowTCP     bool
	driverName   string
	nodeID       string
	backend      string
	kubeletDir   string
	stateDir     string
	httpEndpoint string
	logFormat    string
	verbosity    int
	drain        time.Duration
	block        int64 // bytes
	showVersion  bool
}

// flags declares the flags of p on set. Errors: a flag that is defined twice.
func (o *options) flags(p Program, set *flag.FlagSet) error {
	o.program = p
	o.common(set)
	for _, b := range p.Backends {
		if err := b.flags(set); err != nil {
			return err
		}
	}
	return nil
}

// flags declares the flags of b on set. Errors: a flag that is defined twice.
func (b Backend) flags(set *flag.FlagSet) (err error) {
	if b.Flags == nil {
		return nil
	}
	own := flag.NewFlagSet("", flag.ContinueOnError)
	own.SetOutput(io.Discard)
	defer func() { // package flag panics
		if v := recover(); v != nil {
			err = fmt.Errorf("invalid program: flags of backend %q: %v", b.Name, v)
		}
	}()
	b.Flags(own)
	own.VisitAll(func(f *flag.Flag) {
		if set.Lookup(f.Name) != nil && err == nil {
			err = fmt.Errorf("invalid program: flag --%s of backend %q is defined twice", f.Name, b.Name)
		}
		if err == nil {
			set.Var(f.Value, f.Name, f.Usage)
		}
	})
	return err
}

// common declares the flags of every driver.
func (o *options) common(set *flag.FlagSet) {
	set.StringVar((*string)(&o.mode), "mode", string(modeAll),
		"Services that this process runs. all: every service, for one machine. controller: the services for the "+
			"sidecars of a cluster. node: the services for the kubelet. See docs/explanation/router.md.")
	o.peers.flags(set)
	set.StringVar(&o.endpoint, "endpoint", "",
		"CSI endpoint: `unix:///path.sock`, or tcp://host:port with --allow-tcp (default: $CSI_ENDPOINT, else "+
			"unix://<kubelet-dir>/plugins/<driver-name>/csi.sock)")
	set.BoolVar(&o.allowTCP, "allow-tcp", false,
		"Permit a TCP endpoint. TCP has no protection of its own: only for tests on one machine.")
	set.StringVar(&o.driverName, "driver-name", "",
		"Driver `name`, as in CSIDriver objects and StorageClasses (default: "+o.program.defaultNames()+")")
	set.StringVar(&o.nodeID, "node-id", "", "Node `name` in Kubernetes (default: the host name)")
	set.StringVar(&o.backend, "backend", o.program.Backends[0].Name,
		"Backend that stores the volumes: "+o.program.backendNames())
	set.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet",
		"Kubelet `directory`. The driver mounts nothing outside it.")
	set.StringVar(&o.stateDir, "state-dir", "",
		"State `directory` for records of staged volumes and of the root. It must survive a reboot (default: "+
			"<kubelet-dir>/plugins/<driver-name>.state)")
	set.StringVar(&o.httpEndpoint, "http-endpoint", "",
		"Address `host:port` for /metrics, /healthz and /readyz (default: none)")
	set.Int64Var(&o.block, "metadata-block-size", 0,
		"Length in `bytes` of the ranges that SnapshotMetadata reports: a multiple of 4096. With 0, ranges have any "+
			"length, which takes fewer messages.")
	set.StringVar(&o.logFormat, "log-format", "text", "Format of the log: text or json.")
	set.IntVar(&o.verbosity, "v", 0,
		"Verbosity of the log. 0: each call that changes something. 4: each call, with its "+
			"redacted request and response. -4: warnings and errors only.")
	set.DurationVar(&o.drain, "drain-timeout", 20*time.Second, "Maximum time for calls in progress after SIGTERM.")
	set.BoolVar(&o.showVersion, "version", false, "Print the version and exit.")
}

// parse parses the command line, and checks everything that can be checked without access to the
// machine. Usage goes to env.Stderr.
func parse(p Program, args []string, env Environment) (options, error) {
	o := options{command: env.Command}
	set := flag.NewFlagSet(env.Command, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	if err := o.flags(p, set); err != nil {
		return o, err
	}
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(set, env)
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (--help lists the flags)", err)
	case set.NArg() > 0:
		return o, fmt.Errorf("%q is neither a flag nor a command: flags start with --, switches take no value after "+
			"a space, and the commands are certs, list and show (--help lists all)", set.Arg(0))
	case o.showVersion:
		return o, nil
	}
	if err := o.setDefaults(env.Getenv); err != nil {
		return o, err
	}
	return o, o.check()
}

func usage(set *flag.FlagSet, env Environment) {
	fmt.Fprintf(env.Stderr, "%s is a CSI driver. Flags:\n", env.Command)
	listFlags(set, env.Stderr)
	fmt.Fprintf(env.Stderr, "Other commands, each with --help:\n  %[1]s certs\n    \tcreates certificates for the "+
		"router and for nodes\n  %[1]s list\n    \tprints the volumes and snapshots of a running "+
		"driver as JSON\n"+
		"  %[1]s show\n    \tprints the path, the record and the mounts of a volume on this node as JSON\n",
		env.Command)
}

// listFlags lists the flags, each with two dashes.
func listFlags(set *flag.FlagSet, out io.Writer) {
	set.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		fmt.Fprintf(out, "  --%s %s\n    \t%s", f.Name, value, text)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(out, " (default: %s)", f.DefValue)
		}
		fmt.Fprintln(out)
	})
}

// setDefaults sets missing values that depend on other flags, the environment or the machine.
func (o *options) setDefaults(getenv func(string) string) error {
	plugins := filepath.Join(o.kubeletDir, "plugins")
	if chosen, ok := o.program.backend(o.backend); ok {
		o.driverName = cmp.Or(o.driverName, o.program.driverName(chosen))
	}
	o.endpoint = cmp.Or(o.endpoint, getenv("CSI_ENDPOINT"), "unix://"+filepath.Join(plugins, o.driverName, "csi.sock"))
	o.stateDir = cmp.Or(o.stateDir, filepath.Join(plugins, o.driverName+".state"))
	if o.nodeID == "" {
		name, err := os.Hostname()
		if err != nil {
			return errors.Join(errors.New("--node-id is required: this machine has no host name"), err)
		}
		o.nodeID = name
	}
	return nil
}

// check returns an error for values that are always invalid, and cleans paths.
func (o *options) check() error {
	if err := cmp.Or(cleanPath("kubelet-dir", &o.kubeletDir), cleanPath("state-dir", &o.stateDir)); err != nil {
		return err
	}
	if _, ok := o.program.backend(o.backend); !ok {
		return fmt.Errorf("invalid --backend %q: must be one of %s", o.backend, o.program.backendNames())
	}
	if err := o.checkBackend(); err != nil {
		return err
	}
	if err := o.checkMode(); err != nil {
		return err
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("invalid --log-format %q: must be text or json", o.logFormat)
	}
	if o.drain < 0 {
		return fmt.Errorf("invalid --drain-timeout %s: must not be negative", o.drain)
	}
	if err := driver.CheckMetadataBlock(o.block); err != nil {
		return fmt.Errorf("--metadata-block-size: %w", err)
	}
	if err := driver.CheckName(o.driverName); err != nil {
		return fmt.Errorf("--driver-name: %w", err)
	}
	if err := volumeid.CheckNode(o.nodeID); err != nil {
		return fmt.Errorf("--node-id: %w", err)
	}
	if err := driver.CheckEndpoint(o.endpoint, o.allowTCP); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	if _, _, err := net.SplitHostPort(o.httpEndpoint); o.httpEndpoint != "" && err != nil {
		return fmt.Errorf("--http-endpoint: %w", err)
	}
	return nil
}

// cleanPath cleans the path in a flag. Errors: a path that is not absolute.
func cleanPath(flag string, path *string) error {
	if !filepath.IsAbs(*path) {
		return fmt.Errorf("invalid --%s %q: must be an absolute path", flag, *path)
	}
	*path = filepath.Clean(*path)
	return nil
}

// checkBackend calls Check of the chosen backend.
func (o *options) checkBackend() error {
	if b := o.chosen(); b.Check != nil {
		return b.Check(o.config())
	}
	return nil
}

// chosen returns the backend of --backend, which check has validated.
func (o *options) chosen() Backend {
	b, _ := o.program.backend(o.backend)
	return b
}

// config returns the Config of the flags.
func (o *options) config() Config {
	return Config{
		DriverName: o.driverName, Version: o.program.version(), NodeID: o.nodeID,
		KubeletDir: o.kubeletDir, StateDir: o.stateDir,
		Controller: o.mode != modeNode || o.nodeLocal(),
	}
}

// logger returns the logger that the flags describe.
func (o options) logger(out io.Writer) *slog.Logger {
	handler := &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(logsafe.JSON(out), handler))
	}
	return slog.New(slog.NewTextHandler(out, handler))
}
