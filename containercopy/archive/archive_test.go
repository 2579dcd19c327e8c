package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// made is an entry of a tree or a stream of a test.
type made struct {
	kind    byte // as of tar
	name    string
	content string // of a file, or the text of a link
	mode    int64
	pax     map[string]string
}

func file(name, content string) made { return made{kind: tar.TypeReg, name: name, content: content} }
func dir(name string) made           { return made{kind: tar.TypeDir, name: name, mode: 0o755} }
func link(name, text string) made    { return made{kind: tar.TypeSymlink, name: name, content: text} }

// sparse returns an entry of a file with holes: the numbers of its parts, of which each has an offset
// and a length, and the data of all parts. GNU tar's format 1.0 of sparse files.
func sparse(size int64, parts ...string) made {
	content := ""
	if n := len(parts); n > 0 {
		content = strings.Join(parts[:n-1], "\n") + "\n"
		content += strings.Repeat("\x00", 512-len(content)) + parts[n-1]
	}
	return made{kind: tar.TypeReg, name: "GNUSparseFile.0/s", content: content, pax: map[string]string{
		"XNU.sparse.major": "1", "XNU.sparse.minor": "0", "XNU.sparse.name": "s",
		"XNU.sparse.realsize": strconv.FormatInt(size, 10)}}
}

