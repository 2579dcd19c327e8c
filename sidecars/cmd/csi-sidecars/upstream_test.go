package main

import (
	"bytes"
	"flag"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// upstreams are the binaries that csi-sidecars replaces.
var upstreams = []struct{ controller, module, directory string }{
	{"attacher", "github.com/kubernetes-csi/external-attacher/v4", "cmd/csi-attacher"},
	{"provisioner", "github.com/kubernetes-csi/external-provisioner/v6", "cmd/csi-provisioner"},
	{"resizer", "github.com/kubernetes-csi/external-resizer/v2", "cmd/csi-resizer"},
	{"snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8", "cmd/csi-snapshotter"},
	{"snapshot-controller", "github.com/kubernetes-csi/external-snapshotter/v8", "cmd/snapshot-controller"},
}

// differs are defaults that are meant to be others than upstream's.
var differs = map[string]string{
	"automaxprocs": "Go keeps to the container's CPU limit since 1.25, so the flag is without effect and says so",
}

// A user of upstream's binaries keeps the flags: plain, or with the controller's prefix for a
// controller's flag.
func TestEveryFlagOfUpstreamsBinariesIsTaken(t *testing.T) {
	for _, name := range []string{"NAMESPACE", "POD_NAME", "NODE_NAME"} {
		t.Setenv(name, "some")
	}
	ours := ourFlags(t)
	common := declared(t, moduleDir(t, "github.com/kubernetes-csi/csi-lib-utils")+"/standardflags")
	logging := loggingFlags()
	for _, u := range upstreams {
		t.Run(u.controller, func(t *testing.T) {
			theirs := declared(t, filepath.Join(moduleDir(t, u.module), u.directory))
			if len(theirs) < 10 {
				t.Fatalf("only these flags were found, which cannot be all: %v", theirs)
			}
			for _, flags := range []map[string]string{theirs, logging, common} {
				for name, fallback := range flags {
					if u.controller == "snapshot-controller" && name == "csi-address" {
						continue // it talks to no driver, and has its own of the other common flags
					}
					checkFlag(t, ours, u.controller, name, fallback)
				}
			}
		})
	}
}

// checkFlag looks for a flag of upstream's among ours, and parses it in each form that it has here.
func checkFlag(t *testing.T, ours map[string]string, controller, name, fallback string) {
	t.Helper()
	forms := []string{name}
	have, process := ours[name]
	if !process {
		var ok bool
		if have, ok = ours[controller+"-"+name]; !ok {
			t.Errorf("--%s is upstream's, but neither it nor --%s-%s is ours", name, controller, name)
			return
		}
		forms = append(forms, controller+"-"+name)
	}
	if reason := differs[name]; have != fallback && reason == "" {
		t.Errorf("--%s is %q by default, but %q in upstream's %s", name, have, fallback, controller)
	} else if have == fallback && reason != "" {
		t.Errorf("--%s has upstream's default: take it off the table", name)
	}
	for _, form := range forms {
		if err := command().Check(append(with(name), "--controllers="+controller, "--"+form+"="+have)); err != nil {
			t.Errorf("--%s=%s is refused: %v", form, have, err)
		}
	}
}

// with are flags without which ours refuses some of upstream's, as they would do nothing.
func with(name string) []string {
	switch {
	case strings.HasPrefix(name, "capacity-") || strings.HasPrefix(name, "kube-api-capacity-"):
		return []string{"--enable-capacity"}
	case strings.HasPrefix(name, "node-deployment-"):
		return []string{"--node-deployment"}
	}
	return nil
}

var row = regexp.MustCompile("(?m)^\\| `--([^`]+)` \\| (?:`([^`]*)`)? \\|(.*)$")

var also = regexp.MustCompile("also `--([^`]+)`")

// ourFlags are the defaults of ours, by their full names.
func ourFlags(t *testing.T) map[string]string {
	t.Helper()
	var page bytes.Buffer
	command().Markdown(&page)
	flags := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(page.String(), -1) {
		flags[m[1]] = m[2]
		for _, old := range also.FindAllStringSubmatch(m[3], -1) {
			flags[old[1]] = m[2]
		}
	}
	if len(flags) < 50 {
		t.Fatalf("only these flags are ours: %v", flags)
	}
	return flags
}

// loggingFlags are component-base's, which all of upstream's binaries have.
func loggingFlags() map[string]string {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	logsapi.AddGoFlags(logsapi.NewLoggingConfiguration(), set)
	flags := map[string]string{}
	set.VisitAll(func(f *flag.Flag) { flags[f.Name] = f.DefValue })
	return flags
}

func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		t.Fatalf("where %s is: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// declared are the flags that the source in a directory declares, with their defaults as package
// flag prints them.
func declared(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := source{t, file}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if name, fallback, ok := s.flag(call); ok {
					flags[name] = fallback
				}
			}
			return true
		})
	}
	return flags
}

// source is a file of upstream's.
type source struct {
	*testing.T
	file *ast.File
}

// flag reads a call such as flag.Int("workers", 10, "…") or flags.IntVar(&workers, "workers", 10,
// "…").
func (s source) flag(call *ast.CallExpr) (name, fallback string, ok bool) {
	to, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return "", "", false
	}
	if set, is := to.X.(*ast.Ident); !is || set.Name != "flag" && set.Name != "flags" && set.Name != "goflag" {
		return "", "", false
	}
	kind, into := strings.CutSuffix(to.Sel.Name, "Var")
	args := call.Args
	if into {
		args = args[1:]
	}
	switch kind {
	case "String", "Bool", "Int", "Uint", "Duration", "Float32", "Float64":
		return constant.StringVal(s.value(args[0])), show(kind, s.value(args[1])), true
	case "", "BoolFunc": // flag.Var
		return constant.StringVal(s.value(args[0])), "", true
	case "Parse", "Visit", "NewFlagSet", "Set":
		return "", "", false
	}
	s.Fatalf("the test cannot read flag.%s", to.Sel.Name)
	return "", "", false
}

// show prints a default as package flag does.
func show(kind string, v constant.Value) string {
	switch kind {
	case "String":
		return constant.StringVal(v)
	case "Duration":
		n, _ := constant.Int64Val(v)
		return time.Duration(n).String()
	case "Float32", "Float64":
		f, _ := constant.Float64Val(constant.ToFloat(v))
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return v.String()
}

// value computes the expression of a default.
func (s source) value(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.UnaryExpr:
		return constant.UnaryOp(e.Op, s.value(e.X), 0)
	case *ast.BinaryExpr:
		return constant.BinaryOp(s.value(e.X), e.Op, s.value(e.Y))
	case *ast.SelectorExpr:
		if unit, ok := map[string]time.Duration{"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]; ok {
			return constant.MakeInt64(int64(unit))
		}
	case *ast.Ident:
		if e.Name == "true" || e.Name == "false" {
			return constant.MakeBool(e.Name == "true")
		}
		if spec, ok := s.constant(e.Name); ok {
			return s.value(spec)
		}
	}
	s.Fatalf("the test cannot compute %#v", e)
	return nil
}

// constant returns the value of a name in the file.
func (s source) constant(name string) (found ast.Expr, ok bool) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is && spec.Names[0].Name == name && len(spec.Values) == 1 {
			found, ok = spec.Values[0], true
		}
		return !ok
	})
	return found, ok
}
