// Command demo shows the driver at work: it builds it, starts it, and plays the container
// orchestrator, by the real gRPC calls, from CreateVolume to a pod's files and back. demo prints a
// line for each step, and at the end proves that nothing is left behind.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/causeway-csi/causeway/internal/namespace"
)

func main() {
	if err := namespace.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "The demo mounts volumes, which it cannot do here:", err)
		fmt.Fprintln(os.Stderr, advice(err))
		os.Exit(1)
	}
	start := time.Now()
	if err := run(namespace.SignalContext()); err != nil {
		fmt.Fprintln(os.Stderr, "\nThe demo failed:", err)
		os.Exit(1)
	}
	fmt.Printf("\nDone in %s. docs/explanation/how-it-works.md explains these calls.\n",
		time.Since(start).Round(10*time.Millisecond))
}

// advice is the remedy on a machine where the demo cannot run.
func advice(err error) string {
	if errors.Is(err, errors.ErrUnsupported) {
		return "It needs Linux. Elsewhere the project builds and passes its unit tests: make build, make test."
	}
	return "Run it as root (sudo make demo), or permit user namespaces: see the sysctls user.max_user_namespaces,\n" +
		"kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns."
}
