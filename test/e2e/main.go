// Command e2e runs Kubernetes' external storage suite with the driver in a cluster: one that it starts and ends, or one that is
// there. docs/e2e.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	full, keep    bool
	install       string
	runs, procs   int
	report        string
}

// The scopes of a run.
const (
	smoke = "smoke"
	full  = "full"
)

func (o options) scope() string {
	if o.full {
		return full
	}
	return smoke
}

func main() {
	local.Main()
	o := options{cluster: providers.Choice{Name: "e2e"}}
	o.cluster.Flags(flag.CommandLine, "the cluster's name; one of that name that is there is ended first")
	flag.StringVar(&o.kinds, "kinds", "directory,image", "which of our configurations: configs/hostpath-KIND, with commas")
	flag.StringVar(&o.config, "config", "", "the `directory` of a configuration, instead of ours")
	flag.BoolVar(&o.full, "full", false, "run every spec, those too that must run alone or stop kubelets; without it, one of each suite")
	flag.StringVar(&o.install, "install", "", "yes or no: whether to put the driver of these sources into the cluster; by default, unless the cluster is an existing one")
	flag.IntVar(&o.runs, "runs", 1, "how often each configuration is run; all runs must be good")
	flag.IntVar(&o.procs, "procs", 8, "how many specs run at the same time: they wait more than they compute")
	flag.StringVar(&o.report, "report", "", "the `directory` for results, logs and ginkgo's reports; by default, bin/e2e of these sources")
	flag.BoolVar(&o.keep, "keep", false, "leave the cluster as it is at the end, and take one that is up as it is, with its driver if it has one")
	flag.Parse()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // whoever reads may leave; the cluster is ended all the same
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	if err := start(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		stop()
		os.Exit(1)
	}
}

// start runs what the command line says.
func start(ctx context.Context, o options) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("%q: there are flags only", flag.Args())
	}
	if o.runs < 1 || o.procs < 1 {
		return errors.New("--runs and --procs: at least 1")
	}
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return errors.New("this was built with -trimpath: it doesn't know where its sources are")
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
	p, err := o.cluster.Open(existing.Options{Log: os.Stderr, Namespaces: []string{install.Namespace}})
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
	var dirs []string
	for kind := range strings.SplitSeq(o.kinds, ",") {
		dirs = append(dirs, filepath.Join(here, "configs", "hostpath-"+kind))
	}
	if o.config != "" {
		dirs = []string{o.config}
	}
	var all []config
	for _, d := range dirs {
		c, err := readConfig(d)
		if err != nil {
			return nil, err
		}
		if len(c.Smoke) == 0 && !o.full {
			return nil, fmt.Errorf("%s: expected.yaml has no specs for smoke: say --full", d)
		}
		all = append(all, c)
	}
	return all, nil
}

// installs reports whether the driver is to be installed. An existing cluster has what its owner has put there.
func installs(o options) (bool, error) {
	switch o.install {
	case "":
		return o.cluster.Provider != "existing", nil
	case "yes":
		if o.cluster.Provider == "existing" {
			return false, errors.New("--install=yes is for clusters that are there for it: docs/install.md says what to do with an existing one")
		}
		return true, nil
	case "no":
		return false, nil
	default:
		return false, fmt.Errorf("--install=%s: yes or no", o.install)
	}
}
