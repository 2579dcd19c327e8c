// Package provider says what a cluster for trials and tests is, whoever runs it: this machine (local), kind, or somebody
// else (existing).
package provider

import (
	"context"
	"io"
)

// Options says what a cluster is to be like.
type Options struct {
	Nodes   int       // Linux nodes, at least 1
	Windows int       // Windows nodes that are simulated: pods are placed on them, and run nowhere
	Keep    bool      // leaves what there is, to look at it, when the cluster can't be started; the next Up or Down removes it
	Log     io.Writer // is told what is done, and what takes its time
}

// Provider runs one cluster, or knows one. Its methods aren't called at the same time.
type Provider interface {
	// Up starts the cluster, and returns when pods can run on every Linux node. If it runs already, as asked for, that is
	// all there is to see to; else Up says what is different. What an Up that was killed has left behind is removed first.
	Up(ctx context.Context, o Options) error
	// Down ends the cluster and leaves nothing of it on the machine. It is fine if there is none.
	Down(ctx context.Context) error
	// Load gives every Linux node the images in the tars, under the names that they have in there.
	Load(ctx context.Context, tars ...string) error
	// Kubeconfig returns how to reach the API server as an administrator, as a kubeconfig file has it.
	Kubeconfig(ctx context.Context) ([]byte, error)
	// Logs writes into dir, which is made, what the components and containers have logged.
	Logs(ctx context.Context, dir string) error
	// Status writes what runs. It is an error if not all does.
	Status(ctx context.Context, w io.Writer) error
}
