package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// tree writes files on the disk of the server, each with its path as content, and returns the path
// of their directory. The path of a directory has a slash at its end.
func (b bench) tree(share, dir string, paths ...string) string {
	b.Helper()
	top := filepath.Join(b.Dir, share, dir)
	if err := os.Mkdir(top, 0o777); err != nil {
		b.Fatal(err)
	}
	for _, path := range paths {
		file := filepath.Join(top, path)
		err := os.MkdirAll(filepath.Dir(file), 0o777)
		if strings.HasSuffix(path, "/") {
			err = os.Mkdir(file, 0o777)
		} else if err == nil {
			err = os.WriteFile(file, []byte(path), 0o666)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return top
}

// holds fails unless a directory has exactly the files of tree.
func (b bench) holds(top string, paths ...string) {
	b.Helper()
	var got []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		name := strings.TrimPrefix(path, top+"/")
		if d.IsDir() {
			if all, err := os.ReadDir(path); err != nil || len(all) > 0 {
				return err
			}
			name += "/"
		} else if content, err := os.ReadFile(path); err != nil || string(content) != name {
			b.Errorf("%s has the content %q, %v", name, content, err)
		}
		got = append(got, name)
		return nil
	})
	slices.Sort(got)
	slices.Sort(paths)
	if err != nil || !slices.Equal(got, paths) {
		b.Errorf("%s has %q, want %q, %v", top, got, paths, err)
	}
}

// TestNamesThatWindowsForbids: Samba lists such a name under an alias, unless "mangled names = no".
// A copy by the listed names would have other names, or would lack the files.
func TestNamesThatWindowsForbids(t *testing.T) {
	for _, path := range []string{"src/aux.c", "con.txt", "nul/file", "PRN/"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := serve(t)
			for _, share := range []string{smbtest.Share, smbtest.CaseSensitive} {
				b.tree(share, "from", "a file", path)
				to := b.tree(share, "to")
				err := b.open(share).CopyTree(t.Context(), "from", "to", new(Progress))
				if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(fmt.Sprint(err), "mangled names = no") {
					t.Errorf("%s: %v, want ErrPrecondition with a remedy", share, err)
				}
				b.holds(to)
			}
			b.tree(smbtest.Unmangled, "from", "a file", path, "real~1.txt", "A~B")
			to := b.tree(smbtest.Unmangled, "to")
			s := b.open(smbtest.Unmangled)
			if err := s.CopyTree(t.Context(), "from", "to", new(Progress)); err != nil {
				t.Fatal(err)
			}
			b.holds(to, "a file", path, "real~1.txt", "A~B")
			b.tree(smbtest.Share, "usual", "a~b", "v1~rc", "file~1.c", "LOG-01.TXT")
			to = b.tree(smbtest.Share, "copy")
			if err := b.open(smbtest.Share).CopyTree(t.Context(), "usual", "copy", new(Progress)); err != nil {
				t.Error(err)
			}
			b.holds(to, "a~b", "v1~rc", "file~1.c", "LOG-01.TXT")
		})
	}
}

// TestAForbiddenNameThatAppearsDuringACopy: the survey has not seen it.
func TestAForbiddenNameThatAppearsDuringACopy(t *testing.T) {
	b := serve(t)
	from := b.tree(smbtest.Share, "from", "sub/file")
	b.tree(smbtest.Share, "to")
	lists := 0
	b.pool.Before = func(op, path string) error {
		if op == "open" && path == "from/sub" {
			if lists++; lists == 2 {
				return os.WriteFile(from+"/sub/aux.c", []byte("x"), 0o666)
			}
		}
		return nil
	}
	err := b.open(smbtest.Share).CopyTree(t.Context(), "from", "to", new(Progress))
	if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(fmt.Sprint(err), "mangled names = no") {
		t.Errorf("%v, want ErrPrecondition with a remedy", err)
	}
}

