// Package sidecar is what the controllers of csi-sidecars share, whichever of them a binary has: their command line, the
// connection to the CSI driver, the port for metrics and health, the log, and one start and one end for all of them.
// It knows nothing of Kubernetes' API, so that the binary for nodes stays small; package kube does. KEP-4958.
package sidecar

import (
	"context"
	"errors"

	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
)

// Controller is one entry in a binary's registry: a sidecar, as --controllers names it. Its methods are called in the order in
// which they stand here, and none is called twice.
type Controller interface {
	// Name is that in --controllers and before its flags, such as "attacher".
	Name() string
	// About says in one sentence what it does. It goes into help and docs.
	About() string
	// Flags declares its flags, without prefix.
	Flags(*Flags)
	// Validate reports flags that make no sense, after they were read. It isn't called for a controller that is off.
	// ErrDone: they ask for something that is done already, so the process ends with success.
	Validate() error
	// Needs says what it can't be without, and depends on its flags.
	Needs() Needs
	// Build makes it ready to run. Controllers are built one after the other, before any of them runs, as some upstream
	// constructors write to package-level tables. ErrNotSupported: the driver can't do what it is for; it is left out.
	// ErrNotInstalled: so it is where the cluster lacks what it works on.
	Build(context.Context, *Env) (Runner, error)
}

// Needs is what a controller can't be without.
type Needs struct {
	// Driver says that it talks to a CSI driver at --csi-address.
	Driver bool
	// Capabilities says that it is built from what the driver can do, so it waits for the driver, and is built anew (the
	// process ends and is started again) when the connection is lost.
	Capabilities bool
	// Cluster says that it talks to the API server. It then runs under an election, where --leader-election is on.
	Cluster bool
	// Lock names the lease under which upstream's own binary is elected. Empty for what was never elected.
	Lock func(driver string) string
	// OnePerCluster says that its lease isn't a driver's but the cluster's, so it always keeps its own.
	OnePerCluster bool
	// ByName says that * in --controllers doesn't include it.
	ByName bool
}

// Runner is a controller that is built.
type Runner interface {
	// Run works until ctx is done, and returns when all it started has ended. To return earlier, with or without an
	// error, is a failure that ends the process.
	Run(ctx context.Context) error
}

// RunnerFunc is a Runner that is a function.
type RunnerFunc func(ctx context.Context) error

// Run is Runner's.
func (f RunnerFunc) Run(ctx context.Context) error { return f(ctx) }

// Checker is a Runner that has more to report at /healthz/<controller> than that it runs.
type Checker interface {
	// Check returns an error if the check fails, and otherwise a note for the answer, which may be empty.
	Check(ctx context.Context) (note string, err error)
}

// Readier is a Runner that can be unready while it runs. /readyz then fails with its error.
type Readier interface {
	Ready() error
}

// Env is what a controller is built from.
type Env struct {
	// Conn is the process's one connection to the CSI driver. nil if no controller needs one. Its calls are logged and
	// counted; it dials lazily, and again when it is lost.
	Conn *grpc.ClientConn
	// Socket is what Conn dials. nil if no controller needs a driver.
	Socket *Socket
	// Driver is the name the driver gave itself. This and what follows is only known to controllers whose Needs say
	// Capabilities.
	Driver     string
	Plugin     rpc.PluginCapabilitySet
	Controller rpc.ControllerCapabilitySet
	Group      rpc.GroupControllerCapabilitySet
	// HTTP is the process's one port. A controller may add what it serves, and what it measures.
	HTTP *Server
}

// ErrNotSupported means that the driver lacks what a controller is for. The words around it are what an operator reads.
var ErrNotSupported = errors.New("not supported by the driver")

// ErrNotInstalled means that the cluster lacks what a controller works on. It is left out, too.
var ErrNotInstalled = errors.New("not installed in the cluster")

// ErrDone means that there is nothing to run.
var ErrDone = errors.New("nothing is left to do")
