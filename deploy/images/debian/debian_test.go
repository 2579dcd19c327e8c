package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ulikunitz/xz"

	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// deb makes a package.
func deb(t *testing.T, control string, headers ...*tar.Header) []byte {
	t.Helper()
	pack := func(headers []*tar.Header, content string) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		w := tar.NewWriter(z)
		for _, h := range headers {
			if h.Typeflag == tar.TypeReg {
				h.Size = int64(len(content))
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				if _, err := w.Write([]byte(content)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	out := bytes.NewBufferString("!<arch>\n")
	for _, m := range []struct {
		name    string
		content []byte
	}{
		{"debian-binary", []byte("2.0\n")},
		{"control.tar.gz", pack([]*tar.Header{{Name: "./control", Typeflag: tar.TypeReg, Mode: 0o644}}, control)},
		{"data.tar.gz", pack(headers, "content")},
	} {
		fmt.Fprintf(out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n%s", m.name, 0, 0, 0, 0o100644, len(m.content), m.content)
		if len(m.content)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

func TestAPackageIsUnpacked(t *testing.T) {
	content := deb(t, "Package: a\n",
		&tar.Header{Name: "./usr/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "./usr/a", Typeflag: tar.TypeReg, Mode: 0o4755},
		&tar.Header{Name: "./usr/b", Typeflag: tar.TypeSymlink, Linkname: "a"},
		&tar.Header{Name: "./usr/c", Typeflag: tar.TypeLink, Linkname: "./usr/a"})
	u, err := unpack(content)
	if err != nil || u.control != "Package: a\n" || len(u.files) != 3 {
		t.Fatalf("%+v, %v", u, err)
	}
	a, b, c := u.files[0], u.files[1], u.files[2]
	if a.Path != "/usr/a" || a.Mode != fs.ModeSetuid|0o755 || string(a.Content) != "content" || b.Mode&fs.ModeSymlink == 0 || b.Target != "a" || string(c.Content) != "content" {
		t.Errorf("%+v", u.files)
	}
	for name, broken := range map[string][]byte{"nothing": nil, "half": content[:len(content)/2], "a tar": []byte("!<arch>\n" + strings.Repeat(" ", 60))} {
		if _, err := unpack(broken); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
}

func TestALockReadsItsOwnFile(t *testing.T) {
	want := Lock{"20260102T030405Z", []Package{
		{"debian", "amd64", "a", "1:2.0~3+b1", 7, strings.Repeat("0f", 32), "pool/a"}, {"debian", "arm64", "a", "2", 7, strings.Repeat("0f", 32), "pool/a"},
		{"debian-security", "all", "b", "1", 7, strings.Repeat("0f", 32), "pool/b"},
	}}
	got, err := ParseLock(want.Format())
	if err != nil || got.Snapshot != want.Snapshot || !slices.Equal(got.Packages, want.Packages) {
		t.Errorf("%+v, %v", got, err)
	}
	if arm := got.For("arm64"); len(arm) != 2 || arm[0].Version != "2" || arm[1].Name != "b" {
		t.Errorf("%+v", arm)
	}
	for _, bad := range []string{"", "snapshot x\n", "snapshot x\na b c\n", "snapshot x\ndebian amd64 a 1 many " + strings.Repeat("0", 64) + " pool/a\n", "snapshot x\ndebian amd64 a 1 7 0 pool/a\n"} {
		if l, err := ParseLock([]byte(bad)); err == nil {
			t.Errorf("%q is the lock %+v", bad, l)
		}
	}
}

// mirror serves files by path.
func mirror(t *testing.T, files map[string][]byte) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Write(content)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestAStoreKeepsFilesWithTheRightSum(t *testing.T) {
	good, bad := []byte("the package"), []byte("a different")
	p := Package{"debian", "amd64", "a", "1", int64(len(good)), sum(good), "pool/a.deb"}
	now, before := "/debian/pool/a.deb", "/debian/20260102T030405Z/pool/a.deb"
	for name, tc := range map[string]struct {
		mirror, archive map[string][]byte
		kept            []byte // in the store
		fails           string
	}{
		"the mirror has it":            {mirror: map[string][]byte{now: good}},
		"the mirror has dropped it":    {archive: map[string][]byte{before: good}},
		"the mirror lies":              {mirror: map[string][]byte{now: bad}, archive: map[string][]byte{before: good}},
		"nobody has it":                {fails: "make images-lock"},
		"all lie":                      {mirror: map[string][]byte{now: bad}, archive: map[string][]byte{before: bad}, fails: "has the sum"},
		"it is too long":               {mirror: map[string][]byte{now: append(good, '!')}, fails: "more than 11 bytes"},
		"the store has it":             {kept: good},
		"what is in the store is torn": {kept: bad, mirror: map[string][]byte{now: good}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Store{Dir: t.TempDir(), Mirror: mirror(t, tc.mirror), Archive: mirror(t, tc.archive), Snapshot: "20260102T030405Z"}
			kept := filepath.Join(s.Dir, p.SHA256+".deb")
			if tc.kept != nil {
				if err := os.WriteFile(kept, tc.kept, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := s.Get(t.Context(), p)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("%v, want %q", err, tc.fails)
				}
				return
			}
			if err != nil || !bytes.Equal(got, good) {
				t.Errorf("%q, %v", got, err)
			}
			if left, err := os.ReadFile(kept); err != nil || !bytes.Equal(left, good) {
				t.Errorf("the store has %q, %v", left, err)
			}
		})
	}
}

// tree has files of a program, of its package, and of their licenses.
func tree() *Tree {
	t := &Tree{architectures["amd64"], map[string]owned{}, map[string]string{"a": "Package: a\n", "b": "Package: b\n", "c": "Package: c\n"}, []Package{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	for _, f := range []struct{ pkg, path, target, content string }{
		{"a", "/bin/a", "../usr/a", ""}, {"a", "/usr/a", "", "script"}, {"a", "/usr/other", "", ""},
		{"a", "/round", "/round", ""}, {"a", "/nowhere", "gone", ""}, {"a", "/elf", "", "\x7fELF"},
		{"a", "/usr/share/doc/a", "b", ""}, {"b", "/usr/share/doc/b/copyright", "", "See /usr/share/common-licenses/GPL-2."},
		{"c", "/usr/share/common-licenses/GPL-2", "", "GPL"}, {"c", "/usr/share/doc/c/copyright", "", "free"}, {"c", "/usr/c", "", "c"},
	} {
		file := oci.File{Path: f.path, Mode: 0o644, Content: []byte(f.content), Target: f.target}
		if f.target != "" {
			file.Mode = fs.ModeSymlink | 0o777
		}
		t.files[f.path] = owned{file, f.pkg}
	}
	return t
}

func TestAPickedSuiteIsComplete(t *testing.T) {
	p, err := tree().Pick([]string{"/bin/a"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range p.Files {
		got = append(got, f.Path)
	}
	want := []string{
		"/bin/a", "/usr/a", "/usr/share/common-licenses/GPL-2", "/usr/share/doc/a", "/usr/share/doc/b/copyright", "/usr/share/doc/c/copyright",
		"/var/lib/dpkg/status.d/a", "/var/lib/dpkg/status.d/b", "/var/lib/dpkg/status.d/c",
	}
	if !slices.Equal(got, want) || len(p.Packages) != 3 {
		t.Errorf("%q of %v, want %q", got, p.Packages, want)
	}
	if p, err := tree().Pick(nil, "c"); err != nil || len(p.Packages) != 1 || p.Packages[0].Name != "c" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, path := range []string{"/gone", "/round", "/nowhere", "/elf"} {
		if p, err := tree().Pick([]string{path}); err == nil {
			t.Errorf("%s is picked: %+v", path, p)
		}
	}
}

const index = `Package: a
Version: 1.0
Architecture: amd64
Description: a
 Version: 9
Filename: pool/a
Size: 5
SHA256: aa

Package: b
Version: 1
Architecture: all
Filename: pool/b
Size: 6
SHA256: bb
`

// debianMirror is a mirror with both suites; security has another version of a. It is signed by
// sign.
func debianMirror(t *testing.T, security string, sign func(text string) []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, s := range suites {
		text := index
		if s.archive == "debian-security" {
			text = strings.Replace(index, "1.0", security, 1)
		}
		var packed bytes.Buffer
		w, err := xz.NewWriter(&packed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		dists := "/" + s.archive + "/dists/" + s.name + "/"
		files[dists+"main/binary-amd64/Packages.xz"] = packed.Bytes()
		files[dists+"InRelease"] = sign(fmt.Sprintf("Codename: %s\nValid-Until: Sat, 03 Jan 2026 00:00:00 UTC\nMD5Sum:\n 0 1 x\nSHA256:\n %s %d main/binary-amd64/Packages.xz\n",
			s.name, sum(packed.Bytes()), packed.Len()))
	}
	return files
}

// signer returns a function that signs with a new key, and the keyring with that key.
func signer(t *testing.T) (sign func(text string) []byte, keyring string) {
	t.Helper()
	for _, tool := range []string{"gpg", "gpgv"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CAUSEWAY_MUST_MOUNT") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	home, err := os.MkdirTemp("", "gpg") // its socket needs a short name
	if err != nil {
		t.Fatal(err)
	}
	gpg := func(input string, args ...string) []byte {
		cmd := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--passphrase", ""}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("gpg %v: %v", args, err)
		}
		return out
	}
	t.Cleanup(func() {
		exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	gpg("", "--quick-generate-key", "test@example.com", "ed25519", "sign", "never")
	keyring = filepath.Join(t.TempDir(), "keys.gpg")
	if err := os.WriteFile(keyring, gpg("", "--export"), 0o644); err != nil {
		t.Fatal(err)
	}
	return func(text string) []byte { return gpg(text, "--clearsign") }, keyring
}

func TestALockHasTheSignedSums(t *testing.T) {
	sign, keyring := signer(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	renew := func(files map[string][]byte, now time.Time, names ...string) (Lock, error) {
		return Renew(t.Context(), mirror(t, files), keyring, now, names, []string{"amd64"})
	}
	for version, archive := range map[string]string{"1.0+deb12u1": "debian-security", "1.0~rc1": "debian", "1:0.1": "debian-security"} {
		l, err := renew(debianMirror(t, version, sign), now, "a", "b")
		if err != nil || l.Snapshot != "20260102T030405Z" || len(l.Packages) != 2 || l.Packages[0].Archive != archive || l.Packages[0].SHA256 != "aa" || l.Packages[1].Arch != "all" {
			t.Errorf("beside 1.0 and %s: %+v, %v", version, l, err)
		}
	}
	files := debianMirror(t, "1", sign)
	_, other := signer(t)
	if l, err := Renew(t.Context(), mirror(t, files), other, now, []string{"a"}, []string{"amd64"}); err == nil || !strings.Contains(err.Error(), "gpgv") {
		t.Errorf("signed by somebody else: %+v, %v", l, err)
	}
	for name, tc := range map[string]struct {
		change func(files map[string][]byte)
		now    time.Time
		want   string
	}{
		"it is too old": {func(map[string][]byte) {}, now.Add(48 * time.Hour), "out of date"},
		"it is not signed": {func(f map[string][]byte) {
			f["/debian/dists/bookworm/InRelease"] = []byte("Codename: bookworm\nSHA256:\n")
		}, now, "gpgv"},
		"it is another suite's": {func(f map[string][]byte) {
			f["/debian/dists/bookworm/InRelease"] = f["/debian-security/dists/bookworm-security/InRelease"]
		}, now, "is of"},
		"the index is another one": {func(f map[string][]byte) { f["/debian/dists/bookworm/main/binary-amd64/Packages.xz"][7]++ }, now, "differs from the signed index"},
	} {
		files := debianMirror(t, "1", sign)
		tc.change(files)
		if l, err := renew(files, tc.now, "a"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want %q", name, l, err, tc.want)
		}
	}
	if l, err := renew(files, now, "a", "gone"); err == nil {
		t.Errorf("a package that is not there: %+v", l)
	}
}
