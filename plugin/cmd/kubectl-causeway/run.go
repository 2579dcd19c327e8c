package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/internal/logsafe"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/safe"
)

// Exit codes.
const (
	codeOK      = 0
	codeError   = 1
	codeUsage   = 2
	codeOrphans = 3
)

const usage = `Inspect an installation of Causeway.

  kubectl causeway status        versions, nodes, capacity, volumes, leaders and certificates
  kubectl causeway doctor        find faults, with cause, evidence, remedy and page
  kubectl causeway volume NAME   all about a claim, or about a PersistentVolume: pv/NAME
  kubectl causeway orphans       volumes and snapshots that no object names; --delete deletes them
  kubectl causeway bundle        write an archive for support: logs, objects, metrics, without secrets
  kubectl causeway version       print the version of this program

Each command has --help.
`

// errUsage reports an invalid command line.
var errUsage = errors.New("invalid command line")

// errCode is a result that is an exit code, and has been printed.
type errCode int

func (e errCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// streams are the standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// command is a command with its flags.
type command struct {
	usage string
	flags func(fs *pflag.FlagSet)
	run   func(ctx context.Context, s session, args []string) error
	// noOutput: the command rejects --output=json, and its help does not have the flag.
	noOutput bool
}

// session has the clients and the settings of a command.
type session struct {
	streams
	client    cluster.Client
	config    *rest.Config
	namespace string // of the kubeconfig or --namespace
	selection cluster.Selection
	output    string
}

// connector returns the clients of a configuration.
type connector func(*rest.Config) (cluster.Client, error)

func connect(config *rest.Config) (cluster.Client, error) { return cluster.NewClient(config) }

func commands() map[string]command {
	return map[string]command{
		"status": statusCommand(), "doctor": doctorCommand(), "orphans": orphansCommand(), "volume": volumeCommand(),
		"bundle": bundleCommand(),
	}
}

// run runs a command line, and returns the exit code.
func run(ctx context.Context, args []string, s streams, connect connector) int {
	err := dispatch(ctx, args, s, connect)
	var code errCode
	switch {
	case err == nil || errors.Is(err, pflag.ErrHelp):
		return codeOK
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintf(s.err, "kubectl causeway: %s\n", lines(err))
	if errors.Is(err, errUsage) {
		return codeUsage
	}
	return codeError
}

// lines returns the text of an error. Each further line is indented. The text can be that of a
// node.
func lines(err error) string {
	all := strings.Split(err.Error(), "\n")
	for i := range all {
		all[i] = safe.Text(all[i])
	}
	return strings.Join(all, "\n  ")
}

// dispatch parses the command line and runs the command.
func dispatch(ctx context.Context, args []string, s streams, connect connector) error {
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		fmt.Fprint(s.out, usage)
		if len(args) == 0 {
			return errCode(codeUsage)
		}
		return nil
	}
	if args[0] == "version" || args[0] == "--version" {
		fmt.Fprintln(s.out, version)
		return nil
	}
	c, ok := commands()[args[0]]
	if !ok {
		return fmt.Errorf("%w: unknown command %q: see --help", errUsage, args[0])
	}
	fs := pflag.NewFlagSet("kubectl causeway "+args[0], pflag.ContinueOnError)
	fs.SetOutput(s.out)
	fs.SortFlags = false
	fs.Usage = func() { fmt.Fprint(s.out, c.usage, "\nFlags:\n", fs.FlagUsages()) }
	c.flags(fs)
	g := &globals{}
	g.flags(fs)
	fs.Lookup("output").Hidden = c.noOutput
	if err := fs.Parse(args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	session, err := g.open(s, connect)
	if err != nil {
		return err
	}
	return c.run(ctx, session, fs.Args())
}

// globals are the flags of all commands.
type globals struct {
	kubeconfig      string
	overrides       clientcmd.ConfigOverrides
	release, driver string
	output          string
}

func (g *globals) flags(fs *pflag.FlagSet) {
	fs.StringVar(&g.release, "release", "", "Helm release of the installation; default: all")
	fs.StringVar(&g.driver, "driver", "", "name of the CSI driver; default: all of Causeway")
	fs.StringVarP(&g.output, "output", "o", "text", "format: text or json")
	fs.StringVar(&g.kubeconfig, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&g.overrides, fs, clientcmd.RecommendedConfigOverrideFlags(""))
}

// open connects to the cluster.
func (g *globals) open(s streams, connect connector) (session, error) {
	if g.output != "text" && g.output != "json" {
		return session{}, fmt.Errorf("%w: invalid --output %q: must be text or json", errUsage, g.output)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = g.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &g.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return session{}, err
	}
	client, err := connect(config)
	if err != nil {
		return session{}, err
	}
	namespace, _, err := loader.Namespace()
	return session{streams: s, client: client, config: config, namespace: namespace, output: g.output,
		selection: cluster.Selection{Namespace: g.overrides.Context.Namespace, Release: g.release,
			Driver: g.driver}}, err
}

// printed is a report that has a format as text. Its fields are those of its JSON.
type printed interface {
	Text(out io.Writer) error
}

// print prints a report in the format of --output. Its texts are of other users.
func (s session) print(r printed) error {
	if s.output == "json" {
		e := json.NewEncoder(logsafe.JSON(s.out))
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.Text(s.out)
}

// noArguments returns an error if there are arguments.
func noArguments(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: unexpected arguments: %s", errUsage, strings.Join(args, " "))
	}
	return nil
}
