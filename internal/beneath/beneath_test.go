package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/internal/winetest"
)

func open(t testing.TB) (*Dir, string) {
	path := t.TempDir()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, path
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(d *Dir, name, text string) error {
	file, err := d.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

func TestFilesAndDirectories(t *testing.T) {
	d, path := open(t)
	must(t, d.Mkdir("a", 0o700), d.Mkdir("a/b", 0o700), write(d, "a/b/file", "text"), d.Sync("."), d.Sync("a/b"))
	if got, err := d.ReadFile("a/b/file", 4); err != nil || string(got) != "text" {
		t.Errorf("ReadFile = %q, %v", got, err)
	}
	if _, err := d.ReadFile("a/b/file", 3); !errors.Is(err, regular.ErrSize) {
		t.Errorf("ReadFile over the limit = %v, want ErrSize", err)
	}
	if info, err := d.Lstat("a/b/file"); err != nil || info.Name() != "file" || info.Size() != 4 ||
		!info.Mode().IsRegular() {
		t.Errorf("Lstat = %v, %v", info, err)
	}
	must(t, d.Rename("a/b/file", "file"), d.Rename("file", "a/moved"))
	sub, err := d.OpenDir("a")
	must(t, err)
	defer sub.Close()
	names, err := sub.Names(".")
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"b", "moved"}) {
		t.Errorf("Names = %q, %v", names, err)
	}
	must(t, write(sub, "b/new", ""), d.Remove("a/b/new"), sub.Remove("b"), d.Remove("a/moved"))
	if left, err := os.ReadDir(filepath.Join(path, "a")); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if info, err := d.Stat(); err != nil || !info.IsDir() || d.Path() != path {
		t.Errorf("Stat = %v, %v; Path = %q, want %q", info, err, d.Path(), path)
	}
}

func TestErrorsNameTheWholePathAndTheirClass(t *testing.T) {
	d, path := open(t)
	must(t, d.Mkdir("dir", 0o700), write(d, "dir/file", ""))
	for name, tc := range map[string]struct {
		err   error
		class error
	}{
		"open none":           {second(d.OpenFile("none", os.O_RDONLY, 0)), fs.ErrNotExist},
		"open twice":          {write(d, "dir/file", ""), fs.ErrExist},
		"mkdir twice":         {d.Mkdir("dir", 0o700), fs.ErrExist},
		"lstat none":          {second(d.Lstat("dir/none")), fs.ErrNotExist},
		"remove none":         {d.Remove("none/none"), fs.ErrNotExist},
		"rename none":         {d.Rename("none", "dir/new"), fs.ErrNotExist},
		"open dir none":       {second(d.OpenDir("none")), fs.ErrNotExist},
		"file is no dir":      {second(d.OpenDir("dir/file")), ErrType},
		"file in a path":      {second(d.Lstat("dir/file/x")), ErrType},
		"dir is no file":      {second(d.OpenFile("dir", os.O_RDONLY, 0)), ErrType},
		"dir for writing":     {second(d.OpenFile("dir", os.O_RDWR, 0)), ErrType},
		"mkdir below a file":  {d.Mkdir("dir/file/x", 0o700), ErrType},
		"rename below a file": {d.Rename("dir", "dir/file/x"), ErrType},
		"names of a file":     {second(d.Names("dir/file")), ErrType},
		"chmod of a file":     {d.Chmod("dir/file", 0o700), ErrType},
	} {
		if !errors.Is(tc.err, tc.class) {
			t.Errorf("%s: %v, want %v", name, tc.err, tc.class)
		} else if !strings.Contains(tc.err.Error(), path) {
			t.Errorf("%s: %v does not say where", name, tc.err)
		}
	}
}

