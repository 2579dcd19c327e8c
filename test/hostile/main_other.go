//go:build !linux

// Command hostile runs on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "hostile: the driver mounts on Linux only")
	os.Exit(1)
}
