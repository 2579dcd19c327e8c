package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/attest"
)

// check verifies that a release can be made, and completes the parameters. The build does not read
// the working tree: a changed tree is refused because the maintainer may expect the changes in the
// release.
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
	if changes, err := r.git(ctx, "status", "--porcelain", "--untracked-files=all"); err != nil {
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
	_, err = r.section(ctx)
	return err
}

// checkTag notes the commit, which must have the tag of the version.
func (r *Release) checkTag(ctx context.Context) (err error) {
	if r.made.Commit, err = r.commit(ctx, "HEAD"); err != nil {
		return err
	}
	tagged, err := r.commit(ctx, "refs/tags/"+r.Version)
	if err == nil && tagged == r.made.Commit {
		return nil
	}
	if !r.Untagged {
		return fmt.Errorf("HEAD is not the tag %s: git checkout %s", r.Version, r.Version)
	}
	r.made.Untagged = true
	return nil
}

// commit returns the commit of a reference.
func (r *Release) commit(ctx context.Context, reference string) (string, error) {
	out, err := r.git(ctx, "rev-parse", "--verify", "--quiet", reference+"^{commit}")
	return strings.TrimSpace(string(out)), err
}

// clone makes a clone of the commit, and sets Root to it. The working tree can have files that no
// command of git reports, but that the go command compiles: ignored files, and changes of a file
// with the bit skip-worktree. It can also change during the build. --no-local copies the objects
// one by one, and verifies their hashes. The options keep the settings and the hooks of this
// machine from changing the files.
func (r *Release) clone(ctx context.Context) error {
	dir := filepath.Join(r.work, "sources")
	if _, err := r.git(ctx, "clone", "--quiet", "--no-local", "--no-checkout", "--template=",
		"--config=core.hooksPath=/dev/null", "--config=core.attributesFile=/dev/null",
		"--config=core.excludesFile=/dev/null", "--config=core.autocrlf=false", "--config=core.eol=lf",
		"--config=core.fileMode=true", "--config=core.symlinks=true", "--", r.Root, dir); err != nil {
		return err
	}
	r.Root = dir
	if _, err := r.git(ctx, "checkout", "--quiet", "--detach", r.made.Commit); err != nil {
		return err
	}
	return r.unchanged(ctx)
}

// unchanged verifies that the clone has the files of the commit and of no other, and the tag. A
// program of the build could have changed them. Its output in ignored directories, such as bin, is
// permitted.
func (r *Release) unchanged(ctx context.Context) error {
	if head, err := r.commit(ctx, "HEAD"); err != nil {
		return err
	} else if head != r.made.Commit {
		return fmt.Errorf("the clone has the commit %s, want %s", head, r.made.Commit)
	}
	if !r.made.Untagged {
		if tagged, err := r.commit(ctx, "refs/tags/"+r.Version); err != nil {
			return err
		} else if tagged != r.made.Commit {
			return fmt.Errorf("the tag %s in the clone is %s, want %s", r.Version, tagged, r.made.Commit)
		}
	}
	changes, err := r.git(ctx, "status", "--porcelain", "--untracked-files=all")
	if err != nil {
		return err
	} else if len(changes) > 0 {
		return fmt.Errorf("the sources changed during the build\n%s", changes)
	}
	return nil
}

// git returns the output of a git command in the sources.
func (r *Release) git(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = r.Root, environment()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// locale sets the language, the order of letters and the time zone for the programs of the build.
var locale = []string{"LC_ALL=C", "TZ=UTC"}

// environment is that of this process with the same locale on each machine. It has none of the
// variables that name a repository: they are set in a hook of git, for example, and git would not
// use the repository of its working directory. It has no settings of Hugo, which would change the
// site: Hugo v0.164 reads each variable with the prefix HUGO, such as HUGO_BASEURL, and takes the
// next letter as the delimiter, as in HUGOxPARAMSxREPOSITORY.
func environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "HUGO") || slices.Contains([]string{"GIT_DIR", "GIT_WORK_TREE",
			"GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
			"GIT_NAMESPACE"}, name)
	}), locale...)
}

// tree returns the files of the commit below a directory, without the name of the directory.
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