// stream returns the tar stream of entries, with any names.
func stream(t testing.TB, entries ...made) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Mode: e.mode, ModTime: time.Unix(1e9, 0), PAXRecords: e.pax}
		if e.mode == 0 {
			h.Mode = 0o644
		}
		if e.kind == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: e.kind, PAXRecords: e.pax}
		}
		switch e.kind {
		case tar.TypeReg:
			h.Size = int64(len(e.content))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = e.content
		}
		err := w.WriteHeader(h)
		if err == nil && e.kind == tar.TypeReg {
			_, err = w.Write([]byte(e.content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("XNU.sparse"), []byte("GNU.sparse")) // which the writer does not write
}

// into opens an empty directory between two files that no test may change.
func into(t testing.TB) (root *os.Root, around string) {
	t.Helper()
	around = t.TempDir()
	path := filepath.Join(around, "in")
	if err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(around, "outside"), []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, around
}

// untouched fails if anything beside the directory of into has changed.
func untouched(t testing.TB, around string) {
	t.Helper()
	entries, err := os.ReadDir(around)
	content, failed := os.ReadFile(filepath.Join(around, "outside"))
	if err != nil || failed != nil || len(entries) != 2 || string(content) != "kept" {
		t.Errorf("outside of the directory: %v, %q, %v", entries, content, errors.Join(err, failed))
	}
}

// tree returns the entries below a directory: "path content", "path/", or "path -> text".
func tree(t testing.TB, root *os.Root) (all []string) {
	t.Helper()
	err := fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case e.IsDir():
			all = append(all, path+"/")
		case e.Type() == fs.ModeSymlink:
			text, err := root.Readlink(path)
			all = append(all, path+" -> "+text)
			return err
		default:
			content, err := root.ReadFile(path)
			all = append(all, path+" "+string(content))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func unpack(t testing.TB, data []byte, o UnpackOptions) (*os.Root, Counts, error) {
	t.Helper()
	root, around := into(t)
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	n, err := Unpack(context.Background(), bytes.NewReader(data), root, o)
	untouched(t, around)
	return root, n, err
}

// TestHostileStreams: each is rejected with its class and the name, and reaches nothing outside.
func TestHostileStreams(t *testing.T) {
	device := made{kind: tar.TypeBlock, name: "d/sda"}
	long := strings.Repeat("x/", 70)
	for name, tc := range map[string]struct {
		entries []made
		want    error
		words   string
	}{
		"parent":                         {[]made{file("../outside", "x")}, ErrRefused, `".."`},
		"inner parent":                   {[]made{file("a/../../outside", "x")}, ErrRefused, `".."`},
		"parent at the end":              {[]made{dir("a/..")}, ErrRefused, `".."`},
		"absolute":                       {[]made{file("/etc/passwd", "x")}, ErrRefused, "/etc/passwd"},
		"only a slash":                   {[]made{dir("/")}, ErrRefused, `"/"`},
		"empty element":                  {[]made{file("a//b", "x")}, ErrRefused, `""`},
		"a dot inside":                   {[]made{file("a/./b", "x")}, ErrRefused, `"."`},
		"a file without a name":          {[]made{file("./.", "x")}, ErrRefused, "no directory"},
		"hard link":                      {[]made{{kind: tar.TypeLink, name: "a", content: "../outside"}}, ErrRefused, "hard link"},
		"device":                         {[]made{dir("d"), device}, ErrRefused, "kind"},
		"named pipe":                     {[]made{{kind: tar.TypeFifo, name: "p"}}, ErrRefused, "kind"},
		"large holes":                    {[]made{sparse(64<<30+1, "1", "0", "3", "abc")}, ErrLimit, "sparse file"},
		"data that no part of it has":    {[]made{sparse(4096, "1", "0", "3", "abcdef")}, ErrFormat, ""},
		"a file through a link":          {[]made{link("l", ".."), file("l/outside", "x")}, ErrRefused, `link "l"`},
		"a file far below a link":        {[]made{link("l", ".."), file("l/a/b", "x")}, ErrRefused, `link "l"`},
		"a link below a link":            {[]made{link("l", ".."), link("l/outside", "/etc")}, ErrRefused, `link "l"`},
		"a directory below a link":       {[]made{link("l", ".."), dir("l/outside")}, ErrRefused, `link "l"`},
		"a directory over a link":        {[]made{link("l", ".."), dir("l"), file("l/outside", "x")}, ErrRefused, "two entries"},
		"a link over a directory":        {[]made{dir("l"), link("l", "..")}, ErrRefused, "two entries"},
		"a link over a parent":           {[]made{file("l/a", "x"), link("l", "..")}, ErrRefused, "two entries"},
		"two links":                      {[]made{link("l", "a"), link("l", "..")}, ErrRefused, "two entries"},
		"a link over a file":             {[]made{file("l", "x"), link("l", "..")}, ErrRefused, "two entries"},
		"a file over a link":             {[]made{link("l", "../outside"), file("l", "x")}, ErrRefused, "two entries"},
		"two files":                      {[]made{file("f", "x"), file("./f", "y")}, ErrRefused, "two entries"},
		"a file over a directory":        {[]made{dir("f"), file("f", "y")}, ErrRefused, "two entries"},
		"a directory over a file":        {[]made{file("f", "y"), dir("f")}, ErrRefused, "two entries"},
		"a file below a file":            {[]made{file("f", "y"), file("f/g", "y")}, ErrRefused, "two entries"},
		"two directories":                {[]made{dir("f"), dir("f/")}, ErrRefused, "two entries"},
		"too deep":                       {[]made{file(long+"x", "y")}, ErrLimit, "64 elements"},
		"a path of 5000 bytes":           {[]made{file(strings.Repeat("x", 5000), "y")}, ErrLimit, "4096 bytes"},
		"a terminal's escape in a name":  {[]made{file("../\x1b[2J", "x")}, ErrRefused, `\x1b`},
		"another archive behind the end": {nil, ErrRefused, "behind the end"},
	} {
		t.Run(name, func(t *testing.T) {
			data := stream(t, tc.entries...)
			if tc.entries == nil {
				data = append(stream(t, file("a", "1")), stream(t, file("b", "2"))...)
			}
			_, _, err := unpack(t, data, UnpackOptions{Links: true})
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.words) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("Unpack = %v, want %v with %q", err, tc.want, tc.words)
			}
		})
	}
}

