package mounter

import (
	"errors"
	"os"
	"slices"
	"testing"
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
	share := Mount{Kind: Share, Options: []string{`context="a:b:c:s0:c1,c2"`}}
	if got := ownParameters(share); got[0] != [2]string{"context", "a:b:c:s0:c1,c2"} {
		t.Errorf("a share has %q", got)
	}
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
		if err := b.Mount(t.Context(), m, b.path("target")); !errors.Is(err, ErrOption) || errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrOption", fsType, err)
		}
		m.Options = nil
		b.mount(m, b.path("target"))
		b.unmount(b.path("target"))
	}
}
