// Package prereq installs the programs of other projects that this repository's tests and
// benchmarks run.
package prereq

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Lock is the file that hack/packages locks while it runs apt-get.
const Lock = "/run/causeway-packages.lock"

// Install runs hack/packages, which has the groups: as root on Debian it installs the missing
// programs of the groups. log receives a message about that. Errors: elsewhere, the missing
// programs with their packages.
func Install(ctx context.Context, log io.Writer, groups ...string) error {
	if err := ctx.Err(); err != nil || len(groups) == 0 { // hack/packages takes no group for a mistake
		return err
	}
	_, file, _, _ := runtime.Caller(0)
	// Without the context: an apt-get that is killed leaves packages unpacked and not configured,
	// and each further installation on this machine fails until a dpkg --configure -a.
	cmd := exec.Command("sh", append([]string{filepath.Join(filepath.Dir(file), "../../hack/packages")}, groups...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("hack/packages: %w", err)
	}
	return ctx.Err()
}
