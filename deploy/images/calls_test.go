package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTheImageHasTheProgramsThatTheDriverCalls reads the source of the driver's packages: each
// program that they run is a tool of the image, and each tool is run.
func TestTheImageHasTheProgramsThatTheDriverCalls(t *testing.T) {
	calls := map[string]string{} // position of the call, by program
	for _, file := range driverFiles(t) {
		found, unknown, err := programs(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range unknown {
			t.Errorf("%s runs a program whose name is not a string there: the image cannot be checked", u)
		}
		maps.Copy(calls, found)
	}
	delete(calls, "/proc/self/exe") // the driver itself
	for name, where := range calls {
		if !slices.ContainsFunc(tools, func(tool string) bool { return path.Base(tool) == name }) {
			t.Errorf("%s runs %s, which is not in the driver's image: add it to tools, and its package to packages",
				where, name)
		}
	}
	for _, tool := range tools {
		if calls[path.Base(tool)] == "" {
			t.Errorf("the driver does not run %s: remove it from tools", tool)
		}
	}
}

// driverFiles returns the source files of the module's packages that cmd/driver is built of.
func driverFiles(t *testing.T) (files []string) {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f",
		`{{if .Module}}{{if .Module.Main}}{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, "./cmd/driver")
	list.Dir = filepath.Join("..", "..")
	list.Env = append(os.Environ(), "GOOS=linux")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files = strings.Fields(string(out))
	if !slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "/internal/linux/tool/tool_linux.go") }) {
		t.Fatalf("the mounter is not among the driver's %d files", len(files))
	}
	return files
}

// runs are the functions that run a program, and the index of the argument that names it.
var runs = map[string]int{
	"exec.Command": 0, "exec.CommandContext": 1, "exec.LookPath": 0, "os.StartProcess": 0,
	"syscall.Exec": 0, "syscall.ForkExec": 0, "syscall.StartProcess": 0, "unix.Exec": 0,
}

// methods are the methods of the mounter's type tool.Runner that run a program, and the same index.
// Each takes the name as its parameter called name. A file that calls one names the package, for
// the method's other arguments.
var methods = map[string]int{"Run": 3, "Output": 4}

// programs returns the programs that a file runs, with where, and the places where that cannot be
// told.
func programs(file string) (calls map[string]string, unknown []string, err error) {
	files := token.NewFileSet()
	source, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	calls = map[string]string{}
	for _, i := range source.Imports {
		if i.Name != nil && i.Path.Value == `"os/exec"` { // its calls would not be seen
			unknown = append(unknown, files.Position(i.Pos()).String())
		}
	}
	runner := source.Name.Name == "tool" || slices.ContainsFunc(source.Imports, func(i *ast.ImportSpec) bool {
		return strings.HasSuffix(unquote(i.Path), "/internal/linux/tool")
	})
	for _, decl := range source.Decls {
		f, ok := decl.(*ast.FuncDecl)
		ast.Inspect(decl, func(n ast.Node) bool {
			arg := program(n, runner)
			if n == nil || arg == nil {
				return true
			}
			where := files.Position(n.Pos()).String()
			switch arg := arg.(type) {
			case *ast.BasicLit:
				calls[unquote(arg)] = where
				return true
			case *ast.Ident:
				if ok && isMethod(f) && arg.Name == "name" {
					return true // its callers have the name
				}
			case *ast.IndexExpr: // command[0], of a list of commands in the function or the file
				found := commands(decl)
				if len(found) == 0 {
					found = commands(source)
				}
				for _, name := range found {
					calls[name] = where
				}
				if len(found) > 0 {
					return true
				}
			}
			unknown = append(unknown, where)
			return true
		})
	}
	return calls, unknown, nil
}

// program returns the name of the program if n is a call that runs a program. In a file with
// runner, a method's name is enough.
func program(n ast.Node, runner bool) ast.Expr {
	if literal, ok := n.(*ast.CompositeLit); ok && isCmd(literal.Type) {
		return literal // never a name that can be read
	}
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil
	}
	function := ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		function = f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			function = x.Name + "." + f.Sel.Name
		}
	}
	i, ok := runs[function]
	if method, is := call.Fun.(*ast.SelectorExpr); is && !ok && runner {
		i, ok = methods[method.Sel.Name]
	}
	if ok && i < len(call.Args) {
		return call.Args[i]
	}
	return nil
}

// isMethod reports whether a function is in methods.
func isMethod(f *ast.FuncDecl) bool {
	if _, ok := methods[f.Name.Name]; !ok || f.Recv == nil || len(f.Recv.List) != 1 {
		return false
	}
	pointer, ok := f.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	receiver, ok := pointer.X.(*ast.Ident)
	return ok && receiver.Name == "Runner"
}

func isCmd(t ast.Expr) bool {
	s, ok := t.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "exec" && s.Sel.Name == "Cmd"
}

// commands returns the first string of each []string in a list or map of them.
func commands(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		of := lit.Type
		switch t := of.(type) {
		case *ast.ArrayType:
			of = t.Elt
		case *ast.MapType:
			of = t.Value
		}
		if list, ok := of.(*ast.ArrayType); !ok || !isString(list.Elt) {
			return true
		}
		for _, e := range lit.Elts {
			if pair, ok := e.(*ast.KeyValueExpr); ok {
				e = pair.Value
			}
			one, ok := e.(*ast.CompositeLit)
			if !ok || len(one.Elts) == 0 {
				continue
			}
			if s, ok := one.Elts[0].(*ast.BasicLit); ok {
				names = append(names, unquote(s))
			}
		}
		return true
	})
	return names
}

func isString(e ast.Expr) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == "string"
}

func unquote(l *ast.BasicLit) string {
	s, err := strconv.Unquote(l.Value)
	if err != nil {
		return l.Value
	}
	return s
}
