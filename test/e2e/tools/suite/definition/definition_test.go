package definition

import (
	"bytes"
	"fmt"
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

	"github.com/onsi/ginkgo/v2"

	"k8s.io/kubernetes/test/e2e/storage/external"
	storageframework "k8s.io/kubernetes/test/e2e/storage/framework"
)

// source returns a source file of Kubernetes, in the version of this module.
func source(t *testing.T, pkg, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(directory(t, pkg), file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// directory returns the directory of a package.
func directory(t *testing.T, pkg string) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(dir))
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
		t.Errorf("%s has a type that this test does not know: %T", path, e)
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
		t.Fatalf("no driver definitions: %v", err)
	}
	for _, f := range files {
		if _, notes, err := Read(f); err != nil || len(notes) > 0 {
			t.Errorf("%v; notes: %q", err, notes)
		}
	}
}

func TestUpstreamsOwnDefinitionsAreGood(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(directory(t, "k8s.io/kubernetes/test/e2e/storage/external"), "testdata",
		"*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("upstream's definitions are %q: %v", files, err)
	}
	for _, f := range files {
		if _, _, err := Read(f); err != nil {
			t.Error(err)
		}
	}
}

// good has something of everything, as the definitions of other drivers have it.
const good = `# how to test it
ShortName: example
StorageClass:
  FromFile: class.yaml
SnapshotClass:
  FromFile: snapshots.yaml
VolumeAttributesClass: {FromExistingClassName: fast}
DriverInfo:
  Name: example.com
  Capabilities:
    controllerExpansion: true
    persistence: true
    snapshotDataSource: yes
    topology: true
    RWX: false
  SupportedFsType: {xfs: {}}
  SupportedMountOption:
  SupportedSizeRange:
    Min: 1Mi
    Max: 16Ti
  TopologyKeys: [example.com/node]
  RequiredAccessModes: [ReadWriteOnce]
  MaxFileSize: 1048576
InlineVolumes:
- Attributes: {size: 1Mi}
  Shared: false
ClientNodeName: ""
Timeouts:
  PodStart: 2m
  podDelete: 3m30s
`

// classes are the files that good names.
var classes = map[string]string{
	"class.yaml": `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: a}
provisioner: example.com
`,
	"snapshots.yaml": `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: a}
driver: example.com
parameters: {keep: "3"}
`,
}

