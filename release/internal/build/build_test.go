package build_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/attest"
	"github.com/causeway-csi/causeway/release/internal/build"
	"github.com/causeway-csi/causeway/release/internal/releasetest"
)

// read returns the files of a directory.
func read(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, e := range entries {
		if all[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestWrongReleasesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, o *build.Options)
		want   string
	}{
		"no version":           {func(_ *testing.T, o *build.Options) { o.Version = "" }, "invalid version"},
		"no patch":             {func(_ *testing.T, o *build.Options) { o.Version = "v0.1" }, "invalid version"},
		"without v":            {func(_ *testing.T, o *build.Options) { o.Version = "0.1.0" }, "invalid version"},
		"metadata":             {func(_ *testing.T, o *build.Options) { o.Version = "v0.1.0+debian" }, "invalid version"},
		"a flag as version":    {func(_ *testing.T, o *build.Options) { o.Version = "--all" }, "invalid version"},
		"a tag that is absent": {func(_ *testing.T, o *build.Options) { o.Version = "v0.2.0" }, "HEAD is not the tag v0.2.0"},
		"a tag of the past": {func(t *testing.T, o *build.Options) {
			releasetest.Git(t, o.Root, "commit", "--quiet", "--allow-empty", "--message=later")
		}, "HEAD is not the tag v0.1.0"},
		"a branch with the name of a version": {func(t *testing.T, o *build.Options) {
			releasetest.Git(t, o.Root, "tag", "--delete", "v0.1.0")
			releasetest.Git(t, o.Root, "branch", "v0.1.0")
		}, "HEAD is not the tag v0.1.0"},
		"a changed file": {func(t *testing.T, o *build.Options) {
			releasetest.Write(t, filepath.Join(o.Root, "LICENSE"), "another")
		}, "the working tree has changes"},
		"a new file": {func(t *testing.T, o *build.Options) {
			releasetest.Write(t, filepath.Join(o.Root, "main.go"), "package main")
		}, "the working tree has changes"},
		"a new file that git is told to hide": {func(t *testing.T, o *build.Options) {
			releasetest.Git(t, o.Root, "config", "status.showUntrackedFiles", "no")
			releasetest.Write(t, filepath.Join(o.Root, "main.go"), "package main")
		}, "?? main.go"},
		"a directory with files": {func(t *testing.T, o *build.Options) {
			releasetest.Write(t, filepath.Join(o.Out, "old"), "")
		}, "is not empty"},
		"a changelog without the version": {func(t *testing.T, o *build.Options) {
			o.Version = "v0.2.0"
			releasetest.Git(t, o.Root, "tag", "v0.2.0")
		}, "CHANGELOG.md has no section ## [0.2.0]"},
	} {
		t.Run(name, func(t *testing.T) {
			o := releasetest.Options(t, releasetest.Repository(t), nil)
			tc.change(t, &o)
			if err := build.Make(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if _, err := os.Stat(filepath.Join(o.Out, attest.Checksums)); err == nil {
				t.Error("there is a release")
			}
		})
	}
}

// probe is a maker that calls a function with the sources, first of all.
type probe struct {
	releasetest.Maker
	run func(r *build.Release) error
}

func (p probe) Images(ctx context.Context, r *build.Release, dir string) error {
	return errors.Join(p.run(r), p.Maker.Images(ctx, r, dir))
}

// TestTheSourcesAreTheCommit: files that git does not report, and changes after the checks, are not
// in the sources.
func TestTheSourcesAreTheCommit(t *testing.T) {
	root := releasetest.Repository(t)
	write := func(name string) { releasetest.Write(t, filepath.Join(root, name), "package changed\n") }
	write("ignored.out")
	releasetest.Write(t, filepath.Join(root, ".git", "info", "exclude"), "/excluded.go\n")
	write("excluded.go")
	everywhere := filepath.Join(t.TempDir(), "ignore")
	releasetest.Write(t, everywhere, "/everywhere.go\n")
	releasetest.Git(t, root, "config", "core.excludesFile", everywhere)
	write("everywhere.go")
	releasetest.Git(t, root, "update-index", "--skip-worktree", "containercopy/images/main.go")
	write("containercopy/images/main.go")
	// A hook of git sets this variable, and would lead git to the working tree.
	t.Setenv("GIT_DIR", filepath.Join(root, ".git"))
	o, probed := releasetest.Options(t, root, nil), ""
	o.Maker = probe{run: func(r *build.Release) error {
		probed = r.Root
		write("release/cmd/causeway-release-verify/main.go") // later
		for _, name := range []string{"ignored.out", "excluded.go", "everywhere.go"} {
			if _, err := os.Stat(filepath.Join(r.Root, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is in the sources", name)
			}
		}
		for _, name := range []string{"containercopy/images/main.go", "release/cmd/causeway-release-verify/main.go"} {
			if content, err := os.ReadFile(filepath.Join(r.Root, name)); err != nil || string(content) != "package main\n" {
				t.Errorf("%s: %v, %s", name, err, content)
			}
		}
		releasetest.Git(t, r.Root, "--git-dir=.git", "rev-parse", "--verify", "refs/tags/"+releasetest.Version)
		return nil
	}}
	if err := build.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if probed == "" || probed == root {
		t.Errorf("the sources are %q", probed)
	}
	if _, err := os.Stat(probed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the clone is left: %v", err)
	}
}

// TestChangesDuringTheBuildAreFound: a program of the build writes into the sources.
func TestChangesDuringTheBuildAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, root string)
		want   string
	}{
		"a file": {func(t *testing.T, root string) {
			releasetest.Write(t, filepath.Join(root, "LICENSE"), "another")
		}, " M LICENSE"},
		"a new file": {func(t *testing.T, root string) {
			releasetest.Write(t, filepath.Join(root, "later.go"), "package main")
		}, "?? later.go"},
		"the commit": {func(t *testing.T, root string) {
			releasetest.Git(t, root, "commit", "--quiet", "--allow-empty", "--message=later")
		}, "the clone has the commit"},
		"the tag": {func(t *testing.T, root string) {
			releasetest.Git(t, root, "commit", "--quiet", "--allow-empty", "--message=later")
			releasetest.Git(t, root, "tag", "--force", releasetest.Version)
			releasetest.Git(t, root, "checkout", "--quiet", "HEAD~")
		}, "the tag v0.1.0 in the clone is"},
		"nothing but ignored files": {func(t *testing.T, root string) {
			releasetest.Write(t, filepath.Join(root, "bin", "program"), "")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := releasetest.Options(t, releasetest.Repository(t), nil)
			o.Maker = probe{run: func(r *build.Release) error {
				tc.change(t, r.Root)
				return nil
			}}
			err := build.Make(t.Context(), o)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if _, err := os.Stat(o.Out); tc.want != "" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("there is a release: %v", err)
			}
		})
	}
}

