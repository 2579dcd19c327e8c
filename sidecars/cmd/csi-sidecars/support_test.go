package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const supportPage = "../../../docs/reference/sidecars-support.md"

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// moduleVersion returns the version of a module in go.mod.
func moduleVersion(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		t.Fatalf("the version of %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// leastVersions returns the Kubernetes and the CSI version that the README of an upstream release
// requires for an image.
func leastVersions(t *testing.T, module, image string) (kubernetes, spec string) {
	t.Helper()
	row := regexp.MustCompile(`(?m)^\| \[CSI Spec (v[0-9.]+)\].*/` + image + `\s*\|\s*([0-9.]+)\s*\|`)
	m := row.FindStringSubmatch(readFile(t, filepath.Join(moduleDir(t, module), "README.md")))
	if m == nil {
		t.Fatalf("the README of %s has no versions for %s", module, image)
	}
	return m[2], m[1]
}

func TestTheSupportTableIsTrue(t *testing.T) {
	page := readFile(t, supportPage)
	for _, u := range upstreams {
		repository := strings.Split(u.module, "/")[2]
		kubernetes, spec := leastVersions(t, u.module, filepath.Base(u.directory))
		row := strings.Join([]string{"| main", u.controller, repository + " " + moduleVersion(t, u.module), kubernetes,
			spec + " |\n"}, " | ")
		if !strings.Contains(page, row) {
			t.Errorf("%s does not have the row %s", supportPage, row)
		}
	}
	tested := regexp.MustCompile(`k8s.io/kubernetes v([0-9.]+)`).FindStringSubmatch(readFile(t,
		"../../../test/cluster/tools/kube/go.mod"))
	row := strings.Join([]string{"| main", tested[1], moduleVersion(t, "k8s.io/client-go"),
		moduleVersion(t, "github.com/container-storage-interface/spec") + " |\n"}, " | ")
	if !strings.Contains(page, row) {
		t.Errorf("%s does not have the row %s", supportPage, row)
	}
}

// TestTheCasesThatCELAcceptsAreCounted compares the page with the cases that sidecars/test sends to
// an API server.
func TestTheCasesThatCELAcceptsAreCounted(t *testing.T) {
	files, err := filepath.Glob("../../test/testdata/webhook/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	cases := 0
	for _, file := range files {
		if strings.Contains(readFile(t, file), "\n# accepted\n") {
			cases++
		}
	}
	_, table, _ := strings.Cut(readFile(t, supportPage), "| Passes | Cases |")
	kinds, sum := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^\| [^|]+ \| ([0-9]+) \|`).FindAllStringSubmatch(table, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		kinds, sum = kinds+1, sum+n
	}
	if kinds != 4 || sum != cases {
		t.Errorf("%s has %d kinds with %d cases, want 4 with %d", supportPage, kinds, sum, cases)
	}
}
