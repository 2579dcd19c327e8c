package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/causeway-csi/causeway/deploy/images/licenses"
)

// Sources makes the parts of a release with the programs of the repository.
type Sources struct {
	Log io.Writer
}

// goEnvironment makes the go command independent of the settings of this machine.
func goEnvironment(platform string) []string {
	goos, arch, _ := strings.Cut(platform, "/")
	return []string{
		"CGO_ENABLED=0", "GOOS=" + goos, "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off", "GOFIPS140=off",
		"GOENV=off", "GOEXPERIMENT=",
		"GOFLAGS=-mod=readonly -buildvcs=false", // the stamp depends on the tags of a clone
	}
}

// run runs a program and returns its output.
func (s Sources) run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(environment(), env...), s.Log
	out, err := cmd.Output()
	if err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err))
	}
	return string(out), nil
}

// golang runs the go command in a directory of the sources.
func (s Sources) golang(ctx context.Context, r *Release, dir, platform string, args ...string) (string, error) {
	return s.run(ctx, filepath.Join(r.Root, dir), goEnvironment(platform), filepath.Join(r.Root, "hack", "go"), args...)
}

// GoVersion implements Maker.
func (s Sources) GoVersion(ctx context.Context, r *Release) (string, error) {
	version, err := s.golang(ctx, r, ".", "", "env", "GOVERSION")
	return strings.TrimSpace(version), err
}

// Images implements Maker: it runs the program of deploy/images.
func (s Sources) Images(ctx context.Context, r *Release, dir string) error {
	args := []string{"run", ".", "--version=" + r.Version, "--platforms=" + strings.Join(imagePlatforms, ","),
		"--out=" + dir}
	if r.WindowsBase != "" {
		args = append(args, "--windows-base="+r.WindowsBase)
	}
	_, err := s.golang(ctx, r, "deploy/images", "", args...)
	return err
}

// CopyImages implements Maker: it runs the program of containercopy/images.
func (s Sources) CopyImages(ctx context.Context, r *Release, dir string) error {
	_, err := s.golang(ctx, r, "containercopy", "", "run", "./images", "--version="+r.Version, "--arch=amd64,arm64",
		"--revision="+r.made.Commit, "--out="+dir)
	return err
}

// Program implements Maker.
func (s Sources) Program(ctx context.Context, r *Release, p Program, platform, to string) error {
	_, err := s.golang(ctx, r, p.Module, platform, "build", "-trimpath", "-ldflags=-s -w -X main.version="+r.Version,
		"-o", to, "./cmd/"+p.Name)
	return err
}

// Licenses implements Maker.
func (s Sources) Licenses(ctx context.Context, r *Release, p Program, platform string) ([]byte, error) {
	program := licenses.Program{Name: p.Name, Root: r.Root, Dir: filepath.Join(r.Root, p.Module),
		Package: "./cmd/" + p.Name, Env: slices.Concat(locale, goEnvironment(platform))}
	if p.Built {
		program.Tags = "grpcnotrace" // of deploy/images
	}
	return licenses.Text(ctx, program)
}

// Docs implements Maker. hack/docs builds a site without search and diagrams if it cannot fetch the
// libraries, which is not the same site.
func (s Sources) Docs(ctx context.Context, r *Release, dir string) error {
	env := []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.made.Time, 10), "GOENV=off", "GOFLAGS="}
	if _, err := s.run(ctx, r.Root, env, filepath.Join(r.Root, "hack", "docs")); err != nil {
		return err
	}
	for _, library := range []string{"mermaid.js", "minisearch.js"} {
		if _, err := os.Stat(filepath.Join(r.Root, "bin", "docs-lib", library)); err != nil {
			return fmt.Errorf("the site has no %s: hack/docs could not fetch it", library)
		}
	}
	return os.CopyFS(dir, os.DirFS(filepath.Join(r.Root, "bin", "docs")))
}
