package links

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

func TestCleanWindows(t *testing.T) {
	for path, want := range map[string]string{
		`\var\lib\kubelet\plugins\kubernetes.io\csi\d\0a\globalmount`: `C:\var\lib\kubelet\plugins\kubernetes.io\csi\d\0a\globalmount`,
		`c:\var\lib\kubelet\pods\u\volumes\kubernetes.io~csi\p\mount`: `C:\var\lib\kubelet\pods\u\volumes\kubernetes.io~csi\p\mount`,
		`C:\k\target/target`:   `C:\k\target\target`,
		`/var/lib/kubelet/x`:   `C:\var\lib\kubelet\x`,
		`d:/k//x\.\y\`:         `D:\k\x\y`,
		`\`:                    `C:\`,
		`z:\`:                  `Z:\`,
		`C:\a..b\.hidden\...x`: `C:\a..b\.hidden\...x`,
		`C:\com10\lpt\console`: `C:\com10\lpt\console`,
		`C:\ünï\日本`:            `C:\ünï\日本`,
	} {
		got, err := CleanWindows(path)
		if got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", path, got, err, want)
		}
		if again, err := CleanWindows(got); again != got || err != nil {
			t.Errorf("%q: got %q, %v the second time", got, again, err)
		}
	}
	for _, path := range []string{
		"", ".", "relative", `c:`, `c:relative`, `1:\x`, `\\server\share`, `//server/share`, `\\?\C:\x`, `\\.\C:`, `/\x`,
		`C:\..`, `C:\a\..\b`, `\..\x`, `C:\a.\b`, `C:\a \b`, `C:\a\ `, `C:\file:stream`, `C:\a\C:\b`, "C:\\a\x00", "C:\\a\n",
		`C:\a*`, `C:\a?`, `C:\a|b`, `C:\<a>`, `C:\"a"`, `C:\nul`, `C:\NUL.txt`, `C:\con\x`, `C:\a\COM1`, `C:\lpt9.x`, `C:\com¹`,
		`C:\nul .txt`, `C:\` + strings.Repeat("x", 256), `C:\` + strings.Repeat(`x\`, 3000), "C:\\\xff",
	} {
		if got, err := CleanWindows(path); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("%.60q: got %q, %v, want ErrPath", path, got, err)
		}
	}
}

func TestPathForms(t *testing.T) {
	for name, tc := range map[string]struct {
		form             PathForm
		dir, path, other string
		parent, root     string
		outside          []string
	}{
		"unix": {UnixPaths, "/k", "/k/a/b", "/K/a/b", "/k/a", "/", []string{"/k", "/", "/ka/b", "/other/a/b"}},
		"windows": {WindowsPaths, `C:\K`, `C:\k\a\b`, `C:\K\A\B`, `C:\k\a`, `C:\`,
			[]string{`C:\k`, `C:\`, `C:\ka\b`, `D:\k\a\b`}},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.form
			if got, ok := f.elements(tc.dir, tc.path); !ok || !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("elements: got %q, %t", got, ok)
			}
			for _, outside := range tc.outside {
				if got, ok := f.elements(tc.dir, outside); ok {
					t.Errorf("elements of %s: got %q, want none", outside, got)
				}
			}
			if !f.isWithin(tc.dir, tc.dir) || !f.isWithin(tc.dir, tc.path) || f.isWithin(tc.path, tc.dir) {
				t.Error("isWithin is wrong")
			}
			if got := f.dir(tc.path); got != tc.parent {
				t.Errorf("dir: got %q, want %q", got, tc.parent)
			}
			if got := f.dir(f.Join(tc.root, "x")); got != tc.root {
				t.Errorf("dir of an entry of the root: got %q, want %q", got, tc.root)
			}
			if got := f.Join(tc.parent, "b"); got != tc.path {
				t.Errorf("join: got %q, want %q", got, tc.path)
			}
			if same := f.Key(tc.path) == f.Key(tc.other); same != (name == "windows") {
				t.Errorf("%s and %s have the same key: %t", tc.path, tc.other, same)
			}
		})
	}
}

// FuzzCleanWindows: a clean path stays the same, and has no part that Windows reads as another
// file.
func FuzzCleanWindows(f *testing.F) {
	for _, p := range []string{`\var\lib`, `c:\a/b`, `C:\a:b`, `\\x\y`, `C:\..`, `C:\aux.c`, `C:\a. .`} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := CleanWindows(p)
		if err != nil {
			if got != "" || !errors.Is(err, mounter.ErrPath) {
				t.Fatalf("%q: got %q, %v", p, got, err)
			}
			return
		}
		if again, err := CleanWindows(got); again != got || err != nil {
			t.Errorf("%q: got %q, then %q, %v", p, got, again, err)
		}
		if rest := got[3:]; got[1:3] != `:\` || strings.ContainsAny(rest, `/:*?"<>|`) || strings.Contains(`\`+rest+`\`,
			`\..\`) ||
			strings.Contains(rest, `\\`) || strings.HasSuffix(rest, `\`) {
			t.Errorf("%q: got %q", p, got)
		}
	})
}
