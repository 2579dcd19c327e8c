package kube

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// An error of Add, which upstream ignores, would leave gates out, and a query for such a gate
// panics.
func TestEveryGateIsInTheOneTable(t *testing.T) {
	all := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, g := range gates {
		if _, ok := all[g]; !ok {
			t.Errorf("%s is not registered", g)
		}
	}
}

// A release of upstream with another gate is to be noticed when it is taken in.
func TestTheGatesAreUpstreams(t *testing.T) {
	var upstream []featuregate.Feature
	for _, pkg := range []string{
		"github.com/kubernetes-csi/external-attacher/v4/pkg/features", "github.com/kubernetes-csi/external-provisioner/v6/pkg/features",
		"github.com/kubernetes-csi/external-resizer/v2/pkg/features", "github.com/kubernetes-csi/external-snapshotter/v8/pkg/features",
	} {
		upstream = append(upstream, declared(t, pkg)...)
	}
	for _, g := range upstream {
		if !slices.Contains(gates, g) {
			t.Errorf("upstream has %s, which is new to us", g)
		}
	}
	for _, g := range gates {
		if !slices.Contains(upstream, g) {
			t.Errorf("upstream has not %s any more", g)
		}
	}
}

// declared are a package's constants of that type.
func declared(t *testing.T, pkg string) (features []featuregate.Feature) {
	t.Helper()
	const format = `{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}`
	files, err := exec.CommandContext(t.Context(), "go", "list", "-f", format, pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Split(strings.TrimSpace(string(files)), "\n") {
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) == 0 {
				return true
			}
			kind, _ := v.Type.(*ast.SelectorExpr)
			if kind == nil || kind.Sel.Name != "Feature" {
				return true
			}
			name, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			features = append(features, featuregate.Feature(name))
			return true
		})
	}
	if len(features) == 0 {
		t.Errorf("%s has no gates that can be read here", pkg)
	}
	return features
}

func TestGatesOnTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		name  string
		gates map[string]bool
		want  string // empty: fine
	}{
		{name: "none"},
		{name: "one of upstream's", gates: map[string]bool{"Topology": false}},
		{name: "one that nobody has", gates: map[string]bool{"Teleport": true}, want: "Teleport"},
		{name: "the release of leases cannot be turned off", gates: map[string]bool{string(release): false},
			want: "always released"},
		{name: "but on", gates: map[string]bool{string(release): true}},
	} {
		err := (&Cluster{gates: c.gates}).checkGates()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
	if c := (&Cluster{gates: map[string]bool{"Topology": false}}); c.Gate("Topology") ||
		!(&Cluster{}).Gate("CSIVolumeGroupSnapshot") {
		t.Error("a gate is not what the command line, or upstream, says")
	}
}
