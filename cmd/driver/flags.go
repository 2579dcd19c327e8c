package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/causeway-csi/causeway/pkg/driver"
)

// options are the flags, with defaults filled in. docs/flags.md is made from their usage.
type options struct {
	endpoint     string
	allowTCP     bool
	driverName   string
	nodeID       string
	backend      string
	root         string
	adoptRoot    bool
	kubeletDir   string
	stateDir     string
	httpEndpoint string
	logFormat    string
	verbosity    int
	drain        time.Duration
	showVersion  bool
}

// flags declares the flags on set.
func (o *options) flags(set *flag.FlagSet) {
	set.StringVar(&o.endpoint, "endpoint", "", "where CSI is served: `unix:///path.sock`, or tcp://host:port with --allow-tcp (default: $CSI_ENDPOINT, else unix://<kubelet-dir>/plugins/<driver-name>/csi.sock)")
	set.BoolVar(&o.allowTCP, "allow-tcp", false, "permit a TCP endpoint, which has no protection of its own: for trials on one machine")
	set.StringVar(&o.driverName, "driver-name", "hostpath.csi.causeway.dev", "name of the driver, as in CSIDriver objects and storage classes")
	set.StringVar(&o.nodeID, "node-id", "", "`name` of this node, as Kubernetes knows it (default: the host name)")
	set.StringVar(&o.backend, "backend", "hostpath", "where volumes are kept: hostpath")
	set.StringVar(&o.root, "root", "/var/lib/causeway", "hostpath: `directory` that holds the volumes; it must exist, and is best a filesystem of its own")
	set.BoolVar(&o.adoptRoot, "adopt-root", false, "hostpath: serve --root even if it isn't the one that was served before; say it once, then take it away")
	set.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `directory`: nothing is mounted outside it")
	set.StringVar(&o.stateDir, "state-dir", "", "`directory` for what is remembered about staged volumes and the root (default: <kubelet-dir>/plugins/<driver-name>.state)")
	set.StringVar(&o.httpEndpoint, "http-endpoint", "", "`host:port` for /metrics, /healthz and /readyz (default: none)")
	set.StringVar(&o.logFormat, "log-format", "text", "text or json")
	set.IntVar(&o.verbosity, "v", 0, "0 logs each call that changes something, 4 each call with its redacted request and response, -4 only trouble")
	set.DurationVar(&o.drain, "drain-timeout", 20*time.Second, "how long running calls may go on after SIGTERM")
	set.BoolVar(&o.showVersion, "version", false, "print the version and exit")
}

// parse reads the command line. Usage goes to out.
func parse(args []string, getenv func(string) string, out io.Writer) (options, error) {
	var o options
	set := flag.NewFlagSet("driver", flag.ContinueOnError)
	set.SetOutput(out)
	o.flags(set)
	if err := set.Parse(args); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag: flags start with --, and switches take no value after a space", set.Arg(0))
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return o, fmt.Errorf("--log-format=%s: only text and json are known", o.logFormat)
	}
	if err := driver.CheckName(o.driverName); err != nil {
		return o, fmt.Errorf("--driver-name: %w", err)
	}
	for name, dir := range map[string]string{"kubelet-dir": o.kubeletDir, "root": o.root} {
		if !filepath.IsAbs(dir) {
			return o, fmt.Errorf("--%s=%s: the path is not absolute", name, dir)
		}
	}
	o.kubeletDir, o.root = filepath.Clean(o.kubeletDir), filepath.Clean(o.root)
	plugins := filepath.Join(o.kubeletDir, "plugins")
	o.endpoint = cmp.Or(o.endpoint, getenv("CSI_ENDPOINT"), "unix://"+filepath.Join(plugins, o.driverName, "csi.sock"))
	o.stateDir = cmp.Or(o.stateDir, filepath.Join(plugins, o.driverName+".state"))
	if !filepath.IsAbs(o.stateDir) {
		return o, fmt.Errorf("--state-dir=%s: the path is not absolute", o.stateDir)
	}
	if o.nodeID == "" {
		name, err := os.Hostname()
		if err != nil {
			return o, errors.Join(errors.New("--node-id is needed: this machine has no host name"), err)
		}
		o.nodeID = name
	}
	return o, nil
}

// logger returns the logger that the flags describe.
func (o options) logger(out io.Writer) *slog.Logger {
	handler := &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, handler))
	}
	return slog.New(slog.NewTextHandler(out, handler))
}

// version is set by the release build: -ldflags "-X main.version=v1.2.3".
var version = ""

// release returns the version of this build.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(info.Main.Version, "(devel)")
	}
	return "(devel)"
}

func versionLine() string {
	return fmt.Sprintf("causeway driver %s, CSI v1.13.0, %s %s/%s", release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
