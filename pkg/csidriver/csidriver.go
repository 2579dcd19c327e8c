// Package csidriver is the program around a backend: a driver author registers the backend and
// gets a CSI driver with flags, endpoints, metrics, traces, signals and, for storage on nodes, a
// router.
//
// A whole program:
//
//	func main() {
//		csidriver.Main(csidriver.Program{
//			Name:    "disk.csi.example.com",
//			Version: version,
//			Backends: []csidriver.Backend{{
//				Name:  "disk",
//				Flags: flags,
//				Open:  open,
//			}},
//		})
//	}
//
// The flags of every driver are in docs/reference/flags.md of this module. A program also has the
// commands certs, list and show, each with --help.
package csidriver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// Program describes a driver.
type Program struct {
	// Name is the default of --driver-name: a domain name of at most 63 bytes that belongs to the
	// author (CSI spec v1.13, GetPluginInfo). Every PersistentVolume has this name, so it must
	// never change.
	Name string

	// Version is the vendor_version of GetPluginInfo. "" is the version of the main module in the
	// build information.
	Version string

	// Backends are the values of --backend. The first is the default. At least one is required.
	Backends []Backend
}

// Backend registers a kind of storage with a Program.
type Backend struct {
	// Name is the value of --backend: letters, digits and "-".
	Name string

	// DriverName is the default of --driver-name with this backend. "" is Program.Name.
	DriverName string

	// Type is a nil pointer of the type that Open returns, or nil. A process without an open
	// backend, such as a router, reads the capabilities of the backend from Type. Type is required
	// if Open returns a backend.NodeLocal.
	Type backend.Backend

	// Flags declares the flags of the backend, or is nil. A program has the flags of all its
	// backends, whichever is chosen, so each usage text starts with the name of the backend.
	Flags func(set *flag.FlagSet)

	// Check returns an error that names an invalid flag. Check may be nil. The program calls Check
	// before it changes anything on the machine, and again when the state directory exists. Images
	// and Log of c are nil.
	Check func(c Config) error

	// Open opens the storage. A process that serves the backend calls Open once. If the result is
	// an io.Closer, it is closed after the last call.
	Open func(c Config) (backend.Backend, error)

	// Describe returns the path and the record of a volume on this node, for the command show,
	// which runs beside the driver. It changes nothing and opens no backend. Describe may be nil.
	Describe func(c Config, id string) (Description, error)

	// Helpers is only for the backends of Causeway, because the type is internal to this module.
	Helpers []helper.Task
}

// Config is the part of the command line that is common to all backends.
type Config struct {
	DriverName string // as GetPluginInfo returns it
	Version    string // as GetPluginInfo returns it
	NodeID     string // name of this node in Kubernetes; not a path, at most 256 bytes
	KubeletDir string // absolute path: nothing is mounted outside it
	StateDir   string // absolute path of a directory that survives a reboot; not below the storage

	// Controller reports whether this process serves the controller services. With --mode=node it
	// does so only for a backend.NodeLocal. If Controller is false, and the backend is an Attacher
	// whose volumes are disks (mounter.BlockDevice), only Mount and NodeLimit are called. Such a
	// process needs no access to the storage.
	Controller bool

	// Images accesses the images of this node. It is nil with --mode=controller.
	Images mounter.Images

	// Log is the program's log.
	Log *slog.Logger
}

// Description has the path and the record of a volume on a node.
type Description struct {
	Path   string          // of the data, on the node
	Record json.RawMessage // the driver's record, or nil
}

// Environment has the inputs and outputs of a program besides its arguments.
type Environment struct {
	Command        string // name of the program in messages
	Getenv         func(key string) string
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Set by Main only, because they affect the whole process.
	exit      func(code int)
	gcPercent func(percent int) int
}

// Exit codes of Run.
const (
	exitOK    = 0
	exitError = 1 // the driver cannot continue
	exitUsage = 2 // invalid arguments or an invalid Program; nothing was changed
)

