//go:build !linux

// Command bench-smb measures the controller of shares, on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench-smb: the private SMB server runs on Linux only")
	os.Exit(1)
}
