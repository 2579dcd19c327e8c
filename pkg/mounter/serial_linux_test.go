package mounter

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestADeviceIsFoundByItsSerialNumber(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make device nodes")
	}
	sys, dev := t.TempDir(), t.TempDir()
	disk := func(name, file, serial, number string) {
		dir := filepath.Join(sys, name)
		mkdir(t, filepath.Dir(filepath.Join(dir, file)))
		write(t, filepath.Join(dir, file), serial)
		write(t, filepath.Join(dir, "dev"), number+"\n")
	}
	node := func(name string, minor uint32) {
		mkdir(t, filepath.Dir(filepath.Join(dev, name)))
		if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFBLK|0o600, int(unix.Mkdev(254, minor))); err != nil {
			t.Skip(err)
		}
	}
	disk("vda", "serial", "one\n", "254:0")
	disk("nvme0n1", "device/serial", "two  \n", "254:1")
	disk("nvme0c0n1", "device/serial", "two  \n", "254:8") // a path of nvme0n1
	write(t, filepath.Join(sys, "nvme0c0n1", "hidden"), "1\n")
	disk("sda", "device/vpd_pg80", "\x00\x80\x00\x05three", "254:2")
	disk("vdb", "serial", "twice", "254:3")
	disk("vdc", "serial", "twice", "254:4")
	disk("cciss!c0d0", "serial", "slash", "254:5")
	disk("vdd", "serial", "no node", "254:6")
	disk("vde", "serial", "wrong node", "254:7")
	mkdir(t, filepath.Join(sys, "loop0"))
	for i, name := range []string{"vda", "nvme0n1", "sda", "vdb", "vdc", "cciss/c0d0"} {
		node(name, uint32(i))
	}
	node("vde", 99)
	for serial, want := range map[string]string{"one": "vda", "two": "nvme0n1", "three": "sda", "slash": "cciss/c0d0"} {
		if got, err := findDevice(sys, dev, serial); err != nil || got != filepath.Join(dev, want) {
			t.Errorf("%s: %q, %v, want %s", serial, got, err, want)
		}
	}
	for serial, want := range map[string]error{"twice": ErrDevice, "": ErrDevice, "none": fs.ErrNotExist, "no node": fs.ErrNotExist, "wrong node": ErrDevice} {
		if got, err := findDevice(sys, dev, serial); !errors.Is(err, want) {
			t.Errorf("%s: %q, %v, want %v", serial, got, err, want)
		}
	}
}

// TestAnAttachedDiskIsFoundAndFormatted needs blank disks, whose serial numbers the environment has:
// the guest of test/vm has a virtio, an NVMe and a SCSI disk.
func TestAnAttachedDiskIsFoundAndFormatted(t *testing.T) {
	serials := strings.Fields(os.Getenv("CAUSEWAY_TEST_DISKS"))
	if len(serials) == 0 {
		t.Skip("this machine has no disks for tests: make test-vm has some")
	}
	for _, serial := range serials {
		t.Run("ext4 on "+serial, func(t *testing.T) {
			b := newBench(t, realMounter(t))
			path := ""
			await(t, "the kernel finds "+serial, func() bool {
				var err error
				path, err = FindDevice(serial)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				return err == nil
			})
			t.Logf("%s is %s", serial, path)
			m := Mount{Kind: BlockDevice, Source: path, FSType: "ext4", Serial: serial, Size: 64 << 20}
			for range 2 {
				b.mount(m, b.path("staging"))
				if _, err := os.Stat(b.path("staging", "file")); errors.Is(err, fs.ErrNotExist) {
					write(t, b.path("staging", "file"), "data")
				}
				b.unmount(b.path("staging"))
			}
			m.ReadOnly = true
			b.mount(m, b.path("staging"))
			if got := read(t, b.path("staging", "file")); got != "data" {
				t.Errorf("the file has %q", got)
			}
			b.unmount(b.path("staging"))
		})
	}
}
