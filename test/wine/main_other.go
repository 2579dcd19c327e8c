//go:build !linux

// Command wine runs on Linux only.
package main

import (
	"fmt"
	"os"
)

const module = "github.com/causeway-csi/causeway/"

func main() {
	fmt.Fprintln(os.Stderr, "wine: Wine is installed on Debian only; on Windows, go test runs the tests")
	os.Exit(1)
}
