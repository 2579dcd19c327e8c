package mounter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FindDevice returns the path of the block device with a serial number, as the kernel shows it in
// /sys/block: of virtio, NVMe and SCSI disks. The kernel cuts some: virtio shows 20 bytes. A
// BlockDevice has this path as its Source. Errors: fs.ErrNotExist if there is none, also if its node
// in /dev is still missing; ErrDevice if more than one device has the number, such as the paths of a
// multipath disk.
func FindDevice(serial string) (string, error) { return findDevice("/sys/block", "/dev", serial) }

// serialFiles are the files of a device that hold its serial number:
// Documentation/ABI/stable/sysfs-block of Linux (serial), the drivers nvme and sd.
var serialFiles = []string{"serial", "device/serial", "device/vpd_pg80"}

// findDevice is FindDevice, with other directories for tests.
func findDevice(sys, dev, serial string) (string, error) {
	if serial == "" {
		return "", fmt.Errorf("%w: the serial number is empty", ErrDevice)
	}
	devices, err := os.ReadDir(sys)
	if err != nil {
		return "", err
	}
	var found []string
	for _, d := range devices {
		// A path of an NVMe disk with several has no node: Documentation/ABI/stable/sysfs-block.
		if hidden, _ := os.ReadFile(filepath.Join(sys, d.Name(), "hidden")); strings.TrimSpace(string(hidden)) == "1" {
			continue
		}
		has, err := serialOf(filepath.Join(sys, d.Name()))
		if err != nil {
			return "", err
		}
		if has == serial {
			found = append(found, d.Name())
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: a block device with the serial number %.128q", fs.ErrNotExist, serial)
	case 1:
		return nodeOf(sys, dev, found[0])
	}
	return "", fmt.Errorf("%w: %d devices have the serial number %.128q: %s", ErrDevice, len(found), serial, strings.Join(found, ", "))
}

// serialOf returns the serial number of the device with a directory in sysfs, or "".
func serialOf(dir string) (string, error) {
	for _, name := range serialFiles {
		data, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOTDIR): // or it is just going
			continue
		case err != nil: // it may be the device that is looked for
			return "", fmt.Errorf("%w: %w", ErrDevice, err)
		}
		const header = 4 // of the vital product data page 80h: SPC-4, 7.8.15
		if strings.HasSuffix(name, "vpd_pg80") {
			data = data[min(header, len(data)):]
		}
		if text := strings.Trim(string(data), " \n\x00"); text != "" {
			return text, nil
		}
	}
	return "", nil
}

// nodeOf returns the path of a device's node.
func nodeOf(sys, dev, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(sys, name, "dev"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(dev, strings.ReplaceAll(name, "!", "/"))
	at, err := stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	number := fmt.Sprintf("%d:%d", at.device.major, at.device.minor)
	if at.kind() != unix.S_IFBLK || number != strings.TrimSpace(string(text)) {
		return "", fmt.Errorf("%w: %s is not the block device %s", ErrDevice, path, strings.TrimSpace(string(text)))
	}
	return path, nil
}
