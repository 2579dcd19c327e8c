// Command cluster runs Kubernetes clusters for trials and tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/providers"
)

const usage = `usage: cluster [flags] COMMAND

  up               start the cluster, and wait until pods can run on its nodes
  down             end it, and leave nothing behind
  install          put the driver into it, from these sources; again, to replace it
  load IMAGE.tar…  give its nodes images
  load-suite       give its nodes what Kubernetes' storage suite needs there: images and crictl
  kubeconfig       print how to reach it: cluster kubeconfig > FILE; export KUBECONFIG=FILE
  kubectl ARG…     run kubectl with it
  helm ARG…        run Helm with it
  logs DIR         write the logs of its components and containers into DIR
  status           say what runs
  exec NODE ARG…   run a command on a node (local)

flags:
`

// options are the command line's.
type options struct {
	cluster  providers.Choice
	registry string // of an existing cluster
	provider.Options
}

func main() {
	local.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	o := options{cluster: providers.Choice{Name: "causeway"}, Options: provider.Options{Log: os.Stderr}}
	o.cluster.Flags(flag.CommandLine, "the cluster's name")
	flag.StringVar(&o.registry, "registry", "",
		"existing: host/path of a registry to which load pushes images, and from which the cluster pulls them")
	flag.IntVar(&o.Nodes, "nodes", 2, "Linux nodes")
	flag.IntVar(&o.Windows, "windows", 0, "Windows nodes, which are simulated")
	flag.Func("guests", "local: nodes that are guests of QEMU, beside the others: the `versions` of their kernels, "+
		"6.1 or 6.12, separated by commas", func(v string) error {
		o.Guests = strings.Split(v, ",")
		return nil
	})
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	err := run(ctx, o, flag.Arg(0), flag.Args()[1:])
	if exit := (*exitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// exitError is the exit code of a command that has printed its own error.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

func run(ctx context.Context, o options, command string, args []string) error {
	p, err := o.cluster.Open(existing.Options{Registry: o.registry, Log: o.Log})
	if err != nil {
		return err
	}
	arguments := map[string][2]int{"up": {0, 0}, "down": {0, 0}, "install": {0, 0}, "kubeconfig": {0, 0},
		"status": {0, 0}, "logs": {1, 1}, "load": {1, -1}, "load-suite": {0, 0}, "kubectl": {0, -1}, "helm": {0,
			-1}, "exec": {2, -1}}
	n, ok := arguments[command]
	if !ok || len(args) < n[0] || n[1] >= 0 && len(args) > n[1] {
		flag.Usage()
		return fmt.Errorf("not a command: %s (flags come first)", strings.Join(append([]string{command}, args...), " "))
	}
	switch command {
	case "up":
		return p.Up(ctx, o.Options)
	case "down":
		return p.Down(ctx)
	case "install":
		return installDriver(ctx, p)
	case "load":
		return p.Load(ctx, args...)
	case "load-suite":
		return loadSuite(ctx, p)
	case "kubeconfig":
		data, err := p.Kubeconfig(ctx)
		if err == nil {
			_, err = os.Stdout.Write(data)
		}
		return err
	case "logs":
		return p.Logs(ctx, args[0])
	case "status":
		return p.Status(ctx, os.Stdout)
	case "kubectl":
		return runKubectl(ctx, p, args)
	case "helm":
		return runHelm(ctx, p, args)
	default:
		return execute(ctx, p, args)
	}
}
