package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
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
	fmt.Fprintln(log, "installing:", strings.Join(missing, " "))
	if err := apt(ctx, "update", "-qq"); err != nil {
		return err
	}
	return apt(ctx, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
}

// apt runs apt-get. Unlike the programs of Command, it does not end when this process is killed: a
// killed apt-get leaves packages unpacked and not configured, and each further installation on this
// machine fails until a dpkg --configure -a.
func apt(ctx context.Context, args ...string) error {
	return run(ctx, exec.CommandContext(ctx, "apt-get", args...))
}

// Command runs a program. The error has its output. On Linux the program ends when this process is
// killed.
func Command(ctx context.Context, name string, args ...string) error {
	return commandIn(ctx, "", name, args...)
}

// commandIn is Command in a directory.
func commandIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.SysProcAttr = dir, dieWithThread()
	runtime.LockOSThread() // the program ends with this thread
	defer runtime.UnlockOSThread()
	return run(ctx, cmd)
}

func run(ctx context.Context, cmd *exec.Cmd) error {
	// systemctl starts no service of a package, such as smbd on the ports of this machine.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_OFFLINE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out)))
	}
	return nil
}
