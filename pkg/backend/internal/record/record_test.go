package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/winetest"
)

type value struct {
	Name string `json:"name"`
	Size int64  `json:"size,omitempty"`
}

// root returns an open directory and its path.
func root(t testing.TB) (*beneath.Dir, string) {
	path := t.TempDir()
	d, err := beneath.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, path
}

func TestReadReturnsTheWrittenValue(t *testing.T) {
	f, want := Format{Version: 1}, value{Name: "ä<>\u2028", Size: 1 << 60}
	dir, _ := root(t)
	if err := f.Create(dir, "r.json", want); err != nil {
		t.Fatal(err)
	}
	var got value
	if err := f.Read(dir, "r.json", &got); err != nil || got != want {
		t.Errorf("Read = %+v, %v, want %+v", got, err, want)
	}
	if err := f.Create(dir, "r.json", want); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second Create = %v, want ErrExist", err)
	}
}

func TestReplaceLeavesTheOldOrTheNewFile(t *testing.T) {
	f := Format{Version: 1}
	dir, path := root(t)
	if err := os.WriteFile(filepath.Join(path, "r.json.new"), []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []value{{Name: "old"}, {Name: "new"}} {
		if err := f.Replace(dir, "r.json", want); err != nil {
			t.Fatal(err)
		}
		var got value
		if err := f.Read(dir, "r.json", &got); err != nil || got != want {
			t.Errorf("Read = %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := dir.Lstat("r.json.new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("r.json.new is left: %v", err)
	}
}

func TestDamageIsReported(t *testing.T) {
	f := Format{Version: 1}
	good, err := f.Encode(value{Name: "volume", Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(good) - 2 { // the file is valid without its newline
		if err := f.Decode(good[:i], &value{}); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut after %d bytes: %v, want ErrDamaged", i, err)
		}
	}
	for name, file := range map[string]string{
		"a changed digit":   strings.Replace(string(good), "4096", "4097", 1),
		"zeros at the end":  string(good[:40]) + strings.Repeat("\x00", len(good)-40),
		"two records":       string(good) + string(good),
		"a brace too many":  string(good) + "}",
		"a bracket":         string(good) + "]",
		"an unknown field":  strings.Replace(string(good), `"version"`, `"x":1,"version"`, 1),
		"no version":        strings.Replace(string(good), `"version":1,`, ``, 1),
		"a version below 1": strings.Replace(string(good), `"version":1`, `"version":-1`, 1),
		"not JSON":          "once upon a time",
		"null":              "null",
	} {
		if err := f.Decode([]byte(file), &value{}); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
}

func TestOldVersionsAreUpgradedAndNewVersionsRejected(t *testing.T) {
	older, err := Format{Version: 1}.Encode(map[string]string{"title": "volume"})
	if err != nil {
		t.Fatal(err)
	}
	current := Format{Version: 2, Upgrades: map[int]func([]byte) ([]byte, error){
		1: func(data []byte) ([]byte, error) {
			return []byte(strings.Replace(string(data), "title", "name", 1)), nil
		},
	}}
	var got value
	if err := current.Decode(older, &got); err != nil || got.Name != "volume" {
		t.Errorf("Decode = %+v, %v", got, err)
	}
	newer, err := Format{Version: 3}.Encode(map[string]string{"field": "of a later version"})
	if err != nil {
		t.Fatal(err)
	}
	if err := current.Decode(newer, &got); !errors.Is(err, ErrNewer) {
		t.Errorf("Decode = %v, want ErrNewer", err)
	}
	if err := current.Decode([]byte(`{"version":3,"signature":"who knows"}`), &got); !errors.Is(err, ErrNewer) {
		t.Errorf("Decode = %v, want ErrNewer also for a file in another form", err)
	}
	more, err := Format{Version: 2}.Encode(map[string]string{"name": "volume", "more": "of a later release"})
	if err != nil {
		t.Fatal(err)
	}
	if err := current.Decode(more, &got); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "more") {
		t.Errorf("Decode with one more field = %v, want ErrNewer that names it", err)
	}
	torn := []byte(strings.Replace(string(more), "later", "LATER", 1))
	if err := current.Decode(torn, &got); !errors.Is(err, ErrDamaged) {
		t.Errorf("Decode with one more field and a wrong sum = %v, want ErrDamaged", err)
	}
	if err := (Format{Version: 2}).Decode(older, &got); !errors.Is(err, ErrDamaged) {
		t.Errorf("Decode without an upgrade = %v, want ErrDamaged", err)
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	f := Format{Version: 1}
	dir, path := root(t)
	good, _ := f.Encode(value{Name: "secret"})
	for _, file := range []string{filepath.Join(t.TempDir(), "outside.json"), filepath.Join(path, "inside.json")} {
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := winetest.Symlink(file, filepath.Join(path, "link.json")); err != nil {
			t.Skip(err)
		}
		if err := f.Read(dir, "link.json", &value{}); !errors.Is(err, ErrDamaged) {
			t.Errorf("a link to %s: %v, want ErrDamaged", file, err)
		}
		if err := dir.Remove("link.json"); err != nil {
			t.Fatal(err)
		}
	}
	if err := dir.Mkdir("dir.json", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Read(dir, "dir.json", &value{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a directory: %v, want ErrDamaged", err)
	}
	if err := os.WriteFile(filepath.Join(path, "large.json"), make([]byte, maxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Read(dir, "large.json", &value{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a file over the limit: %v, want ErrDamaged", err)
	}
	if err := f.Read(dir, "none.json", &value{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v, want ErrNotExist", err)
	}
}

func TestRecordsOverTheLimitAreNotWritten(t *testing.T) {
	f := Format{Version: 1}
	dir, _ := root(t)
	want := value{Name: strings.Repeat("x", maxSize/2)}
	for _, write := range []func(*beneath.Dir, string, any) error{f.Create, f.Replace} {
		if err := write(dir, "r.json", value{Name: strings.Repeat("x", maxSize)}); err == nil {
			t.Error("a record over the limit was written")
		}
		if err := f.Replace(dir, "r.json", want); err != nil {
			t.Fatal(err)
		}
		var got value
		if err := f.Read(dir, "r.json", &got); err != nil || got != want {
			t.Errorf("Read = %d bytes, %v", len(got.Name), err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	format := Format{Version: 1}
	good, _ := format.Encode(value{Name: "volume", Size: 4096})
	f.Add(good)
	f.Add([]byte(`{"version":2,"crc32c":"","data":{}}`))
	f.Add([]byte(`{"version":1,"crc32c":"00000000","data":`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, file []byte) {
		var v value
		switch err := format.Decode(file, &v); {
		case err == nil:
			again, err := format.Encode(v)
			if err != nil || format.Decode(again, &v) != nil {
				t.Errorf("%q was read but cannot be written: %v", file, err)
			}
		case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer):
			t.Errorf("Decode(%q) = %v", file, err)
		}
	})
}
