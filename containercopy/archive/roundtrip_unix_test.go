//go:build unix

package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// source makes a tree with one entry of each kind, and returns its path.
func source(t *testing.T) string {
	t.Helper()
	top := filepath.Join(t.TempDir(), "top")
	in := func(name string) string { return filepath.Join(top, name) }
	err := errors.Join(
		os.Mkdir(top, 0o755), os.Mkdir(in("d"), 0o750), os.Mkdir(in("d/closed"), 0o755), os.Mkdir(in("empty"), 0o700),
		os.WriteFile(in("a"), []byte("content of a"), 0o640), os.WriteFile(in("d/run"), nil, 0o755),
		os.WriteFile(in("d/large"), bytes.Repeat([]byte("0123456789"), 100_000), 0o600),
		os.WriteFile(in("new\nline \xff"), []byte("odd"), 0o600), os.WriteFile(in("d/closed/f"), []byte("in"), 0o400),
		os.WriteFile(in(strings.Repeat("n", 200)), []byte("long"), 0o600),
		os.Symlink("../a", in("d/up")), os.Symlink("/etc/passwd", in("absolute")), os.Symlink("a", in("z")),
		os.Link(in("a"), in("hard")), syscall.Mkfifo(in("pipe"), 0o600),
		os.Chmod(in("d/run"), 0o755|fs.ModeSetuid), os.Chmod(in("d/closed"), 0o500))
	for _, name := range []string{"a", "d/run", "d/large", "d/closed", "empty", "d"} {
		err = errors.Join(err, os.Chtimes(in(name), time.Time{}, time.Unix(1_500_000_000, 0)))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(in("d/closed"), 0o700) })
	return top
}

// pack returns the stream of an entry, and the skipped paths.
func pack(t *testing.T, e Entry, limits Limits) (data []byte, skipped []string, err error) {
	t.Helper()
	defer e.Close()
	var b bytes.Buffer
	_, err = Pack(context.Background(), &b, "top", e, PackOptions{Limits: limits,
		Skip: func(path, reason string) { skipped = append(skipped, path+": "+reason) }})
	return b.Bytes(), skipped, err
}

