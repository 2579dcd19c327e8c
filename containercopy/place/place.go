// Package place puts an unpacked copy at its destination. Until then the copy is in a staging
// directory beside the destination, on the same filesystem, so that one rename(2) shows all of it.
package place

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"

	"github.com/causeway-csi/causeway/containercopy/archive"
)

// Errors. Others are those of the system.
var (
	// ErrExists: a file is there, and may not be replaced.
	ErrExists = errors.New("exists")
	// ErrKind: a file is in place of a directory, or a directory in place of a file.
	ErrKind = errors.New("another kind of file")
	// ErrMounted: the destination is or has a mount point, such as a volume or a file of a
	// ConfigMap, or is a directory of the image of a container.
	ErrMounted = errors.New("a mount point, or a directory of an image, cannot be replaced")
)

// Overwrite is the kind of existing files that a copy may replace.
type Overwrite int

// Values of Overwrite. A directory is never replaced by a file, nor a file by a directory.
const (
	Never Overwrite = iota
	Files           // an existing directory gets the entries of the copy, and keeps all others
	Tree            // an existing directory is replaced by that of the copy
)

// Source is the source of a copy.
type Source struct {
	Name     string // of the first entry of the stream
	Dir      bool
	Contents bool // the entries of the directory, without the directory itself: "SRC/."
}

// Destination is the place of a copy.
type Destination struct {
	Dir      *os.Root // the directory in which the copy appears
	Name     string   // of the copy in Dir; "": the entries of the source appear in Dir
	dir      bool     // the source is a directory
	existing fs.FileMode
	exists   bool
}

// Into returns the destination for a path that is a directory, dir: the copy keeps its name, as
// with cp(1). Errors: ErrKind, archive.ErrRefused for a name that a file cannot have.
func Into(dir *os.Root, s Source) (Destination, error) {
	if s.Dir && s.Contents {
		return Destination{Dir: dir, dir: true, exists: true, existing: fs.ModeDir}, nil
	}
	return at(dir, s.Name, s)
}

// At returns the destination for a path that is no directory: name in parent. mustBeDir is set for
// a path with a slash at its end. Errors: ErrKind, and fs.ErrNotExist for a file whose path has a
// slash at its end.
func At(parent *os.Root, name string, mustBeDir bool, s Source) (Destination, error) {
	if mustBeDir && !s.Dir {
		return Destination{}, fmt.Errorf("%w: %.128q is no directory", fs.ErrNotExist, name)
	}
	return at(parent, name, s)
}

func at(dir *os.Root, name string, s Source) (Destination, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return Destination{}, fmt.Errorf("%w: %.128q is no name of a file", archive.ErrRefused, name)
	}
	d := Destination{Dir: dir, Name: name, dir: s.Dir}
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d, nil
	case err != nil:
		return d, err
	}
	d.exists, d.existing = true, info.Mode().Type()
	return d, compatible(name, s.Dir, info.Mode().Type())
}

// compatible returns ErrKind if an entry cannot take the place of an existing one.
func compatible(name string, isDir bool, existing fs.FileMode) error {
	switch {
	case isDir && existing != fs.ModeDir:
		return fmt.Errorf("%w: a directory cannot replace %.128q, which is no directory", ErrKind, name)
	case !isDir && existing == fs.ModeDir:
		return fmt.Errorf("%w: a file cannot replace the directory %.128q", ErrKind, name)
	}
	return nil
}

// Staging is a directory for an unfinished copy.
type Staging struct {
	Root *os.Root     // empty at first, and of mode 0700
	done atomic.Int64 // entries that were moved or removed
	dir  *os.Root     // that of the destination
	name string
}

// Done returns the number of entries that Commit and Remove have moved and removed so far. It may be
// called while they run.
func (s *Staging) Done() int64 { return s.done.Load() }

// prefix is the start of the name of a staging directory: users find it after a crash.
const prefix = ".kcopy-"

