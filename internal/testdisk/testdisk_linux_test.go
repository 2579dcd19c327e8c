package testdisk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
)

var noNamespace error

func TestMain(m *testing.M) {
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

func TestDirIsInMemory(t *testing.T) {
	enough := available("/") >= memory
	dir := Dir(t)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	// Other tests take memory meanwhile.
	if noNamespace == nil && enough && available("/") >= memory && fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("the filesystem has the type %#x", fs.Type)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("entries: %v, %v", entries, err)
	}
}

func TestAvailableMemory(t *testing.T) {
	const machine = "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"
	v1, v2 := "sys/fs/cgroup/memory/memory.", "sys/fs/cgroup/memory."
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing known": {nil, 0},
		"the machine":   {map[string]string{"proc/meminfo": machine}, 4 << 30},
		"no limit":      {map[string]string{"proc/meminfo": machine, v2 + "max": "max\n", v2 + "current": "5\n"}, 4 << 30},
		"a limit": {map[string]string{"proc/meminfo": machine, v2 + "max": "1073741824\n", v2 + "current": "24\n"},
			1<<30 - 24},
		"a limit, version 1": {map[string]string{"proc/meminfo": machine, v1 + "limit_in_bytes": "1073741824\n",
			v1 + "usage_in_bytes": "24\n"}, 1<<30 - 24},
		"no limit, version 1": {map[string]string{"proc/meminfo": machine, v1 + "limit_in_bytes": "9223372036854771712\n",
			v1 + "usage_in_bytes": "24\n"}, 4 << 30},
	} {
		root := t.TempDir()
		for file, text := range tc.files {
			path := filepath.Join(root, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := available(root); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// TestUnmountNamesALeak: a file or a mount that a test has left fails at once.
func TestUnmountNamesALeak(t *testing.T) {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	dir := t.TempDir()
	mount := func(dir string) {
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	mount(dir)
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(leak string) {
		if err := Unmount(t, dir); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), leak) {
			t.Errorf("Unmount = %v, want EBUSY and %q", err, leak)
		}
	}
	refused(file.Name() + " is open")
	file.Close()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(inner)
	refused(inner + " is mounted")
	if err := errors.Join(Unmount(t, inner), Unmount(t, dir)); err != nil {
		t.Errorf("Unmount without a leak = %v", err)
	}
}
