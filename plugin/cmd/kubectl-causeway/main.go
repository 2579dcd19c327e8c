// Command kubectl-causeway is the plugin kubectl causeway: it inspects an installation of Causeway.
// Exit codes: 0; 1 for findings of doctor, and for errors; 2 for an invalid command line, and if
// doctor found nothing but could not check everything; 3 for orphans.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // the providers that kubectl has
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, connect))
}
