package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/attest"
)

// check verifies that a release can be made, and completes the parameters. The build reads the
// working tree, so the tree must be that of the commit.
func (r *Release) check(ctx context.Context) error {
	// Canonical drops +metadata: the tag of an image has no +.
	if semver.Canonical(r.Version) != r.Version || r.Version == "" {
		return fmt.Errorf("invalid version %q: must be a semantic version such as v1.2.3 or v1.2.3-rc.1", r.Version)
	}
	if entries, err := os.ReadDir(r.Out); err == nil && len(entries) > 0 {
		return fmt.Errorf("the directory %s is not empty: remove it, or choose another", r.Out)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if changes, err := r.git(ctx, "status", "--porcelain"); err != nil {
		return err
	} else if len(changes) > 0 {
		return fmt.Errorf("the working tree has changes: commit or remove them\n%s", changes)
	}
	r.made = attest.Build{Version: r.Version, WindowsBase: r.WindowsBase, Builder: r.Builder}
	if err := r.checkTag(ctx); err != nil {
		return err
	}
	seconds, err := r.git(ctx, "show", "--no-patch", "--format=%ct", r.made.Commit)
	if err != nil {
		return err
	}
	if r.made.Time, err = strconv.ParseInt(strings.TrimSpace(string(seconds)), 10, 64); err != nil {
		return err
	}
	if r.made.Go, err = r.Maker.GoVersion(ctx); err != nil {
		return err
	}
	_, err = r.section(ctx)
	return err
}

// checkTag notes the commit, which must have the tag of the version.
func (r *Release) checkTag(ctx context.Context) error {
	head, err := r.git(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return err
	}
	r.made.Commit = strings.TrimSpace(string(head))
	tagged, err := r.git(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+r.Version+"^{commit}")
	if err == nil && strings.TrimSpace(string(tagged)) == r.made.Commit {
		return nil
	}
	if !r.Untagged {
		return fmt.Errorf("HEAD is not the tag %s: git checkout %s", r.Version, r.Version)
	}
	r.made.Untagged = true
	return nil
}

// git returns the output of a git command in the sources.
func (r *Release) git(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.Root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// tree returns the files of the commit below a directory, without the name of the directory. The
// working tree could have more files, which git ignores.
func (r *Release) tree(ctx context.Context, dir string) ([]archive.File, error) {
	out, err := r.git(ctx, "archive", "--format=tar", r.made.Commit+":"+dir)
	if err != nil {
		return nil, err
	}
	return archive.ReadTar(bytes.NewReader(out))
}

// has reports whether the commit has a path.
func (r *Release) has(ctx context.Context, path string) bool {
	_, err := r.git(ctx, "cat-file", "-e", r.made.Commit+":"+path)
	return err == nil
}
