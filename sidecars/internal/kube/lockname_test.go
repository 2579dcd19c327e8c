package kube

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/external-resizer/v2/pkg/util"
)

// csi-lib-utils makes the lease's name from the lock name by a function that it does not export,
// and whose package needs a module that the product does not have. The resizer exports a copy.
// Neither shortens a name: the API server rejects a lease whose name has more than 253 characters
// or an upper-case letter, and then no process leads, upstream's or ours.
func TestLeasesHaveUpstreamsNames(t *testing.T) {
	original := functionText(t, "github.com/kubernetes-csi/csi-lib-utils", "leaderelection/leader_election.go",
		"sanitizeName")
	resizers := functionText(t, "github.com/kubernetes-csi/external-resizer/v2", "pkg/util/util.go", "SanitizeName")
	if original != resizers {
		t.Fatalf("the resizer's copy differs from csi-lib-utils, so the test must be changed:\n%s\n%s", original,
			resizers)
	}
	for _, lock := range []string{
		"external-attacher-leader-hostpath.csi.k8s.io",
		"external-snapshotter-leader-Some_Driver.X",
		"kubernetes.io/aws-ebs",
		"ends.with.a.dot.",
		"ends.with.a.dash-",
		"-begins-with-a-dash",
		"ünïcode.example.com",
		"a",
		"-",
		strings.Repeat("more-than-63.", 8) + "example.com",
		strings.Repeat("more-than-253.", 20) + "example.com",
	} {
		if got, want := lockName(lock), util.SanitizeName(lock); got != want {
			t.Errorf("%q: the lease is %q, want upstream's %q", lock, got, want)
		}
	}
}

// functionText returns the body of a function of upstream's.
func functionText(t *testing.T, module, path, name string) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("find the module %s: %v", module, err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, filepath.Join(strings.TrimSpace(string(dir)), path), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
			var text strings.Builder
			if err := printer.Fprint(&text, files, f.Body); err != nil {
				t.Fatal(err)
			}
			return text.String()
		}
	}
	t.Fatalf("%s has no function %s", path, name)
	return ""
}
