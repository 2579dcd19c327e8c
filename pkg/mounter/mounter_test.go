package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/winetest"
)

// bench is a kubelet directory and a directory with volumes, for a single test.
type bench struct {
	Host
	t                *testing.T
	files            benchFiles // with both directories
	kubelet, storage string
	// options are mount options of a directory that the Host has, and that differ from each other
	// and from the default; nil if a directory has no such options.
	options []string
	// unclean are paths in the kubelet directory in forms that the Host rejects.
	unclean []string
}

// benchFiles is the filesystem of a bench: that of this machine, or one of a model.
type benchFiles interface {
	join(dir string, names ...string) string
	mkdirAll(path string) error
	writeFile(path, content string) error
	symlink(text, path string) error // errors.ErrUnsupported where this is not possible
	rename(from, to string) error
	remove(path string) error
	exists(path string) bool
}

// osFiles is the filesystem of this machine.
type osFiles struct{}

func (osFiles) join(dir string, names ...string) string {
	return filepath.Join(append([]string{dir}, names...)...)
}
func (osFiles) mkdirAll(path string) error { return os.MkdirAll(path, 0o755) }
func (osFiles) writeFile(path, content string) error {
	return os.WriteFile(path, []byte(content), 0o640)
}
func (osFiles) rename(from, to string) error { return os.Rename(from, to) }
func (osFiles) remove(path string) error     { return os.Remove(path) }
func (osFiles) exists(path string) bool      { return exists(path) }
func (osFiles) symlink(text, path string) error {
	if err := winetest.Symlink(text, path); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return nil
}

func newBench(t *testing.T, newHost func(dir string) Host) *bench {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, files: osFiles{}, kubelet: filepath.Join(dir, "kubelet"), storage: filepath.Join(dir, "storage"),
		options: []string{"noexec", "noatime", "suid"}}
	b.unclean = []string{b.kubelet + "//target", b.kubelet + "/target/", b.kubelet + "/./target"}
	mkdir(t, b.kubelet)
	mkdir(t, b.storage)
	b.Host = newHost(b.kubelet)
	return b
}

// volume creates a directory as the source of a mount and returns its Mount.
func (b *bench) volume(name string, options ...string) Mount {
	b.t.Helper()
	dir := b.files.join(b.storage, name)
	b.mkdir(dir)
	return Mount{Kind: Directory, Source: dir, Options: options}
}

func (b *bench) path(elem ...string) string {
	return b.files.join(b.kubelet, elem...)
}

// mkdir makes a directory, and its parents.
func (b *bench) mkdir(path string) {
	b.t.Helper()
	if err := b.files.mkdirAll(path); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) mount(m Mount, path string) {
	b.t.Helper()
	if err := b.Mount(context.Background(), m, path); err != nil {
		b.t.Fatalf("Mount(%+v, %s): %v", m, path, err)
	}
	mounter := b.Host // a test may replace b.Host
	b.t.Cleanup(func() { mounter.Unmount(context.Background(), path) })
}

func (b *bench) refused(m Mount, path string, want error) {
	b.t.Helper()
	if err := b.Mount(context.Background(), m, path); !errors.Is(err, want) {
		b.t.Fatalf("Mount(%+v, %s) = %v, want %v", m, path, err, want)
	}
}

