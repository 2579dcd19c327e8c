// Command e2e runs Kubernetes' external storage suite with the driver in a cluster: a cluster that
// it starts and ends, or an existing cluster. docs/contributing/e2e.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"

	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/providers"
)

// options are the command line's.
type options struct {
	cluster       providers.Choice
	kinds, config string
	definition    string
	full, keep    bool
	focus, skip   string
	install       string
	nodes         int
	runs, procs   int
	report        string
}

// The scopes of a run.
const (
	smoke = "smoke"
	focus = "focus"
	full  = "full"
)

func (o options) scope() string {
	switch {
	case o.full:
		return full
	case o.focus != "":
		return focus
	}
	return smoke
}

// flags adds the flags to set.
func (o *options) flags(set *flag.FlagSet) {
	o.cluster.Flags(set, "the cluster's name; one of that name that is there is ended first")
	set.StringVar(&o.kinds, "kinds", "directory,image",
		"which of our configurations: directory and image with a comma, or smb, which has another cluster")
	set.StringVar(&o.config, "config", "", "the `directory` of a configuration, instead of ours")
	set.StringVar(&o.definition, "definition", "",
		"a driver definition, instead of our configurations: the `file` that upstream's -storage.testdriver takes, "+
			"for a driver that is installed")
	set.BoolVar(&o.full, "full", false,
		"run every spec, those too that must run alone or stop kubelets; without it, one of each suite")
	set.StringVar(&o.focus, "focus", "",
		"run the specs whose names match this `pattern`, but for those that must run alone, unless --procs=1")
	set.StringVar(&o.skip, "skip", "", "leave out the specs whose names match this `pattern`")
	set.StringVar(&o.install, "install", "",
		"yes or no: whether to put the driver of these sources into the cluster; by default no for an existing "+
			"cluster and for --definition, else yes")
	set.IntVar(&o.nodes, "nodes", 0,
		"Linux nodes that the cluster has, at least if it is an existing one; by default 2, or 1 for an existing one")
	set.IntVar(&o.runs, "runs", 1, "how often each configuration is run; all runs must be good")
	set.IntVar(&o.procs, "procs", 8, "how many specs run at the same time: they wait more than they compute")
	set.StringVar(&o.report, "report", "",
		"the `directory` for results, logs and ginkgo's reports; by default, bin/e2e of these sources")
	set.BoolVar(&o.keep, "keep", false,
		"leave the cluster as it is at the end, and take one that is up as it is, with its driver if it has one")
}

// complete sets flags that depend on others. Errors: invalid flags or combinations.
func (o *options) complete() error {
	isExisting := o.cluster.Provider == "existing"
	if o.runs < 1 || o.procs < 1 || o.nodes < 0 {
		return errors.New("--runs, --procs and --nodes: at least 1")
	}
	if o.nodes == 0 && isExisting {
		o.nodes = 1
	} else if o.nodes == 0 {
		o.nodes = 2
	}
	if o.install == "" && (isExisting || o.definition != "") {
		o.install = "no"
	}
	for _, p := range []string{o.focus, o.skip} {
		if p == "" {
			continue
		}
		if err := checkPattern(p); err != nil {
			return err
		}
	}
	switch {
	case o.definition != "" && o.config != "":
		return errors.New("--definition and --config: say one; a configuration has a definition")
	case o.full && o.focus != "":
		return errors.New("--full and --focus: say one")
	case o.definition != "" && !o.full && o.focus == "":
		return errors.New("--definition: say --full or --focus=PATTERN; only a configuration has a list of specs for " +
			"a short run")
	case o.definition != "" && o.install == "no" && !isExisting && !o.keep:
		return errors.New("--definition: say --keep, or the cluster is started anew, without the driver; or " +
			"--install=yes for the driver of these sources")
	}
	return nil
}

func main() {
	local.Main()
	o := options{cluster: providers.Choice{Name: "e2e"}}
	o.flags(flag.CommandLine)
	flag.Parse()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader may leave; the cluster is ended nevertheless
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	if err := start(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		stop()
		os.Exit(1)
	}
}

// start runs the command line.
func start(ctx context.Context, o options) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("%q: there are flags only", flag.Args())
	}
	if err := o.complete(); err != nil {
		return err
	}
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return errors.New("this was built with -trimpath: it does not know where its sources are")
	}
	here := filepath.Dir(file)
	if o.report == "" {
		o.report = filepath.Join(here, "..", "..", "bin", "e2e")
	}
	var err error
	if o.report, err = filepath.Abs(o.report); err != nil {
		return err
	}
	configs, err := chooseConfigs(o, here)
	if err != nil {
		return err
	}
	var logs []string // all namespaces: a driver's own is unknown
	if o.definition == "" {
		logs = []string{install.Namespace}
	}
	p, err := o.cluster.Open(existing.Options{Log: os.Stderr, Namespaces: logs})
	if err != nil {
		return err
	}
	installs, err := installs(o)
	if err != nil {
		return err
	}
	r := &run{options: o, provider: p, configs: configs, installs: installs}
	return r.all(ctx)
}

func chooseConfigs(o options, here string) ([]config, error) {
	read, paths := readConfig, []string{}
	switch {
	case o.definition != "":
		read, paths = readDefinition, []string{o.definition}
	case o.config != "":
		paths = []string{o.config}
	default:
		for kind := range strings.SplitSeq(o.kinds, ",") {
			paths = append(paths, filepath.Join(here, "configs", directory(kind)))
		}
	}
	var all []config
	for _, path := range paths {
		c, err := read(path)
		if err != nil {
			return nil, err
		}
		c.choose(o.focus, o.skip)
		if len(c.Smoke) == 0 && !o.full {
			return nil, fmt.Errorf("%s: expected.yaml has no specs for smoke: say --full or --focus=PATTERN", path)
		}
		all = append(all, c)
	}
	for _, c := range all {
		if !reflect.DeepEqual(c.cluster, all[0].cluster) {
			return nil, fmt.Errorf("%s and %s need different clusters: run one, then the other", all[0].name, c.name)
		}
	}
	if len(all[0].cluster.Guests) > 0 && o.cluster.Provider != "local" {
		return nil, fmt.Errorf("%s needs nodes that are guests of QEMU: --provider=local", all[0].name)
	}
	return all, nil
}

// directory returns the name of the directory of one of our configurations.
func directory(kind string) string {
	if kind == "smb" {
		return kind
	}
	return "hostpath-" + kind
}

// installs reports whether the driver is to be installed. In an existing cluster its owner has done
// so.
func installs(o options) (bool, error) {
	switch o.install {
	case "", "yes":
		if o.cluster.Provider == "existing" {
			return false, errors.New("--install=yes is for clusters that are there for it: docs/how-to/install.md " +
				"says what to do with an existing one")
		}
		return true, nil
	case "no":
		return false, nil
	default:
		return false, fmt.Errorf("--install=%s: yes or no", o.install)
	}
}
