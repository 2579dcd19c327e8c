package layering

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Tests do not depend on the speed of the machine. A test waits for an event, with internal/await,
// or it runs in a synctest bubble, where time passes only while all goroutines wait.
//
// realTime lists the files, or functions of a file (file:function), that may use real time, and the
// reasons.
var realTime = map[string]string{
	"containercopy/apiserver/server_test.go:TestACopyFromAContainer": "a server of Kubernetes ends other requests " +
		"after a second, and has no event for that",
	"containercopy/cmd/kubectl-copy/copy_test.go:TestATerminal": "compares the interval of the progress",
	"containercopy/stream/relay_test.go:TestLimitsOfARelay":     "the functions of the table run in a bubble",
	"deploy/images/kep_linux_test.go:within": "this module does not contain the kit; the loop waits up to the deadline " +
		"of the test",
	"examples/attached/driver_linux_test.go": "a module that an author copies cannot import internal/await; the " +
		"moments at which processes are killed are random",
	"examples/attached/storage_linux_test.go:cloudDir": "a module that an author copies cannot import internal/await",
	"pkg/backend/smb/node_linux_test.go:survivesDeath": "a server is away for 90 s of the kernel's time, which no " +
		"event shows; the test passes at any speed",
	"pkg/backend/smb/simulation_test.go":                        "all of the file runs in bubbles",
	"sidecars/internal/kube/election_test.go:Update":            "runs in bubbles",
	"sidecars/internal/kube/simulation_test.go":                 "all of the file runs in bubbles",
	"pkg/backend/internal/copier/memory_linux_test.go:highest":  "the pause between two samples of the memory",
	"test/bench-router/main_linux_test.go:TestEachPartRuns":     "a parameter of a benchmark, whose result is not compared",
	"test/cluster/outages/outages_linux_test.go:pauseForOutage": "the time of an outage: there is no event",
	"test/cluster/switches/growth_linux_test.go:realRound":      "pvc-autoresizer does not report its rounds",
	"test/crash/crash_linux_test.go:TestDeathAtRandom":          "the moments at which the driver is killed are random",
	"test/nodes/world_linux_test.go:pauseIn":                    "the moments at which processes are stopped and killed",
}

// units are the constants of package time.
var units = map[string]int64{"Nanosecond": 1, "Microsecond": 1e3, "Millisecond": 1e6, "Second": 1e9, "Minute": 60e9, "Hour": 3600e9}