// NewStaging makes a staging directory in dir, that of the destination. The caller calls Remove.
func NewStaging(dir *os.Root) (*Staging, error) {
	s := &Staging{dir: dir, name: prefix + rand.Text()}
	if err := dir.Mkdir(s.name, 0o700); err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err // without the name, which is of no use
		}
		return nil, fmt.Errorf("no directory can be made beside the destination, for the unfinished copy: %w", err)
	}
	var err error
	if s.Root, err = dir.OpenRoot(s.name); err != nil {
		return nil, errors.Join(err, dir.Remove(s.name))
	}
	if err := s.own(); err != nil {
		s.Root.Close()
		return nil, err
	}
	return s, nil
}

// Source returns the source of the staged copy. A stream with several first entries, as an archive
// of another program can have, is a directory whose entries are copied; its name is ".".
func (s *Staging) Source(contents bool) (Source, error) {
	dir, err := s.Root.Open(".")
	if err != nil {
		return Source{}, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(2)
	switch {
	case len(entries) == 0 && (err == nil || errors.Is(err, io.EOF)):
		return Source{}, fmt.Errorf("%w: the stream has no entry", archive.ErrRefused)
	case err != nil && !errors.Is(err, io.EOF):
		return Source{}, err
	case len(entries) > 1:
		return Source{Name: ".", Dir: true, Contents: true}, nil
	}
	return Source{Name: entries[0].Name(), Dir: entries[0].IsDir(), Contents: contents}, nil
}

// Remove removes the staging directory with the rest of the copy, or with the directory that the
// copy replaced. Errors: ErrMounted if a filesystem is mounted in it, which stays.
func (s *Staging) Remove() error {
	err := s.removeContent()
	s.Root.Close()
	if err == nil {
		err = s.dir.Remove(s.name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %.128q, beside the destination: %w", s.name, err)
	}
	return nil
}

// Commit moves the copy, whose first entry is top, from its staging directory to the destination.
// merged reports that the destination is an existing directory: each file appears at once, but not
// all files at the same time. Commit looks for conflicts in the whole tree before it moves
// anything. Errors: ErrExists, ErrKind, ErrMounted.
func (d Destination) Commit(s *Staging, top string, o Overwrite) (merged bool, err error) {
	c := commit{d: d, s: s, overwrite: o}
	switch {
	case !d.exists:
		return false, c.move(top, d.Name, false)
	case !d.dir:
		if o == Never {
			return false, fmt.Errorf("%w: %.128q", ErrExists, d.Name)
		}
		return false, c.move(top, d.Name, true)
	case o == Tree && d.Name != "":
		return false, c.replaceTree(top)
	}
	if d.Name != "" { // no rename leads into another mount
		if err := noMount(d.Dir, d.Name); err != nil {
			return true, err
		}
	}
	if err := c.check(top, d.Name); err != nil {
		return true, err
	}
	if err := c.merge(top, d.Name); err != nil {
		return true, fmt.Errorf("a part of the copy is at its place: %w", err)
	}
	return true, nil
}

// commit is a commit in progress.
type commit struct {
	d         Destination
	s         *Staging
	overwrite Overwrite
}

// check looks for conflicts of a staged directory with an existing one.
func (c commit) check(staged, existing string) error {
	return c.each(staged, batch, func(name string, e fs.DirEntry) error {
		to := path.Join(existing, name)
		info, err := c.d.Dir.Lstat(to)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		if err := compatible(to, e.IsDir(), info.Mode().Type()); err != nil {
			return err
		}
		if !e.IsDir() && c.overwrite == Never {
			return fmt.Errorf("%w: %.128q", ErrExists, to)
		}
		// A rename cannot move a file into another mount, nor replace a mount point.
		if err := noMount(c.d.Dir, to); err != nil {
			return err
		}
		if e.IsDir() {
			return c.check(path.Join(staged, name), to)
		}
		return nil
	})
}

// merge moves the entries of a staged directory to an existing one.
func (c commit) merge(staged, existing string) error {
	return c.each(staged, -1, func(name string, e fs.DirEntry) error {
		from, to := path.Join(staged, name), path.Join(existing, name)
		info, err := c.d.Dir.Lstat(to)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return c.move(from, to, false)
		case err != nil:
			return err
		case e.IsDir() && info.IsDir():
			return c.merge(from, to)
		case e.IsDir() || info.IsDir(): // changed since check
			return compatible(to, e.IsDir(), info.Mode().Type())
		}
		return c.move(from, to, c.overwrite != Never)
	})
}

// each calls a function for the entries of a staged directory, which are held in memory: n at a
// time, or all with -1. If f moves entries, some filesystems skip others between two reads.
func (c commit) each(staged string, n int, f func(name string, e fs.DirEntry) error) error {
	dir, err := c.s.Root.OpenFile(staged, os.O_RDONLY|directory, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(n)
		for _, e := range entries {
			if err := f(e.Name(), e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || err == nil && n < 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// batch is the number of entries of a directory that are held at a time.
const batch = 256

// move moves a staged entry. The content of a file that replaces another is durable before the
// other is gone. Errors: ErrExists if another program has made the file, ErrMounted.
func (c commit) move(staged, to string, replace bool) error {
	c.s.done.Add(1)
	if replace {
		if err := c.flush(staged); err != nil {
			return err
		}
		if err := noMount(c.d.Dir, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	root, from := c.s.entry(staged)
	err := withRights(func() error { return rename(root, from, c.d.Dir, to, replace) },
		entry{c.s.Root, path.Dir(staged)}, entry{c.s.Root, staged})
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %.128q", ErrExists, to)
	case isMountPoint(err):
		return fmt.Errorf("%w: %.128q: %w", ErrMounted, to, err)
	case err != nil:
		return fmt.Errorf("move the copy to %.128q: %w", to, err)
	}
	return nil
}

// flush makes the content of a staged file durable. A link has none.
func (c commit) flush(staged string) error {
	info, err := c.s.Root.Lstat(staged)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := openFile(c.s.Root, staged)
	if errors.Is(err, fs.ErrPermission) { // a file that its owner cannot read
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// replaceTree exchanges an existing directory with the staged one, which Remove then removes. The
// new one is durable before. A filesystem that is mounted in the existing directory would move with
// it.
func (c commit) replaceTree(top string) error {
	if err := noMounts(c.d.Dir, c.d.Name); err != nil {
		return err
	}
	if err := c.flushTree(top); err != nil {
		return err
	}
	root, from := c.s.entry(top)
	err := withRights(func() error { return exchange(root, from, c.d.Dir, c.d.Name) },
		entry{c.s.Root, top}, entry{c.d.Dir, c.d.Name})
	if isMountPoint(err) {
		return fmt.Errorf("%w: %.128q: %w", ErrMounted, c.d.Name, err)
	}
	if err != nil {
		return fmt.Errorf("replace %.128q: %w", c.d.Name, err)
	}
	return nil
}

// entry is an entry of a directory.
type entry struct {
	root *os.Root
	name string
}

// exchangeByThree exchanges two entries by three renames, where one call cannot. A crash leaves the
// entry b beside its place, with a name that no program removes.
func exchangeByThree(from *os.Root, a string, to *os.Root, b string) error {
	aside := path.Join(path.Dir(b), "kcopy-replaced-"+rand.Text())
	if err := rename(to, b, to, aside, false); err != nil {
		return err
	}
	if err := rename(from, a, to, b, false); err != nil {
		if back := rename(to, aside, to, b, false); back != nil {
			return fmt.Errorf("%w; the former %.128q is at %.128q: %w", err, b, aside, back)
		}
		return err
	}
	err := withRights(func() error { return rename(to, aside, from, a, false) }, entry{to, aside})
	if err != nil {
		return fmt.Errorf("the copy is at %.128q, and what it replaced is at %.128q: %w", b, aside, err)
	}
	return nil
}
