package build_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/release/internal/build"
	"github.com/causeway-csi/causeway/release/internal/releasetest"
)

// TestASiteWithoutALibraryIsRefused: hack/docs passes without the network, and builds another site.
func TestASiteWithoutALibraryIsRefused(t *testing.T) {
	for libraries, want := range map[string]string{
		"mermaid.js minisearch.js": "",
		"minisearch.js":            "the site has no mermaid.js",
		"mermaid.js":               "the site has no minisearch.js",
	} {
		t.Run(libraries, func(t *testing.T) {
			root, out := t.TempDir(), filepath.Join(t.TempDir(), "docs")
			script := filepath.Join(root, "hack", "docs")
			releasetest.Write(t, script, "#!/bin/sh\nset -e\nmkdir -p bin/docs bin/docs-lib\n"+
				"echo $SOURCE_DATE_EPOCH >bin/docs/index.html\ncd bin/docs-lib\ntouch "+libraries+"\n")
			if err := os.Chmod(script, 0o755); err != nil {
				t.Fatal(err)
			}
			r := build.Release{Options: build.Options{Root: root}}
			err := build.Sources{Log: io.Discard}.Docs(t.Context(), &r, out)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v, want %s", err, want)
			}
			if _, err := os.Stat(filepath.Join(out, "index.html")); (err == nil) != (want == "") {
				t.Errorf("the site: %v", err)
			}
		})
	}
}

// TestTheSiteDoesNotDependOnTheEnvironment: settings of Hugo, the language and the time zone of the
// machine do not reach hack/docs. Other variables, such as HOME, do.
func TestTheSiteDoesNotDependOnTheEnvironment(t *testing.T) {
	for _, variable := range []string{"HUGO_BASEURL", "HUGO_PARAMS_SEARCH", "HUGO_ENVIRONMENT", "HUGOxPARAMSxREPOSITORY",
		"TZ", "LC_ALL", "CAUSEWAY_TEST"} {
		t.Setenv(variable, "machine")
	}
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "docs")
	script := filepath.Join(root, "hack", "docs")
	releasetest.Write(t, script, "#!/bin/sh\nset -e\nmkdir -p bin/docs bin/docs-lib\nenv >bin/docs/env\n"+
		"touch bin/docs-lib/mermaid.js bin/docs-lib/minisearch.js\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	r := build.Release{Options: build.Options{Root: root}}
	if err := (build.Sources{Log: io.Discard}).Docs(t.Context(), &r, out); err != nil {
		t.Fatal(err)
	}
	env, err := os.ReadFile(filepath.Join(out, "env"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(env), "\n")
	for _, want := range []string{"TZ=UTC", "LC_ALL=C", "CAUSEWAY_TEST=machine"} {
		if !slices.Contains(lines, want) {
			t.Errorf("hack/docs runs without %s", want)
		}
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "HUGO") || line == "TZ=machine" || line == "LC_ALL=machine" {
			t.Errorf("hack/docs runs with %s", line)
		}
	}
}