// written returns the path of a definition beside good's classes. In all files, from is replaced by
// to.
func written(t *testing.T, definition, from, to string) string {
	t.Helper()
	dir := t.TempDir()
	files := maps.Clone(classes)
	files["driver.yaml"] = definition
	found := false
	for name, text := range files {
		found = found || strings.Contains(text, from)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(text, from, to, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !found {
		t.Fatalf("no file has %q", from)
	}
	return filepath.Join(dir, "driver.yaml")
}

func TestMistakesAreErrors(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"no mistake": {},
		"an unknown field": {"StorageClass:", "StorageKlass:",
			"driver.yaml:3: StorageKlass: unknown field: must be one of DriverInfo, StorageClass,"},
		"a field in lower case": {"StorageClass:", "storageClass:",
			`driver.yaml:3: storageClass: unknown field: must be written "StorageClass"`},
		"a field that is there twice": {"Timeouts:", "StorageClass: {FromName: true}\nTimeouts:",
			"driver.yaml:28: StorageClass: duplicate field"},
		"an unknown field within": {"Name: example.com", "Name: example.com\n  MaxFilesize: 1",
			`driver.yaml:10: DriverInfo.MaxFilesize: unknown field: must be written "MaxFileSize"`},
		"an unknown field in a list": {"  Shared:", "  shared:",
			"driver.yaml:26: InlineVolumes[0].shared: unknown field"},
		"an unknown capability": {"persistence", "persistance",
			"driver.yaml:12: DriverInfo.Capabilities.persistance: unknown capability: must be one of FSResize"},
		"a capability in another case": {"RWX", "rwx",
			"driver.yaml:15: DriverInfo.Capabilities.rwx: unknown capability"},
		"a capability that upstream has dropped": {"persistence", "offlineSnapshotClone",
			"offlineSnapshotClone: unknown capability"},
		"an unknown timeout": {"PodStart", "PodStarts",
			"driver.yaml:29: Timeouts.PodStarts: unknown timeout"},
		"a timeout without a unit": {"2m", `"2"`,
			`driver.yaml:29: Timeouts.PodStart: invalid duration "2"`},
		"a number for a timeout": {"2m", "120",
			"driver.yaml:29: Timeouts.PodStart: invalid value 120: must be a string"},
		"no timeout": {"2m", "", "invalid duration"},
		"no name": {"Name: example.com", `Name: ""`,
			"driver.yaml:9: DriverInfo.Name: missing"},
		"a string for a bool": {"RWX: false", `RWX: "false"`,
			`driver.yaml:15: DriverInfo.Capabilities.RWX: invalid value "false": must be true or false`},
		"a number for a string": {"size: 1Mi", "size: 1048576",
			"InlineVolumes[0].Attributes.size: invalid value 1048576: must be a string"},
		"a list for an object": {"{xfs: {}}", "[xfs]",
			`DriverInfo.SupportedFsType: invalid value ["xfs"]: must be an object`},
		"an object for a list": {"TopologyKeys: [example.com/node]", "TopologyKeys: {a: b}",
			"must be a list"},
		"a string for a number": {"1048576", "1Mi",
			`DriverInfo.MaxFileSize: invalid value "1Mi": must be an integer`},
		"a size that is none": {"Min: 1Mi", "Min: 1 MiB",
			`driver.yaml:19: DriverInfo.SupportedSizeRange.Min: invalid size "1 MiB"`},
		"a negative size": {"Min: 1Mi", "Min: -1Mi", `invalid size "-1Mi"`},
		"a largest size below the least": {"Max: 16Ti", "Max: 1Ki",
			"driver.yaml:20: DriverInfo.SupportedSizeRange.Max: invalid size"},
		"a largest size below upstream's least": {"Min: 1Mi\n    Max: 16Ti", "Max: 1Gi",
			"must not be less than Min, which is 5Gi"},
		"an unknown access mode": {"ReadWriteOnce", "RWO",
			`DriverInfo.RequiredAccessModes[0]: invalid access mode "RWO"`},
		"a class file that is not there": {"class.yaml", "glass.yaml",
			"driver.yaml:4: StorageClass.FromFile: open"},
		"a class file that is no YAML": {"kind: StorageClass", "kind: {StorageClass",
			"class.yaml: yaml: line"},
		"an unknown field in a class": {"provisioner:", "binding: no\nprovisioner:",
			`class.yaml:4: unknown field "binding"`},
		"a wrong type in a class": {"provisioner:", "parameters: {a: 1}\nprovisioner:",
			"class.yaml:1: json: cannot unmarshal number"},
		"a class of another driver": {"provisioner: example.com", "provisioner: example.org",
			`class.yaml:4: provisioner: invalid value "example.org": must be "example.com"`},
		"something else than a class": {"kind: StorageClass", "kind: VolumeAttributesClass",
			`class.yaml:2: kind: invalid value "VolumeAttributesClass": must be "StorageClass"`},
		"two classes in a file": {"provisioner: example.com\n",
			"provisioner: example.com\n---\nkind: StorageClass\n", "class.yaml:6: a second object"},
		"a snapshot class of another driver": {"\ndriver: example.com", "\ndriver: example.org",
			"snapshots.yaml:4: driver: invalid value"},
		"a number for a snapshot parameter": {`keep: "3"`, "keep: 3",
			"snapshots.yaml:5: parameters.keep: invalid value 3: must be a string"},
		"two definitions in a file": {"ClientNodeName:", "---\nClientNodeName:",
			"driver.yaml:28: a second object"},
		"no YAML": {"InlineVolumes:", "InlineVolumes", "driver.yaml: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Read(written(t, good, test.from, test.to))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), test.want)):
				t.Errorf("got\n%v\nwant one line with\n%s", err, test.want)
			}
		})
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	const bad = `storageClass: {FromName: true}
StorageClass:
  FromFile: none.yaml
SnapshotClass:
  FromFile: snapshots.yaml
DriverInfo:
  Capabilities:
    blok: true
    exec: "true"
    RWX: false
    snapshotDataSource: true
    RWX: true
  SupportedSizeRange: {Min: 5 Gi, Max: 1Gb}
  StressTestOptions: {NumPods: ten}
InlineVolumes:
- Atributes: {}
- Shared: 1
Timeouts: {PodStart: 300, PodRun: 5m}
`
	path := written(t, bad, "", "")
	_, _, err := Read(path)
	if err == nil {
		t.Fatal("no mistake is reported")
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		parts := strings.SplitN(strings.TrimPrefix(line, filepath.Dir(path)+"/"), ": ", 3) // FILE:LINE: PATH: TEXT
		got = append(got, parts[0]+" "+parts[1])
	}
	want := []string{
		"driver.yaml:1 storageClass", "driver.yaml:3 StorageClass.FromFile", "driver.yaml:6 DriverInfo.Name",
		"driver.yaml:8 DriverInfo.Capabilities.blok", "driver.yaml:9 DriverInfo.Capabilities.exec",
		"driver.yaml:12 DriverInfo.Capabilities.RWX",
		"driver.yaml:13 DriverInfo.SupportedSizeRange.Max", "driver.yaml:13 DriverInfo.SupportedSizeRange.Min",
		"driver.yaml:14 DriverInfo.StressTestOptions.NumPods",
		"driver.yaml:16 InlineVolumes[0].Atributes", "driver.yaml:17 InlineVolumes[1].Shared",
		"driver.yaml:18 Timeouts.PodRun", "driver.yaml:18 Timeouts.PodStart",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("reported:\n%v\ngot\n%q\nwant\n%q", err, got, want)
	}
}

