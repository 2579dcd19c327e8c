package copier

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	_ "github.com/causeway-csi/causeway/internal/winetest"
)

// trees returns an open source and an open, empty target.
func trees(t *testing.T) (src, dst *os.File) {
	t.Helper()
	dirs := make([]*os.File, 2)
	for i := range dirs {
		dir, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		dirs[i] = dir
	}
	return dirs[0], dirs[1]
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestTree(t *testing.T) {
	src, dst := trees(t)
	in := func(name string) string { return filepath.Join(src.Name(), name) }
	large := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	for name, data := range map[string][]byte{"file": []byte("content"), "none": nil, `a\b\c\large`: large,
		`ünï\日本`: []byte("x"), "hidden": []byte("h")} {
		write(t, in(name), data)
	}
	if err := os.MkdirAll(in(`empty\in`), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * batch / 2 { // more than one batch
		write(t, in(`many\`+strings.Repeat("n", 1+i%50)+time.Duration(i).String()), nil)
	}
	hidden, err := windows.UTF16PtrFromString(in("hidden"))
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetFileAttributes(hidden, windows.FILE_ATTRIBUTE_HIDDEN|windows.FILE_ATTRIBUTE_READONLY); err != nil {
		t.Fatal(err)
	}
	then := time.Date(2020, 2, 3, 4, 5, 6, 789_012_300, time.UTC)
	for _, name := range []string{"file", "a"} {
		if err := os.Chtimes(in(name), then, then.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	progress := &Progress{}
	how, err := Tree(context.Background(), src, dst, Options{Progress: progress})
	if err != nil || how != Copied {
		t.Fatalf("Tree: %v, %v", how, err)
	}
	if progress.Bytes() != int64(len(large))+9 {
		t.Errorf("progress: %d bytes", progress.Bytes())
	}
	compare(t, src.Name(), dst.Name())
}

// compare compares two trees: names, content, sizes, times and attributes.
func compare(t *testing.T, want, got string) {
	t.Helper()
	all := 0
	if err := filepath.WalkDir(want, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == want {
			return err
		}
		all++
		rel, err := filepath.Rel(want, path)
		if err != nil {
			return err
		}
		a, errA := os.Lstat(path)
		b, errB := os.Lstat(filepath.Join(got, rel))
		if err := errors.Join(errA, errB); err != nil {
			t.Errorf("%s: %v", rel, err)
			return nil
		}
		if a.Mode() != b.Mode() || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) {
			t.Errorf("%s: got %v, %d bytes, %v, want %v, %d bytes, %v", rel, b.Mode(), b.Size(), b.ModTime(), a.Mode(),
				a.Size(), a.ModTime())
		}
		if a.IsDir() {
			return nil
		}
		x, errA := os.ReadFile(path)
		y, errB := os.ReadFile(filepath.Join(got, rel))
		if err := errors.Join(errA, errB); err != nil || !bytes.Equal(x, y) {
			t.Errorf("%s: the content differs, %v", rel, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	copies := 0
	filepath.WalkDir(got, func(string, fs.DirEntry, error) error { copies++; return nil })
	if copies-1 != all || all == 0 {
		t.Errorf("the copy has %d entries, want %d", copies-1, all)
	}
}

func TestTreeRefuses(t *testing.T) {
	t.Run("a target with entries", func(t *testing.T) {
		src, dst := trees(t)
		write(t, filepath.Join(dst.Name(), "old"), nil)
		if _, err := Tree(context.Background(), src, dst, Options{}); !errors.Is(err, windows.ERROR_DIR_NOT_EMPTY) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the end of the context", func(t *testing.T) {
		src, dst := trees(t)
		write(t, filepath.Join(src.Name(), "file"), nil)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := Tree(ctx, src, dst, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a file that is not shared", func(t *testing.T) {
		src, dst := trees(t)
		path := filepath.Join(src.Name(), "dir", "locked")
		write(t, path, []byte("content"))
		name, err := windows.UTF16PtrFromString(path)
		if err != nil {
			t.Fatal(err)
		}
		h, err := windows.CreateFile(name, windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer windows.CloseHandle(h)
		if _, err := Tree(context.Background(), src, dst, Options{}); !errors.Is(err, ErrShared) ||
			!strings.Contains(err.Error(), "dir/locked") {
			t.Errorf("got %v, want ErrShared with the path", err)
		}
	})
}

// TestTreeOfStreams needs a filesystem with data streams.
func TestTreeOfStreams(t *testing.T) {
	src, dst := trees(t)
	write(t, filepath.Join(src.Name(), "file"), []byte("content"))
	if err := os.WriteFile(filepath.Join(src.Name(), "file:stream"), []byte("hidden"), 0o644); err != nil {
		t.Skipf("no data streams here: %v", err)
	}
	if names, err := os.ReadDir(src.Name()); err != nil || len(names) != 1 {
		t.Skip("the stream is a file here")
	}
	if _, err := Tree(context.Background(), src, dst, Options{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dst.Name(), "file:stream")); string(got) != "hidden" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestTreeOfLinks needs links, and the right to make them.
func TestTreeOfLinks(t *testing.T) {
	src, dst := trees(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), []byte("secret"))
	path := filepath.Join(src.Name(), "link")
	err := os.Symlink(outside, path)
	if info, look := os.Lstat(path); err != nil || look != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Skip("os.Symlink makes no link here") // a reason without a path: it is in the conformance report
	}
	if _, err := Tree(context.Background(), src, dst, Options{}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.Readlink(filepath.Join(dst.Name(), "link")); text != outside || err != nil {
		t.Errorf("the link leads to %q, %v, want %q", text, err, outside)
	}
}
