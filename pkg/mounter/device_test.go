package mounter

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// TestAFakeDeviceIsFormattedOnceOrRefused: a file plays the device.
func TestAFakeDeviceIsFormattedOnceOrRefused(t *testing.T) {
	b := newBench(t, func(dir string) Host { return NewFake(dir) })
	file := filepath.Join(b.storage, "disk")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	m, staging := Mount{Kind: BlockDevice, Source: file, FSType: "ext4", Serial: "s", ReadOnly: true}, b.path("staging")
	b.refused(m, staging, ErrDevice)
	m.ReadOnly = false
	b.mount(m, staging)
	made, _ := os.ReadFile(file)
	b.unmount(staging)
	b.mount(m, staging)
	b.mount(m.BindFrom(staging), b.path("target"))
	if again, _ := os.ReadFile(file); !bytes.Equal(again, made) || !b.mounted(m, b.path("target")) {
		t.Error("it was formatted again, or is not at the target")
	}
	b.unmount(b.path("target"), staging)
	other := m
	other.FSType = "xfs"
	b.refused(other, staging, ErrDevice)
	small := m
	small.Size = 8192
	b.refused(small, staging, ErrDevice)
	raw := m
	raw.FSType = ""
	b.mount(raw, staging)
	b.mount(raw.BindFrom(staging), b.path("node"))
	if u, err := b.Usage(context.Background(), b.path("node")); err != nil || u.TotalBytes != 4096 ||
		!b.mounted(raw, staging) {
		t.Errorf("Usage = %+v, %v, mounted: %v", u, err, b.mounted(raw, staging))
	}
	b.unmount(b.path("node"), staging)
	if b.mounted(Mount{Kind: BlockDevice, FSType: "ext4"}, staging) {
		t.Error("a volume that is not attached counts as mounted")
	}
}

// device is a device in memory: zeroes except for its data, and a byte that cannot be read.
type device struct {
	size   int64
	data   map[int64]string
	broken int64
}

var errBroken = errors.New("the medium is broken")

func (d device) ReadAt(p []byte, offset int64) (int, error) {
	clear(p)
	if d.broken >= offset && d.broken < offset+int64(len(p)) {
		return int(d.broken - offset), errBroken
	}
	for at, text := range d.data {
		for i := range len(text) {
			if o := at + int64(i) - offset; o >= 0 && o < int64(len(p)) {
				p[o] = text[i]
			}
		}
	}
	if over := offset + int64(len(p)) - d.size; over > 0 {
		return len(p) - int(over), io.EOF
	}
	return len(p), nil
}

func TestAnUnreadableDeviceIsNotBlank(t *testing.T) {
	const none = -1
	for _, size := range []int64{1 << 20, 1<<20 + 512, 3 << 19, 2 << 20, 100 << 20, 1 << 30, 300 << 30, 5 << 40} {
		if c, err := signature.Examine(device{size: size, broken: none}, size); err != nil || !c.Blank {
			t.Errorf("a blank device of %d bytes: %+v, %v", size, c, err)
		}
		for _, r := range signature.Regions(size) {
			for _, at := range []int64{r.Offset, r.Offset + r.Length - 1} {
				if at >= size {
					t.Fatalf("a region of a device of %d bytes ends at %d", size, at)
				}
				if _, err := signature.Examine(device{size: size, broken: at}, size); !errors.Is(err, errBroken) {
					t.Errorf("byte %d of %d cannot be read: %v", at, size, err)
				}
				if c, err := signature.Examine(device{size: size, broken: none, data: map[int64]string{at: "\x01"}},
					size); err != nil || c.Blank {
					t.Errorf("byte %d of %d is not zero: %+v, %v", at, size, c, err)
				}
			}
		}
	}
	if _, err := signature.Examine(device{size: 1<<20 - 1, broken: none}, 1<<20-1); err == nil {
		t.Error("a device that is too small is examined")
	}
}

// TestEverySignatureIsInARangeThatIsRead: a signature elsewhere would never prevent a format.
func TestEverySignatureIsInARangeThatIsRead(t *testing.T) {
	const size = 100 << 30
	for _, s := range append(signature.Signatures, signature.RaidAt(size)...) {
		at := s.Offset
		if at < 0 {
			at += size
		}
		c, err := signature.Examine(device{size: size, broken: -1, data: map[int64]string{at: s.Magic}}, size)
		if err != nil || c.Name != s.Name {
			t.Errorf("%s at %d: %+v, %v", s.Name, s.Offset, c, err)
		}
	}
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
