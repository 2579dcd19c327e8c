// Package linkstest tests the calls of machines on which a mount is a link, and of their models.
package linkstest

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

// LinkHost tests the operations of a LinkHost. All hosts pass it.
func LinkHost(t *testing.T, h links.LinkHost, files mountercontract.Files, dir string) {
	l := linkTrial{t, h, files, dir}
	if clean, err := h.Form().Clean(dir); err != nil || clean != dir {
		t.Fatalf("the directory of the test: %q, %v, want %q", clean, err, dir)
	}
	l.makeDirectories()
	l.makeLinks()
	l.removeAll()
}

// linkTrial tests a LinkHost in a directory.
type linkTrial struct {
	*testing.T
	h     links.LinkHost
	files mountercontract.Files
	dir   string
}

func (l linkTrial) path(names ...string) string { return l.h.Form().Join(l.dir, names...) }

func (l linkTrial) kind(path string) links.EntryKind {
	l.Helper()
	e, err := l.h.Entry(path)
	if err != nil {
		l.Fatal(err)
	}
	return e.Kind
}

// want checks the error of a call.
func (l linkTrial) want(call string, err, want error) {
	l.Helper()
	if want == nil && err != nil || want != nil && !errors.Is(err, want) {
		l.Errorf("%s: got %v, want %v", call, err, want)
	}
}

func (l linkTrial) anyError(call string, err error) {
	l.Helper()
	if err == nil {
		l.Errorf("%s: want an error", call)
	}
}

// makeDirectories makes the directories source and full, and the file.
func (l linkTrial) makeDirectories() {
	source := l.path("source")
	l.want("mkdir", l.h.Mkdir(source), nil)
	l.want("mkdir again", l.h.Mkdir(source), fs.ErrExist)
	if err := errors.Join(l.files.WriteFile(l.path("file"), "content"), l.files.MkdirAll(l.path("full",
		"child"))); err != nil {
		l.Fatal(err)
	}
	if d, f := l.kind(source), l.kind(l.path("file")); d != links.PlainDir || f != links.PlainFile {
		l.Errorf("got %v and %v, want a directory and a file", d, f)
	}
	_, err := l.h.Entry(l.path("missing"))
	l.want("look at a missing entry", err, fs.ErrNotExist)
	_, err = l.h.Entry(l.path("missing", "child"))
	l.want("look in a missing directory", err, fs.ErrNotExist)
	_, err = l.h.Names(l.path("missing"))
	l.want("names of a missing directory", err, fs.ErrNotExist)
}

// makeLinks makes link and dangling.
func (l linkTrial) makeLinks() {
	source := l.path("source")
	l.want("link", l.h.Link(source, l.path("link")), nil)
	if e, err := l.h.Entry(l.path("link")); err != nil || e != (links.LinkEntry{Kind: links.DirLink, Text: source}) {
		l.Errorf("link: got %+v, %v, want a link to %s", e, err, source)
	}
	// Not yet there: the link is for directories, all the same.
	l.want("link to a missing source", l.h.Link(l.path("away"), l.path("dangling")), nil)
	if e, err := l.h.Entry(l.path("dangling")); err != nil || e != (links.LinkEntry{Kind: links.DirLink,
		Text: l.path("away")}) {
		l.Errorf("dangling link: got %+v, %v", e, err)
	}
	for _, name := range []string{"link", "file", "source", "dangling"} {
		l.want("link at "+name, l.h.Link(source, l.path(name)), fs.ErrExist)
	}
	if err := l.files.WriteFile(l.path("link", "through"), "content"); err != nil ||
		l.kind(l.path("source", "through")) != links.PlainFile {
		l.Errorf("a file through the link: %v", err)
	}
	if names, err := l.h.Names(source); err != nil || !slices.Equal(names, []string{"through"}) {
		l.Errorf("names: got %q, %v", names, err)
	}
}

// removeAll removes the links, and checks that their source stays.
func (l linkTrial) removeAll() {
	source := l.path("source")
	l.anyError("rmdir of a link", l.h.Rmdir(l.path("link")))
	l.anyError("rmdir of a file", l.h.Rmdir(l.path("file")))
	l.want("rmdir of a full directory", l.h.Rmdir(l.path("full")), mounter.ErrNotEmpty)
	l.want("rmdir of a missing directory", l.h.Rmdir(l.path("missing")), fs.ErrNotExist)
	l.anyError("unlink of a directory", l.h.Unlink(l.path("full", "child")))
	l.anyError("unlink of a file", l.h.Unlink(l.path("file")))
	l.want("unlink of a missing link", l.h.Unlink(l.path("missing")), fs.ErrNotExist)
	l.want("unlink", l.h.Unlink(l.path("link")), nil)
	l.want("unlink of a dangling link", l.h.Unlink(l.path("dangling")), nil)
	l.want("rmdir", l.h.Rmdir(l.path("full", "child")), nil)
	if names, err := l.h.Names(l.dir); err != nil || len(names) != 3 { // source, file, full
		l.Errorf("at the end: got %q, %v", names, err)
	}
	if l.kind(l.path("source", "through")) != links.PlainFile {
		l.Error("the files of the source are gone")
	}
	if u, err := l.h.Usage(source); err != nil || u.TotalBytes <= 0 || u.AvailableBytes < 0 || u.UsedBytes <= 0 {
		l.Errorf("usage: got %+v, %v", u, err)
	}
}

// Contract tests the contract of a Host over the links of this machine. hasForms reports whether
// one path has several forms here.
func Contract(t *testing.T, newLinks func(*testing.T) links.LinkHost, hasForms bool) {
	mountercontract.TestMounter(t, func(t *testing.T) *mountercontract.Bench {
		local, state := newLinks(t), t.TempDir()
		b := mountercontract.NewBench(t, func(dir string) mounter.Host {
			h, err := links.NewHost(links.Machine{Links: local, Library: links.NewWorker()}, dir, state)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { h.Close() })
			return h
		})
		b.Options = nil
		b.Files = hostFiles{mountercontract.OSFiles{}, t, local}
		if hasForms { // they are brought into one
			b.Unclean = nil
		}
		return b
	})
}

// hostFiles is the filesystem of this machine, with the links of a LinkHost.
type hostFiles struct {
	mountercontract.OSFiles
	t    *testing.T
	host links.LinkHost
}

// Symlink makes a link, which is removed before the directories of the test.
func (f hostFiles) Symlink(text, path string) error {
	if err := f.host.Link(text, path); err != nil {
		return err
	}
	f.t.Cleanup(func() {
		if err := f.host.Unlink(path); err != nil {
			f.t.Error(err)
		}
	})
	return nil
}
