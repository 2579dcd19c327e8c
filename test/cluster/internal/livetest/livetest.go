// Package livetest runs a package's tests in a cluster of their own on this machine, and always
// takes it down.
package livetest

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

	"github.com/causeway-csi/causeway/internal/prereq"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/process"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// Tests are those of a package.
type Tests struct {
	Name    string // the cluster's, which no other tests have
	Options provider.Options
	// Needs are groups of hack/packages with programs of the tests, beside those of the cluster.
	// They are installed before the cluster starts.
	Needs []string
	// Furnish puts into the cluster the objects that all tests need. kept means that the cluster
	// has them already.
	Furnish func(ctx context.Context, c *local.Cluster, k kubectl.Kubectl, kept bool) error
	// Enter is told of the cluster, in the process that runs the tests.
	Enter func(c *local.Cluster, k kubectl.Kubectl, nodes []local.Node)
}

// inside is set in the environment of the process that runs the tests: the cluster is there.
const inside = "CAUSEWAY_LIVETEST_DIR"

var keep = flag.Bool("keep", false, "leave the cluster up, and take one that is up as it is")

// Main is the body of a package's TestMain. It has a child run the tests: after any end of the
// child, a panic or the timeout of go test included, it takes the cluster down.
func Main(m *testing.M, t Tests) {
	local.Main()
	flag.Parse()
	if dir := os.Getenv(inside); dir != "" {
		if err := t.enter(dir); err != nil {
			t.fail(err)
		}
		os.Exit(m.Run())
	}
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := t.outside(ctx)
	stop()
	if err != nil {
		t.fail(err)
	}
}

func (t Tests) fail(err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", t.Name, err)
	os.Exit(1)
}

// outside brings the cluster up, has the tests run, and takes it down.
func (t Tests) outside(ctx context.Context) (err error) {
	start := time.Now()
	c, err := local.New(t.Name)
	if err != nil {
		return err
	}
	if err := prereq.Install(ctx, os.Stderr, t.Needs...); err != nil {
		return err
	}
	if !*keep { // a cluster that an earlier run has kept may have another driver
		if err := c.Down(ctx); err != nil {
			return err
		}
	}
	t.Options.Log = os.Stderr
	if err := c.Up(ctx, t.Options); err != nil {
		return err
	}
	if !*keep {
		defer func() { err = errors.Join(err, c.End(context.Background())) }()
	}
	dir, err := os.MkdirTemp("", "causeway-"+t.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	k, err := kubectl.New(ctx, c, dir)
	if err != nil {
		return err
	}
	if t.Furnish != nil {
		if err := t.Furnish(ctx, c, k, *keep); err != nil {
			return err
		}
	}
	return tests(ctx, dir, time.Since(start))
}

// tests runs this program again, with the rest of the timeout of go test, less the time for the
// end.
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

// enter tells the tests of the cluster.
func (t Tests) enter(dir string) error {
	c, err := local.New(t.Name)
	if err != nil {
		return err
	}
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	k, err := kubectl.New(context.Background(), c, dir)
	if err != nil {
		return err
	}
	t.Enter(c, k, nodes)
	return nil
}

// Patience limits the wait of a command for an event. It is long because guests are slow.
const Patience = 6 * time.Minute
