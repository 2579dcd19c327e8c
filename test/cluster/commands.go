package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/storagesuite"
)

// withKubectl adds the kubectl of the local cluster's release to the environment, for any cluster.
func withKubectl(ctx context.Context, p provider.Provider, use func(kubectl.Kubectl) error) error {
	dir, err := os.MkdirTemp("", "causeway-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	k, err := kubectl.New(ctx, p, dir)
	if err != nil {
		return err
	}
	return use(k)
}

// runKubectl runs it.
func runKubectl(ctx context.Context, p provider.Provider, args []string) error {
	return withKubectl(ctx, p, func(k kubectl.Kubectl) error { return interactive(k.Command(ctx, args...)) })
}

// runHelm runs the Helm that the chart's tests use.
func runHelm(ctx context.Context, p provider.Provider, args []string) error {
	bin, err := chart.Programs(ctx, os.Stderr)
	if err != nil {
		return err
	}
	return withKubectl(ctx, p, func(k kubectl.Kubectl) error {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "helm"), args...)
		cmd.Env = k.Environment()
		return interactive(cmd)
	})
}

// installDriver puts the driver into the cluster.
func installDriver(ctx context.Context, p provider.Provider) error {
	if _, ok := p.(*existing.Cluster); ok {
		return errors.New("install is for clusters that are there for it: it brings CRDs and a snapshot controller, " +
			"which an existing cluster may have; docs/how-to/install.md says what to do there")
	}
	return withKubectl(ctx, p, func(k kubectl.Kubectl) error { return install.Driver(ctx, p, k, os.Stderr) })
}

// loadSuite prepares the nodes for Kubernetes' storage suite. The cluster may have any driver, or
// none.
func loadSuite(ctx context.Context, p provider.Provider) error {
	if _, ok := p.(*existing.Cluster); ok { // before minutes of building
		return storagesuite.Load(ctx, p, "")
	}
	bin, err := storagesuite.Programs(ctx, os.Stderr, storagesuite.Agnhost)
	if err != nil {
		return err
	}
	return storagesuite.Load(ctx, p, bin)
}

// execute runs a command on a node.
func execute(ctx context.Context, p provider.Provider, args []string) error {
	c, ok := p.(*local.Cluster)
	if !ok {
		return errors.New("exec is for --provider=local; kind's nodes are containers: docker exec")
	}
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	var names []string
	for _, n := range nodes {
		if n.Name == args[0] {
			cmd, err := n.Login(ctx, args[1:]...)
			if err != nil {
				return err
			}
			return interactive(cmd)
		}
		names = append(names, n.Name)
	}
	return fmt.Errorf("there is no node %q: they are %s", args[0], strings.Join(names, ", "))
}

// interactive runs a command at the terminal of this process, with the same exit code.
func interactive(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &exitError{exit.ExitCode()}
	}
	return err
}
