//go:build !linux

package main

import (
	"context"
	"fmt"
	"io"
)

// run returns 1: containers of other systems have no agent yet.
func run(_ context.Context, _ []string, log io.Writer) int {
	fmt.Fprintln(log, "agent: copies need a Linux node")
	return 1
}