// TestPermittedStreams are those of other programs: missing parents, a leading "./", any order.
func TestPermittedStreams(t *testing.T) {
	global := made{kind: tar.TypeXGlobalHeader, pax: map[string]string{"comment": "of git"}}
	data := stream(t, global, dir("./"), file("./b/c/d", "1"), dir("b/"), file("a", "2"), file("b/e", "3"),
		link("b/c/up", "../e"), link("b/up", "../a"), link("b/out", "../../x"), link("abs", "/etc/passwd"))
	var skipped []string
	root, n, err := unpack(t, append(data, make([]byte, 10240)...), UnpackOptions{
		Skip: func(path, reason string) { skipped = append(skipped, path+": "+reason) }})
	want := "a 2|b/|b/c/|b/c/d 1|b/c/up -> ../e|b/e 3"
	if got := strings.Join(tree(t, root), "|"); err != nil || got != want || n.Bytes != 3 || n.Entries != 10 {
		t.Errorf("got %s, %+v, %v, want %s", got, n, err, want)
	}
	if len(skipped) != 3 || !strings.Contains(skipped[0], `"/etc/passwd"`) || !strings.HasPrefix(skipped[1], "b/out: ") || !strings.HasPrefix(skipped[2], "b/up: ") {
		t.Errorf("skipped: %q, want the links that lead out", skipped)
	}
	root, _, err = unpack(t, data, UnpackOptions{Links: true})
	if got := strings.Join(tree(t, root), "|"); err != nil || !strings.Contains(got, "b/out -> ../../x") ||
		!strings.Contains(got, "abs -> /etc/passwd") {
		t.Errorf("with all links: %s, %v", got, err)
	}
}

func TestLimits(t *testing.T) {
	data := stream(t, dir("d"), file("d/a", strings.Repeat("x", 3000)), file("d/b", strings.Repeat("x", 3000)), link("d/l", "a"))
	for name, tc := range map[string]struct {
		change func(l *Limits)
		words  string // of the error; empty: none
	}{
		"exactly the stream":  {func(l *Limits) { l.Bytes = int64(len(data)) }, ""},
		"a byte less":         {func(l *Limits) { l.Bytes = int64(len(data)) - 1 }, "the stream has more than"},
		"content":             {func(l *Limits) { l.Bytes = 5999 }, "the files have more than 5999 bytes"},
		"exactly the entries": {func(l *Limits) { l.Entries = 4 }, ""},
		"entries":             {func(l *Limits) { l.Entries = 3 }, "more than 3 entries"},
		"memory":              {func(l *Limits) { l.Pending = 500 }, "more than 500 bytes"},
		"depth":               {func(l *Limits) { l.Depth = 1 }, "more than 1 elements"},
	} {
		t.Run(name, func(t *testing.T) {
			l := DefaultLimits()
			tc.change(&l)
			_, _, err := unpack(t, data, UnpackOptions{Limits: l})
			if tc.words == "" && err != nil || tc.words != "" && (!errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), tc.words)) {
				t.Errorf("Unpack = %v, want %q", err, tc.words)
			}
		})
	}
}

// TestCutStreams: a stream needs the two blocks of its end, which package tar does not demand.
func TestCutStreams(t *testing.T) {
	global := made{kind: tar.TypeXGlobalHeader, pax: map[string]string{"comment": "x"}}
	data := stream(t, global, dir("d"), file("d/a", strings.Repeat("\x00", 3000)), file("d/"+strings.Repeat("n", 200), "x"), link("d/l", "a"))
	if len(data)%512 != 0 || !bytes.Equal(data[len(data)-1024:], make([]byte, 1024)) {
		t.Fatalf("a stream of %d bytes", len(data))
	}
	if _, _, err := unpack(t, data, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if n%512 > 1 && n%37 != 0 {
			continue
		}
		if _, _, err := unpack(t, data[:n], UnpackOptions{}); !errors.Is(err, ErrFormat) {
			t.Errorf("%d of %d bytes: %v, want ErrFormat", n, len(data), err)
		}
	}
	data = stream(t, dir("d"))
	data[100]++ // its header
	if _, _, err := unpack(t, data, UnpackOptions{}); !errors.Is(err, ErrFormat) {
		t.Errorf("Unpack = %v, want ErrFormat", err)
	}
}

