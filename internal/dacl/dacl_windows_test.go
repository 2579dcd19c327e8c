package dacl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/causeway-csi/causeway/internal/winetest"
)

// list returns the list of a file as text.
func list(t *testing.T, path string) string {
	t.Helper()
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	return sd.String()
}

func TestSet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	for range 2 {
		if err := Mkdir(dir, Private); err != nil {
			t.Fatal(err)
		}
	}
	made := list(t, dir)
	for _, a := range []Access{Users, Private} {
		if err := Set(dir, a); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Errorf("%v: the owner may not write: %v", a, err)
		}
		if winetest.Wine { // which keeps the modes of Unix only
			continue
		}
		got := list(t, dir)
		if a == Private && got != made {
			t.Errorf("Set: %s, and Mkdir: %s", got, made)
		}
		for _, text := range []string{got, list(t, file)} {
			if strings.Contains(text, ";BU)") != bool(a) || !strings.Contains(text, ";SY)") || strings.Contains(text, ";WD)") {
				t.Errorf("access for users: %t: %s", a, text)
			}
		}
		if !strings.HasPrefix(got, "D:P") {
			t.Errorf("the list of the parent still counts: %s", got)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProtect: a directory that inherits its list gets one of its own, and one that an
// administrator has set stays.
func TestProtect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := MakePrivate(dir); err != nil {
			t.Fatal(err)
		}
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Protect(open); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(open, "file"), nil, 0o600); err != nil {
		t.Errorf("the owner may not write: %v", err)
	}
	if winetest.Wine { // which keeps the modes of Unix only
		return
	}
	want := list(t, dir)
	if got := list(t, open); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := Set(open, Users); err != nil {
		t.Fatal(err)
	}
	before := list(t, open)
	if err := Protect(open); err != nil || list(t, open) != before {
		t.Errorf("the list of an administrator is %s, %v, was %s", list(t, open), err, before)
	}
	if err := Protect(filepath.Join(dir, "missing")); err == nil {
		t.Error("no error for a missing file")
	}
}