func TestTheElementOfTheWrongTypeIsNamed(t *testing.T) {
	d, path := open(t)
	must(t, d.Mkdir("dir", 0o700), write(d, "dir/file", ""))
	for call, err := range map[string]error{
		"Lstat": second(d.Lstat("dir/file/a/b")), "Check": second(d.Check("dir/file/a",
			0)), "OpenFile": second(d.OpenFile("dir/file/a", os.O_RDONLY, 0)),
		"OpenDir": second(d.OpenDir("dir/file/a")), "Mkdir": d.Mkdir("dir/file/a",
			0o700), "Remove": d.Remove("dir/file/a"),
		"Rename from": d.Rename("dir/file/a", "b"), "Rename to": d.Rename("dir", "dir/file/a"),
	} {
		if want := filepath.ToSlash(path) + "/dir/file: unexpected file type"; err == nil ||
			!strings.Contains(filepath.ToSlash(err.Error()), want) {
			t.Errorf("%s = %v, want %q", call, err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestNoPathLeavesTheDirectory(t *testing.T) {
	d, path := open(t)
	must(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
	below, err := Open(path)
	must(t, err)
	defer below.Close()
	for _, name := range []string{"", "/", "..", "../x", "a/../file", "./file", "a//b", path, "file/", "x\x00y"} {
		for call, err := range map[string]error{
			"OpenFile": second(d.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)),
			"OpenDir":  second(d.OpenDir(name)), "Lstat": second(d.Lstat(name)), "Mkdir": d.Mkdir(name, 0o700),
			"Remove": d.Remove(name), "Rename from": d.Rename(name, "x"), "Rename to": d.Rename("file",
				name), "Names": second(d.Names(name)),
		} {
			if err == nil {
				t.Errorf("%s(%q) worked", call, name)
			}
		}
	}
	if err := d.Remove("."); err == nil {
		t.Error("the directory itself was removed")
	}
	names, err := d.Names(".")
	if err != nil || !slices.Equal(names, []string{"file"}) {
		t.Errorf("left are %q, %v", names, err)
	}
}

// TestNoLinkIsFollowed has links that stay inside the directory, which os.Root follows, and links
// that leave it.
func TestNoLinkIsFollowed(t *testing.T) {
	d, path := open(t)
	outside := t.TempDir()
	must(t, d.Mkdir("dir", 0o700), d.Mkdir("dir/sub", 0o700), write(d, "dir/file", "secret"),
		os.WriteFile(filepath.Join(outside, "file"), []byte("secret"), 0o600))
	for link, to := range map[string]string{"in": "dir", "in-file": "dir/file", "out": outside,
		"out-file": filepath.Join(outside, "file"), "dir/up": "..", "none": "nowhere"} {
		if err := winetest.Symlink(to, filepath.Join(path, link)); err != nil {
			t.Skip(err)
		}
	}
	for call, err := range map[string]error{
		"read through a link inside":          second(d.ReadFile("in/file", 10)),
		"read a link inside":                  second(d.ReadFile("in-file", 10)),
		"read through a link outside":         second(d.ReadFile("out/file", 10)),
		"read a link outside":                 second(d.ReadFile("out-file", 10)),
		"read through a link up":              second(d.ReadFile("dir/up/dir/file", 10)),
		"write through a link":                write(d, "in/new", "x"),
		"write to a link to nothing":          second(d.OpenFile("none", os.O_WRONLY|os.O_CREATE, 0o600)),
		"open a link to a directory":          second(d.OpenDir("in")),
		"open a link to a directory, as file": second(d.OpenDirFile("out")),
		"list a link":                         second(d.Names("in")),
		"look through a link":                 second(d.Lstat("in/file")),
		"make a directory through a link":     d.Mkdir("in/new", 0o700),
		"remove through a link":               d.Remove("in/file"),
		"rename from behind a link":           d.Rename("in/file", "moved"),
		"rename to behind a link":             d.Rename("dir/file", "in/moved"),
		"change a link's directory":           d.Chmod("in", 0o777),
		"sync through a link":                 syncLink(d),
	} {
		if !errors.Is(err, ErrType) || !strings.Contains(err.Error(), "link") {
			t.Errorf("%s: %v, want ErrType that names a link", call, err)
		}
	}
	if info, err := d.Lstat("in"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("Lstat of a link = %v, %v, want the link", info, err)
	}
	must(t, d.Rename("in", "renamed"), d.Remove("renamed"), d.Remove("out-file"))
	for _, file := range []string{filepath.Join(path, "dir", "file"), filepath.Join(outside, "file")} {
		if got, err := os.ReadFile(file); err != nil || string(got) != "secret" {
			t.Errorf("%s holds %q, %v", file, got, err)
		}
	}
}

// syncLink is an error where directories are not synced at all.
func syncLink(d *Dir) error {
	if d.Sync("nowhere") == nil {
		_, err := d.OpenDir("in")
		return err
	}
	return d.Sync("in")
}
