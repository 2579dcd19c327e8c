// Package sidecar is the part that all controllers of csi-sidecars share: the command line, the
// connection to the CSI driver, the port for metrics and health, the log, and a common start and
// end. The package does not import the API of Kubernetes, so that the binary for nodes stays small;
// package kube does. KEP-4958.
package sidecar

import (
	"context"
	"errors"

	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
)

// Controller is a sidecar in the registry of a binary. Its methods are called in this order, each
// of them once.
type Controller interface {
	// Name returns the name in --controllers and the prefix of its flags, such as "attacher".
	Name() string
	// About describes the controller in a sentence, for help and docs.
	About() string
	// Flags declares its flags, without prefix.
	Flags(*Flags)
	// Validate returns an error for invalid flags. It is not called for a controller that is off.
	// Errors: ErrDone if the requested work is done already, and the process ends with success.
	Validate() error
	// Needs returns the requirements of the controller, which depend on its flags.
	Needs() Needs
	// Build makes the controller ready to run. Controllers are built in turn, before any of them
	// runs, as some upstream constructors write to package-level tables. Errors: ErrNotSupported if
	// the driver lacks the capability, ErrNotInstalled if the cluster lacks the API; the controller
	// is then skipped.
	Build(context.Context, *Env) (Runner, error)
}

// Needs are the requirements of a controller.
type Needs struct {
	// Driver: the controller calls the CSI driver at --csi-address.
	Driver bool
	// Capabilities: Build needs the capabilities of the driver. The controller waits for the
	// driver, and the process ends and is restarted when the connection is lost.
	Capabilities bool
	// Cluster: the controller calls the API server. With --leader-election it runs under a lease.
	Cluster bool
	// Lock returns the name of the lease of upstream's own binary, or "" if that has none.
	Lock func(driver string) string
	// OnePerCluster: the lease belongs to the cluster, not to a driver, so the controller has a
	// lease of its own.
	OnePerCluster bool
	// ByName: "*" in --controllers does not include the controller.
	ByName bool
}

// Runner is a controller after Build.
type Runner interface {
	// Run runs until ctx is done, and returns when all its goroutines have ended. An earlier
	// return, with or without an error, is a failure that ends the process.
	Run(ctx context.Context) error
}

// RunnerFunc is a Runner that is a function.
type RunnerFunc func(ctx context.Context) error

// Run implements Runner.
func (f RunnerFunc) Run(ctx context.Context) error { return f(ctx) }

// Checker is a Runner with a check of its own at /healthz/<controller>.
type Checker interface {
	// Check returns an error if the check fails, and otherwise a note for the answer, which may be
	// empty.
	Check(ctx context.Context) (note string, err error)
}

// Readier is a Runner that can be unready while it runs. /readyz then fails with its error.
type Readier interface {
	Ready() error
}

// Env is the environment of a controller for Build.
type Env struct {
	// Conn is the channel of the process to the CSI driver, or nil if no controller needs a driver.
	// It logs and counts calls, and reconnects.
	Conn *grpc.ClientConn
	// Connect returns a new channel to the CSI driver, which the caller closes. Like Conn, it logs
	// and counts calls. A driver can answer on Conn when no other client can connect any more, as
	// its socket was removed. Connect is nil if no controller needs a driver.
	Connect func() (*grpc.ClientConn, error)
	// Socket is the socket that Conn dials, or nil if no controller needs a driver.
	Socket *Socket
	// Driver is the name from GetPluginInfo. Driver and the capabilities are set for controllers
	// with Needs.Capabilities alone.
	Driver     string
	Plugin     rpc.PluginCapabilitySet
	Controller rpc.ControllerCapabilitySet
	Group      rpc.GroupControllerCapabilitySet
	// HTTP is the port of the process. A controller may add handlers and metrics.
	HTTP *Server
}

// ErrNotSupported reports that the driver lacks a capability. An operator reads the error that
// wraps it.
var ErrNotSupported = errors.New("not supported by the driver")

// ErrNotInstalled reports that the cluster lacks an API.
var ErrNotInstalled = errors.New("not installed in the cluster")

// ErrDone reports that there is nothing to run.
var ErrDone = errors.New("nothing is left to do")
