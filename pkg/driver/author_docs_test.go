package driver

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// authorsPage returns docs/tutorials/write-your-own-driver.md.
func authorsPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "tutorials", "write-your-own-driver.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// alone has a backend for each optional interface, without other optional interfaces. Only their
// types are used: no method is called.
var alone = map[string]backend.Backend{
	"Backend": struct{ backend.Backend }{},
	"NodeLocal": struct {
		backend.Backend
		backend.NodeLocal
	}{},
	"Lister": struct {
		backend.Backend
		backend.Lister
	}{},
	"CapacityReporter": struct {
		backend.Backend
		backend.CapacityReporter
	}{},
	"Expander": struct {
		backend.Backend
		backend.Expander
	}{},
	"Attacher": struct {
		backend.Backend
		backend.Attacher
	}{},
	"Limiter": struct {
		backend.Backend
		backend.Limiter
	}{},
	"Inliner": struct {
		backend.Backend
		backend.Inliner
	}{},
	"Snapshotter": struct {
		backend.Backend
		backend.Snapshotter
	}{},
	"Cloner": struct {
		backend.Backend
		backend.Cloner
	}{},
	"GroupSnapshotter": struct {
		backend.Backend
		backend.GroupSnapshotter
	}{},
	"PartSnapshotter": struct {
		backend.Backend
		backend.PartSnapshotter
	}{},
	"Modifier": struct {
		backend.Backend
		backend.Modifier
	}{},
	"Differ": struct {
		backend.Backend
		backend.Differ
	}{},
	"Prober": struct {
		backend.Backend
		backend.Prober
	}{},
	"Reacher": struct {
		backend.Backend
		backend.Reacher
	}{},
	"Grouper": struct {
		backend.Backend
		backend.Grouper
	}{},
	"HealthReporter": struct {
		backend.Backend
		backend.HealthReporter
	}{},
	"MetricsSource": struct {
		backend.Backend
		backend.MetricsSource
	}{},
	"UsageReporter": struct {
		backend.Backend
		backend.UsageReporter
	}{},
}

// advertised returns the capabilities of a driver with this backend.
func advertised(t *testing.T, b backend.Backend) (all []string) {
	t.Helper()
	ctx := context.Background()
	controller, err := (&controller{backend: b}).ControllerGetCapabilities(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range controller.GetCapabilities() {
		all = append(all, c.GetRpc().GetType().String())
	}
	node, err := (&node{backend: b}).NodeGetCapabilities(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range node.GetCapabilities() {
		all = append(all, "node "+c.GetRpc().GetType().String())
	}
	for _, c := range PluginCapabilities(b).GetCapabilities() {
		if s := c.GetService(); s != nil {
			all = append(all, "plugin "+s.GetType().String())
		} else {
			all = append(all, "plugin "+c.GetVolumeExpansion().GetType().String())
		}
	}
	return all
}

// TestTheDocumentedInterfacesAreTheInterfaces compares the table for authors with package backend,
// and the capabilities in the table with those that a driver advertises for the interface.
func TestTheDocumentedInterfacesAreTheInterfaces(t *testing.T) {
	documented := map[string][]string{}
	_, table, _ := strings.Cut(authorsPage(t), "## Interfaces\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|.*\\|([^|]*)\\|$").FindAllStringSubmatch(table,
		-1) {
		documented[row[1]] = []string{}
		for _, c := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			documented[row[1]] = append(documented[row[1]], c[1])
		}
	}
	names := interfaces(t, filepath.Join("..", "backend"))
	smaller := map[string]string{} // the smaller interface that an interface extends
	for _, name := range names {
		smaller[name] = "Backend"
	}
	delete(smaller, "Backend")
	smaller["GroupSnapshotter"] = "Snapshotter"
	smaller["PartSnapshotter"] = "GroupSnapshotter"
	for _, name := range names {
		got, ok := documented[name]
		b, known := alone[name]
		delete(documented, name)
		if !ok || !known {
			t.Errorf("backend.%s: in docs/tutorials/write-your-own-driver.md %v, in alone %v, want it in both", name, ok, known)
			continue
		}
		want := advertised(t, b)
		if than, ok := smaller[name]; ok {
			less := advertised(t, alone[than])
			want = slices.DeleteFunc(want, func(c string) bool { return slices.Contains(less, c) })
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("docs/tutorials/write-your-own-driver.md: %s gives %q, want %q", name, got, want)
		}
	}
	for name := range documented {
		t.Errorf("docs/tutorials/write-your-own-driver.md has %s, package backend has not", name)
	}
}

// interfaces returns the names of the interfaces that a package declares.
func interfaces(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
					names = append(names, spec.Name.Name)
				}
			}
			return true
		})
	}
	if len(names) < 10 {
		t.Fatalf("only %v were found", names)
	}
	return names
}

// TestTheDocumentedErrorsAreTheErrors compares the table for authors with package backend and with
// statusCodes.
func TestTheDocumentedErrorsAreTheErrors(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	contract, err := os.ReadFile(filepath.Join("..", "backend", "backend.go"))
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]string{}
	lines := regexp.MustCompile(`\{backend\.(Err\w+), codes\.(\w+)\}`)
	for _, line := range lines.FindAllStringSubmatch(string(source), -1) {
		codes[line[1]] = line[2]
	}
	documented := map[string]string{}
	rows := regexp.MustCompile("(?m)^\\| `(Err[A-Za-z]+)` \\| ([A-Z_]+) \\|")
	for _, row := range rows.FindAllStringSubmatch(authorsPage(t), -1) {
		documented[row[1]] = row[2]
	}
	declared := regexp.MustCompile(`(?m)^\t(Err\w+) += errors\.New`).FindAllStringSubmatch(string(contract), -1)
	if len(declared) < 9 {
		t.Fatalf("only %v were found", declared)
	}
	for _, d := range declared {
		if want := shouted(codes[d[1]]); documented[d[1]] != want || want == "" {
			t.Errorf("docs/tutorials/write-your-own-driver.md: %s is %q, want %q", d[1], documented[d[1]], want)
		}
		delete(documented, d[1])
	}
	for name := range documented {
		t.Errorf("docs/tutorials/write-your-own-driver.md has %s, package backend has not", name)
	}
}

// shouted converts the name of a code from the form of Go to the form of the CSI spec.
func shouted(code string) string {
	var b strings.Builder
	for i, c := range code {
		if i > 0 && unicode.IsUpper(c) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(c))
	}
	return b.String()
}