// TestTimeInTests: outside a synctest bubble a test has no time.Sleep, no literal duration below a
// second, and no loop of its own that waits for a time.
func TestTimeInTests(t *testing.T) {
	root := filepath.Join("..", "..")
	needed := map[string]bool{}
	packages := map[string][]string{} // paths of test files by directory
	err := walkSources(root, func(path string, d fs.DirEntry) error {
		if strings.HasSuffix(path, "_test.go") {
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil || len(packages) < 50 {
		t.Fatalf("%d packages have tests: %v", len(packages), err)
	}
	for _, paths := range packages {
		sources := map[string]any{}
		for _, path := range paths {
			sources[path] = nil
		}
		uses, err := timeUses(sources)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range uses {
			name, err := filepath.Rel(root, o.position.Filename)
			if err != nil {
				t.Fatal(err)
			}
			name = filepath.ToSlash(name)
			if !excused(name, o.function, needed) {
				t.Errorf("%s:%d: %s: %s", name, o.position.Line, o.function, o.text)
			}
		}
	}
	for entry := range realTime {
		folder, _, _ := strings.Cut(entry, "/")
		if _, err := os.Stat(filepath.Join(root, folder)); errors.Is(err, fs.ErrNotExist) {
			continue // a tree without containercopy
		}
		if !needed[entry] {
			t.Errorf("%s is in realTime and does not need that: remove the entry", entry)
		}
	}
}

// excused reports whether a function of a file may use real time, and marks the entry as needed.
func excused(file, function string, needed map[string]bool) bool {
	for _, entry := range []string{file, file + ":" + function} {
		if realTime[entry] != "" {
			needed[entry] = true
			return true
		}
	}
	return false
}

// timeUse is a use of real time in a function of a test.
type timeUse struct {
	position token.Position
	function string
	text     string
}

// timeFinder finds the uses of real time in the test files of a package.
type timeFinder struct {
	files    *token.FileSet
	bubbles  map[string]bool // functions that run their func literals in a bubble, with a package's name
	inside   map[string]bool // functions that only functions in a bubble call
	function string
	found    []timeUse
}

// timeUses returns the uses of real time in the test files of a package: path and source, as
// for parser.ParseFile.
func timeUses(sources map[string]any) ([]timeUse, error) {
	f := &timeFinder{files: token.NewFileSet(), bubbles: map[string]bool{"synctest.Test": true}}
	var files []*ast.File
	for path, source := range sources {
		file, err := parser.ParseFile(f.files, path, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	f.findBubbles(files)
	f.findInside(files)
	for _, file := range files {
		for _, d := range file.Decls {
			f.function = ""
			if decl, ok := d.(*ast.FuncDecl); ok {
				if f.function = decl.Name.Name; f.inside[f.function] {
					continue
				}
			}
			f.inspect(d)
		}
	}
	slices.SortFunc(f.found, func(a, b timeUse) int { return strings.Compare(a.position.String(), b.position.String()) })
	return f.found, nil
}

// findBubbles finds the functions that pass a parameter of theirs to synctest.Test.
func (f *timeFinder) findBubbles(files []*ast.File) {
	for _, decl := range functionsOf(files) {
		params := map[string]bool{}
		for _, field := range decl.Type.Params.List {
			for _, name := range field.Names {
				_, isFunc := field.Type.(*ast.FuncType)
				params[name.Name] = isFunc
			}
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || calleeOf(call) != "synctest.Test" {
				return true
			}
			ast.Inspect(call.Args[len(call.Args)-1], func(n ast.Node) bool {
				if name, ok := n.(*ast.Ident); ok && params[name.Name] {
					f.bubbles[decl.Name.Name] = true
				}
				return true
			})
			return true
		})
	}
}

// findInside finds the functions that only code in bubbles names. All functions that any code names
// are candidates. A name outside of a bubble removes a candidate, and the code of the candidate is
// outside from then on.
func (f *timeFinder) findInside(files []*ast.File) {
	f.inside = map[string]bool{}
	declared := map[string]bool{}
	for _, decl := range functionsOf(files) {
		declared[decl.Name.Name] = true
	}
	named := map[string]bool{}
	for _, decl := range functionsOf(files) {
		if decl.Body != nil {
			maps.Copy(named, namesIn(decl.Body))
		}
	}
	for name := range declared {
		f.inside[name] = named[name] && !strings.HasPrefix(name, "Test")
	}
	for changed := true; changed; {
		changed = false
		for _, file := range files {
			for _, d := range file.Decls {
				if decl, ok := d.(*ast.FuncDecl); ok && f.inside[decl.Name.Name] {
					continue
				}
				for name := range f.namesOutside(d) {
					if f.inside[name] {
						f.inside[name], changed = false, true
					}
				}
			}
		}
	}
}

// namesOutside returns the names that a declaration has outside of its bubbles.
func (f *timeFinder) namesOutside(d ast.Decl) map[string]bool {
	names := map[string]bool{}
	var own *ast.Ident
	if decl, ok := d.(*ast.FuncDecl); ok {
		own = decl.Name
	}
	f.walkOutside(d, func(n ast.Node) {
		if name, ok := n.(*ast.Ident); ok && name != own {
			names[name.Name] = true
		}
	})
	return names
}

// walkOutside calls visit for the nodes that are not in a func literal of a bubble.
func (f *timeFinder) walkOutside(root ast.Node, visit func(ast.Node)) {
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		visit(n)
		call, ok := n.(*ast.CallExpr)
		if !ok || !f.bubbles[calleeOf(call)] {
			return true
		}
		f.walkOutside(call.Fun, visit)
		for _, arg := range call.Args {
			switch arg.(type) {
			case *ast.FuncLit, *ast.Ident, *ast.SelectorExpr: // a function, or no duration
			default:
				f.walkOutside(arg, visit)
			}
		}
		return false
	})
}

func namesIn(n ast.Node) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			names[name.Name] = true
		}
		return true
	})
	return names
}

func functionsOf(files []*ast.File) (all []*ast.FuncDecl) {
	for _, file := range files {
		for _, d := range file.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok {
				all = append(all, decl)
			}
		}
	}
	return all
}

// calleeOf returns the name of a called function; that of a method has no receiver, and that of
// another package has the package's name.
func calleeOf(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		if x, ok := fun.X.(*ast.Ident); ok && x.Name == "synctest" {
			return "synctest." + fun.Sel.Name
		}
		return fun.Sel.Name
	}
	return ""
}

// inspect finds the uses of real time in a declaration.
func (f *timeFinder) inspect(d ast.Decl) {
	harmless := map[ast.Node]bool{}
	f.walkOutside(d, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CallExpr:
			if name := calleeOf(n); name == "Round" || name == "Truncate" {
				for _, arg := range n.Args {
					markAll(harmless, arg)
				}
			}
			if isTime(n.Fun, "Sleep") {
				f.report(n, "time.Sleep: wait for an event with internal/await, or use a synctest bubble")
			}
		case *ast.ForStmt:
			if waitsForTime(n) {
				f.report(n, "a loop that waits for a time: wait for the event with internal/await")
			}
		case *ast.BinaryExpr, *ast.SelectorExpr:
			if harmless[n] {
				return
			}
			expr := n.(ast.Expr)
			if b, ok := expr.(*ast.BinaryExpr); ok && b.Op == token.QUO && smallestUnit(b.Y) > 0 {
				markAll(harmless, b.Y) // the number of units of a duration
				return
			}
			switch value, known := durationOf(expr); {
			case known && value > 0 && value < units["Second"]:
				f.report(n, "a duration below a second: a busy machine is slower")
				markAll(harmless, expr)
			case known:
				markAll(harmless, expr)
			case isProduct(expr):
				if unit := smallestUnit(expr); unit > 0 && unit < units["Second"] {
					f.report(n, "a duration with a unit below a second: a busy machine is slower")
					markAll(harmless, expr)
				}
			}
		}
	})
}

