package kube

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// finding is a place in the source that reads a dropped field, or may.
type finding struct {
	what string
	in   string // a function
	at   token.Position
}

// findings checks all functions of the readers among the packages, and among their imports.
func findings(t *testing.T, kept keeps, readers, packages []string) []finding {
	t.Helper()
	program, own, lent := load(t, readers, packages)
	a := &analysis{kept: kept, own: own, lent: lent, seen: map[*ssa.Function]bool{}, fset: program.Fset}
	for fn := range functions(program) {
		if a.isOwn(fn) {
			a.add(fn)
		}
	}
	for len(a.todo) > 0 {
		fn := a.todo[0]
		a.todo = a.todo[1:]
		for _, b := range fn.Blocks {
			for _, i := range b.Instrs {
				a.instruction(i)
			}
		}
	}
	if len(a.seen) == 0 {
		t.Fatal("no function was looked at")
	}
	t.Logf("looked at %d functions of %d packages, and of %d whose functions count when called", len(a.seen), len(own),
		len(lent))
	return a.found
}

// load compiles the readers, and the helpers among their imports. It knows other packages by their
// types only, from the build cache.
func load(t *testing.T, readers, patterns []string) (program *ssa.Program, own, lent map[string]bool) {
	t.Helper()
	all, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps},
		patterns...)
	if err != nil {
		t.Fatal(err)
	}
	own, lent = map[string]bool{}, map[string]bool{}
	packages.Visit(all, nil, func(p *packages.Package) {
		begins := func(prefix string) bool { return strings.HasPrefix(p.PkgPath, prefix) }
		if slices.ContainsFunc(readers, begins) {
			own[p.PkgPath] = true
		} else if slices.ContainsFunc(helpers, begins) {
			lent[p.PkgPath] = true
		}
	})
	paths := slices.Concat(slices.Collect(maps.Keys(own)), slices.Collect(maps.Keys(lent)))
	for _, r := range readers {
		if !slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, r) }) {
			t.Errorf("no package of %s is in use: it has moved, or is to be taken off the list", r)
		}
	}
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax}, paths...)
	if err != nil {
		t.Fatal(err)
	}
	if packages.PrintErrors(loaded) > 0 {
		t.Fatal("what is to be looked at does not compile")
	}
	program, _ = ssautil.Packages(loaded, ssa.BareInits|ssa.InstantiateGenerics)
	program.Build()
	return program, own, lent
}

// functions returns all declarations of packages. ssautil.AllFunctions leaves out the methods of a
// type that becomes no interface here, though an importer calls them; it alone has the instances of
// generic functions.
func functions(program *ssa.Program) map[*ssa.Function]bool {
	all := map[*ssa.Function]bool{}
	var add func(fn *ssa.Function)
	add = func(fn *ssa.Function) {
		// the compiler's wrappers
		if fn == nil || all[fn] || fn.Synthetic != "" && fn.Origin() == nil && fn.Name() != "init" {
			return
		}
		all[fn] = true
		for _, inner := range fn.AnonFuncs {
			add(inner)
		}
	}
	for fn := range ssautil.AllFunctions(program) {
		add(fn)
	}
	for _, p := range program.AllPackages() {
		for _, m := range p.Members {
			if t, ok := m.(*ssa.Type); ok {
				if named, ok := t.Type().(*types.Named); ok {
					for method := range named.Methods() {
						add(program.FuncValue(method))
					}
				}
			}
		}
	}
	return all
}

// analysis goes through functions in SSA form, in which every read of a field and every conversion
// is an instruction.
type analysis struct {
	kept      keeps
	own, lent map[string]bool // packages
	fset      *token.FileSet
	seen      map[*ssa.Function]bool
	todo      []*ssa.Function
	found     []finding
}

func (a *analysis) add(fn *ssa.Function) {
	if !a.seen[fn] {
		a.seen[fn] = true
		a.todo = append(a.todo, fn)
	}
}

func (a *analysis) report(i ssa.Instruction, format string, args ...any) {
	a.found = append(a.found, finding{fmt.Sprintf(format, args...), i.Parent().String(), a.fset.Position(i.Pos())})
}

const core, meta1 = "k8s.io/api/core/v1", "k8s.io/apimachinery/pkg/apis/meta/v1"

// named returns the name of a type of a package, or of the element of a pointer to such a type;
// else nothing.
func named(t types.Type, pkg string) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != pkg {
		return ""
	}
	return n.Obj().Name()
}

