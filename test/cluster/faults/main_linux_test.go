package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/process"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// clusterName is the tests' own cluster's.
const clusterName = "faults"

// inside is set in the environment of the process that runs the tests: the cluster is there.
const inside = "CAUSEWAY_FAULTS_DIR"

var keep = flag.Bool("keep", false, "leave the cluster up, and take one that is up with the driver as it is")

// TestMain has a child run the tests: whatever becomes of it, a panic or the end of go test's patience, the cluster is taken
// down.
func TestMain(m *testing.M) {
	local.Main()
	flag.Parse()
	if dir := os.Getenv(inside); dir != "" {
		if err := enter(dir); err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := outside(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// outside brings the cluster up, has the tests run, and takes it down.
func outside(ctx context.Context) (err error) {
	start := time.Now()
	c, err := local.New(clusterName)
	if err != nil {
		return err
	}
	if !*keep { // what an earlier run has kept may have another driver
		if err := c.Down(ctx); err != nil {
			return err
		}
	}
	if err := c.Up(ctx, provider.Options{Nodes: 2, Log: os.Stderr}); err != nil {
		return err
	}
	if !*keep {
		defer func() { err = errors.Join(err, down(c)) }()
	}
	dir, err := os.MkdirTemp("", "causeway-faults-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	k, err := kubectl.New(ctx, c, dir)
	if err != nil {
		return err
	}
	if _, err := k.Run(ctx, "-n", install.Namespace, "get", "daemonset", "causeway-node"); err != nil || !*keep {
		if err := install.Driver(ctx, c, k, os.Stderr); err != nil {
			return err
		}
	}
	return tests(ctx, dir, time.Since(start))
}

// tests runs this program once more, and gives it what is left of go test's patience, less what the end takes.
func tests(ctx context.Context, dir string, since time.Duration) error {
	args := os.Args[1:]
	if limit, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && limit > 0 {
		args = append(args, "-test.timeout="+max(limit-since-time.Minute, time.Second).String())
	}
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = process.DieWithThread()
	return cmd.Run()
}

// down ends the cluster, and looks at the machine.
func down(c *local.Cluster) error {
	if err := c.Down(context.Background()); err != nil {
		return err
	}
	left, err := c.Leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("something of the cluster is left on this machine: %q", left)
	}
	return err
}

// The cluster, in the process that runs the tests.
var (
	cluster *local.Cluster
	kube    kubectl.Kubectl
	nodes   []local.Node
)

func enter(dir string) (err error) {
	if cluster, err = local.New(clusterName); err != nil {
		return err
	}
	if nodes, err = cluster.Nodes(); err != nil {
		return err
	}
	kube, err = kubectl.New(context.Background(), cluster, dir)
	return err
}