// Main runs p with the arguments, the environment and the signals of the process, and exits. It
// must be the first call in the function main, because the process may be a helper of another
// process. SIGTERM and SIGINT end the driver after the calls in progress, at the latest after
// --drain-timeout. A second signal ends the driver at once.
func Main(p Program) {
	tasks := [][]helper.Task{host.HelperTasks()}
	for _, b := range p.Backends {
		tasks = append(tasks, b.Helpers)
	}
	helper.Main(tasks...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(Run(ctx, p, os.Args[1:], Environment{
		Command: strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"),
		Getenv:  os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		exit: os.Exit, gcPercent: debug.SetGCPercent,
	}))
}

// Run runs p until ctx is done and returns the exit code: 0; 1 if the driver cannot continue; 2 if
// args or p is invalid, in which case nothing on the machine was changed. The reason is written to
// env.Stderr. Images need helper processes, which only a process that calls Main can start.
func Run(ctx context.Context, p Program, args []string, env Environment) int {
	if err := p.check(); err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitUsage
	}
	if len(args) > 0 && args[0] == "certs" {
		return certs(args[1:], env)
	}
	if len(args) > 0 && args[0] == "list" {
		return list(p, args[1:], env)
	}
	if len(args) > 0 && args[0] == "show" {
		return show(p, args[1:], env)
	}
	o, err := parse(p, args, env)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitUsage
	case o.showVersion:
		fmt.Fprintln(env.Stdout, p.versionLine(env.Command))
		return exitOK
	}
	env.tune(gcPercent)
	log := o.logger(env.Stderr)
	logLibraries(log)
	if err := run(ctx, o, log, env.exit); err != nil {
		log.Error("the driver ends after an error", "error", err)
		return exitError
	}
	return exitOK
}

// check returns an error if p is invalid.
func (p Program) check() error {
	if len(p.Backends) == 0 {
		return errors.New("invalid program: no backend, must have at least one")
	}
	names := map[string]bool{}
	for i, b := range p.Backends {
		switch {
		case b.Name == "" || strings.Trim(b.Name, nameCharacters) != "":
			return fmt.Errorf("invalid program: invalid name %q of backend %d: must be letters, digits and \"-\"",
				b.Name, i)
		case names[b.Name]:
			return fmt.Errorf("invalid program: two backends have the name %q", b.Name)
		case b.Open == nil:
			return fmt.Errorf("invalid program: backend %q has no function Open", b.Name)
		}
		names[b.Name] = true
		if err := driver.CheckName(p.driverName(b)); err != nil {
			return fmt.Errorf("invalid program: backend %q: %w", b.Name, err)
		}
	}
	return new(options).flags(p, flag.NewFlagSet("", flag.ContinueOnError))
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"

// driverName returns the default of --driver-name with b.
func (p Program) driverName(b Backend) string {
	if b.DriverName != "" {
		return b.DriverName
	}
	return p.Name
}

// defaultNames returns the defaults of --driver-name, as a text for users.
func (p Program) defaultNames() string {
	if len(p.Backends) == 1 {
		return p.driverName(p.Backends[0])
	}
	var names []string
	for _, b := range p.Backends {
		names = append(names, p.driverName(b)+" with --backend="+b.Name)
	}
	return strings.Join(names, ", ")
}

// backendNames returns the names of all backends, as a text for users.
func (p Program) backendNames() string {
	var names []string
	for _, b := range p.Backends {
		names = append(names, b.Name)
	}
	return strings.Join(names, ", ")
}

// backend returns the backend with this name.
func (p Program) backend(name string) (Backend, bool) {
	i := slices.IndexFunc(p.Backends, func(b Backend) bool { return b.Name == name })
	if i < 0 {
		return Backend{}, false
	}
	return p.Backends[i], true
}

// version returns the version of this build.
func (p Program) version() string {
	if p.Version != "" {
		return p.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(info.Main.Version, "(devel)")
	}
	return "(devel)"
}

func (p Program) versionLine(command string) string {
	return fmt.Sprintf("%s %s, CSI v1.13.0, %s %s/%s", command, p.version(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

// tune sets the percentage of the garbage collector, unless GOGC is set or the process runs other
// code, too.
func (e Environment) tune(percent int) {
	if e.gcPercent != nil && e.Getenv("GOGC") == "" {
		e.gcPercent(percent)
	}
}
