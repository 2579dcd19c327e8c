package mounter

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

func FuzzCheckOptions(f *testing.F) {
	for _, o := range []string{
		"ro", "noexec", "password=x", "bind", "", "ro,dev", "remount", "\x00", "logdev=/dev/sda", "discard", "xfs",
		"nfs", "gid=4242", "context=system_u:object_r:container_file_t:s0:c1,c2", "ip=10.0.0.1", "file_mode=0660,uid=0",
		`context="system_u:object_r:container_file_t:s0:c1,c2"`, `context="a:b:c",ip="`, `context="a:b:c`,
	} {
		f.Add(o)
	}
	f.Fuzz(func(t *testing.T, o string) {
		for _, k := range []Kind{Directory, Disk, Device} {
			err := CheckOptions(k, "", []string{o})
			if listed := k == Directory && slices.Contains(options.Directory, o); listed && err != nil ||
				!listed && !errors.Is(err, ErrOption) {
				t.Errorf("CheckOptions(%q) of a %s = %v", o, k, err)
			}
		}
		for fsType, own := range options.Image {
			err := CheckOptions(Image, fsType, []string{o})
			_, isLabel := options.Label(o)
			isLabel = isLabel && fsType != options.NTFS
			if listed := slices.Contains(options.Directory, o) || slices.Contains(own, o) || isLabel; listed && err != nil ||
				!listed && !errors.Is(err, ErrOption) {
				t.Errorf("CheckOptions(%q) of an image with %s = %v", o, fsType, err)
			}
		}
		if err := CheckOptions(Image, o, nil); slices.Contains(FSTypes(), o) && err != nil ||
			!slices.Contains(FSTypes(), o) && !errors.Is(err, ErrFormat) {
			t.Errorf("CheckOptions of an image with %q = %v", o, err)
		}
		err := CheckOptions(Share, "", []string{o})
		if listed := slices.Contains(options.Directory, o) || options.IsShare(options.Share, o); listed && err != nil ||
			!listed && !errors.Is(err, ErrOption) {
			t.Errorf("CheckOptions(%q) of a share = %v", o, err)
		}
		name, _, _ := strings.Cut(o, "=")
		if l, ok := options.Label(o); ok { // the quotes around it are not passed to the kernel
			o = l
		}
		for _, never := range []string{"user", "pass", "cred", "domain", "ip", "addr", "unc", "source", "prefix", "port"} {
			if err == nil && (strings.HasPrefix(name, never) || strings.ContainsAny(o, "\n\x00 \"'")) {
				t.Errorf("a share may have the option %q", o)
			}
		}
		const secret = "\u2603\u2603"
		if err := CheckOptions(Directory, "", []string{o + secret}); err == nil ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("CheckOptions(%q%s) = %v", o, secret, err)
		}
	})
}

func TestArgumentsOfMkfsAreChecked(t *testing.T) {
	for _, good := range [][]string{nil, {"-i", "8192"}, {"-O", "^has_journal", "-I", "256"}} {
		if err := CheckFormat("ext4", good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][]string{
		{"/dev/sda"}, {"-d", "/etc"}, {"-i"}, {"-i", "/dev/sda"}, {"-i", "-F"}, {"-i", ""}, {"-J",
			"device=LABEL=x"}, {"-i", "1", "sda"},
	} {
		if err := CheckFormat("ext4", bad); !errors.Is(err, ErrOption) {
			t.Errorf("%q: %v, want ErrOption", strings.Join(bad, " "), err)
		}
	}
	if err := CheckFormat("xfs", []string{"-d", "name=/dev/sda"}); !errors.Is(err, ErrOption) {
		t.Errorf("%v, want ErrOption", err)
	}
}