func openLocal(t *testing.T, path string) Entry {
	t.Helper()
	e, err := OpenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestRoundTrip: a tree arrives as it was, and the stream is the same again.
func TestRoundTrip(t *testing.T) {
	top := source(t)
	data, skipped, err := pack(t, openLocal(t, top), DefaultLimits())
	if err != nil || !slices.Equal(skipped, []string{"top/pipe: not copied: a named pipe"}) {
		t.Fatalf("skipped: %q, %v", skipped, err)
	}
	root, n, err := unpack(t, data, UnpackOptions{Mode: true, Times: true, Links: true})
	if err != nil || n.Entries != 14 {
		t.Fatalf("Unpack = %+v, %v", n, err)
	}
	t.Cleanup(func() { root.Chmod("top/d/closed", 0o700) })
	for name, want := range map[string]fs.FileMode{
		"a": 0o640, "hard": 0o640, "d": 0o750 | fs.ModeDir, "d/run": 0o755, "d/closed": 0o500 | fs.ModeDir,
		"d/closed/f": 0o400, "empty": 0o700 | fs.ModeDir,
	} {
		info, err := root.Lstat("top/" + name)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
		if name != "hard" && name != "d/closed/f" && info.ModTime().Unix() != 1_500_000_000 {
			t.Errorf("%s is of %v", name, info.ModTime())
		}
	}
	if got, err := root.ReadFile("top/d/large"); err != nil || len(got) != 1_000_000 {
		t.Errorf("d/large has %d bytes, %v", len(got), err)
	}
	again, _, err := pack(t, openLocal(t, filepath.Join(root.Name(), "top")), DefaultLimits())
	if err == nil {
		_, _, err = unpack(t, again, UnpackOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := content(t, again), content(t, data); got != want {
		t.Errorf("the copy has\n%s\nwant\n%s", got, want)
	}
}

// content returns the tree of a stream.
func content(t *testing.T, data []byte) string {
	t.Helper()
	root, _, err := unpack(t, data, UnpackOptions{Links: true})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(tree(t, root), "|")
}

// TestPermissionsOfTheUmask: without Mode, a private directory stays private.
func TestPermissionsOfTheUmask(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	private, closed, open := dir("private"), dir("closed"), dir("open")
	private.mode, closed.mode, open.mode = 0o700, 0o555, 0o777
	run := file("open/run", "x")
	run.mode = 0o6777
	root, _, err := unpack(t, stream(t, private, closed, file("closed/f", "x"), open, run, file("made/f", "x")), UnpackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Chmod("closed", 0o700) })
	for name, want := range map[string]fs.FileMode{
		"private": 0o700 | fs.ModeDir, "closed": 0o550 | fs.ModeDir, "open": 0o750 | fs.ModeDir, "open/run": 0o750,
		"made": 0o750 | fs.ModeDir, "made/f": 0o640,
	} {
		if info, err := root.Lstat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

// TestSparseFiles: their holes count, and stay holes where the filesystem has them.
func TestSparseFiles(t *testing.T) {
	const size, at = 4 << 20, 1 << 20
	data := stream(t, sparse(size, "2", fmt.Sprint(at), "3", fmt.Sprint(size), "0", "abc"), file("b", "x"))
	root, n, err := unpack(t, data, UnpackOptions{})
	if err != nil || n.Bytes != size+1 {
		t.Fatalf("%+v, %v", n, err)
	}
	want := make([]byte, size)
	copy(want[at:], "abc")
	if got, err := root.ReadFile("s"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := root.ReadFile("b"); err != nil || string(got) != "x" {
		t.Errorf("the entry behind it: %q, %v", got, err)
	}
	info, err := root.Stat("s")
	if err != nil {
		t.Fatal(err)
	}
	if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > size/2 {
		t.Errorf("a file with 3 bytes of data occupies %d", used)
	}
	l := DefaultLimits()
	l.Bytes = size
	if _, _, err := unpack(t, data, UnpackOptions{Limits: l}); !errors.Is(err, ErrLimit) {
		t.Errorf("Unpack = %v, want ErrLimit", err)
	}
	for n := range data[:len(data)-512] {
		if n%512 > 1 && n%37 != 0 {
			continue
		}
		if _, _, err := unpack(t, data[:n], UnpackOptions{}); !errors.Is(err, ErrFormat) {
			t.Errorf("%d of %d bytes: %v, want ErrFormat", n, len(data), err)
		}
	}
}

// TestFormatOfGNU: an entry that the old fields of tar cannot describe has no records of pax, which
// BusyBox does not read.
func TestFormatOfGNU(t *testing.T) {
	long := strings.Repeat("n", 150)
	for name, info := range map[string]Info{
		"owner": {UID: 1<<31 + 5, GID: 1 << 21}, "time": {Modified: time.Unix(1e9, 5e8)}, long: {}, "\xff": {}, "é": {},
		"old time": {Modified: time.Unix(-5, 0)}, "size": {Size: 9 << 30},
	} {
		var b bytes.Buffer
		written := header(name, tar.TypeReg, info)
		written.Size = info.Size
		if err := tar.NewWriter(&b).WriteHeader(written); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b.Bytes(), []byte("PaxHeader")) {
			t.Errorf("%q has records of pax", name)
		}
		h, err := tar.NewReader(&b).Next()
		if err != nil || h.Name != name || h.Uid != info.UID || h.Gid != info.GID || h.Size != info.Size ||
			!info.Modified.IsZero() && !h.ModTime.Equal(info.Modified.Round(time.Second)) {
			t.Errorf("%q: %+v, %v", name, h, err)
		}
	}
}

// TestASingleFile: a link that the user names is followed, and its name is that of the link.
func TestASingleFile(t *testing.T) {
	top := source(t)
	data, _, err := pack(t, openLocal(t, filepath.Join(top, "z")), DefaultLimits())
	if got := content(t, data); err != nil || got != "top content of a" {
		t.Errorf("got %q, %v", got, err)
	}
	if e, err := OpenLocal(filepath.Join(top, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenLocal = %v, %v", e, err)
	}
	if _, _, err := pack(t, openLocal(t, filepath.Join(top, "pipe")), DefaultLimits()); !errors.Is(err, ErrRefused) {
		t.Errorf("a named pipe: %v, want ErrRefused", err)
	}
}

func TestLimitsOfPack(t *testing.T) {
	top := source(t)
	all := DefaultLimits()
	data, _, err := pack(t, openLocal(t, top), all)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(l *Limits)
		words  string
	}{
		"exactly the stream":  {func(l *Limits) { l.Bytes = int64(len(data)) }, ""},
		"a byte less":         {func(l *Limits) { l.Bytes = int64(len(data)) - 1 }, "the stream has more than"},
		"content":             {func(l *Limits) { l.Bytes = 1_000_000 }, "the files have more than"},
		"exactly the entries": {func(l *Limits) { l.Entries = 15 }, ""}, // with the pipe
		"entries":             {func(l *Limits) { l.Entries = 14 }, "more than 14 entries"},
		"depth":               {func(l *Limits) { l.Depth = 3 }, "more than 3 elements"},
		"path":                {func(l *Limits) { l.Path = 100 }, "more than 100 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			l := all
			tc.change(&l)
			_, _, err := pack(t, openLocal(t, top), l)
			if tc.words == "" && err != nil || tc.words != "" && (!errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), tc.words)) {
				t.Errorf("Pack = %v, want %q", err, tc.words)
			}
		})
	}
}

// changing calls a function before a method of an Entry.
type changing struct {
	Entry
	beforeOpen, beforeChild func(name string)
	name                    string
}

func (c changing) Open() (io.ReadCloser, error) {
	c.beforeOpen(c.name)
	return c.Entry.Open()
}

func (c changing) Child(name string) (Entry, error) {
	c.beforeChild(name)
	e, err := c.Entry.Child(name)
	if err != nil {
		return nil, err
	}
	return changing{e, c.beforeOpen, c.beforeChild, name}, nil
}

// TestAChangingSource: a file that becomes shorter, or another one, ends the copy.
func TestAChangingSource(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(t *testing.T, top, name string)
		atChild bool
		want    error
		skipped string
	}{
		"shorter": {change: func(t *testing.T, top, name string) { os.Truncate(filepath.Join(top, name), 3) }, want: ErrChanged},
		"empty":   {change: func(t *testing.T, top, name string) { os.Truncate(filepath.Join(top, name), 0) }, want: ErrChanged},
		"longer": {change: func(t *testing.T, top, name string) { os.Truncate(filepath.Join(top, name), 1<<20) },
			skipped: "first 12 bytes"},
		"another file": {change: func(t *testing.T, top, name string) {
			if err := os.Rename(filepath.Join(top, "b"), filepath.Join(top, name)); err != nil {
				t.Error(err)
			}
		}, want: ErrChanged},
		"a link": {change: func(t *testing.T, top, name string) {
			if err := errors.Join(os.Remove(filepath.Join(top, name)), os.Symlink("b", filepath.Join(top, name))); err != nil {
				t.Error(err)
			}
		}, want: ErrChanged},
		"gone before it is opened": {atChild: true, skipped: "gone",
			change: func(t *testing.T, top, name string) { os.Remove(filepath.Join(top, name)) }},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			for _, f := range []string{"a", "b"} {
				if err := os.WriteFile(filepath.Join(top, f), []byte("content of "+f), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			change := func(at bool) func(string) {
				return func(name string) {
					if name == "a" && at == tc.atChild {
						tc.change(t, top, name)
					}
				}
			}
			_, skipped, err := pack(t, changing{openLocal(t, top), change(false), change(true), ""}, DefaultLimits())
			if !errors.Is(err, tc.want) || tc.skipped != "" && (len(skipped) != 1 || !strings.Contains(skipped[0], tc.skipped)) {
				t.Errorf("Pack = %v, skipped %q, want %v, %q", err, skipped, tc.want, tc.skipped)
			}
		})
	}
}

// TestADirectoryThatWasReplaced since it was looked up, such as by a link to another one.
func TestADirectoryThatWasReplaced(t *testing.T) {
	expected, err := os.Lstat(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if e, err := openDir(other, expected); !errors.Is(err, ErrChanged) {
		t.Errorf("openDir = %v, %v, want ErrChanged", e, err)
	}
}
