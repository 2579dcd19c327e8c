package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// kubectl runs the kubectl of the local cluster's release, whichever cluster it is for.
func kubectl(ctx context.Context, p provider.Provider, args []string) error {
	config, err := p.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	bin, err := components.Build(ctx, os.Stderr, "kubectl")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+path)
	return interactive(cmd)
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
	for _, n := range nodes {
		if n.Name == args[0] {
			cmd, err := n.Command(ctx, args[1:]...)
			if err != nil {
				return err
			}
			return interactive(cmd)
		}
	}
	return fmt.Errorf("there is no node %q: they are node-1 to node-%d", args[0], len(nodes))
}

// interactive runs a command at this one's terminal. Its exit code becomes this one's.
func interactive(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &exitError{exit.ExitCode()}
	}
	return err
}
