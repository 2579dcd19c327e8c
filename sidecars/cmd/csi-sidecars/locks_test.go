package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubernetes-csi/external-resizer/v2/pkg/util"
)

// drivers are names that upstream's programs treat in different ways. CSI allows letters of both
// cases, digits, dashes and dots, up to 63 characters. No program enforces that, so the others must
// give the same lock names, too.
var drivers = []string{
	"hostpath.csi.k8s.io",
	"org/driver.example.com",
	"Upper.Case.Example.com",
	"under_score.example.com",
	"ends.with.a.dash-",
	"ends.with.a.dot.",
	"a",
	strings.Repeat("sixty-three", 5) + ".example",
	strings.Repeat("more-than-63.", 8) + "example.com",
	strings.Repeat("more-than-253.", 20) + "example.com",
}

// A process with another lock name than upstream's does not see the old sidecar, and works beside
// it. csi-lib-utils makes the lease's name from the lock name: see
// TestLocksAreNamedAsUpstreamNamesThem.
func TestLocksAreUpstreams(t *testing.T) {
	want := map[string]func(*testing.T, string) string{
		// Its module is not among ours: external-health-monitor v0.18.0,
		// cmd/csi-external-health-monitor-controller/main.go.
		"health-monitor": func(_ *testing.T,
			driver string) string {
			return "external-health-monitor-leader-" + driver
		},
	}
	for _, u := range upstreams {
		want[u.controller] = upstreamLock(t, filepath.Join(moduleDir(t, u.module), u.directory))
	}
	for _, k := range command().Controllers {
		lock := k.Needs().Lock
		if lock == nil {
			continue
		}
		theirs := want[k.Name()]
		if theirs == nil {
			t.Errorf("%s has a lock, and no program of upstream's is known for it", k.Name())
			continue
		}
		for _, driver := range drivers {
			if got, want := lock(driver), theirs(t, driver); got != want {
				t.Errorf("%s, driver %q: the lock is %q, want upstream's %q", k.Name(), driver, got, want)
			}
		}
		delete(want, k.Name())
	}
	for name := range want {
		t.Errorf("%s has no lock", name)
	}
}

// elects has the functions of csi-lib-utils that run an election, and the position of the lock name
// among their arguments.
var elects = map[string]int{"RunWithLeaderElection": 4, "NewLeaderElection": 1}

// upstreamLock finds the lock name in the source of a program of upstream, and returns a function
// that computes the name.
func upstreamLock(t *testing.T, dir string) func(t *testing.T, driver string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var found []lockSource
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if at, ok := elects[called(call)]; ok {
					found = append(found, lockSource{source{t, file}, call.Args[at], ""})
				}
			}
			return true
		})
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d elections, want 1", dir, len(found))
	}
	return func(t *testing.T, driver string) string {
		t.Helper()
		s := lockSource{source{t, found[0].file}, found[0].name, driver}
		return s.text(s.name)
	}
}

// called returns the name of the called function or method, without its package or receiver.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

// lockSource is a file of upstream's with an election, for a single driver.
type lockSource struct {
	source
	name   ast.Expr
	driver string
}

// text computes an expression whose value is a string.
func (s lockSource) text(e ast.Expr) string {
	s.Helper()
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.StringVal(s.value(e))
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return s.text(e.X) + s.text(e.Y)
		}
	case *ast.Ident:
		return s.variable(e.Name)
	case *ast.CallExpr:
		return s.call(e)
	}
	s.Fatalf("the test cannot compute %#v", e)
	return ""
}

// call computes the calls that make lock names.
func (s lockSource) call(c *ast.CallExpr) string {
	s.Helper()
	switch called(c) {
	case "GetDriverName", "getDriverName":
		return s.driver
	case "Replace":
		n, _ := constant.Int64Val(s.value(c.Args[3]))
		return strings.Replace(s.text(c.Args[0]), s.text(c.Args[1]), s.text(c.Args[2]), int(n))
	case "Sprintf":
		var args []any
		for _, a := range c.Args[1:] {
			args = append(args, s.text(a))
		}
		return fmt.Sprintf(s.text(c.Args[0]), args...)
	case "SanitizeName":
		return util.SanitizeName(s.text(c.Args[0]))
	case "Name": // of a resizer or modifier, whose constructor takes the name last
		if receiver, ok := c.Fun.(*ast.SelectorExpr).X.(*ast.Ident); ok {
			for _, made := range s.assigned(receiver.Name) {
				if constructor, ok := made.(*ast.CallExpr); ok {
					return s.text(constructor.Args[len(constructor.Args)-1])
				}
			}
		}
	}
	s.Fatalf("the test cannot compute a call of %s", called(c))
	return ""
}

// variable returns the value of a variable or constant. A variable that is set in several places
// must have the same value in all of them, except where it is empty.
func (s lockSource) variable(name string) string {
	s.Helper()
	if spec, ok := s.constant(name); ok {
		return s.text(spec)
	}
	var all []string
	for _, e := range s.assigned(name) {
		if v := s.text(e); v != "" {
			all = append(all, v)
		}
	}
	if all = slices.Compact(all); len(all) != 1 {
		s.Fatalf("the variable %s has the values %q, want one", name, all)
	}
	return all[0]
}

// assigned returns the expressions whose value, or first value, a variable gets.
func (s lockSource) assigned(name string) []ast.Expr {
	var all []ast.Expr
	ast.Inspect(s.file, func(n ast.Node) bool {
		if set, ok := n.(*ast.AssignStmt); ok {
			for i, to := range set.Lhs {
				if v, ok := to.(*ast.Ident); ok && v.Name == name && i < len(set.Rhs) {
					all = append(all, set.Rhs[i])
				}
			}
		}
		return true
	})
	return all
}
