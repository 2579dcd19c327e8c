package sidecar

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Flags declares the flags of a controller or of the process. The flag "timeout" of the attacher is
// --attacher-timeout on the command line. --timeout sets it for every controller that has a flag of
// that name and for which it is not set with the prefix.
type Flags struct {
	table *table
	owner string // a controller, or "" for the process
	apart bool   // flags of a subcommand, which are not arguments of the process
}

// table is a command line. The parser, the help and the page in docs are made from it.
type table struct {
	entries []*entry
	shared  map[string]*fanOut // by name: the unprefixed form of controllers' flags
	given   []string           // the arguments in their order, without those of entries that are apart
}

// entry is a flag of an owner.
type entry struct {
	owner, name, usage string
	value              flag.Value
	fallback           string // the default
	old                []string
	said               string // the spelling that set the flag, or ""
	apart              bool
}

// fanOut is an unprefixed flag of controllers. It keeps the value until the controllers are
// selected.
type fanOut struct {
	table *table
	name  string
	value string
	bool  bool
	said  bool
}

func (s *fanOut) String() string   { return s.value }
func (s *fanOut) IsBoolFlag() bool { return s.bool }
func (s *fanOut) Set(v string) error {
	s.value, s.said = v, true
	s.table.note(s.name, v, s.bool)
	return nil
}

// sayer records with which spelling its entry was set.
type sayer struct {
	*entry
	table    *table
	spelling string
}

func (s sayer) String() string {
	if s.entry == nil { // package flag calls String of a zero value
		return ""
	}
	return s.value.String()
}
func (s sayer) IsBoolFlag() bool { return isBool(s.value) }
func (s sayer) Set(v string) error {
	s.said = s.spelling
	if !s.apart {
		s.table.note(s.spelling, v, isBool(s.value))
	}
	return s.value.Set(v)
}

// note records an argument.
func (t *table) note(name, value string, isBool bool) {
	arg := "--" + name
	if !isBool || value != "true" {
		arg += "=" + value
	}
	t.given = append(t.given, arg)
}

func isBool(v flag.Value) bool {
	b, ok := v.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// Var declares a flag of any kind.
func (f *Flags) Var(v flag.Value, name, usage string) {
	f.table.entries = append(f.table.entries,
		&entry{owner: f.owner, name: name, usage: usage, value: v, fallback: v.String(), apart: f.apart})
}

// adopt declares all flags of a flag.FlagSet.
func (f *Flags) adopt(set *flag.FlagSet) {
	set.VisitAll(func(g *flag.Flag) { f.Var(g.Value, g.Name, g.Usage) })
}

// Declare declares the flags that fill adds to a flag.FlagSet.
func (f *Flags) Declare(fill func(*flag.FlagSet)) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	fill(set)
	f.adopt(set)
}

// Bool declares a boolean flag.
func (f *Flags) Bool(p *bool, name string, value bool, usage string) {
	f.Declare(func(s *flag.FlagSet) { s.BoolVar(p, name, value, usage) })
}

// Int declares an integer flag.
func (f *Flags) Int(p *int, name string, value int, usage string) {
	f.Declare(func(s *flag.FlagSet) { s.IntVar(p, name, value, usage) })
}

// Float declares a float64 flag.
func (f *Flags) Float(p *float64, name string, value float64, usage string) {
	f.Declare(func(s *flag.FlagSet) { s.Float64Var(p, name, value, usage) })
}

// String declares a string flag.
func (f *Flags) String(p *string, name, value, usage string) {
	f.Declare(func(s *flag.FlagSet) { s.StringVar(p, name, value, usage) })
}

// Duration declares a duration flag, such as 10s.
func (f *Flags) Duration(p *time.Duration, name string, value time.Duration, usage string) {
	f.Declare(func(s *flag.FlagSet) { s.DurationVar(p, name, value, usage) })
}

// Old adds former names of a flag, or its names in upstream. They work, and are not in the first
// line of the help.
func (f *Flags) Old(name string, spellings ...string) {
	e := f.table.find(f.owner, name)
	e.old = append(e.old, spellings...)
}

// Said reports whether the command line set a flag, with or without prefix.
func (f *Flags) Said(name string) bool { return f.table.find(f.owner, name).said != "" }

// SaidHere reports whether the command line set a flag with this controller's prefix.
func (f *Flags) SaidHere(name string) bool {
	e := f.table.find(f.owner, name)
	return strings.HasPrefix(e.said, f.owner+"-")
}