// partial returns the type of which a part is kept that t is, points to, or is a list, map or
// channel of.
func (a *analysis) partial(t types.Type) string {
	switch u := types.Unalias(t).(type) {
	case *types.Named:
		if name := named(u, core); a.kept.types[name] {
			return name
		}
		return ""
	case *types.Pointer:
		return a.partial(u.Elem())
	case *types.Slice:
		return a.partial(u.Elem())
	case *types.Array:
		return a.partial(u.Elem())
	case *types.Chan:
		return a.partial(u.Elem())
	case *types.Map:
		if name := a.partial(u.Key()); name != "" {
			return name
		}
		return a.partial(u.Elem())
	}
	return ""
}

func (a *analysis) instruction(i ssa.Instruction) {
	switch v := i.(type) {
	case *ssa.FieldAddr:
		a.field(v, v.X, v.Field)
	case *ssa.Field:
		a.field(v, v.X, v.Field)
	case *ssa.MakeInterface:
		if name := a.partial(v.X.Type()); name != "" {
			a.follow(v, name, map[ssa.Value]bool{})
		}
	case *ssa.ChangeType:
		a.converted(v, v.X, v.Type())
	case *ssa.Convert:
		a.converted(v, v.X, v.Type())
	case ssa.CallInstruction:
		a.call(v)
	}
	a.values(i)
}

func (a *analysis) converted(i ssa.Instruction, from ssa.Value, to types.Type) {
	if name := a.partial(from.Type()); name != "" && a.partial(to) != name {
		a.report(i, "%s becomes %s", name, to)
	}
}

// field checks a selection of a struct's field.
func (a *analysis) field(i ssa.Instruction, x ssa.Value, index int) {
	owner := named(x.Type(), core)
	if named(x.Type(), meta1) == "ObjectMeta" {
		owner = a.metadataOf(x)
	}
	if !a.kept.types[owner] || onlyWritten(i.(ssa.Value)) {
		return
	}
	t := x.Type()
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	name := t.Underlying().(*types.Struct).Field(index).Name()
	if !a.kept.fields[owner+"."+name] {
		a.report(i, "reads %s.%s", owner, name)
	}
	if name == "ObjectMeta" {
		a.metadata(i.(ssa.Value), owner)
	}
}

// metadataOf returns "Pod.ObjectMeta" for a pod's, and nothing for that of other kinds.
func (a *analysis) metadataOf(x ssa.Value) string {
	var object ssa.Value
	switch v := x.(type) {
	case *ssa.FieldAddr:
		object = v.X
	case *ssa.Field:
		object = v.X
	default:
		return ""
	}
	if name := named(object.Type(), core); a.kept.types[name] {
		return name + ".ObjectMeta"
	}
	return ""
}

// metadata checks the uses of a pod's or node's metadata: a function that gets all of them can read
// any field.
func (a *analysis) metadata(v ssa.Value, owner string) {
	for _, r := range *v.Referrers() {
		switch r := r.(type) {
		case *ssa.FieldAddr, *ssa.Field, *ssa.DebugRef: // looked at where they are
			continue
		case *ssa.Store:
			if r.Addr == v {
				continue
			}
		case ssa.CallInstruction:
			callee := r.Common().StaticCallee()
			if callee != nil && callee.Signature.Recv() != nil {
				a.accessor(r, owner, callee.Name())
				continue
			}
		}
		a.report(r, "%s.ObjectMeta as a whole", owner)
	}
}

// accessor looks at the call of a method of metadata.
func (a *analysis) accessor(i ssa.Instruction, owner, method string) {
	field, ok := strings.CutPrefix(method, "Get")
	switch {
	case strings.HasPrefix(method, "Set"):
	case !ok:
		a.report(i, "calls %s of %s.ObjectMeta", method, owner)
	case !a.kept.fields[owner+".ObjectMeta."+field]:
		a.report(i, "reads %s.ObjectMeta.%s", owner, field)
	}
}

// onlyWritten reports whether a field, or its content, is read nowhere.
func onlyWritten(v ssa.Value) bool {
	refs := v.Referrers()
	if refs == nil || len(*refs) == 0 {
		return false
	}
	for _, r := range *refs {
		switch r := r.(type) {
		case *ssa.Store:
			if r.Addr != v {
				return false
			}
		case *ssa.FieldAddr:
			if !onlyWritten(r) {
				return false
			}
		case *ssa.DebugRef:
		default:
			return false
		}
	}
	return true
}

// call looks at where pods and nodes are handed to.
func (a *analysis) call(i ssa.CallInstruction) {
	c := i.Common()
	if c.IsInvoke() {
		a.invoke(i, c)
		return
	}
	if _, ok := c.Value.(*ssa.Builtin); ok { // such as len and append
		return
	}
	callee := c.StaticCallee()
	for n, arg := range c.Args {
		name := a.partial(arg.Type())
		switch {
		case name == "":
		case callee == nil:
			a.report(i, "hands %s to a function that is a value in %s", name, i.Parent())
		case callee.Signature.Recv() != nil && n == 0 && callee.Name() == "DeepCopy":
		case a.isOwn(callee), blind(callee):
		case a.isLent(callee):
			a.add(callee)
			for _, inner := range callee.AnonFuncs {
				a.add(inner)
			}
		default:
			a.report(i, "hands %s to %s", name, callee)
		}
	}
}