// TestTwoReleasesAreTheSame makes a release in two clones, with other times of files, umasks and
// ignored files. All but the signatures is equal.
func TestTwoReleasesAreTheSame(t *testing.T) {
	signer, root := releasetest.NewSigner(t), releasetest.Repository(t)
	first := releasetest.Options(t, root, signer)
	if err := build.Make(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	releasetest.Git(t, root, "clone", "--quiet", root, clone)
	releasetest.Write(t, filepath.Join(clone, "charts", "causeway", "test.out"), "ignored by git")
	if err := os.Chtimes(filepath.Join(clone, "LICENSE"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	// A setting of the user, as git does not clone those of a repository.
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "tar.umask")
	t.Setenv("GIT_CONFIG_VALUE_0", "0077")
	second := releasetest.Options(t, clone, signer)
	if err := build.Make(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	a, b := read(t, first.Out), read(t, second.Out)
	if len(a) != len(b) || len(a) < 40 {
		t.Errorf("%d and %d files", len(a), len(b))
	}
	for name, content := range a {
		switch same := bytes.Equal(content, b[name]); {
		case attest.IsArtifact(name) || name == attest.Checksums:
			if !same {
				t.Errorf("%s differs", name)
			}
		case name == attest.Provenance:
			one, err := attest.ParseEnvelope(content)
			if err != nil {
				t.Fatal(err)
			}
			two, err := attest.ParseEnvelope(b[name])
			if err != nil || !bytes.Equal(one.Payload, two.Payload) {
				t.Errorf("%v, or the statements differ", err)
			}
		}
	}
}

// TestTheChartIsThatOfHelm: the package has the versions, and not the files that .helmignore names.
func TestTheChartIsThatOfHelm(t *testing.T) {
	o := releasetest.Options(t, releasetest.Repository(t), nil)
	if err := build.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	files, err := archive.Read("causeway-0.1.0.tgz", read(t, o.Out)["causeway-0.1.0.tgz"])
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range files {
		found[f.Name] = string(f.Content)
	}
	if c := found["causeway/Chart.yaml"]; !strings.Contains(c, "\nversion: 0.1.0\nappVersion: v0.1.0\n") {
		t.Errorf("Chart.yaml:\n%s", c)
	}
	for _, name := range []string{"values.yaml", "values.schema.json", "templates/_helpers.tpl", "README.md",
		"crds/snapshot.storage.k8s.io_volumesnapshots.yaml"} {
		if found["causeway/"+name] == "" {
			t.Errorf("no %s", name)
		}
	}
	for name := range found {
		for _, ignored := range []string{"/ci/", ".helmignore", "kustomization.yaml", "crds/README.md", ".gotmpl"} {
			if strings.Contains(name, ignored) {
				t.Errorf("%s is in the package", name)
			}
		}
	}
}

func TestTheNotesAreTheSectionOfTheChangelog(t *testing.T) {
	o := releasetest.Options(t, releasetest.Repository(t), nil)
	if err := build.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	const want = "# Causeway v0.1.0\n\n### Added\n\n- A driver: " +
		"[read](https://github.com/causeway-csi/causeway/blob/v0.1.0/docs/README.md#it), [more](https://example.com).\n"
	if got := string(read(t, o.Out)[build.Notes]); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWithoutContainerCopy: a commit without the folder makes a release without its parts.
func TestWithoutContainerCopy(t *testing.T) {
	root := releasetest.Repository(t)
	releasetest.Git(t, root, "rm", "--quiet", "-r", "containercopy")
	releasetest.Git(t, root, "commit", "--quiet", "--message=without")
	releasetest.Git(t, root, "tag", "--force", releasetest.Version)
	o := releasetest.Options(t, root, nil)
	if err := build.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	all := read(t, o.Out)
	for name := range all {
		if strings.Contains(name, "copy") {
			t.Errorf("the release has %s", name)
		}
	}
	if len(all) < 30 {
		t.Errorf("%d files", len(all))
	}
}

// TestAFailureLeavesNothing: neither the directory of the release nor an incomplete one.
func TestAFailureLeavesNothing(t *testing.T) {
	root := releasetest.Repository(t)
	releasetest.Write(t, filepath.Join(root, "charts", "causeway", "Chart.yaml"), "name: causeway\n")
	releasetest.Git(t, root, "commit", "--quiet", "--all", "--message=no versions")
	releasetest.Git(t, root, "tag", "--force", releasetest.Version)
	o := releasetest.Options(t, root, nil)
	if err := build.Make(t.Context(), o); err == nil || !strings.Contains(err.Error(), "0 lines") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(o.Out)); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", err, left)
	}
}
