package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Program is a program, and the package of Debian that has it.
type Program struct{ Name, Package string }

// Install installs the packages of missing programs, as root on Debian. log receives a message
// about that. Errors: elsewhere, the packages to install.
func Install(ctx context.Context, log io.Writer, programs []Program) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.Name); err != nil && !slices.Contains(missing, p.Package) {
			missing = append(missing, p.Package)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("install these first: %s", strings.Join(missing, " "))
	}
	fmt.Fprintln(log, "qemu: installing:", strings.Join(missing, " "))
	if err := Command(ctx, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return Command(ctx, "apt-get", append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
}

// Command runs a program. The error has its output.
func Command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	// systemctl starts no service of a package, such as smbd on the ports of this machine.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_OFFLINE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out)))
	}
	return nil
}
