//go:build !linux

// Command bench-smb measures the router, on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench-smb: drivers mount, which is measured on Linux only")
	os.Exit(1)
}
