package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStagingsSurviveARestartAndDamage(t *testing.T) {
	dir, paths := t.TempDir(), t.TempDir()
	staged := func(name string) string {
		path := filepath.Join(paths, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s, err := openStagings(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := staging{VolumeID: "v", Use: use{mode: sharedMode}.digest()}
	for _, name := range []string{"kept", "gone", "torn", "moved"} {
		if err := s.put(staged(name), want); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(staged("gone")); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, fileOf(filepath.Join(paths, name))) }
	if err := os.WriteFile(file("torn"), []byte(`{"path":"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file("moved"), filepath.Join(dir, strings.Repeat("0", 32)+stagingSuffix)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "root-identity"), []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}

	if s, err = openStagings(dir); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.at(filepath.Join(paths, "kept")); !ok || got != want {
		t.Errorf("kept is %+v, %v, want %+v", got, ok, want)
	}
	if got := s.of("v"); len(got) != 1 {
		t.Errorf("v is staged at %v", got)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("left are %v, %v, want the kept one and what isn't ours", left, err)
	}
	if err := s.remove(filepath.Join(paths, "kept")); err != nil {
		t.Fatal(err)
	}
	if s, err = openStagings(dir); err != nil || len(s.of("v")) != 0 {
		t.Errorf("after remove: %v, %v", s.of("v"), err)
	}
}

func TestDigestsTellCapabilitiesApart(t *testing.T) {
	uses := []use{{mode: sharedMode}, {mode: singleMode}}
	for _, change := range []func(*use){
		func(u *use) { u.Block = true },
		func(u *use) { u.FSType = "xfs" },
		func(u *use) { u.Options = []string{"a", "b"} },
		func(u *use) { u.Options = []string{"a b"} },
		func(u *use) { u.Options = []string{`a" "b`} },
		func(u *use) { u.Options = []string{"b", "a"} },
	} {
		u := use{mode: sharedMode}
		change(&u)
		uses = append(uses, u)
	}
	seen := map[digest]int{}
	for i, u := range uses {
		if j, ok := seen[u.digest()]; ok {
			t.Errorf("%+v and %+v have one digest", u, uses[j])
		}
		seen[u.digest()] = i
	}
}
