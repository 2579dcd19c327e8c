package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// The init processes' first arguments.
const (
	planeRole  = "init-of-plane"
	nodeRole   = "init-of-node"
	kernelRole = "init-of-kernel" // process 1 of a guest
	clientRole = "on-guest"       // runs a command on a guest
)

// Main must be called first in a program that calls Cluster.Up: the init processes of a cluster are
// that program. There Main does not return.
func Main() {
	if len(os.Args) < 3 || !slices.Contains([]string{planeRole, nodeRole, kernelRole, clientRole}, os.Args[1]) {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1], files{os.Args[2]}, os.Args[3:])
	fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
	os.Exit(1)
}

func run(ctx context.Context, role string, f files, args []string) error {
	if role == kernelRole {
		return runKernel(ctx, f, args[0])
	}
	s, err := readSpec(f)
	if err != nil {
		return err
	}
	if role == planeRole {
		return runPlane(ctx, f, s)
	}
	n, err := s.find(args[0])
	if err != nil {
		return err
	}
	switch {
	case role == clientRole:
		return runOnGuest(ctx, f.node(n.Name), args[1:])
	case n.guest():
		return runGuest(ctx, f, n)
	}
	return runNode(ctx, f, s, n)
}

func readSpec(f files) (spec, error) {
	var s spec
	data, err := os.ReadFile(f.spec())
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

func writeSpec(f files, s spec) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(f.spec(), data, 0o644)
}
