package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/winetest"
)

// directory returns an open directory and its path.
func directory(t *testing.T) (*beneath.Dir, string) {
	t.Helper()
	path := t.TempDir()
	dir, err := beneath.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir, path
}

// holds makes sure that a directory has only these files, with this content.
func holds(t *testing.T, path string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) {
		t.Errorf("the directory holds %v, want %v", entries, want)
	}
	for name, content := range want {
		if got, err := os.ReadFile(filepath.Join(path, name)); err != nil || string(got) != content {
			t.Errorf("%s holds %q, %v, want %q", name, got, err, content)
		}
	}
}

func TestAFileIsReplaced(t *testing.T) {
	for name, w := range map[string]Writer{"durable": {}, "volatile": {Volatile: true},
		"with a name of its own": {Temp: "temp"}} {
		t.Run(name, func(t *testing.T) {
			dir, path := directory(t)
			w.Dir = dir
			for _, content := range []string{"first, and longer", "second"} {
				if err := w.Write("file", []byte(content)); err != nil {
					t.Fatal(err)
				}
				holds(t, path, map[string]string{"file": content})
			}
			if info, err := os.Stat(filepath.Join(path, "file")); err != nil || info.Mode().Perm()&0o077 != 0 &&
				os.PathSeparator == '/' {
				t.Errorf("the mode is %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestALeftoverIsReplacedAndNotFollowed(t *testing.T) {
	for name, leave := range map[string]func(path, victim string) error{
		"file": func(path, _ string) error {
			return os.WriteFile(path, []byte("a leftover that is longer"),
				0o600)
		},
		"link":      func(path, victim string) error { return winetest.Symlink(victim, path) },
		"directory": func(path, _ string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, path := directory(t)
			victim := filepath.Join(t.TempDir(), "victim")
			if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			switch err := leave(filepath.Join(path, "file.new"), victim); {
			case errors.Is(err, errors.ErrUnsupported):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
			if err := (Writer{Dir: dir}).Write("file", []byte("new")); err != nil {
				t.Fatal(err)
			}
			holds(t, path, map[string]string{"file": "new"})
			holds(t, filepath.Dir(victim), map[string]string{"victim": "precious"})
		})
	}
}

func TestAFailureLeavesTheOldFile(t *testing.T) {
	dir, path := directory(t)
	if err := (Writer{Dir: dir}).Write("file", []byte("old")); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	w := Writer{Dir: dir, Opened: func(*os.File) error { return refused }}
	if err := w.Write("file", []byte("new")); !errors.Is(err, refused) {
		t.Errorf("Write = %v", err)
	}
	if err := (Writer{Dir: dir}).Write("no directory/file", nil); err == nil {
		t.Error("a file in a directory that does not exist was written")
	}
	holds(t, path, map[string]string{"file": "old"})
	if err := os.MkdirAll(filepath.Join(path, "taken", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (Writer{Dir: dir}).Write("taken", []byte("new")); err == nil {
		t.Error("a directory was replaced")
	}
	if _, err := os.Stat(filepath.Join(path, "taken.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what could not be renamed is left: %v", err)
	}
}

func TestAKeptFileIsTheOneWithTheName(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows renames no file that is open")
	}
	dir, path := directory(t)
	var opened os.FileInfo
	w := Writer{Dir: dir, Temp: "temp-" + Random(), Opened: func(f *os.File) (err error) {
		opened, err = f.Stat()
		if opened.Size() != 0 {
			t.Error("the file has content before Opened")
		}
		return err
	}}
	file, err := w.Keep("file", []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	kept, err := file.Stat()
	named, statErr := os.Stat(filepath.Join(path, "file"))
	if errors.Join(err, statErr) != nil || !os.SameFile(kept, named) || !os.SameFile(kept, opened) {
		t.Errorf("kept %v, opened %v, named %v: %v, %v", kept, opened, named, err, statErr)
	}
	holds(t, path, map[string]string{"file": "content"})
}

func TestCreateReplacesNothing(t *testing.T) {
	dir, path := directory(t)
	if err := Create(dir, "file", []byte("content")); err != nil {
		t.Fatal(err)
	}
	if err := Create(dir, "file", []byte("other")); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create = %v, want ErrExist", err)
	}
	holds(t, path, map[string]string{"file": "content"})
}
