package definition

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	storageframework "k8s.io/kubernetes/test/e2e/storage/framework"
)

// source returns a file of Kubernetes', as this module has it.
func source(t *testing.T, pkg, file string) *ast.File {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTheTypeIsUpstreams(t *testing.T) {
	f := source(t, "k8s.io/kubernetes/test/e2e/storage/external", "external.go")
	var upstream ast.Expr
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok && s.Name.Name == "driverDefinition" {
			upstream = s.Type
		}
		return true
	})
	if upstream == nil {
		t.Fatal("external.go has no type driverDefinition any more")
	}
	want := map[string]string{}
	fieldsOf(t, "", upstream, want)
	got := map[string]string{}
	fieldsOfType("", reflect.TypeFor[Definition](), got)
	if !maps.Equal(got, want) {
		t.Errorf("the fields are\n%v\nupstream's are\n%v", got, want)
	}
}

// fieldsOf adds the fields of a type's source, by their path.
func fieldsOf(t *testing.T, path string, e ast.Expr, all map[string]string) {
	switch e := e.(type) {
	case *ast.StructType:
		for _, f := range e.Fields.List {
			for _, name := range f.Names {
				fieldsOf(t, path+"."+name.Name, f.Type, all)
			}
		}
	case *ast.ArrayType:
		fieldsOf(t, path+"[]", e.Elt, all)
	case *ast.MapType:
		fieldsOf(t, path+"{}", e.Value, all)
	case *ast.SelectorExpr:
		all[path] = e.Sel.Name
	case *ast.Ident:
		all[path] = e.Name
	default:
		t.Errorf("%s has a type that this test doesn't know: %T", path, e)
	}
}

// fieldsOfType does the same with a type.
func fieldsOfType(path string, typ reflect.Type, all map[string]string) {
	switch {
	case typ.Kind() == reflect.Struct && typ.PkgPath() == reflect.TypeFor[Definition]().PkgPath():
		for f := range typ.Fields() {
			fieldsOfType(path+"."+f.Name, f.Type, all)
		}
	case typ.Kind() == reflect.Slice:
		fieldsOfType(path+"[]", typ.Elem(), all)
	case typ.Kind() == reflect.Map:
		fieldsOfType(path+"{}", typ.Elem(), all)
	default:
		all[path] = typ.Name()
	}
}

func TestTheCapabilitiesAreAllThereAre(t *testing.T) {
	f := source(t, "k8s.io/kubernetes/test/e2e/storage/framework", "testdriver.go")
	var want []storageframework.Capability
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); !ok || typ.Name != "Capability" {
			return true
		}
		for _, e := range v.Values {
			text, err := strconv.Unquote(e.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, storageframework.Capability(text))
		}
		return true
	})
	got := slices.Clone(capabilities)
	slices.Sort(got)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the capabilities are\n%q\nupstream's are\n%q", got, want)
	}
}

func TestOurConfigurationsAreGood(t *testing.T) {
	files, err := filepath.Glob("../../../configs/*/driver.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no driver files: %v", err)
	}
	for _, f := range files {
		if _, err := Read(f); err != nil {
			t.Error(err)
		}
	}
}

// good is a driver file with something of everything.
const good = `DriverInfo:
  Name: example.com
  Capabilities: {persistence: true, topology: true, snapshotDataSource: true}
  SupportedFsType: {"": {}, xfs: {}}
  SupportedSizeRange: {Min: 1Mi}
  TopologyKeys: [example.com/node]
StorageClass: {FromFile: class.yaml}
SnapshotClass: {FromName: true}
InlineVolumes: [{Attributes: {size: 1Mi}, Shared: false}]
Timeouts: {PodStart: 2m}
`

const goodClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: a}
provisioner: example.com
`

func TestMistakesAreErrors(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"a file without mistakes":                {},
		"an unknown key":                         {"StorageClass:", "StorageKlass:", "StorageKlass"},
		"a key in lower case":                    {"StorageClass:", "storageClass:", "storageClass"},
		"a key that is there twice":              {"Timeouts:", "StorageClass: {FromName: true}\nTimeouts:", "already"},
		"an unknown key within":                  {"Name: example.com", "Name: example.com\n  MaxFilesize: 1", "MaxFilesize"},
		"an unknown capability":                  {"persistence", "persistance", `"persistance" isn't known`},
		"a capability that upstream has dropped": {"persistence", "offlineSnapshotClone", `"offlineSnapshotClone" isn't known`},
		"a filesystem without patterns":          {"xfs", "zfs", `"zfs" isn't known`},
		"an unknown timeout":                     {"PodStart", "PodStarts", `"PodStarts" isn't known`},
		"a timeout that is none":                 {"2m", "two", "invalid duration"},
		"no name":                                {"Name: example.com", "Name: \"\"", "name is missing"},
		"a class from two places":                {"FromFile: class.yaml", "FromFile: class.yaml, FromName: true", "say one"},
		"topology without its keys":              {"TopologyKeys: [example.com/node]", "NumAllowedTopologies: 1", "both or none"},
		"snapshots without a class":              {"SnapshotClass: {FromName: true}\n", "", "both or none"},
		"a class file that isn't there":          {"class.yaml", "glass.yaml", "no such file"},
		"an unknown key in a class":              {"provisioner:", "binding: no\nprovisioner:", "binding"},
		"a class of another driver":              {"provisioner: example.com", "provisioner: example.org", "example.org"},
		"something else than a class":            {"kind: StorageClass", "kind: VolumeAttributesClass", "not a StorageClass"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"driver.yaml": good, "class.yaml": goodClass} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(strings.Replace(text, test.from, test.to, 1)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Read(filepath.Join(dir, "driver.yaml"))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}
