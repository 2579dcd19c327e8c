package mounter

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
