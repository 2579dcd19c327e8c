// Package gobuild builds the programs of this repository that tests and benchmarks start. All
// processes share one link of a program with the same flags and the same sources.
package gobuild

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/internal/flock"
)

// Driver is the package of the driver.
const Driver = "github.com/causeway-csi/causeway/cmd/driver"

// Program is a program of this repository. Programs are static, as in an image, unless a flag needs
// C.
type Program struct {
	Package string   // as the go command knows it in Dir
	Dir     string   // in the module of the program; empty: the current directory
	Flags   []string // of go build, such as -tags=crashpoints
}

// Copy builds the program and copies it to the path. The directory of the path must exist, and has
// the temporary files of the go command: after an interrupt, they are left there.
//
// go run links a program only if the build cache lacks it (Go 1.24 and later), but two commands at
// the same time both link it. So the second waits for the first.
func (p Program) Copy(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	out, err := p.command(ctx, path, "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env GOCACHE: %w", err)
	}
	cache := strings.TrimSpace(string(out))
	if err := os.MkdirAll(cache, 0o755); err != nil { // the program may be the first to use this cache
		return err
	}
	unlock, err := flock.Wait(ctx, cache, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	args := append(append([]string{"run", "-exec=cp"}, p.Flags...), p.Package, path)
	if out, err := p.command(ctx, path, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.Package, err, out)
	}
	return p.readSources(ctx, path)
}

// readSources reads the directories of the program's packages. go test then knows that the result
// of the test depends on these files, and runs the test again after a change.
func (p Program) readSources(ctx context.Context, path string) error {
	args := append(append([]string{"list", "-deps", "-f={{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}"},
		p.Flags...), p.Package)
	out, err := p.command(ctx, path, args...).Output()
	if err != nil {
		return fmt.Errorf("list the packages of %s: %w", p.Package, err)
	}
	for dir := range strings.Lines(string(out)) {
		if dir = strings.TrimSpace(dir); dir == "" {
			continue
		}
		if _, err := os.ReadDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// command returns a go command.
func (p Program) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = p.Dir, append(os.Environ(), "GOWORK=off", "GOTMPDIR="+filepath.Dir(path))
	if !p.race() {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it then ends its compilers, too
	return cmd
}

// race reports whether the program has the race detector, which needs C.
func (p Program) race() bool {
	for _, flag := range p.Flags {
		if flag == "-race" || flag == "-race=true" {
			return true
		}
	}
	return false
}
