package mountertest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// gib is 1 GiB, in bytes.
const gib = 1 << 30

// serialNumber is that of the disk of the tests.
const serialNumber = "vol-0123"

// fakeNode is a node with the logic of Windows, and disks of a storage system.
type fakeNode struct {
	*mountercontract.Bench
	*FakeWindows
}

func newFakeNode(t *testing.T) fakeNode {
	b := newFakeWindowsBench(t)
	return fakeNode{b, b.Host.(*FakeWindows)}
}

// diskFile makes the file of a disk with a serial number, and its Mount.
func diskFile(t *testing.T, serial string) (file string, m mounter.Mount) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, gib)); err != nil {
		t.Fatal(err)
	}
	return file, mounter.Mount{Kind: mounter.BlockDevice, Serial: serial, FSType: options.NTFS, Size: gib}
}

func (n fakeNode) attach(serial, file string, readOnly bool) {
	n.T.Helper()
	if err := n.AttachDisk(serial, file, readOnly); err != nil {
		n.T.Fatal(err)
	}
}

// TestADiskMovesBetweenFakeNodes with its data, grows, and has another number on the second node.
func TestADiskMovesBetweenFakeNodes(t *testing.T) {
	a, b := newFakeNode(t), newFakeNode(t)
	file, m := diskFile(t, serialNumber)
	other, _ := diskFile(t, "other")
	a.attach(serialNumber, file, false)
	a.attach(serialNumber, file, false) // has no effect
	a.MustMount(m, a.Path("staging"))
	a.MustMount(m.BindFrom(a.Path("staging")), a.Path("target"))
	if err := os.WriteFile(filepath.Join(a.Path("target"), "file"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, sequence, err := a.FindDevice(t.Context(), serialNumber)
	if err != nil || path != `\\.\PhysicalDrive1` || sequence != 0 {
		t.Errorf("the device is %q, %d, %v", path, sequence, err)
	}
	a.MustUnmount(a.Path("target"), a.Path("staging"))
	a.DetachDisk(serialNumber)
	if _, _, err := a.FindDevice(t.Context(), serialNumber); !errors.Is(err, mounter.ErrDevice) {
		t.Errorf("after the detach: %v", err)
	}

	b.attach("other", other, false)
	b.attach(serialNumber, file, false)
	if path, _, err := b.FindDevice(t.Context(), serialNumber); err != nil || path != `\\.\PhysicalDrive2` {
		t.Errorf("the device is %q, %v", path, err)
	}
	m.Size = 2 * gib
	if err := b.Mount(t.Context(), m, b.Path("staging")); !errors.Is(err, mounter.ErrDevice) {
		t.Errorf("a disk that is too small: %v", err)
	}
	if err := os.Truncate(file, 2*gib); err != nil {
		t.Fatal(err)
	}
	b.MustMount(m, b.Path("staging"))
	if err := b.Grow(t.Context(), m, b.Path("staging")); err != nil {
		t.Error(err)
	}
	if a := b.disks.attached[2]; func() int64 { t, _ := a.table(); return t.Length }() != 2*gib-2*fakeStart {
		t.Error("the partition did not grow")
	}
	if data, err := os.ReadFile(filepath.Join(b.Path("staging"), "file")); err != nil || string(data) != "data" {
		t.Errorf("got %q, %v", data, err)
	}
	b.MustUnmount(b.Path("staging"))
	b.MustMount(m, b.Path("staging")) // the filesystem is found where it is now
}

// TestFakeDisksThatAreNotMounted: their bytes stay as they are.
func TestFakeDisksThatAreNotMounted(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, n fakeNode, file string)
		want    error
		reason  string
	}{
		"an ext4": {func(t *testing.T, n fakeNode, file string) {
			writeAt(t, file, "\x53\xef", 1080)
			n.attach(serialNumber, file, false)
		}, mounter.ErrDevice, "has ext"},
		"a foreign partition table": {func(t *testing.T, n fakeNode, file string) {
			writeAt(t, file, "EFI PART", 512)
			n.attach(serialNumber, file, false)
		}, mounter.ErrDevice, "with 0 partitions"},
		"unknown data": {func(t *testing.T, n fakeNode, file string) {
			writeAt(t, file, "data", 4096)
			n.attach(serialNumber, file, false)
		}, mounter.ErrDevice, "not formatted"},
		"a second disk with its number": {func(t *testing.T, n fakeNode, file string) {
			second, _ := diskFile(t, "")
			n.attach(serialNumber, file, false)
			n.attach(serialNumber, second, false)
		}, mounter.ErrDevice, "the same serial number"},
		"read-only": {func(t *testing.T, n fakeNode, file string) {
			n.attach(serialNumber, file, true)
		}, mounter.ErrReadOnly, "must be writable"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t)
			file, m := diskFile(t, serialNumber)
			c.prepare(t, n, file)
			before := headAndTail(t, file)
			if err := n.Mount(t.Context(), m, n.Path("staging")); !errors.Is(err, c.want) ||
				!strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %v, want %v: %s", err, c.want, c.reason)
			}
			if !bytes.Equal(headAndTail(t, file), before) {
				t.Error("the disk has changed")
			}
			if _, err := os.Lstat(n.Path("staging")); err == nil {
				t.Error("something is at the staging path")
			}
		})
	}
	if err := newFakeNode(t).AttachDisk("serial", t.TempDir(), false); !errors.Is(err, mounter.ErrDevice) {
		t.Errorf("a directory as a disk: %v", err)
	}
}

func writeAt(t *testing.T, file, text string, at int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte(text), at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// headAndTail returns the first two MiB of a file, and the last.
func headAndTail(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, 3<<20)
	_, err = f.ReadAt(data[:2<<20], 0)
	_, tailErr := f.ReadAt(data[2<<20:], gib-1<<20)
	if err := errors.Join(err, tailErr); err != nil {
		t.Fatal(err)
	}
	return data
}
