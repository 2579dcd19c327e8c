package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Guests have BusyBox' tar. A name that does not exist stands for a file that is deleted while tar
// reads its directory: tar exits with 1 after both.
func TestUnpack(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip(err)
	}
	bin, from := t.TempDir(), t.TempDir()
	if err := os.Symlink(busybox, filepath.Join(bin, "tar")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "file"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, script string
		names        []string
		ok           bool
	}{
		{"all files exist", packScript, []string{"file"}, true},
		{"a file is deleted", packScript, []string{"deleted", "file"}, true},
		{"the directory does not exist", packScript, []string{"-C", "/none", "file"}, false},
		{"the archive ends within a file", `(` + packScript + `) | head -c 2048`, []string{"file"}, false},
		{"the command fails", packScript + `; exit 1`, []string{"file"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := t.TempDir()
			pack := exec.Command("/bin/sh", append([]string{"-c", test.script, from}, test.names...)...)
			pack.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
			err := unpack(t.Context(), pack, to)
			if (err == nil) != test.ok {
				t.Errorf("the error %v", err)
			}
			if info, err := os.Stat(filepath.Join(to, "file")); test.ok && (err != nil || info.Size() != 4096) {
				t.Errorf("the file is not complete: %v, %v", info, err)
			}
		})
	}
}