func TestSums(t *testing.T) {
	d := NewDigest(true)
	io.WriteString(d, "1234")
	io.WriteString(d, "56789")
	s := d.Sum()
	if s.Size != 9 || s.CRC32C != 0xe3069283 { // the check value of CRC-32C: RFC 3720, B.4 has others of its kind
		t.Errorf("got %d bytes, %08x", s.Size, s.CRC32C)
	}
	plain := NewDigest(false)
	io.WriteString(plain, "123456789")
	if err := errors.Join(s.Check(plain.Sum()), plain.Sum().Check(s)); err != nil {
		t.Error(err)
	}
	for words, other := range map[string]Sum{
		"8 were declared": {Size: 8, CRC32C: s.CRC32C},
		"CRC-32C":         {Size: 9, CRC32C: 1},
		"SHA-256":         {Size: 9, CRC32C: s.CRC32C, SHA256: make([]byte, 32)},
	} {
		if err := s.Check(other); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), words) {
			t.Errorf("Check = %v, want %s", err, words)
		}
	}
}

func TestWindowsNames(t *testing.T) {
	for _, bad := range []string{"a:b", "a\\b", "CON", "con", "nul.txt", "NUL .txt", "com1", "COM¹", "LPT9.log", "conin$",
		"a.", "a ", "...", "a\x1fb", "a?", "a|b", `a"b`, "aux.tar.gz"} {
		if err := checkWindows(bad); !errors.Is(err, ErrRefused) {
			t.Errorf("%q: %v, want ErrRefused", bad, err)
		}
	}
	for _, good := range []string{"a", ".a", "a.b", "console", "com", "com10", "lpt", "nula", "ä", " a", "COM1a"} {
		if err := checkWindows(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

func TestLinksThatLeadOut(t *testing.T) {
	for _, tc := range []struct {
		path, text string
		want       bool
	}{
		{"a", "b", true}, {"a", ".", true}, {"a", "..", true}, {"a", "/b", true}, {"a", "", true}, // the copy is a link
		{"d/a", "b", false}, {"d/a", ".", false}, {"d/a", "b/c/", false}, {"d/e/a", "..", false}, {"d/e/a", "../b/c", false},
		{"d/a", "..", true}, {"d/a", "../d", true}, {"d/e/a", "../..", true}, {"d/e/a", ".././/../b", true},
		{"d/a", "b/..", true}, {"d/e/a", "b/../c", true}, // b can be a link to .
		{"d/a", "/b", true}, {"d/a", "", true}, {"d/a", "b\x00", true},
	} {
		for _, windows := range []bool{false, true} {
			if got := leadsOut(tc.path, tc.text, windows); got != tc.want {
				t.Errorf("leadsOut(%q, %q, %t) = %t", tc.path, tc.text, windows, got)
			}
		}
	}
	// On Linux these are names of files, as of Perl's manual pages and of units of systemd.
	for _, text := range []string{`C:\x`, `..\x`, "Foo::Bar.3pm", `sys\x2ddev`} {
		if leadsOut("d/a", text, false) || !leadsOut("d/a", text, true) {
			t.Errorf("leadsOut of %q: want it on Windows alone", text)
		}
	}
}

// TestOwnersThatTheKernelWouldCut: 4294967296 would become root, and 4294967295 leaves the owner.
func TestOwnersThatTheKernelWouldCut(t *testing.T) {
	for _, tc := range []struct {
		uid, gid int
		refused  bool
	}{{1 << 32, 0, true}, {0, 1 << 32, true}, {1<<32 - 1, 0, true}, {-1, 0, true}, {1<<32 - 2, 1<<32 - 2, false}} {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: "a", Uid: tc.uid, Gid: tc.gid}
		if err := checkOwner(h); errors.Is(err, ErrRefused) != tc.refused || !tc.refused && err != nil {
			t.Errorf("%d:%d: %v, want refused: %t", tc.uid, tc.gid, err, tc.refused)
		}
		if tc.uid < 0 {
			continue // no tar has it
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(h), w.Close()); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		_, err = Unpack(t.Context(), &b, root, UnpackOptions{Limits: DefaultLimits(), Owner: true})
		if tc.refused && !errors.Is(err, ErrRefused) || !tc.refused && errors.Is(err, ErrRefused) {
			t.Errorf("Unpack with owners %d:%d = %v, want refused: %t", tc.uid, tc.gid, err, tc.refused)
		}
		root.Close()
	}
}

func TestUnpackEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root, _ := into(t)
	if _, err := Unpack(ctx, bytes.NewReader(stream(t, file("a", "b"))), root, UnpackOptions{Limits: DefaultLimits()}); !errors.Is(err, context.Canceled) {
		t.Errorf("Unpack = %v", err)
	}
}

// FuzzUnpack: no stream reaches anything outside of the directory, or makes more than its limits
// permit.
func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, dir("d"), file("d/a", "x"), link("d/l", "../../outside"), file("d/l/x", "y")))
	f.Add(stream(f, link("l", ".."), file("l/outside", "y")))
	f.Add(stream(f, file("../outside", "x"), dir("d/")))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := Limits{Bytes: 64 << 10, Entries: 20, Depth: 5, Path: 200, Pending: 4 << 10}
		root, n, err := unpack(t, data, UnpackOptions{Limits: l, Mode: true, Times: true, Links: true})
		if n.Entries > 20 || n.Bytes > 64<<10 {
			t.Errorf("%+v, %v", n, err)
		}
		if err == nil {
			all := 0
			fs.WalkDir(root.FS(), ".", func(string, fs.DirEntry, error) error { all++; return nil })
			if all > 20*5+1 {
				t.Errorf("%d entries", all)
			}
		}
	})
}

