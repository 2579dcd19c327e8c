package linux_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// TestLabelsOfSELinux: all files of an image have the label of its mount, also where the image is
// bound. The label is not stored: the next mount can have another. make test-vm runs this in a
// guest.
func TestLabelsOfSELinux(t *testing.T) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		t.Skip("this kernel has no SELinux, or no policy")
	}
	const first, second = "system_u:object_r:container_file_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c0"
	for _, fsType := range linuxtest.LinuxFSTypes() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				b.Host.(*linux.Host).Tree.Legacy.Store(old)
				m := b.Image("image", fsType)
				staging, target := b.Path("staging"), b.Path("target")
				for _, label := range []string{first, second} {
					m.Options = []string{"noatime", `context="` + label + `"`}
					b.MustMount(m, staging)
					b.MustMount(m, staging)
					b.MustMount(m.BindFrom(staging), target)
					file := filepath.Join(target, "file")
					if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
						t.Fatal(err)
					}
					for _, path := range []string{staging, target, file} {
						if got := labelOfFile(t, path); got != label {
							t.Errorf("%s has the label %q, want %q", path, got, label)
						}
					}
					b.MustUnmount(target)
					b.MustUnmount(staging)
				}
				m.Options = []string{`context="system_u:object_r:unknown_t:s0"`}
				if err := b.Mount(t.Context(), m, staging); !errors.Is(err, mounter.ErrOption) && !errors.Is(err,
					mounter.ErrFormat) {
					t.Errorf("a label that the policy does not have: %v", err)
				}
			})
		}
	}
}

// labelOfFile returns the SELinux label of a file.
func labelOfFile(t *testing.T, path string) string {
	t.Helper()
	text := make([]byte, 256)
	n, err := unix.Getxattr(path, "security.selinux", text)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(text[:n]), "\x00")
}

// TestLabelsWithoutSELinux: a kernel without SELinux rejects a label, and the image stays as it is.
func TestLabelsWithoutSELinux(t *testing.T) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		t.Skip("this kernel has SELinux")
	}
	b := linuxtest.NewLoopBench(t)
	for _, fsType := range linuxtest.LinuxFSTypes() {
		m := b.Image("image-"+fsType, fsType)
		m.Options = []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`}
		want := mounter.ErrOption
		if fsType == tree.Btrfs { // mount(2) does not tell which option it rejects
			want = mounter.ErrFormat
		}
		if err := b.Mount(t.Context(), m, b.Path("target")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", fsType, err, want)
		}
		m.Options = nil
		b.MustMount(m, b.Path("target"))
		b.MustUnmount(b.Path("target"))
	}
}
