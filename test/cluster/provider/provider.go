// Package provider defines a cluster for trials and tests, independent of its provider: this
// machine (local), kind, or an existing cluster (existing).
package provider

import (
	"context"
	"io"
)

// Options describe a cluster.
type Options struct {
	Nodes   int // Linux nodes, at least 1
	Windows int // Windows nodes that are simulated: pods are placed on them, and run nowhere
	// Nodes that are guests of QEMU, each with the version of its kernel, 6.1 or 6.12. They have
	// cifs and project quotas, which this machine's kernel may lack. Provider local only.
	Guests []string
	// keeps the remains of a cluster that did not start, for inspection; the next Up or Down
	// removes them
	Keep bool
	Log  io.Writer // receives messages about steps that take time
}

// Provider runs or knows a cluster. Its methods are not for concurrent use.
type Provider interface {
	// Up starts the cluster, and returns when pods can run on every Linux node. If the cluster runs
	// as requested, Up does nothing more; if it differs, Up returns the difference. Up first
	// removes the remains of a killed Up.
	Up(ctx context.Context, o Options) error
	// Down ends the cluster and leaves nothing of it on the machine. It is fine if there is none.
	Down(ctx context.Context) error
	// Load gives every Linux node the images in the tars, under the names that they have in there.
	Load(ctx context.Context, tars ...string) error
	// Kubeconfig returns how to reach the API server as an administrator, as a kubeconfig file has
	// it.
	Kubeconfig(ctx context.Context) ([]byte, error)
	// Logs writes the logs of the components and containers into dir, which it makes.
	Logs(ctx context.Context, dir string) error
	// Status writes the running components. Status returns an error unless all run.
	Status(ctx context.Context, w io.Writer) error
}
