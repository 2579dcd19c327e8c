// Command build builds the components of test clusters that its arguments name, or all of them, and
// prints the directory where they are. A test builds those that it needs by itself; but the first
// time takes minutes, which go test's limit may not have.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/causeway-csi/causeway/test/cluster/components"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: build [component]...\ncomponents: %s\n",
			strings.Join(components.Names(), " "))
	}
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = components.Names()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := components.Build(ctx, os.Stderr, names...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
