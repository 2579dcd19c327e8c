package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/deploy/images/licenses"
)

// tags and ldflags are as in make build.
const (
	tags    = "grpcnotrace"
	ldflags = "-s -w"
)

// version is the version that programs report and images carry.
type version struct {
	tag      string // of the images: v1.2.3, or dev
	revision string // of git; unknown outside of it
}

// program is the version that programs print.
func (v version) program() string {
	if v.tag != "dev" {
		return v.tag
	}
	commit, dirty, _ := strings.Cut(v.revision, "-")
	if dirty != "" {
		dirty = "-" + dirty
	}
	return fmt.Sprintf("dev-%.12s%s", commit, dirty)
}

// tagged matches the valid tags of an image: OCI distribution spec v1.1. A tag is also an argument
// of the linker.
var tagged = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

// findVersion asks git for the revision of the sources.
func findVersion(ctx context.Context, root, tag string) (version, error) {
	v := version{tag: tag, revision: "unknown"}
	if !tagged.MatchString(tag) {
		return v, fmt.Errorf("--version=%q cannot be a tag", tag)
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	head, err := output(ctx, root, nil, "git", "rev-parse", "HEAD")
	if err != nil {
		return v, err
	}
	changes, err := output(ctx, root, nil, "git", "status", "--porcelain")
	if err != nil {
		return v, err
	}
	if v.revision = strings.TrimSpace(head); changes != "" {
		v.revision += "-dirty"
	}
	return v, nil
}

// environment is the environment of the go command for a platform, independent of the settings of
// this machine.
func environment(platform string) []string {
	goos, arch, _ := strings.Cut(platform, "/")
	return []string{
		"CGO_ENABLED=0", "GOOS=" + goos, "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOFIPS140=off", "GOEXPERIMENT=",
	}
}

// build builds the programs of products for a platform into dir. Programs that are up to date stay.
// The Go command's own stamp of the version is left out: it depends on which tags a clone has.
func build(ctx context.Context, root, dir, platform string, v version, products []product) error {
	flags := ldflags
	for _, variable := range []string{"main.version", module + "/sidecars/internal/sidecar.version"} {
		flags += " -X " + variable + "=" + v.program()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// An empty value stands for that of go env -w.
	experiment, err := output(ctx, root, environment(platform), "go", "env", "GOEXPERIMENT")
	if err != nil {
		return err
	}
	if e := strings.TrimSpace(experiment); e != "" {
		return fmt.Errorf("the go command is set to GOEXPERIMENT=%s, which makes other programs: go env -u "+
			"GOEXPERIMENT", e)
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", flags, "-o",
		dir + string(filepath.Separator)}
	goos, _, _ := strings.Cut(platform, "/")
	packages := map[string][]string{} // by the directory of the module, whose linkers run side by side
	for _, p := range products {
		if p.source != "" { // of which the program has another name
			own := append(slices.Clone(args[:len(args)-1]), filepath.Join(dir, p.executable(goos)), ".")
			if _, err := output(ctx, p.source, environment(platform), "go", own...); err != nil {
				return err
			}
			continue
		}
		from, pkg := p.pkg(root)
		packages[from] = append(packages[from], pkg)
	}
	for from, pkgs := range packages {
		if _, err := output(ctx, from, environment(platform), "go", slices.Concat(args, pkgs)...); err != nil {
			return err
		}
	}
	return nil
}

// licensesOf returns the licenses of the modules that a program is made of.
func licensesOf(ctx context.Context, root, platform string, p product) ([]byte, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	from, pkg := p.pkg(root)
	return licenses.Text(ctx, licenses.Program{Name: p.name, Root: root, Dir: from, Package: pkg, Tags: tags,
		Env: environment(platform), Unlicensed: p.source})
}

// output runs a program in dir and returns its output.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), errors.Join(ctx.Err(), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err))
	}
	return string(out), nil
}