func (f *timeFinder) report(n ast.Node, text string) {
	f.found = append(f.found, timeUse{f.files.Position(n.Pos()), f.function, text})
}

func markAll(marked map[ast.Node]bool, root ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		marked[n] = true
		return true
	})
}

// isTime reports whether an expression is a name of package time.
func isTime(e ast.Expr, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "time"
}

func isProduct(e ast.Expr) bool {
	b, ok := e.(*ast.BinaryExpr)
	return ok && (b.Op == token.MUL || b.Op == token.QUO)
}

// smallestUnit returns the smallest unit of time in an expression, or 0.
func smallestUnit(e ast.Expr) (smallest int64) {
	ast.Inspect(e, func(n ast.Node) bool {
		for name, unit := range units {
			if s, ok := n.(ast.Expr); ok && isTime(s, name) && (smallest == 0 || unit < smallest) {
				smallest = unit
			}
		}
		return true
	})
	return smallest
}

// durationOf returns the value of a constant expression of literals and units of time. An
// expression without a unit is not a duration.
func durationOf(e ast.Expr) (value int64, known bool) {
	if smallestUnit(e) == 0 {
		return 0, false
	}
	v := valueOf(e)
	if v == nil {
		return 0, false
	}
	value, _ = constant.Int64Val(constant.ToInt(v))
	return value, true
}

func valueOf(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT || e.Kind == token.FLOAT {
			return constant.MakeFromLiteral(e.Value, e.Kind, 0)
		}
	case *ast.ParenExpr:
		return valueOf(e.X)
	case *ast.SelectorExpr:
		for name, unit := range units {
			if isTime(e, name) {
				return constant.MakeInt64(unit)
			}
		}
	case *ast.BinaryExpr:
		x, y := valueOf(e.X), valueOf(e.Y)
		if x == nil || y == nil || e.Op == token.QUO && constant.Sign(y) == 0 {
			return nil
		}
		switch e.Op {
		case token.ADD, token.SUB, token.MUL, token.QUO:
			return constant.BinaryOp(x, e.Op, y)
		}
	}
	return nil
}

// waitsForTime reports whether a loop asks for the time, or pauses for a fixed time.
func waitsForTime(loop *ast.ForStmt) (waits bool) {
	ast.Inspect(loop, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectorExpr:
			for _, name := range []string{"After", "Tick", "NewTicker", "Sleep"} {
				waits = waits || isTime(n, name)
			}
			if call, ok := n.X.(*ast.CallExpr); ok && isTime(call.Fun, "Now") {
				waits = waits || n.Sel.Name == "After" || n.Sel.Name == "Before"
			}
		}
		return true
	})
	return waits
}

func TestTheRuleOfTimeFindsRealTime(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"a sleep":                        {`func TestX(t *testing.T) { time.Sleep(2 * time.Second) }`, 1},
		"a short sleep":                  {`func TestX(t *testing.T) { time.Sleep(time.Millisecond) }`, 2},
		"a short limit":                  {`func TestX(t *testing.T) { limit(20 * time.Millisecond) }`, 1},
		"a fraction of a second":         {`var x = time.Second / 2`, 1},
		"a variable number of units":     {`func TestX(t *testing.T) { limit(time.Duration(i) * time.Microsecond) }`, 1},
		"a long limit":                   {`func TestX(t *testing.T) { limit(2000 * time.Millisecond) }`, 0},
		"a rounded time":                 {`func TestX(t *testing.T) { t.Log(d.Round(time.Millisecond)) }`, 0},
		"a number of milliseconds":       {`func TestX(t *testing.T) { t.Log(d / time.Millisecond) }`, 0},
		"a loop up to a time":            {`func TestX(t *testing.T) { for time.Now().Before(end) { step() } }`, 1},
		"a loop with a pause":            {`func TestX(t *testing.T) { for { select { case <-c: case <-time.After(time.Second): } } }`, 1},
		"a bubble":                       {`func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(time.Second / 2) }) }`, 0},
		"a function of bubbles":          {`func TestX(t *testing.T) { synctest.Test(t, f) }; func f(t *testing.T) { g() }; func g() { time.Sleep(1) }`, 0},
		"a function also of a test":      {`func TestX(t *testing.T) { synctest.Test(t, f); f(t) }; func f(t *testing.T) { time.Sleep(1) }`, 1},
		"a function that makes a bubble": {`func TestX(t *testing.T) { b(t, func() { time.Sleep(1) }) }; func b(t *testing.T, f func()) { synctest.Test(t, func(t *testing.T) { f() }) }`, 0},
		"a function that no test calls":  {`func f() { time.Sleep(1) }`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := timeUses(map[string]any{"x_test.go": "package x\n" + c.body})
			if err != nil || len(found) != c.want {
				t.Errorf("%s: got %v, %v, want %d uses", c.body, found, err, c.want)
			}
		})
	}
}
