package place

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAMountPointIsNotReplaced: a file of a ConfigMap, for example.
func TestAMountPointIsNotReplaced(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "f=mounted", "of=x", "d/", "e/")
	for _, name := range []string{"f", "d"} {
		from := map[string]string{"f": "of", "d": "e"}[name]
		path := filepath.Join(root.Name(), name)
		if err := unix.Mount(filepath.Join(root.Name(), from), path, "", unix.MS_BIND, ""); err != nil {
			t.Skipf("no mounts here: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	for name, s := range map[string]Source{"f": {Name: "f"}, "d": {Name: "d", Dir: true}} {
		d, err := at(root, name, s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, d, s, Tree); !errors.Is(err, ErrMounted) {
			t.Errorf("%s: %v, want ErrMounted", name, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(root.Name(), "f")); string(got) != "x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}