func TestFlagsWithoutEffectAreLogged(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"a retired field": {"", "", "driver.yaml:2: ShortName: retired field"},
		"a filesystem without specs": {"{xfs: {}}", "{zfs: {}}",
			"driver.yaml:16: DriverInfo.SupportedFsType.zfs: the suite has no specs"},
		"a class from two sources": {"FromFile: class.yaml", "FromFile: none.yaml\n  FromName: true",
			"driver.yaml:4: StorageClass.FromFile: no effect beside FromName"},
		"topology without its keys": {"TopologyKeys: [example.com/node]", "",
			"driver.yaml:14: DriverInfo.Capabilities.topology: no effect"},
		"topology keys without topology": {"topology: true", "topology: false",
			"driver.yaml:21: DriverInfo.TopologyKeys: no specs"},
		"snapshots without a class": {"SnapshotClass:\n  FromFile: snapshots.yaml\n", "",
			"snapshotDataSource: no effect without SnapshotClass"},
		"a class without its capability": {"snapshotDataSource: yes", "snapshotDataSource: no",
			"driver.yaml:5: SnapshotClass: no effect"},
		"a group class without the group": {"Timeouts:", "GroupSnapshotClass: {FromName: true}\nTimeouts:",
			"GroupSnapshotClass: no effect without the capability groupSnapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			_, notes, err := Read(written(t, good, test.from, test.to))
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(strings.Join(notes, "\n"), test.want) {
				t.Errorf("the notes are %q, want one with %q", notes, test.want)
			}
		})
	}
}

// TestTheValuesAreUpstreams compares the values, the defaults and the errors with those of
// upstream's reader, which logs its values.
func TestTheValuesAreUpstreams(t *testing.T) {
	for name, text := range map[string]string{
		"everything": good,
		"the least":  "DriverInfo: {Name: example.com}\n",
		"JSON": "{\n\t\"DriverInfo\": {\n\t\t\"Name\": \"example.com\", \"Capabilities\": " +
			"{\"block\": true}\n\t}\n}\n",
		"an expansion of its own": "DriverInfo: {Name: example.com, Capabilities: {controllerExpansion: true, " +
			"onlineExpansion: false}}\n",
		"no default filesystem": "DriverInfo: {Name: example.com, SupportedFsType: {ext4: {}, nfs: }}\n",
		"a largest size alone":  "DriverInfo: {Name: example.com, SupportedSizeRange: {Max: 10Gi}}\n",
		"nulls": "DriverInfo: {Name: example.com, SupportedSizeRange: , Capabilities: {block: , " +
			"exec: on}}\nInlineVolumes:\nTimeouts:\n",
		"an anchor": "DriverInfo: &a {Name: example.com, Capabilities: {block: true}}\nNodeSelectors: " +
			"{a: b}\n",
		"no name":                "DriverInfo: {}\n",
		"a string for a bool":    "DriverInfo: {Name: example.com, Capabilities: {block: \"true\"}}\n",
		"a float for an int":     "DriverInfo: {Name: example.com, MaxFileSize: 1.5}\n",
		"a list of filesystems":  "DriverInfo: {Name: example.com, SupportedFsType: [ext4]}\n",
		"a string for an object": "DriverInfo: example.com\n",
		"a list":                 "- DriverInfo\n",
		"nothing":                "",
	} {
		t.Run(name, func(t *testing.T) {
			path := written(t, text, "", "")
			want, upstreamErr := upstream(t, path)
			d, _, err := Read(path)
			if (err != nil) != (upstreamErr != nil) {
				t.Fatalf("got %v, upstream's error is %v", err, upstreamErr)
			}
			if got := fmt.Sprintf("%+v", d); err == nil && got != want {
				t.Errorf("got\n%s\nupstream has\n%s", got, want)
			}
		})
	}
}

// upstream returns the values of upstream's reader for a definition.
func upstream(t *testing.T, path string) (string, error) {
	t.Helper()
	var log bytes.Buffer
	ginkgo.GinkgoWriter.TeeTo(&log)
	defer ginkgo.GinkgoWriter.ClearTeeWriters()
	err := external.AddDriverDefinition(path)
	line := ""
	for l := range strings.Lines(log.String()) {
		if _, values, ok := strings.Cut(l, "Driver loaded from path ["+path+"]: &"); ok {
			line = strings.TrimSpace(values)
		}
	}
	if err == nil && line == "" {
		t.Fatalf("upstream does not log what it has read: %s", &log)
	}
	return line, err
}
