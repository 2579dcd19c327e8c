package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/containercopy/archive"
)

// grow makes entries in a directory: "a/", "a/f=content", "l->text".
func grow(t *testing.T, root *os.Root, entries ...string) {
	t.Helper()
	for _, e := range entries {
		var err error
		name, content, isFile := strings.Cut(e, "=")
		link, text, isLink := strings.Cut(e, "->")
		switch {
		case isFile:
			err = errors.Join(root.MkdirAll(filepath.Dir(name), 0o755), root.WriteFile(name, []byte(content), 0o600))
		case isLink:
			err = root.Symlink(text, link)
		default:
			err = root.MkdirAll(strings.TrimSuffix(e, "/"), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// grown returns the entries of a directory in the form of grow, without directories that have
// entries.
func grown(t *testing.T, root *os.Root) string {
	t.Helper()
	var all []string
	err := fs.WalkDir(root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || p == ".":
			return err
		case e.IsDir():
			if entries, err := fs.ReadDir(root.FS(), p); len(entries) > 0 || err != nil {
				return err
			}
			all = append(all, p+"/")
		case e.Type() == fs.ModeSymlink:
			text, err := root.Readlink(p)
			all = append(all, p+"->"+text)
			return err
		default:
			content, err := root.ReadFile(p)
			all = append(all, p+"="+string(content))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func newRoot(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// find applies the table to a path below a directory, as a client does.
func find(root *os.Root, path string, s Source) (Destination, error) {
	mustBeDir := strings.HasSuffix(path, "/")
	path = strings.TrimSuffix(path, "/")
	if info, err := root.Stat(path); err == nil && info.IsDir() {
		dir, err := root.OpenRoot(path)
		if err != nil {
			return Destination{}, err
		}
		return Into(dir, s)
	}
	parent, err := root.OpenRoot(filepath.Dir(path))
	if err != nil {
		return Destination{}, err
	}
	return At(parent, filepath.Base(path), mustBeDir, s)
}

// TestTheTable is that of docker cp, by the kind of the source and of the destination.
func TestTheTable(t *testing.T) {
	file, dir, contents := Source{Name: "s"}, Source{Name: "s", Dir: true}, Source{Name: "s", Dir: true, Contents: true}
	for name, tc := range map[string]struct {
		before    []string
		to        string
		source    Source
		overwrite Overwrite
		want      string
		err       error
		merged    bool
	}{
		"a file, new":                     {nil, "new", file, Never, "new=s", nil, false},
		"a file, new with a slash":        {nil, "new/", file, Never, "", fs.ErrNotExist, false},
		"a file, without its parent":      {nil, "none/new", file, Never, "", fs.ErrNotExist, false},
		"a file into a directory":         {[]string{"d/"}, "d", file, Never, "d/s=s", nil, false},
		"a file into a directory, slash":  {[]string{"d/x=1"}, "d/", file, Never, "d/s=s d/x=1", nil, false},
		"a file over a file":              {[]string{"f=old"}, "f", file, Files, "f=s", nil, false},
		"a file over a file, never":       {[]string{"f=old"}, "f", file, Never, "f=old", ErrExists, false},
		"a file over a file in it":        {[]string{"d/s=old"}, "d", file, Files, "d/s=s", nil, false},
		"a file over a directory in it":   {[]string{"d/s/x=1"}, "d", file, Tree, "d/s/x=1", ErrKind, false},
		"a file over a link":              {[]string{"f->other", "other=1"}, "f", file, Files, "f=s other=1", nil, false},
		"a file over a link, never":       {[]string{"f->none"}, "f", file, Never, "f->none", ErrExists, false},
		"a directory, new":                {nil, "new", dir, Never, "new/e/ new/f=s new/g/h=s", nil, false},
		"a directory, new with a slash":   {nil, "new/", dir, Never, "new/e/ new/f=s new/g/h=s", nil, false},
		"a directory over a file":         {[]string{"f=old"}, "f", dir, Tree, "f=old", ErrKind, false},
		"a directory into one":            {[]string{"d/x=1"}, "d", dir, Never, "d/s/e/ d/s/f=s d/s/g/h=s d/x=1", nil, false},
		"a directory into one with it":    {[]string{"d/s/x=1", "d/s/f=2"}, "d", dir, Files, "d/s/e/ d/s/f=s d/s/g/h=s d/s/x=1", nil, true},
		"the same, never":                 {[]string{"d/s/x=1", "d/s/f=2"}, "d", dir, Never, "d/s/f=2 d/s/x=1", ErrExists, true},
		"the same without a file of both": {[]string{"d/s/x=1", "d/s/g/"}, "d", dir, Never, "d/s/e/ d/s/f=s d/s/g/h=s d/s/x=1", nil, true},
		"the same, tree":                  {[]string{"d/s/x=1", "d/s/f=2"}, "d", dir, Tree, "d/s/e/ d/s/f=s d/s/g/h=s", nil, false},
		"contents into a directory":       {[]string{"d/x=1"}, "d", contents, Never, "d/e/ d/f=s d/g/h=s d/x=1", nil, true},
		"contents, new":                   {nil, "new", contents, Never, "new/e/ new/f=s new/g/h=s", nil, false},
		"contents over a directory in it": {[]string{"d/f/x=1"}, "d", contents, Files, "d/f/x=1", ErrKind, true},
		"contents over a file in it":      {[]string{"d/g=1", "d/a=1"}, "d", contents, Files, "d/a=1 d/g=1", ErrKind, true},
		"contents, tree":                  {[]string{"d/x=1", "d/g/y=1", "d/f=1"}, "d", contents, Tree, "d/e/ d/f=s d/g/h=s d/g/y=1 d/x=1", nil, true},
		"through a link to a directory":   {[]string{"d/x=1", "l->d"}, "l", file, Never, "d/s=s d/x=1 l->d", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			grow(t, root, tc.before...)
			merged := false
			d, err := find(root, tc.to, tc.source)
			if err == nil {
				merged, err = run(t, d, tc.source, tc.overwrite)
			}
			if got := grown(t, root); got != tc.want || !errors.Is(err, tc.err) || merged != tc.merged {
				t.Errorf("got %s, %v, merged: %t; want %s, %v, %t", got, err, merged, tc.want, tc.err, tc.merged)
			}
		})
	}
}

// run stages a source and commits it.
func run(t *testing.T, d Destination, s Source, o Overwrite) (bool, error) {
	t.Helper()
	staging, err := NewStaging(d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := staging.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if s.Dir {
		grow(t, staging.Root, s.Name+"/f=s", s.Name+"/g/h=s", s.Name+"/e/")
	} else {
		grow(t, staging.Root, s.Name+"=s")
	}
	if got, err := staging.Source(s.Contents); err != nil || got != s {
		t.Errorf("Source = %+v, %v, want %+v", got, err, s)
	}
	return d.Commit(staging, s.Name, o)
}

// TestARacingProgram makes a file at the destination after the copy has begun: it stays.
func TestARacingProgram(t *testing.T) {
	for name, late := range map[string]string{"a file": "new=of another program", "a directory": "new/x=1"} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			d, err := find(root, "new", Source{Name: "s"})
			if err != nil {
				t.Fatal(err)
			}
			grow(t, root, late)
			if _, err := run(t, d, Source{Name: "s"}, Files); !errors.Is(err, ErrExists) {
				t.Errorf("Commit = %v, want ErrExists", err)
			}
			if got := grown(t, root); got != late {
				t.Errorf("got %s, want %s", got, late)
			}
		})
	}
}

func TestNamesOfDestinations(t *testing.T) {
	root := newRoot(t)
	for _, name := range []string{"", ".", "..", "a/b", "a\x00"} {
		if _, err := Into(root, Source{Name: name}); !errors.Is(err, archive.ErrRefused) {
			t.Errorf("%q: %v, want ErrRefused", name, err)
		}
	}
}

// TestAnExchangeByThree, and one whose second rename fails: nothing is lost.
func TestAnExchangeByThree(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "a/x=1", "d/b/y=2")
	if err := exchangeByThree(root, "a", root, "d/b"); err != nil {
		t.Fatal(err)
	}
	if got := grown(t, root); got != "a/y=2 d/b/x=1" {
		t.Errorf("got %s", got)
	}
	if err := exchangeByThree(root, "none", root, "d/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("exchangeByThree = %v", err)
	}
	if got := grown(t, root); got != "a/y=2 d/b/x=1" {
		t.Errorf("after an error: %s", got)
	}
}

// TestStagingIsPrivateAndIsRemoved, also with directories that their owner cannot write to.
func TestStagingIsPrivateAndIsRemoved(t *testing.T) {
	root := newRoot(t)
	s, err := NewStaging(root)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, s.Root, "a/b/f=1")
	if info, err := root.Stat(s.name); err != nil || info.Mode().Perm()&0o077 != 0 && filepath.Separator == '/' {
		t.Errorf("staging has %v, %v", info.Mode(), err)
	}
	if err := errors.Join(s.Root.Chmod("a/b", 0o500), s.Root.Chmod("a", 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Error(err)
	}
	if got := grown(t, root); got != "" {
		t.Errorf("left: %s", got)
	}
}

// TestSeveralFirstEntries: their stream has the entries of a directory.
func TestSeveralFirstEntries(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "d/x=1")
	dir, err := root.OpenRoot("d")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s, err := NewStaging(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Remove()
	if got, err := s.Source(false); !errors.Is(err, archive.ErrRefused) {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
	grow(t, s.Root, "a=1", "b/c=2")
	source, err := s.Source(false)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Into(dir, source)
	if err == nil {
		_, err = d.Commit(s, source.Name, Never)
	}
	if got := grown(t, dir); err != nil || !strings.HasSuffix(got, "a=1 b/c=2 x=1") {
		t.Errorf("got %s, %v", got, err)
	}
}
