package qemu

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDebian puts scripts in place of apt and dpkg, and returns a file with the calls of apt-get.
// The lists name the package "old" before apt-get update, and "new" after it. Only the package
// served can be downloaded.
func fakeDebian(t *testing.T, served string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	for name, script := range map[string]string{
		"apt-cache": `test -e ` + dir + `/updated && is=new || is=old
echo "  Depends: linux-image-$is"`,
		"apt-get": `echo "$1" >> ` + calls + `
if test "$1" = update; then touch ` + dir + `/updated; exit; fi
for package; do :; done
test "$package" = linux-image-` + served + ` || { echo "404  Not Found"; exit 100; }
touch $package.deb`,
		"dpkg-deb": `mkdir -p "$3/boot" && touch "$3/boot/vmlinuz-1" "$3/boot/a.ko"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	return calls
}

func TestFindKernelUpdatesOldLists(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root updates the lists")
	}
	for _, test := range []struct{ name, served, calls, err string }{
		{"the lists are good", "old", "download", ""},
		{"the lists name a package that is gone", "new", "download update download", ""},
		{"the package is gone after an update too", "none", "download update download", "404"},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := fakeDebian(t, test.served)
			k, err := FindKernel(t.Context(), io.Discard, Metapackage)
			if test.err == "" && (err != nil || k.Image == "") {
				t.Errorf("the kernel %q, %v", k.Image, err)
			}
			if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("the error %v, want %q in it", err, test.err)
			}
			got, err := os.ReadFile(calls)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(strings.Fields(string(got)), " "); got != test.calls {
				t.Errorf("apt-get was called to %q, want %q", got, test.calls)
			}
		})
	}
}
