package tree

import (
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// TestLabelsReachTheKernel: the label has no quotes in fsconfig(2), and quotes in mount(2), and
// does not reach bind mounts of the image.
func TestLabelsReachTheKernel(t *testing.T) {
	m := mounter.Mount{Kind: mounter.Image, FSType: "ext4", Source: "/image",
		Options: []string{"noatime", `context="system_u:object_r:container_file_t:s0:c1,c2"`, "discard"}}
	attr, err := Attributes(m)
	if err != nil {
		t.Fatal(err)
	}
	o := attr.Fresh(m.FSType, m.Options)
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

func TestLinuxOptionsCoverDirectoryOptions(t *testing.T) {
	for _, o := range options.Directory {
		if _, ok := linuxOptions[o]; !ok {
			t.Errorf("%s is allowed but does nothing", o)
		}
	}
	if len(linuxOptions) != len(options.Directory) {
		t.Errorf("%d options do something, %d are allowed", len(linuxOptions), len(options.Directory))
	}
}