// atEnd calls f before the end of a stream is read.
type atEnd struct {
	io.Reader
	f func()
}

func (r *atEnd) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) && r.f != nil {
		r.f()
		r.f = nil
	}
	return n, err
}

// TestLargePaxHeaders: a link or a directory that is kept until the end holds its own texts, and not
// the header of 1 MiB that they came in.
func TestLargePaxHeaders(t *testing.T) {
	const entries = 64
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for i := range entries {
		h := &tar.Header{Name: fmt.Sprint("é/", i), Linkname: "é", Typeflag: tar.TypeSymlink, Mode: 0o644,
			PAXRecords: map[string]string{"comment": strings.Repeat("x", 1<<20-200)}}
		switch i % 3 {
		case 1:
			h.Typeflag, h.Linkname = tar.TypeDir, ""
		case 2:
			h.Typeflag, h.Linkname, h.Name = tar.TypeReg, "", h.Name+"/f"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, grown := used(), int64(0)
	counts, err := Unpack(t.Context(), &atEnd{&data, func() { grown = int64(used()) - int64(before) }}, root,
		UnpackOptions{Limits: DefaultLimits(), Links: true})
	if err != nil {
		t.Fatal(err)
	}
	data.Reset() // which has been in memory all the time
	if limit := int64(entries / 4 << 20); counts.Entries < entries || grown > limit {
		t.Errorf("%+v: %d bytes more are in use at the end, want at most %d", counts, grown, limit)
	}
}

// TestTimesOutOfRange: a file of the year 10000 does not become one of 1901.
func TestTimesOutOfRange(t *testing.T) {
	for at, years := range map[int64][2]int{253402300800: {2038, 2262}, math.MaxInt64: {2038, 2262}, -253402300800: {1677, 1901}, 0: {1970, 1970}} {
		var data bytes.Buffer
		w := tar.NewWriter(&data)
		h := &tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, ModTime: time.Unix(at, 0), Format: tar.FormatPAX}
		if err := errors.Join(w.WriteHeader(h), w.Close()); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_, err = Unpack(t.Context(), &data, root, UnpackOptions{Limits: DefaultLimits(), Times: true})
		info, statErr := root.Stat("f")
		if err = errors.Join(err, statErr); err != nil {
			t.Fatal(err)
		}
		if got := info.ModTime().UTC().Year(); got < years[0] || got > years[1] { // filesystems have limits of their own
			t.Errorf("mtime %d: the file is of the year %d, want %d", at, got, years)
		}
	}
}