// packageOf returns the path of the package that declares a function.
func packageOf(fn *ssa.Function) string {
	if o := fn.Origin(); o != nil {
		fn = o
	}
	if fn.Pkg != nil {
		return fn.Pkg.Pkg.Path()
	}
	if o := fn.Object(); o != nil && o.Pkg() != nil {
		return o.Pkg().Path()
	}
	return ""
}

func (a *analysis) isOwn(fn *ssa.Function) bool  { return a.own[packageOf(fn)] }
func (a *analysis) isLent(fn *ssa.Function) bool { return a.lent[packageOf(fn)] }

// blind reports whether a function takes values of any type, of which it cannot read a field.
func blind(fn *ssa.Function) bool {
	return fn.Origin() != nil && slices.Contains([]string{"slices", "maps", "iter"}, packageOf(fn))
}

// invoke looks at the call of an interface's method.
func (a *analysis) invoke(i ssa.CallInstruction, c *ssa.CallCommon) {
	method := c.Method.FullName()
	switch method {
	case "(k8s.io/client-go/listers/core/v1.PodLister).List", "(k8s.io/client-go/listers/core/v1.PodNamespaceLister).List":
		if !everything(c.Args[0]) && !a.kept.fields["Pod.ObjectMeta.Labels"] {
			a.report(i, "selects pods by Pod.ObjectMeta.Labels")
		}
	case "(k8s.io/client-go/listers/core/v1.NodeLister).List":
		if !everything(c.Args[0]) && !a.kept.fields["Node.ObjectMeta.Labels"] {
			a.report(i, "selects nodes by Node.ObjectMeta.Labels")
		}
	}
	if get, ok := strings.CutPrefix(method, "("+meta1+".Object).Get"); ok {
		if !a.kept.fields["Pod.ObjectMeta."+get] || !a.kept.fields["Node.ObjectMeta."+get] {
			a.report(i, "reads ObjectMeta.%s of any object in %s", get, i.Parent())
		}
	}
	for _, arg := range c.Args {
		if name := a.partial(arg.Type()); name != "" && !(c.Method.Pkg() != nil && a.own[c.Method.Pkg().Path()]) {
			a.report(i, "hands %s to %s", name, method)
		}
	}
}

// everything reports whether a selector selects all.
func everything(v ssa.Value) bool {
	c, ok := v.(*ssa.Call)
	return ok && c.Call.StaticCallee() != nil &&
		c.Call.StaticCallee().String() == "k8s.io/apimachinery/pkg/labels.Everything"
}

// values checks functions that are not called here but passed on: functions of others which take a
// pod or a node.
func (a *analysis) values(i ssa.Instruction) {
	var callee ssa.Value
	if c, ok := i.(ssa.CallInstruction); ok && !c.Common().IsInvoke() {
		callee = c.Common().Value
	}
	for _, op := range i.Operands(nil) {
		fn, ok := (*op).(*ssa.Function)
		if !ok || *op == callee || a.isOwn(fn) || blind(fn) {
			continue
		}
		for p := range fn.Signature.Params().Variables() {
			if name := a.partial(p.Type()); name != "" {
				a.report(i, "hands %s to %s", name, fn)
			}
		}
	}
}

// follow looks for where a value goes whose type is lost.
func (a *analysis) follow(v ssa.Value, name string, seen map[ssa.Value]bool) {
	if seen[v] {
		return
	}
	seen[v] = true
	for _, r := range *v.Referrers() {
		switch r := r.(type) {
		case *ssa.DebugRef, *ssa.BinOp:
		case *ssa.Phi:
			a.follow(r, name, seen)
		case *ssa.ChangeInterface:
			a.follow(r, name, seen)
		case *ssa.Slice:
			a.follow(r, name, seen)
		case *ssa.Store:
			if to, ok := r.Addr.(*ssa.IndexAddr); ok { // a list of arguments
				a.follow(to.X, name, seen)
			} else if r.Val == v {
				a.report(r, "loses the type of %s in %s", name, r.Parent())
			}
		case *ssa.IndexAddr:
		case ssa.CallInstruction:
			a.report(r, "hands %s to %s", name, target(r))
		default:
			a.report(r, "loses the type of %s in %s", name, r.Parent())
		}
	}
}

// target names the callee.
func target(i ssa.CallInstruction) string {
	c := i.Common()
	if c.IsInvoke() {
		return c.Method.FullName()
	}
	if callee := c.StaticCallee(); callee != nil {
		return callee.String()
	}
	return "a function that is a value in " + i.Parent().String()
}