// Need returns an error if one of the flags is set without the flag on.
func (f *Flags) Need(on string, flags ...string) error {
	for _, name := range flags {
		if e := f.table.find(f.owner, name); e.said != "" {
			return fmt.Errorf("--%s has no effect without --%s: set both or none", e.said, on)
		}
	}
	return nil
}

// find returns a declared flag. It panics for a flag that is not declared.
func (t *table) find(owner, name string) *entry {
	i := slices.IndexFunc(t.entries, func(e *entry) bool { return e.owner == owner && e.name == name })
	if i < 0 {
		panic(fmt.Sprintf("flag %q of %q was not declared", name, owner))
	}
	return t.entries[i]
}

// full returns the name of the flag on the command line.
func (e *entry) full(name string) string {
	if e.owner == "" {
		return name
	}
	return e.owner + "-" + name
}

// set returns a flag.FlagSet for the table. It panics if two flags have the same name.
func (t *table) set() *flag.FlagSet {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	t.shared = map[string]*fanOut{}
	for _, e := range t.entries {
		for _, name := range append([]string{e.name}, e.old...) {
			set.Var(sayer{e, t, e.full(name)}, e.full(name), e.usage)
			if e.owner == "" {
				continue
			}
			if t.shared[name] == nil {
				t.shared[name] = &fanOut{table: t, name: name, bool: isBool(e.value)}
				set.Var(t.shared[name], name, "")
			}
		}
	}
	return set
}

// parse parses a command line. assign then selects the flags that count.
func (t *table) parse(args []string) error {
	set := t.set()
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
			return t.unknown(name)
		}
		return err
	case set.NArg() > 0:
		return fmt.Errorf("%q is neither a flag nor the value of one: flags are --name=value", set.Arg(0))
	}
	return nil
}

// assign sets unprefixed flags for the controllers that are on, and rejects flags of controllers
// that are off.
func (t *table) assign(on func(controller string) bool) error {
	for _, e := range t.entries {
		if e.owner != "" && e.said != "" && !on(e.owner) {
			return fmt.Errorf("--%s is set, but %s is off: add it to --controllers, or remove the flag", e.said,
				e.owner)
		}
	}
	names := sorted(t.shared)
	// The name of a flag comes before former names of others: --workers is more exact than
	// --worker-threads.
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(t.oldest(a), t.oldest(b)) })
	for _, name := range names {
		if s := t.shared[name]; s.said {
			if err := t.spread(s, on); err != nil {
				return err
			}
		}
	}
	return nil
}

// oldest returns 1 for a name that is a former name of a flag, else 0.
func (t *table) oldest(name string) int {
	if slices.ContainsFunc(t.entries, func(e *entry) bool { return e.owner != "" && slices.Contains(e.old, name) }) {
		return 1
	}
	return 0
}

// spread sets an unprefixed flag for each controller that is on and has no value with its prefix.
func (t *table) spread(s *fanOut, on func(string) bool) error {
	var owners []string
	taken := false
	for _, e := range t.entries {
		if e.owner == "" || e.name != s.name && !slices.Contains(e.old, s.name) {
			continue
		}
		owners = append(owners, e.owner)
		if !on(e.owner) {
			continue
		}
		taken = true
		if e.said != "" {
			continue
		}
		if err := e.value.Set(s.value); err != nil {
			return fmt.Errorf("--%s=%s for %s: %w", s.name, s.value, e.owner, err)
		}
		e.said = s.name
	}
	if !taken {
		return fmt.Errorf("--%s is set, but it is a flag of %s only, which --controllers leaves off: add it there, "+
			"or remove the flag", s.name, strings.Join(owners, ", "))
	}
	return nil
}

// unknown returns the error for an unknown flag.
func (t *table) unknown(name string) error {
	for _, e := range t.entries {
		if e.owner == "" && strings.HasSuffix(name, "-"+e.name) {
			return fmt.Errorf("there is no flag --%s: --%s is one for the whole process", name, e.name)
		}
	}
	best, far := "", 4 // with more changes the words are not alike
	for _, e := range t.entries {
		for _, n := range []string{e.full(e.name), e.name} {
			if d := distance(name, n); d < far {
				best, far = n, d
			}
		}
	}
	if best != "" {
		return fmt.Errorf("there is no flag --%s: is --%s meant? (help lists all)", name, best)
	}
	return fmt.Errorf("there is no flag --%s (help lists all)", name)
}

// distance returns the Levenshtein distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			same := above
			if a[i] != b[j] {
				same++
			}
			above = row[j+1]
			row[j+1] = min(same, above+1, row[j]+1)
		}
	}
	return row[len(b)]
}
