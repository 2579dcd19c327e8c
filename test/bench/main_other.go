//go:build !linux

// Command bench measures CSI drivers, on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: mounts are measured on Linux only")
	os.Exit(1)
}