func (b *bench) mounted(m Mount, path string) bool {
	b.t.Helper()
	yes, err := b.Mounted(context.Background(), m, path)
	if err != nil {
		b.t.Fatalf("Mounted(%s): %v", path, err)
	}
	return yes
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestFakeKeepsTheContract(t *testing.T) {
	testContract(t, func(t *testing.T) *bench {
		return newBench(t, func(dir string) Host { return NewFake(dir) })
	})
}

// testContract tests the contract that every Host has to keep, the fake too.
func testContract(t *testing.T, newBench func(t *testing.T) *bench) {
	ctx := context.Background()
	run := func(name string, test func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) { test(t, newBench(t)) })
	}

	run("Mount creates its path, and Unmount leaves it", func(t *testing.T, b *bench) {
		v, path := b.volume("v"), b.path("target")
		b.mount(v, path)
		if !b.mounted(v, path) {
			t.Fatal("Mounted = false after Mount")
		}
		if err := b.Unmount(ctx, path); err != nil {
			t.Fatal(err)
		}
		if b.mounted(v, path) || !b.files.exists(path) {
			t.Fatal("after Unmount the path must exist and must not be mounted")
		}
		if err := b.Remove(ctx, path); err != nil || b.files.exists(path) {
			t.Fatalf("Remove = %v, path exists: %v", err, b.files.exists(path))
		}
	})

	run("every call is idempotent", func(t *testing.T, b *bench) {
		v, path := b.volume("v", b.options...), b.path("target")
		for range 3 {
			b.mount(v, path)
		}
		for range 3 {
			if err := b.Unmount(ctx, path); err != nil {
				t.Fatal(err)
			}
		}
		if b.mounted(v, path) {
			t.Fatal("three mounts made more than one layer")
		}
		for range 3 {
			if err := b.Remove(ctx, path); err != nil {
				t.Fatal(err)
			}
		}
	})

	run("another source, other options or another mode at the same path is a conflict", func(t *testing.T, b *bench) {
		path := b.path("target")
		b.mount(b.volume("v"), path)
		readOnly := b.volume("v")
		readOnly.ReadOnly = true
		b.refused(b.volume("other"), path, ErrConflict)
		for _, o := range b.options {
			b.refused(b.volume("v", o), path, ErrConflict)
		}
		b.refused(readOnly, path, ErrConflict)
		b.mount(b.volume("v", "rw"), path) // equal options, written in another way
		b.mount(b.volume("v", "ro", "rw"), path)
	})

	run("every method rejects a path outside the kubelet directory", func(t *testing.T, b *bench) {
		v := b.volume("v")
		b.mkdir(b.path("real"))
		if err := b.files.symlink(b.path("real"), b.path("link")); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		if err := b.files.writeFile(b.path("file"), ""); err != nil {
			t.Fatal(err)
		}
		for _, path := range append(b.unclean, []string{
			"", "relative", b.kubelet, b.kubelet + "/", b.kubelet + "/../storage/x", b.kubelet + "x/y",
			b.storage + "/y",
			"/",
			b.path("nul\x00"), b.path(strings.Repeat("x/", 3000)), b.path(strings.Repeat("x", 300)), b.path("link"),
			b.path("link", "target"), b.path("file", "target"),
		}...) {
			if err := b.Mount(ctx, v, path); !errors.Is(err, ErrPath) {
				t.Errorf("Mount(%.60q) = %v, want ErrPath", path, err)
			}
			if err := b.Unmount(ctx, path); !errors.Is(err, ErrPath) {
				t.Errorf("Unmount(%.60q) = %v, want ErrPath", path, err)
			}
			if err := b.Remove(ctx, path); !errors.Is(err, ErrPath) {
				t.Errorf("Remove(%.60q) = %v, want ErrPath", path, err)
			}
			if _, err := b.Mounted(ctx, v, path); !errors.Is(err, ErrPath) {
				t.Errorf("Mounted(%.60q) = %v, want ErrPath", path, err)
			}
		}
		b.refused(v, b.path("file"), ErrPath)
		if !b.files.exists(b.path("link")) || !b.files.exists(b.path("file")) || b.files.exists(b.path("real", "target")) {
			t.Error("a rejected call changed something")
		}
	})

	run("Mount and Remove reject a directory with files", func(t *testing.T, b *bench) {
		path := b.path("target")
		b.mkdir(b.files.join(path, "foreign"))
		b.refused(b.volume("v"), path, ErrNotEmpty)
		if err := b.Remove(ctx, path); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("Remove = %v, want ErrNotEmpty", err)
		}
		if !b.files.exists(b.files.join(path, "foreign")) {
			t.Error("the foreign files are gone")
		}
	})

	run("Remove rejects a file that no mount has created", func(t *testing.T, b *bench) {
		for _, content := range []string{"", "precious"} {
			path := b.path("file" + content)
			if err := b.files.writeFile(path, content); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := b.Unmount(ctx, path); err != nil {
					t.Errorf("Unmount = %v", err)
				}
				if err := b.Remove(ctx, path); !errors.Is(err, ErrPath) || !b.files.exists(path) {
					t.Errorf("Remove = %v, want ErrPath; the file is there: %v", err, b.files.exists(path))
				}
			}
		}
	})

	run("Remove unmounts first", func(t *testing.T, b *bench) {
		v, path := b.volume("v"), b.path("target")
		b.mount(v, path)
		b.mkdir(b.files.join(v.Source, "precious"))
		for range 3 {
			if err := b.Remove(ctx, path); err != nil || b.files.exists(path) {
				t.Fatalf("Remove = %v, path exists: %v", err, b.files.exists(path))
			}
		}
		if !b.files.exists(b.files.join(v.Source, "precious")) {
			t.Error("the volume's files are gone")
		}
	})

	run("a missing parent is an error for Mount and none for the other methods", func(t *testing.T, b *bench) {
		v, path := b.volume("v"), b.path("no", "such", "target")
		b.refused(v, path, ErrPath)
		if err := errors.Join(b.Unmount(ctx, path), b.Remove(ctx, path)); err != nil {
			t.Error(err)
		}
		if b.mounted(v, path) {
			t.Error("Mounted = true")
		}
	})

	run("a missing source leaves no path behind", func(t *testing.T, b *bench) {
		v, path := b.volume("v"), b.path("target")
		if err := b.files.remove(v.Source); err != nil {
			t.Fatal(err)
		}
		b.refused(v, path, os.ErrNotExist)
		if b.files.exists(path) {
			t.Error("the path was left behind")
		}
	})

	run("every method rejects a source that leads through a link", func(t *testing.T, b *bench) {
		dir := b.volume("volumes").Source
		v := Mount{Kind: Directory, Source: b.files.join(dir, "v")}
		b.mkdir(v.Source)
		if err := errors.Join(b.files.rename(dir, dir+"-moved"), b.files.symlink(dir+"-moved", dir)); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		b.refused(v, b.path("target"), ErrPath)
		if _, err := b.Mounted(ctx, v, b.path("target")); !errors.Is(err, ErrPath) {
			t.Errorf("Mounted = %v, want ErrPath", err)
		}
		if _, err := b.MountPointsOf(v.Source); !errors.Is(err, ErrPath) {
			t.Errorf("MountPointsOf = %v, want ErrPath", err)
		}
		if b.files.exists(b.path("target")) {
			t.Error("the path was left behind")
		}
	})

	run("Mount rejects an unknown option and does not show it", func(t *testing.T, b *bench) {
		err := b.Mount(ctx, b.volume("v", "rw", "geheim"), b.path("target"))
		if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "option 2 of 2") ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("Mount = %v, want ErrOption with the number of the option", err)
		}
		if b.files.exists(b.path("target")) {
			t.Error("the path was left behind")
		}
		b.refused(Mount{Kind: "unheard-of", Source: b.storage}, b.path("target"), errors.ErrUnsupported)
	})

	run("OtherTargets and MountPointsOf return mounts of a mount", func(t *testing.T, b *bench) {
		v, w := b.volume("v"), b.volume("w")
		b.mount(v, b.path("staging"))
		b.mount(Mount{Kind: Directory, Source: b.path("staging")}, b.path("one"))
		b.mount(Mount{Kind: Directory, Source: b.path("staging"), ReadOnly: true}, b.path("two"))
		b.mount(w, b.path("other"))
		got, err := b.OtherTargets(ctx, b.path("staging"))
		if want := []string{b.path("one"), b.path("two")}; err != nil || !slices.Equal(got, want) {
			t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
		}
		if !b.mounted(v, b.path("two")) || b.mounted(w, b.path("two")) {
			t.Error("Mounted does not distinguish v from w")
		}
		got, err = b.MountPointsOf(v.Source)
		if want := []string{b.path("one"), b.path("staging"), b.path("two")}; err != nil || !slices.Equal(got, want) {
			t.Errorf("MountPointsOf = %v, %v, want %v", got, err, want)
		}
		if got, _ := b.MountPointsOf(b.storage); len(got) != 4 {
			t.Errorf("MountPointsOf(storage) = %v, want all four", got)
		}
		if got, err := b.MountPointsOf(b.files.join(b.storage, "none")); err != nil || len(got) != 0 {
			t.Errorf("MountPointsOf(none) = %v, %v, want none", got, err)
		}
		if err := b.Unmount(ctx, b.path("two")); err != nil {
			t.Fatal(err)
		}
		if got, _ := b.OtherTargets(ctx, b.path("staging")); !slices.Equal(got, []string{b.path("one")}) {
			t.Errorf("OtherTargets = %v after an unmount", got)
		}
	})

	run("Mount rejects a writable mount of a read-only mount", func(t *testing.T, b *bench) {
		v := b.volume("v", "ro")
		b.mount(v, b.path("staging"))
		b.refused(Mount{Kind: Directory, Source: b.path("staging")}, b.path("target"), ErrReadOnly)
		b.mount(Mount{Kind: Directory, Source: b.path("staging"), ReadOnly: true}, b.path("target"))
	})

	run("Usage of a missing path is an error", func(t *testing.T, b *bench) {
		if _, err := b.Usage(ctx, b.path("none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Usage = %v, want ErrNotExist", err)
		}
	})
}

func TestFakeFailsOnDemand(t *testing.T) {
	fake := NewFake(t.TempDir())
	fake.Err = errors.New("on demand")
	b := newBench(t, func(dir string) Host { fake.dir = dir; return fake })
	b.refused(b.volume("v"), b.path("target"), fake.Err)
	if err := b.Unmount(context.Background(), b.path("target")); !errors.Is(err, fake.Err) {
		t.Errorf("Unmount = %v", err)
	}
	if len(fake.Mounts()) != 0 || exists(b.path("target")) {
		t.Error("a failing Mount changed something")
	}
}

// FuzzCheckOptions: only listed options and filesystem types are valid.
