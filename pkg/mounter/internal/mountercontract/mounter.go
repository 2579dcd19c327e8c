// Package mountercontract tests the contract of pkg/mounter: every Host passes it.
package mountercontract

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
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Bench is a kubelet directory and a directory with volumes, for a single test.
type Bench struct {
	mounter.Host
	T                *testing.T
	Files            Files // with both directories
	Kubelet, Storage string
	// Options are mount options of a directory that the Host has, and that differ from each other
	// and from the default; nil if a directory has no such options.
	Options []string
	// IsOfOthers reports whether an error is that of a device of another test, which does not answer;
	// nil: tests of this Host share no devices.
	IsOfOthers func(err error) bool
	// Unclean are paths in the kubelet directory in forms that the Host rejects.
	Unclean []string
}

// Files is the filesystem of a bench: that of this machine, or one of a model.
type Files interface {
	Join(dir string, names ...string) string
	MkdirAll(path string) error
	WriteFile(path, content string) error
	Symlink(text, path string) error // errors.ErrUnsupported where this is not possible
	Rename(from, to string) error
	Remove(path string) error
	Exists(path string) bool
}

// OSFiles is the filesystem of this machine.
type OSFiles struct{}

// Join joins names to a directory.
func (OSFiles) Join(dir string, names ...string) string {
	return filepath.Join(append([]string{dir}, names...)...)
}

// MkdirAll makes a directory and its parents.
func (OSFiles) MkdirAll(path string) error { return os.MkdirAll(path, 0o755) }

// WriteFile writes a file.
func (OSFiles) WriteFile(path, content string) error {
	return os.WriteFile(path, []byte(content), 0o640)
}

// Rename renames a file.
func (OSFiles) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty directory.
func (OSFiles) Remove(path string) error { return os.Remove(path) }

// Exists reports whether path exists.
func (OSFiles) Exists(path string) bool { return Exists(path) }

// Symlink makes a symbolic link.
func (OSFiles) Symlink(text, path string) error {
	if err := winetest.Symlink(text, path); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return nil
}

// NewBench returns a Bench with directories of its own.
func NewBench(t *testing.T, newHost func(dir string) mounter.Host) *Bench {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &Bench{T: t, Files: OSFiles{}, Kubelet: filepath.Join(dir, "kubelet"), Storage: filepath.Join(dir, "storage"),
		Options: []string{"noexec", "noatime", "suid"}}
	b.Unclean = []string{b.Kubelet + "//target", b.Kubelet + "/target/", b.Kubelet + "/./target"}
	MakeDir(t, b.Kubelet)
	MakeDir(t, b.Storage)
	b.Host = newHost(b.Kubelet)
	return b
}

// Volume creates a directory as the source of a mount and returns its Mount.
func (b *Bench) Volume(name string, options ...string) mounter.Mount {
	b.T.Helper()
	dir := b.Files.Join(b.Storage, name)
	b.Mkdir(dir)
	return mounter.Mount{Kind: mounter.Directory, Source: dir, Options: options}
}

// Path returns a path below the kubelet directory.
func (b *Bench) Path(elem ...string) string {
	return b.Files.Join(b.Kubelet, elem...)
}

// Mkdir makes a directory, and its parents.
func (b *Bench) Mkdir(path string) {
	b.T.Helper()
	if err := b.Files.MkdirAll(path); err != nil {
		b.T.Fatal(err)
	}
}

// MustMount mounts m at path.
func (b *Bench) MustMount(m mounter.Mount, path string) {
	b.T.Helper()
	err := b.answered(func() error { return b.Mount(context.Background(), m, path) })
	if err != nil {
		b.T.Fatalf("Mount(%+v, %s): %v", m, path, err)
	}
	host := b.Host // a test may replace b.Host
	b.T.Cleanup(func() { host.Unmount(context.Background(), path) })
}

// Refused checks that a mount fails with an error, and leaves nothing.
func (b *Bench) Refused(m mounter.Mount, path string, want error) {
	b.T.Helper()
	err := b.answered(func() error { return b.Mount(context.Background(), m, path) })
	if !errors.Is(err, want) {
		b.T.Fatalf("Mount(%+v, %s) = %v, want %v", m, path, err, want)
	}
}

// IsMounted reports whether m is mounted at path.
func (b *Bench) IsMounted(m mounter.Mount, path string) bool {
	b.T.Helper()
	var yes bool
	err := b.answered(func() (err error) {
		yes, err = b.Mounted(context.Background(), m, path)
		return err
	})
	if err != nil {
		b.T.Fatalf("Mounted(%s): %v", path, err)
	}
	return yes
}

// MakeDir makes a directory, and its parents.
func MakeDir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Exists reports whether there is an entry at path.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ctx is that of calls that end by themselves.
var ctx = context.Background()

// TestMounter tests the contract that every Host has to keep, the fake too.
func TestMounter(t *testing.T, newBench func(t *testing.T) *Bench) {
	for _, rule := range mounterRules {
		t.Run(rule.name, func(t *testing.T) { rule.test(t, newBench(t)) })
	}
}

