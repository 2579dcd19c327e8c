// Command kubectl-copy is the plugin kubectl copy: it copies files and directories to and from
// containers. Exit codes: 0 after a complete copy; 1 after an error, with nothing at the
// destination; 2 for an invalid command line, or a local path that does not exist; 75 if too many
// copies are in progress, so that a later retry may succeed.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}
