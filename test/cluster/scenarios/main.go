// Command scenarios starts one cluster on this machine and runs all scenarios in it that share a
// cluster, one after the other. After each scenario it removes the releases of Helm and verifies
// that the cluster is as before. Scenarios with faults come last.
//
// The cluster of a scenario that failed is replaced, so that the other scenarios run. Its report is
// in a directory, and the exit code is 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// name is the name of the cluster.
const name = "scenarios"

// options are those of the cluster: its nodes are enough for each scenario.
var options = provider.Options{Nodes: 2, Windows: 1, Log: os.Stderr}

func main() {
	local.Main()
	only := flag.String("only", "", "run only these `scenarios`, separated by commas")
	list := flag.Bool("list", false, "list the scenarios")
	report := flag.String("report", filepath.Join(chart.Sources(), "bin", "scenarios"),
		"`directory` for the output of each scenario, and for the state of the cluster after a failure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	selected, err := choose(*only)
	if err == nil && *list {
		for _, s := range selected {
			fmt.Printf("%-12s make %s\n", s.name, s.target)
		}
		return
	}
	if err == nil {
		r := &run{report: *report, startCluster: startCluster}
		err = errors.Join(r.all(ctx, selected), r.end())
		fmt.Printf("\n== seconds\n%s", r.summary.String())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scenarios:", err)
		stop()
		os.Exit(1)
	}
}

// scenario is a target that uses the cluster that the environment lends it. Started alone, it uses
// a cluster of its own.
type scenario struct {
	name   string
	target string // of the Makefile
	last   bool   // it ends the control plane
}

// scenarios are in the order in which they run.
var scenarios = []scenario{
	{name: "demo", target: "cluster-demo"},
	{name: "quickstart", target: "quickstart"},
	{name: "attached", target: "attached-cluster"},
	{name: "own-driver", target: "own-driver-cluster"},
	{name: "e2e", target: "e2e"},
	{name: "chart", target: "test-chart-cluster"},
	{name: "node-faults", target: "test-node-faults"},
	{name: "copy", target: "copy-cluster", last: true},
}

// choose returns the scenarios with the given names, or those that this tree has: container copy
// can be removed from it.
func choose(names string) (all []scenario, err error) {
	wanted := map[string]bool{}
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
		wanted[name] = true
	}
	selects := len(wanted) > 0
	for _, s := range scenarios {
		if s.name == "copy" {
			if _, err := os.Stat(filepath.Join(chart.Sources(), "containercopy", "live")); err != nil {
				continue
			}
		}
		if !selects || wanted[s.name] {
			all = append(all, s)
		}
		delete(wanted, s.name)
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("--only=%s: unknown scenarios %q: --list lists them", names,
			slices.Sorted(maps.Keys(wanted)))
	}
	return all, nil
}

// running is a cluster that runs.
type running interface {
	empty(context.Context) error          // removes the installation of a scenario
	report(context.Context, string) error // writes the state of the cluster into a directory
	end() error
}

// run is a run of the scenarios.
type run struct {
	report       string
	startCluster func(context.Context) (running, error) // returns a cluster with an error of its use
	cluster      running                                // nil: none runs
	summary      strings.Builder
}

// all runs the scenarios. The error names those that failed.
func (r *run) all(ctx context.Context, selected []scenario) error {
	if lent := os.Getenv(local.LentVariable); lent != "" {
		return fmt.Errorf("%s=%s: must not be set: this program starts the cluster", local.LentVariable, lent)
	}
	if err := os.RemoveAll(r.report); err != nil {
		return err
	}
	var failed []string
	for _, s := range selected {
		if err := r.start(ctx); err != nil {
			return fmt.Errorf("start the cluster: %w", err)
		}
		err := r.one(ctx, s)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", s.name, context.Cause(ctx))
		}
		failed = append(failed, s.name)
		fmt.Printf("\n== %s failed: %v\n", s.name, err)
		if err := r.replace(ctx, s); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; the reports are in %s", strings.Join(failed, ", "), r.report)
	}
	return nil
}

// start starts the cluster if none runs.
func (r *run) start(ctx context.Context) error {
	if r.cluster != nil {
		return nil
	}
	return r.timed("start of the cluster", func() (err error) {
		r.cluster, err = r.startCluster(ctx)
		return err
	})
}

// startCluster starts the cluster of the scenarios.
func startCluster(ctx context.Context) (running, error) {
	c, err := local.New(name)
	if err != nil {
		return nil, err
	}
	if err := c.Down(ctx); err != nil { // the remains of a killed run
		return nil, err
	}
	if err := c.Up(ctx, options); err != nil {
		return nil, err
	}
	return newGuard(ctx, c)
}

// one runs a scenario, and has the cluster emptied.
func (r *run) one(ctx context.Context, s scenario) error {
	if err := r.timed(s.name, func() error { return r.makeTarget(ctx, s) }); err != nil || s.last {
		return err
	}
	return r.timed(s.name+": removal", func() error { return r.cluster.empty(ctx) })
}

// makeTarget makes the target of a scenario. Its output is also in the report.
func (r *run) makeTarget(ctx context.Context, s scenario) error {
	fmt.Printf("\n== %s: make %s\n", s.name, s.target)
	if err := os.MkdirAll(r.report, 0o755); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(r.report, s.name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "make", s.target)
	cmd.Dir, cmd.Env = chart.Sources(), append(os.Environ(), local.LentVariable+"="+name)
	cmd.Stdout = io.MultiWriter(os.Stdout, log)
	cmd.Stderr = cmd.Stdout
	// In a group of its own, all of which is interrupted once, also by a terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	return cmd.Run()
}

// timed runs a step and notes its duration.
func (r *run) timed(step string, do func() error) error {
	start := time.Now()
	err := do()
	took := fmt.Sprintf("%5.0f s  %s", time.Since(start).Seconds(), step)
	if err != nil {
		took += ": failed"
	}
	fmt.Fprintln(&r.summary, took)
	return err
}

// replace writes the state of the cluster into the report, and ends the cluster.
func (r *run) replace(ctx context.Context, s scenario) error {
	ctx = context.WithoutCancel(ctx)
	dir := filepath.Join(r.report, s.name)
	if err := r.cluster.report(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, "scenarios: the report is incomplete:", err)
	}
	return r.end()
}

// end ends the cluster if it runs.
func (r *run) end() error {
	if r.cluster == nil {
		return nil
	}
	defer func() { r.cluster = nil }()
	return r.timed("end of the cluster", r.cluster.end)
}
