package build_test

import (
	"bytes"
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
	releasetest.Git(t, clone, "config", "tar.umask", "0077")
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
