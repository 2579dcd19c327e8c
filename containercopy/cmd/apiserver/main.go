// Command apiserver is the aggregated API server of container copy: kube-apiserver passes the
// requests for podcopiesfrom/proxy and podcopiesto/proxy to it. Its flags are those of
// k8s.io/apiserver, and some for the agents.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}
