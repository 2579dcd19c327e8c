package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/causeway-csi/causeway/pkg/backend"
)

var shortName = regexp.MustCompile(`^[^.]{1,6}~[0-9A-Za-z]{1,6}(\..{0,3})?$`)

// IsShortName reports whether a name has the form of a further name of a file: Windows gives such
// names, and Samba lists a file under such an alias if Windows forbids its name, such as aux.c.
// Source: "mangled names" in smb.conf(5).
func IsShortName(name string) bool { return shortName.MatchString(name) }

// forbidden is a name that Windows forbids, and no server: Samba lists it under an alias or not.
const forbidden = "aux.causeway"

// FoldName returns the same text for all names that some server takes for one: names that differ by
// case, by their normalization (APFS, ZFS, ext4 with casefold), or by characters that have no
// glyph (HFS+). Most servers tell some of these names apart. FoldName also folds paths.
// It is close to NFKC_Casefold of the Unicode standard, section 3.13.
func FoldName(name string) string {
	name = norm.NFKC.String(strings.Map(shown, strings.ToLower(strings.ToUpper(name))))
	return norm.NFKC.String(strings.ToLower(strings.ToUpper(cases.Fold().String(name))))
}

// shown drops characters that have no glyph.
func shown(r rune) rune {
	if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
		return -1
	}
	return r
}

// survey reads a tree before its copy, for the errors that the copy would otherwise find when a
// part of the data has been copied, in each attempt anew.
type survey struct {
	*tree
	target string // an empty directory
	// plain reports whether the server lists forbidden names; nil: unknown.
	plain *bool
}

// directory reads a directory with its subdirectories. Errors: backend.ErrPrecondition.
func (s *survey) directory(ctx context.Context, dir string, depth int) error {
	entries, err := s.entriesAt(ctx, dir, depth)
	if err != nil {
		return err
	}
	if err := s.names(ctx, dir, entries); err != nil {
		return err
	}
	for _, e := range entries {
		switch inner := path.Join(dir, e.Name); {
		case e.Link:
			return linkError(inner)
		case e.Dir:
			if err := ignoreMissing(s.directory(ctx, inner, depth+1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// names checks the names of a directory.
func (s *survey) names(ctx context.Context, dir string, entries []Entry) error {
	folded := make(map[string]string, len(entries))
	for _, e := range entries {
		key := FoldName(e.Name)
		other, twice := folded[key]
		folded[key] = e.Name
		var err error
		switch {
		case twice:
			err = s.checkPair(ctx, dir, other, e.Name)
		case IsShortName(e.Name):
			err = s.checkAlias(ctx, path.Join(dir, e.Name))
		case strings.ContainsRune(e.Name, utf8.RuneError): // the library lists a name that is not UTF-16 with U+FFFD
			err = s.unresolved(ctx, dir, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPair checks two names of a directory that some server takes for one.
func (s *survey) checkPair(ctx context.Context, dir, a, b string) error {
	one, err := s.areOne(ctx, a, b)
	if err == nil && one {
		return fmt.Errorf("%w: directory %q has %q and %q, which the server takes for one name: rename one of them",
			backend.ErrPrecondition, dir, a, b)
	}
	return err
}

// checkAlias checks an entry whose name has the form of a short name.
func (s *survey) checkAlias(ctx context.Context, entry string) error {
	plain, err := s.listsForbiddenNames(ctx)
	if err == nil && !plain {
		return fmt.Errorf("%w: %q may be the alias under which the server lists a name that Windows forbids, such as "+
			"aux.c: set \"mangled names = no\" on a Samba server, or rename the file", backend.ErrPrecondition, entry)
	}
	return err
}

// areOne reports whether the server takes two names for one: it creates both in the target.
func (s *survey) areOne(ctx context.Context, a, b string) (one bool, err error) {
	a, b = path.Join(s.target, a), path.Join(s.target, b)
	if err := s.CreateMarker(ctx, a, nil); err != nil {
		return false, err
	}
	err = s.CreateMarker(ctx, b, nil)
	if one = errors.Is(err, fs.ErrExist); one {
		err = nil
	}
	return one, errors.Join(err, s.Remove(ctx, a), s.Remove(ctx, b))
}

// listsForbiddenNames reports whether the server lists a file of the target under its own name if
// Windows forbids the name. Then each listed name is the name of its file.
func (s *survey) listsForbiddenNames(ctx context.Context) (bool, error) {
	if s.plain != nil {
		return *s.plain, nil
	}
	plain, name := false, path.Join(s.target, forbidden)
	err := s.CreateMarker(ctx, name, nil)
	switch {
	case errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrDenied): // proves nothing
	case err != nil:
		return false, err
	default:
		err = s.List(ctx, s.target, func(e Entry) error {
			plain = plain || e.Name == forbidden
			return nil
		})
		if err = errors.Join(err, s.Remove(ctx, name)); err != nil {
			return false, err
		}
	}
	s.plain = &plain
	return plain, nil
}
