package mounter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLabelsReachTheKernel: the label has no quotes in fsconfig(2), and quotes in mount(2), and does
// not reach bind mounts of the image.
func TestLabelsReachTheKernel(t *testing.T) {
	m := Mount{Kind: Image, FSType: "ext4", Source: "/image",
		Options: []string{"noatime", `context="system_u:object_r:container_file_t:s0:c1,c2"`, "discard"}}
	attr, err := attributes(m)
	if err != nil {
		t.Fatal(err)
	}
	o := attr.fresh(m.FSType, m.Options)
	if got, want := o.parameters(), []string{"errors=remount-ro", "discard",
		"context=system_u:object_r:container_file_t:s0:c1,c2"}; !slices.Equal(got, want) {
		t.Errorf("fsconfig takes %q, want %q", got, want)
	}
	const want = `errors=remount-ro,discard,context="system_u:object_r:container_file_t:s0:c1,c2"`
	if got := o.data(); got != want {
		t.Errorf("mount takes %s, want %s", got, want)
	}
	if got := m.BindFrom("/staging").Options; !slices.Equal(got, []string{"noatime"}) {
		t.Errorf("a bind mount has %q", got)
	}
}

// TestTheLabelOfAShareReachesTheKernel: without its quotes.
func TestTheLabelOfAShareReachesTheKernel(t *testing.T) {
	share := Mount{Kind: Share, Options: []string{`context="a:b:c:s0:c1,c2"`}}
	if got := ownParameters(share); got[0] != [2]string{"context", "a:b:c:s0:c1,c2"} {
		t.Errorf("a share has %q", got)
	}
}

// TestLabelsOfSELinux: all files of an image have the label of its mount, also where the image is bound.
// The label is not stored: the next mount can have another. make test-vm runs this in a guest.
func TestLabelsOfSELinux(t *testing.T) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		t.Skip("this kernel has no SELinux, or no policy")
	}
	const first, second = "system_u:object_r:container_file_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c0"
	for _, fsType := range linuxFSTypes() {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := newLoopBench(t)
				b.Host.(*linux).legacy.Store(old)
				m := b.image("image", fsType)
				staging, target := b.path("staging"), b.path("target")
				for _, label := range []string{first, second} {
					m.Options = []string{"noatime", `context="` + label + `"`}
					b.mount(m, staging)
					b.mount(m, staging)
					b.mount(m.BindFrom(staging), target)
					file := filepath.Join(target, "file")
					if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
						t.Fatal(err)
					}
					for _, path := range []string{staging, target, file} {
						if got := labelOfFile(t, path); got != label {
							t.Errorf("%s has the label %q, want %q", path, got, label)
						}
					}
					b.unmount(target)
					b.unmount(staging)
				}
				m.Options = []string{`context="system_u:object_r:unknown_t:s0"`}
				if err := b.Mount(t.Context(), m, staging); !errors.Is(err, ErrOption) && !errors.Is(err, ErrFormat) {
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
	b := newLoopBench(t)
	for _, fsType := range linuxFSTypes() {
		m := b.image("image-"+fsType, fsType)
		m.Options = []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`}
		want := ErrOption
		if fsType == btrfs { // mount(2) does not tell which option it rejects
			want = ErrFormat
		}
		if err := b.Mount(t.Context(), m, b.path("target")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", fsType, err, want)
		}
		m.Options = nil
		b.mount(m, b.path("target"))
		b.unmount(b.path("target"))
	}
}