func TestAliases(t *testing.T) {
	for name, want := range map[string]bool{"CQWERT~X.TXT": true, "AUX~1A": true, "A_1234~0": true, "C^X.TXT": false,
		"cqwert~x.txt": false, "A~BCD": false, "LONGNAME~1": false, "A~1.TEXT": false, "~1": false, "A~": false} {
		if got := isAlias(name, "~"); got != want {
			t.Errorf("isAlias(%q) = %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]string{"CQWERT^X.TXT": "^", "A8Z4KX~1.CAU": "~", "README": "", "a~b": ""} {
		if got := separatorOf(name); got != want {
			t.Errorf("separatorOf(%q) = %q, want %q", name, got, want)
		}
	}
	if isAlias("LOG-1", noAliases) {
		t.Error("a server without aliases has one")
	}
}

// TestAForbiddenNameStaysAfterARemoval: the error names the entry and a remedy.
func TestAForbiddenNameStaysAfterARemoval(t *testing.T) {
	b := serve(t)
	for _, path := range []string{"aux.c", "nul/file"} {
		top := b.tree(smbtest.CaseSensitive, "top", "a file", path)
		err := b.open(smbtest.CaseSensitive).RemoveTree(t.Context(), "top")
		if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(fmt.Sprint(err), "mangled names = no") {
			t.Errorf("%s: %v, want ErrPrecondition with a remedy", path, err)
		}
		b.holds(top, path)
		if err := os.RemoveAll(top); err != nil {
			t.Fatal(err)
		}
		b.tree(smbtest.Share, "top", "a file", path)
		if err := b.open(smbtest.Share).RemoveTree(t.Context(), "top"); err != nil {
			t.Errorf("%s: a server that finds the alias: %v", path, err)
		}
		if _, err := os.Stat(filepath.Join(b.Dir, smbtest.Share, "top")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stays: %v", path, err)
		}
	}
}

// TestNamesThatTheServerTakesForOne: the error is final, names both, and comes before any data is
// copied. A server that tells the names apart copies both.
func TestNamesThatTheServerTakesForOne(t *testing.T) {
	b := serve(t)
	paths := []string{"docs/R\u200bEADME", "docs/README", "docs/readme", "a file"}
	b.tree(smbtest.Share, "from", paths...)
	to := b.tree(smbtest.Share, "to")
	var p Progress
	err := b.open(smbtest.Share).CopyTree(t.Context(), "from", "to", &p)
	for _, want := range []string{`"README"`, `"readme"`, `"from/docs"`} {
		if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want ErrPrecondition with %s", err, want)
		}
	}
	b.holds(to)
	if p.Files.Load() > 0 {
		t.Error("a file was copied first")
	}
	paths = append(paths, "docs/straße", "docs/STRASSE", "docs/caf\u00e9", "docs/cafe\u0301", "docs/ﬁle", "docs/file")
	b.tree(smbtest.CaseSensitive, "from", paths...)
	to = b.tree(smbtest.CaseSensitive, "to")
	if err := b.open(smbtest.CaseSensitive).CopyTree(t.Context(), "from", "to", new(Progress)); err != nil {
		t.Fatal(err)
	}
	b.holds(to, paths...)
}

// TestManyNamesThatAreOneForSomeServer: the requests for such names grow with their number, not with
// its square. The server tells them apart.
func TestManyNamesThatAreOneForSomeServer(t *testing.T) {
	b := serve(t)
	var names []string
	for i := range 64 {
		name := "f"
		for bit, invisible := range []string{"\u200b", "\u200c", "\u200d", "\u2060", "\u00ad", "\ufe0f"} {
			if i&(1<<bit) != 0 {
				name += invisible
			}
		}
		names = append(names, name)
	}
	b.tree(smbtest.Share, "from", names...)
	to := b.tree(smbtest.Share, "to")
	var operations atomic.Int64
	b.pool.Before = func(string, string) error { operations.Add(1); return nil }
	if err := b.open(smbtest.Share).CopyTree(t.Context(), "from", "to", new(Progress)); err != nil {
		t.Fatal(err)
	}
	b.holds(to, names...)
	if n := operations.Load(); n > int64(20*len(names)) {
		t.Errorf("%d operations for %d files", n, len(names))
	}
}

func TestFoldName(t *testing.T) {
	for _, names := range [][2]string{{"README", "readme"}, {"straße", "STRASSE"}, {"caf\u00e9", "cafe\u0301"},
		{"ﬁle", "FILE"}, {"ΣΑΣ", "σας"}, {"Ａ", "a"}, {"CAFE\u0301", "caf\u00e9"}, {"DATEI ı", "datei i"},
		{"a\u200bb", "A\ufe0fB"}, {"a/Ｂ", "A/b"}, {"ẞ", "ss"}, {"\u212a", "k"},
		{"\u0130", "i"}, {"\u0130", "i\u0307"}, {"\u0130\u0323", "I\u0307\u0323"}, {"\u1fb3\u0301", "Α\u0301Ι"}} {
		if FoldName(names[0]) != FoldName(names[1]) {
			t.Errorf("%q and %q are different", names[0], names[1])
		}
	}
	if FoldName("a\uff0fb") == FoldName("a/b") {
		t.Error("a character becomes a slash")
	}
	for _, name := range []string{"a", "b", "a b", "a/b", "a.b", "ä", "Ａ１"} {
		if FoldName(name) == FoldName("ab") || FoldName(FoldName(name)) != FoldName(name) {
			t.Errorf("FoldName(%q) = %q", name, FoldName(name))
		}
	}
}

// TestFoldNameFoldsAllCases: every full case folding of Unicode, and every normalization, also with a
// mark behind it.
func TestFoldNameFoldsAllCases(t *testing.T) {
	fold := cases.Fold()
	for _, mark := range []string{"", "\u0323", "\u0301", "\u0345"} { // below, above, and the iota, which becomes a letter
		for r := rune(1); r <= unicode.MaxRune; r++ {
			if !utf8.ValidRune(r) || r == '/' || mark != "" && r > 0x3000 {
				continue
			}
			name := string(r) + mark
			want := FoldName(name)
			// A folding is canonical after a decomposition only: Unicode, 3.13, D145.
			for _, same := range []string{fold.String(norm.NFD.String(name)), norm.NFC.String(name), norm.NFD.String(name),
				strings.ReplaceAll(norm.NFKC.String(name), "/", "\x00")} {
				if got := FoldName(same); got != want {
					t.Errorf("%U and %+q: FoldName(%+q) = %+q, want %+q", r, mark, same, got, want)
				}
			}
		}
	}
}

func TestShortNames(t *testing.T) {
	for name, want := range map[string]bool{"PROGRA~1": true, "CQWERT~X.TXT": true, "a~b": true, "file~1.c": true,
		"file~": false, "~1": false, "a longer name~1": false, "file~1.html": false, "file~x y": false} {
		if got := IsShortName(name); got != want {
			t.Errorf("IsShortName(%q) = %v, want %v", name, got, want)
		}
	}
}

// hide makes an entry missing when it is opened, and present when its directory is listed.
func (b bench) hide(share, entry string) {
	path := filepath.Join(b.Dir, share, entry)
	b.pool.Before = func(op, opened string) error {
		var err error
		switch {
		case opened == entry && (op == "open" || op == "look up"):
			err = os.Rename(path, path+".hidden")
		case opened == filepath.Dir(entry) && op == "open":
			err = os.Rename(path+".hidden", path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
}

// TestAListedNameThatIsNotFound: a server lists an entry, and does not find it by the name that it
// lists. The library lists a name that is not UTF-16 with U+FFFD: golang/go#59971 is the same of Go.
func TestAListedNameThatIsNotFound(t *testing.T) {
	for _, name := range []string{"a\ufffdb", "other", "directory/"} {
		b := serve(t)
		b.tree(smbtest.Share, "from", name)
		to := b.tree(smbtest.Share, "to")
		entry := "from/" + strings.TrimSuffix(name, "/")
		b.hide(smbtest.Share, entry)
		err := b.open(smbtest.Share).CopyTree(t.Context(), "from", "to", new(Progress))
		if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(fmt.Sprint(err), entry) {
			t.Errorf("%q: %v, want ErrPrecondition", name, err)
		}
		b.holds(to)
	}
}

// TestEntriesThatDisappearDuringACopy: an entry that is gone is left out, and an entry that
// is created again is copied.
func TestEntriesThatDisappearDuringACopy(t *testing.T) {
	b := serve(t)
	from := b.tree(smbtest.Share, "from", "gone", "again", "goes/file", "returns/file", "stays")
	to := b.tree(smbtest.Share, "to")
	var mu sync.Mutex
	opened := map[string]int{}
	b.pool.Before = func(op, path string) error {
		if op != "open" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		opened[path]++
		switch entry := filepath.Base(path); {
		case entry == "gone", entry == "goes" && opened[path] == 2: // the survey lists it first
			return os.RemoveAll(from + "/" + entry)
		case entry == "again" && opened[path] == 1, entry == "returns" && opened[path] == 2:
			return os.Rename(from+"/"+entry, from+"/../"+entry)
		case entry == "from" && opened[path] == 3: // to see which entries are still there
			return errors.Join(os.Rename(from+"/../again", from+"/again"), os.Rename(from+"/../returns", from+"/returns"))
		}
		return nil
	}
	if err := b.open(smbtest.Share).CopyTree(t.Context(), "from", "to", new(Progress)); err != nil {
		t.Fatal(err)
	}
	b.holds(to, "again", "returns/file", "stays")
}

// TestManyFilesAtOnce: the copies and lists of a session do not take more credits than it has.
func TestManyFilesAtOnce(t *testing.T) {
	b := serve(t)
	var paths []string
	for i := range 12 {
		paths = append(paths, fmt.Sprint("file", i), fmt.Sprint("a/file", i), fmt.Sprint("a/b/file", i), fmt.Sprint("c/file", i))
	}
	b.tree(smbtest.Share, "from", paths...)
	for i := range 3 {
		b.file(fmt.Sprint("from/c/large", i), content(serverCopy+chunk))
	}
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			s, err := b.pool.Open(t.Context(), b.source(smbtest.Share), b.login(), Jobs)
			if err == nil {
				defer s.Release()
				to := fmt.Sprint("to", i)
				err = s.Mkdir(t.Context(), to)
				for range 2 {
					var p Progress
					err = errors.Join(err, s.CopyTree(t.Context(), "from", to, &p))
					if n := p.Files.Load(); n != 51 {
						t.Errorf("%d files were copied, want 51", n)
					}
					err = errors.Join(err, s.RemoveTree(t.Context(), to), s.Mkdir(t.Context(), to))
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// TestACopyThatDisappears: a missing target is not a missing source.
func TestACopyThatDisappears(t *testing.T) {
	b := serve(t)
	b.tree(smbtest.Share, "from", "sub/file")
	to := b.tree(smbtest.Share, "to")
	b.pool.Before = func(op, path string) error {
		if op == "create" && path == "to/sub/file" {
			return os.RemoveAll(to + "/sub")
		}
		return nil
	}
	err := b.open(smbtest.Share).CopyTree(t.Context(), "from", "to", new(Progress))
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// deepen makes that many nested directories in a directory, with a file in the last.
func deepen(t *testing.T, top string, levels int, name string) {
	t.Helper()
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_PATH, 0)
	for i := 0; err == nil && i < levels; i++ {
		if err = unix.Mkdirat(at, name, 0o777); err == nil {
			var next int
			if next, err = unix.Openat(at, name, unix.O_DIRECTORY|unix.O_PATH, 0); err == nil {
				unix.Close(at)
				at = next
			}
		}
	}
	if err == nil {
		err = unix.Mknodat(at, "file", unix.S_IFREG|0o666, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
}

// TestTreesOfAnyDepthAreRemoved: the paths of the deep directories are longer than a server
// permits. A local user of the server can make them.
func TestTreesOfAnyDepthAreRemoved(t *testing.T) {
	b := serve(t)
	top := b.tree(smbtest.Share, "top", "a file")
	deepen(t, top, maxDepth+100, "d")
	deepen(t, top, 24, strings.Repeat("long", 60))
	s := b.open(smbtest.Share)
	if err := s.RemoveTree(t.Context(), "top"); err != nil {
		t.Error(err)
	}
	b.holds(filepath.Join(b.Dir, smbtest.Share))
}

// TestATreeThatIsTooDeepIsNotCopied: the error comes before any data is copied.
func TestATreeThatIsTooDeepIsNotCopied(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	for levels, want := range map[int]error{maxDepth: nil, maxDepth + 1: backend.ErrPrecondition} {
		from, dir := fmt.Sprint("from", levels), fmt.Sprint("to", levels)
		deepen(t, b.tree(smbtest.Share, from, "a file"), levels, "d")
		to := b.tree(smbtest.Share, dir)
		var p Progress
		err := s.CopyTree(context.Background(), from, dir, &p)
		if !errors.Is(err, want) {
			t.Errorf("%d levels: %v, want %v", levels, err, want)
		}
		if want != nil {
			b.holds(to)
		} else if p.Files.Load() != 2 {
			t.Errorf("%d levels: %d files were copied", levels, p.Files.Load())
		}
	}
}
