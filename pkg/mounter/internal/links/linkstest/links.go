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
	form := h.Form()
	if clean, err := form.Clean(dir); err != nil || clean != dir {
		t.Fatalf("the directory of the test: %q, %v, want %q", clean, err, dir)
	}
	path := func(names ...string) string { return form.Join(dir, names...) }
	kind := func(path string) links.EntryKind {
		t.Helper()
		e, err := h.Entry(path)
		if err != nil {
			t.Fatal(err)
		}
		return e.Kind
	}
	want := func(call string, err, want error) {
		t.Helper()
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", call, err, want)
		}
	}
	anyError := func(call string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: want an error", call)
		}
	}
	source := path("source")
	want("mkdir", h.Mkdir(source), nil)
	want("mkdir again", h.Mkdir(source), fs.ErrExist)
	if err := errors.Join(files.WriteFile(path("file"), "content"), files.MkdirAll(path("full", "child"))); err != nil {
		t.Fatal(err)
	}
	if d, f := kind(source), kind(path("file")); d != links.PlainDir || f != links.PlainFile {
		t.Errorf("got %v and %v, want a directory and a file", d, f)
	}
	_, err := h.Entry(path("missing"))
	want("look at a missing entry", err, fs.ErrNotExist)
	_, err = h.Entry(path("missing", "child"))
	want("look in a missing directory", err, fs.ErrNotExist)
	_, err = h.Names(path("missing"))
	want("names of a missing directory", err, fs.ErrNotExist)

	want("link", h.Link(source, path("link")), nil)
	if e, err := h.Entry(path("link")); err != nil || e != (links.LinkEntry{Kind: links.DirLink, Text: source}) {
		t.Errorf("link: got %+v, %v, want a link to %s", e, err, source)
	}
	// Not yet there: the link is for directories, all the same.
	want("link to a missing source", h.Link(path("away"), path("dangling")), nil)
	if e, err := h.Entry(path("dangling")); err != nil || e != (links.LinkEntry{Kind: links.DirLink, Text: path("away")}) {
		t.Errorf("dangling link: got %+v, %v", e, err)
	}
	for _, name := range []string{"link", "file", "source", "dangling"} {
		want("link at "+name, h.Link(source, path(name)), fs.ErrExist)
	}
	if err := files.WriteFile(path("link", "through"), "content"); err != nil || kind(path("source",
		"through")) != links.PlainFile {
		t.Errorf("a file through the link: %v", err)
	}
	if names, err := h.Names(source); err != nil || !slices.Equal(names, []string{"through"}) {
		t.Errorf("names: got %q, %v", names, err)
	}

	anyError("rmdir of a link", h.Rmdir(path("link")))
	anyError("rmdir of a file", h.Rmdir(path("file")))
	want("rmdir of a full directory", h.Rmdir(path("full")), mounter.ErrNotEmpty)
	want("rmdir of a missing directory", h.Rmdir(path("missing")), fs.ErrNotExist)
	anyError("unlink of a directory", h.Unlink(path("full", "child")))
	anyError("unlink of a file", h.Unlink(path("file")))
	want("unlink of a missing link", h.Unlink(path("missing")), fs.ErrNotExist)
	want("unlink", h.Unlink(path("link")), nil)
	want("unlink of a dangling link", h.Unlink(path("dangling")), nil)
	want("rmdir", h.Rmdir(path("full", "child")), nil)
	if names, err := h.Names(dir); err != nil || len(names) != 3 { // source, file, full
		t.Errorf("at the end: got %q, %v", names, err)
	}
	if kind(path("source", "through")) != links.PlainFile {
		t.Error("the files of the source are gone")
	}
	if u, err := h.Usage(source); err != nil || u.TotalBytes <= 0 || u.AvailableBytes < 0 || u.UsedBytes <= 0 {
		t.Errorf("usage: got %+v, %v", u, err)
	}
}

// Contract tests the contract of a Host over the links of this machine. hasForms reports whether one
// path has several forms here.
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
