package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/causeway-csi/causeway/pkg/backend"
)

var shortName = regexp.MustCompile(`^[^.]{1,6}~[0-9A-Za-z]{1,6}(\..{0,3})?$`)

// IsShortName reports whether a name has the form of a further name of a file: Windows and Samba
// give such names.
func IsShortName(name string) bool { return shortName.MatchString(name) }

// isAlias reports whether a name has the form of the alias under which Samba lists a file if Windows
// forbids its name, such as aux.c. separator is "mangling char" of smb.conf(5).
func isAlias(name, separator string) bool {
	base, extension, _ := strings.Cut(name, ".")
	i := strings.LastIndex(base, separator)
	end := len(base) - i - len(separator)
	return 1 <= i && i <= 6 && 1 <= end && end <= 2 && len(extension) <= 3 && name == strings.ToUpper(name)
}

// separatorOf returns a separator with which isAlias is true, or "".
func separatorOf(name string) string {
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '.' && isAlias(name, string(r)) {
			return string(r)
		}
	}
	return ""
}

// FoldName returns the same text for all names that some server takes for one: names that differ by
// case, by their normalization (APFS, ZFS, ext4 with casefold), or by characters that have no
// glyph (HFS+). Most servers tell some of these names apart. FoldName also folds paths.
// It is close to NFKC_Casefold of the Unicode standard, section 3.13.
func FoldName(name string) string {
	elements := strings.Split(name, "/")
	for i, e := range elements {
		e = norm.NFKD.String(strings.Map(shown, e))
		e = dotless(strings.ReplaceAll(strings.ToLower(strings.ToUpper(e)), "ß", "ss"))
		elements[i] = strings.ReplaceAll(norm.NFKC.String(e), "/", "\x00") // of a character such as U+FF0F
	}
	return strings.Join(elements, "/")
}

// dotless removes the dots above of "i", also behind other marks: some servers take U+0130 for "i".
func dotless(decomposed string) string {
	base := rune(0)
	return strings.Map(func(r rune) rune {
		switch {
		case !unicode.Is(unicode.Mn, r):
			base = r
		case r == '\u0307' && base == 'i':
			return -1
		}
		return r
	}, decomposed)
}

// shown drops characters that have no glyph.
func shown(r rune) rune {
	if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
		return -1
	}
	return r
}

// survey reads a tree before its copy. It returns the errors that the copy would otherwise find after
// it has copied a part of the data.
func (t *tree) survey(ctx context.Context, dir string, depth int) error {
	entries, err := t.entriesAt(ctx, dir, depth)
	if err != nil {
		return err
	}
	if err := t.checkNames(ctx, dir, entries); err != nil {
		return err
	}
	for _, e := range entries {
		switch inner := path.Join(dir, e.Name); {
		case e.Link:
			return linkError(inner)
		case e.Dir:
			err := t.survey(ctx, inner, depth+1)
			if errors.Is(err, fs.ErrNotExist) {
				err = t.unresolved(ctx, dir, e)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkNames checks the names of a directory.
func (t *tree) checkNames(ctx context.Context, dir string, entries []Entry) error {
	folded := make(map[string][]string, len(entries))
	for _, e := range entries {
		key := FoldName(e.Name)
		folded[key] = append(folded[key], e.Name)
		err := t.checkAlias(ctx, path.Join(dir, e.Name))
		// The library lists a name that is not UTF-16 with this rune.
		if err == nil && strings.ContainsRune(e.Name, utf8.RuneError) {
			err = t.unresolved(ctx, dir, e)
		}
		if err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(folded)) {
		if err := t.checkGroup(ctx, dir, folded[key]); err != nil {
			return err
		}
	}
	return nil
}

// checkGroup checks names of a directory that some server takes for one. It creates all of them in the
// target: a tenant can make thousands of such names, so the requests for a name must not grow with
// their number.
func (t *tree) checkGroup(ctx context.Context, dir string, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names) // removed and created again during the list, or not UTF-16
	if len(names) == 1 {
		return nil
	}
	var probes []string
	var err error
	for _, name := range names {
		probe := path.Join(t.target, name)
		if err = ofCopy(t.CreateMarker(ctx, probe, nil)); err != nil {
			break
		}
		probes = append(probes, probe)
	}
	taken := len(probes)
	for _, probe := range probes {
		// The caller removes what stays in the target: after the first error, each request would fail.
		if e := Retry(ctx, func() error { return t.Remove(ctx, probe) }); e != nil {
			return e
		}
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, other := range names[:taken] {
		if err := t.checkPair(ctx, dir, other, names[taken]); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: directory %q has names that the server takes for one, such as %q: rename the file",
		backend.ErrPrecondition, dir, names[taken])
}

// checkPair checks two names of a directory that some server takes for one: it creates both in the
// target.
func (t *tree) checkPair(ctx context.Context, dir, a, b string) error {
	first, second := path.Join(t.target, a), path.Join(t.target, b)
	if err := ofCopy(t.CreateMarker(ctx, first, nil)); err != nil {
		return err
	}
	err := ofCopy(t.CreateMarker(ctx, second, nil))
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: directory %q has %q and %q, which the server takes for one name: rename one of them",
			backend.ErrPrecondition, dir, a, b)
	}
	for _, probe := range []string{first, second} {
		e := Retry(ctx, func() error { return t.Remove(ctx, probe) })
		err = errors.Join(err, e)
	}
	return err
}

// checkAlias checks an entry whose name may be an alias: a copy of it would have the alias as its
// name, or another name.
func (t *tree) checkAlias(ctx context.Context, entry string) error {
	name := path.Base(entry)
	if separatorOf(name) == "" {
		return nil
	}
	if t.separator == "" {
		var err error
		if t.separator, err = t.findSeparator(ctx); err != nil {
			return err
		}
	}
	if !isAlias(name, t.separator) {
		return nil
	}
	return fmt.Errorf("%w: %q may be the alias under which the server lists a name that Windows forbids, such as "+
		"aux.c: set \"mangled names = no\" on a Samba server, or rename the file", backend.ErrPrecondition, entry)
}

// noAliases is the separator of a server that lists each file under its own name.
const noAliases = "/"

// findSeparator returns the separator of the server's aliases. It creates a file with a name that
// Windows forbids in the target, and looks for it in a list.
func (t *tree) findSeparator(ctx context.Context) (separator string, err error) {
	const standard, forbidden, endOfAlias = "~", "aux.causeway", ".CAU"
	name := path.Join(t.target, forbidden)
	switch err := t.CreateMarker(ctx, name, nil); {
	case errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrDenied), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, fs.ErrExist): // proves nothing
		return standard, nil
	case err != nil:
		return "", err
	}
	separator = standard
	err = t.List(ctx, t.target, func(e Entry) error {
		switch {
		case e.Name == forbidden:
			separator = noAliases
		case strings.HasSuffix(e.Name, endOfAlias):
			separator = cmp.Or(separatorOf(e.Name), separator)
		}
		return nil
	})
	removal := Retry(ctx, func() error { return t.Remove(ctx, name) })
	return separator, ofCopy(errors.Join(err, removal))
}
