package mounter

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// TestLabels: an image may have an SELinux label as the kubelet passes it, and nothing else in its
// place. A directory and a device may have none.
func TestLabels(t *testing.T) {
	for option, want := range map[string]string{
		`context="system_u:object_r:container_file_t:s0:c1,c2"`:     "system_u:object_r:container_file_t:s0:c1,c2",
		`context=system_u:object_r:container_file_t:s0:c1,c2`:       "system_u:object_r:container_file_t:s0:c1,c2",
		`context="system_u:object_r:container_file_t:s0-s0:c0.c99"`: "system_u:object_r:container_file_t:s0-s0:c0.c99",
		`context="user_u:role-r:type.t"`:                            "user_u:role-r:type.t",
	} {
		if got, ok := options.Label(option); got != want || !ok {
			t.Errorf("%s is %q, %v", option, got, ok)
		}
		for _, fsType := range slices.Sorted(maps.Keys(options.Image)) {
			for _, k := range []Kind{Image, BlockDevice} {
				if err := CheckOptions(k, fsType, []string{"ro", option}); err != nil {
					t.Errorf("%s of %s with %s: %v", option, k, fsType, err)
				}
			}
			if err := Windows.Supports(Image, fsType, []string{option}); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s on Windows: %v", option, err)
			}
		}
		if !IsOption(option) {
			t.Errorf("%s counts as a secret", option)
		}
		if err := CheckOptions(Directory, "", []string{option}); !errors.Is(err, ErrOption) ||
			!strings.Contains(err.Error(), "seLinuxMount of the CSIDriver must be false") {
			t.Errorf("%s of a directory: %v", option, err)
		}
		for _, k := range []Kind{Disk, Device, BlockDevice} {
			if err := CheckOptions(k, "", []string{option}); !errors.Is(err, ErrOption) {
				t.Errorf("%s of %s: %v", option, k, err)
			}
		}
	}
	for _, option := range []string{
		"context", "context=", `context=""`, "context=a:b", `context="a:b:c`, `context=a:b:c"`, `context='a:b:c'`,
		`context="a:b:c",dev`, `context="a:b:c" `, "context=a:b:c\n", "context=a:b:c\x00", `context="a:b:c\",x"`, `context=a:b:c"d`,
		`context="a:b:c,d="`, "fscontext=a:b:c", "defcontext=a:b:c", "rootcontext=a:b:c", "Context=a:b:c", "context=a::c", "seclabel",
	} {
		if got, ok := options.Label(option); ok {
			t.Errorf("%q is the label %q", option, got)
		}
		if err := CheckOptions(Image, "ext4", []string{option}); !errors.Is(err, ErrOption) {
			t.Errorf("%q of an image: %v", option, err)
		}
	}
}