// mounterRules are the rules for a Mounter.
var mounterRules = []struct {
	name string
	test func(t *testing.T, b *Bench)
}{
	{"Mount creates its path, and Unmount leaves it", func(t *testing.T, b *Bench) {
		v, path := b.Volume("v"), b.Path("target")
		b.MustMount(v, path)
		if !b.IsMounted(v, path) {
			t.Fatal("Mounted = false after Mount")
		}
		if err := b.Unmount(ctx, path); err != nil {
			t.Fatal(err)
		}
		if b.IsMounted(v, path) || !b.Files.Exists(path) {
			t.Fatal("after Unmount the path must exist and must not be mounted")
		}
		if err := b.Remove(ctx, path); err != nil || b.Files.Exists(path) {
			t.Fatalf("Remove = %v, path exists: %v", err, b.Files.Exists(path))
		}
	}},
	{"every call is idempotent", func(t *testing.T, b *Bench) {
		v, path := b.Volume("v", b.Options...), b.Path("target")
		for range 3 {
			b.MustMount(v, path)
		}
		for range 3 {
			if err := b.Unmount(ctx, path); err != nil {
				t.Fatal(err)
			}
		}
		if b.IsMounted(v, path) {
			t.Fatal("three mounts made more than one layer")
		}
		for range 3 {
			if err := b.Remove(ctx, path); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"another source, other options or another mode at the same path is a conflict", func(t *testing.T, b *Bench) {
		path := b.Path("target")
		b.MustMount(b.Volume("v"), path)
		readOnly := b.Volume("v")
		readOnly.ReadOnly = true
		b.Refused(b.Volume("other"), path, mounter.ErrConflict)
		for _, o := range b.Options {
			b.Refused(b.Volume("v", o), path, mounter.ErrConflict)
		}
		b.Refused(readOnly, path, mounter.ErrConflict)
		b.MustMount(b.Volume("v", "rw"), path) // equal options, written in another way
		b.MustMount(b.Volume("v", "ro", "rw"), path)
	}},
	{"every method rejects a path outside the kubelet directory", func(t *testing.T, b *Bench) {
		v := b.Volume("v")
		b.Mkdir(b.Path("real"))
		if err := b.Files.Symlink(b.Path("real"), b.Path("link")); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		if err := b.Files.WriteFile(b.Path("file"), ""); err != nil {
			t.Fatal(err)
		}
		for _, path := range append(b.Unclean, []string{
			"", "relative", b.Kubelet, b.Kubelet + "/", b.Kubelet + "/../storage/x", b.Kubelet + "x/y",
			b.Storage + "/y",
			"/",
			b.Path("nul\x00"), b.Path(strings.Repeat("x/", 3000)), b.Path(strings.Repeat("x", 300)), b.Path("link"),
			b.Path("link", "target"), b.Path("file", "target"),
		}...) {
			if err := b.Mount(ctx, v, path); !errors.Is(err, mounter.ErrPath) {
				t.Errorf("Mount(%.60q) = %v, want ErrPath", path, err)
			}
			if err := b.Unmount(ctx, path); !errors.Is(err, mounter.ErrPath) {
				t.Errorf("Unmount(%.60q) = %v, want ErrPath", path, err)
			}
			if err := b.Remove(ctx, path); !errors.Is(err, mounter.ErrPath) {
				t.Errorf("Remove(%.60q) = %v, want ErrPath", path, err)
			}
			if _, err := b.Mounted(ctx, v, path); !errors.Is(err, mounter.ErrPath) {
				t.Errorf("Mounted(%.60q) = %v, want ErrPath", path, err)
			}
		}
		b.Refused(v, b.Path("file"), mounter.ErrPath)
		if !b.Files.Exists(b.Path("link")) || !b.Files.Exists(b.Path("file")) || b.Files.Exists(b.Path("real",
			"target")) {
			t.Error("a rejected call changed something")
		}
	}},
	{"Mount and Remove reject a directory with files", func(t *testing.T, b *Bench) {
		path := b.Path("target")
		b.Mkdir(b.Files.Join(path, "foreign"))
		b.Refused(b.Volume("v"), path, mounter.ErrNotEmpty)
		if err := b.Remove(ctx, path); !errors.Is(err, mounter.ErrNotEmpty) {
			t.Errorf("Remove = %v, want ErrNotEmpty", err)
		}
		if !b.Files.Exists(b.Files.Join(path, "foreign")) {
			t.Error("the foreign files are gone")
		}
	}},
	{"Remove rejects a file that no mount has created", func(t *testing.T, b *Bench) {
		for _, content := range []string{"", "precious"} {
			path := b.Path("file" + content)
			if err := b.Files.WriteFile(path, content); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := b.Unmount(ctx, path); err != nil {
					t.Errorf("Unmount = %v", err)
				}
				if err := b.Remove(ctx, path); !errors.Is(err, mounter.ErrPath) || !b.Files.Exists(path) {
					t.Errorf("Remove = %v, want ErrPath; the file is there: %v", err, b.Files.Exists(path))
				}
			}
		}
	}},
	{"Remove unmounts first", func(t *testing.T, b *Bench) {
		v, path := b.Volume("v"), b.Path("target")
		b.MustMount(v, path)
		b.Mkdir(b.Files.Join(v.Source, "precious"))
		for range 3 {
			if err := b.Remove(ctx, path); err != nil || b.Files.Exists(path) {
				t.Fatalf("Remove = %v, path exists: %v", err, b.Files.Exists(path))
			}
		}
		if !b.Files.Exists(b.Files.Join(v.Source, "precious")) {
			t.Error("the volume's files are gone")
		}
	}},
	{"a missing parent is an error for Mount and none for the other methods", func(t *testing.T, b *Bench) {
		v, path := b.Volume("v"), b.Path("no", "such", "target")
		b.Refused(v, path, mounter.ErrPath)
		if err := errors.Join(b.Unmount(ctx, path), b.Remove(ctx, path)); err != nil {
			t.Error(err)
		}
		if b.IsMounted(v, path) {
			t.Error("Mounted = true")
		}
	}},
	{"a missing source leaves no path behind", func(t *testing.T, b *Bench) {
		v, path := b.Volume("v"), b.Path("target")
		if err := b.Files.Remove(v.Source); err != nil {
			t.Fatal(err)
		}
		b.Refused(v, path, os.ErrNotExist)
		if b.Files.Exists(path) {
			t.Error("the path was left behind")
		}
	}},
	{"every method rejects a source that leads through a link", func(t *testing.T, b *Bench) {
		dir := b.Volume("volumes").Source
		v := mounter.Mount{Kind: mounter.Directory, Source: b.Files.Join(dir, "v")}
		b.Mkdir(v.Source)
		if err := errors.Join(b.Files.Rename(dir, dir+"-moved"), b.Files.Symlink(dir+"-moved", dir)); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		b.Refused(v, b.Path("target"), mounter.ErrPath)
		if _, err := b.Mounted(ctx, v, b.Path("target")); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("Mounted = %v, want ErrPath", err)
		}
		if _, err := b.MountPointsOf(v.Source); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("MountPointsOf = %v, want ErrPath", err)
		}
		if b.Files.Exists(b.Path("target")) {
			t.Error("the path was left behind")
		}
	}},
	{"Mount rejects an unknown option and does not show it", func(t *testing.T, b *Bench) {
		err := b.Mount(ctx, b.Volume("v", "rw", "geheim"), b.Path("target"))
		if !errors.Is(err, mounter.ErrOption) || !strings.Contains(err.Error(), "option 2 of 2") ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("Mount = %v, want ErrOption with the number of the option", err)
		}
		if b.Files.Exists(b.Path("target")) {
			t.Error("the path was left behind")
		}
		b.Refused(mounter.Mount{Kind: "unheard-of", Source: b.Storage}, b.Path("target"), errors.ErrUnsupported)
	}},
	{"OtherTargets and MountPointsOf return mounts of a mount", func(t *testing.T, b *Bench) {
		v, w := b.Volume("v"), b.Volume("w")
		b.MustMount(v, b.Path("staging"))
		b.MustMount(mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging")}, b.Path("one"))
		b.MustMount(mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging"), ReadOnly: true}, b.Path("two"))
		b.MustMount(w, b.Path("other"))
		got, err := b.OtherTargets(ctx, b.Path("staging"))
		if want := []string{b.Path("one"), b.Path("two")}; err != nil || !slices.Equal(got, want) {
			t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
		}
		if !b.IsMounted(v, b.Path("two")) || b.IsMounted(w, b.Path("two")) {
			t.Error("Mounted does not distinguish v from w")
		}
		got, err = b.MountPointsOf(v.Source)
		if want := []string{b.Path("one"), b.Path("staging"), b.Path("two")}; err != nil || !slices.Equal(got, want) {
			t.Errorf("MountPointsOf = %v, %v, want %v", got, err, want)
		}
		if got, _ := b.MountPointsOf(b.Storage); len(got) != 4 {
			t.Errorf("MountPointsOf(storage) = %v, want all four", got)
		}
		if got, err := b.MountPointsOf(b.Files.Join(b.Storage, "none")); err != nil || len(got) != 0 {
			t.Errorf("MountPointsOf(none) = %v, %v, want none", got, err)
		}
		if err := b.Unmount(ctx, b.Path("two")); err != nil {
			t.Fatal(err)
		}
		if got, _ := b.OtherTargets(ctx, b.Path("staging")); !slices.Equal(got, []string{b.Path("one")}) {
			t.Errorf("OtherTargets = %v after an unmount", got)
		}
	}},
	{"Mount rejects a writable mount of a read-only mount", func(t *testing.T, b *Bench) {
		v := b.Volume("v", "ro")
		b.MustMount(v, b.Path("staging"))
		b.Refused(mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging")}, b.Path("target"),
			mounter.ErrReadOnly)
		b.MustMount(mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging"), ReadOnly: true}, b.Path("target"))
	}},
	{"Usage of a missing path is an error", func(t *testing.T, b *Bench) {
		if _, err := b.Usage(ctx, b.Path("none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Usage = %v, want ErrNotExist", err)
		}
	}},
}

// FuzzCheckOptions: only listed options and filesystem types are valid.
