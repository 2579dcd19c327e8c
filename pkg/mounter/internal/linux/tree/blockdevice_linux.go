package tree

import (
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// OpenDevice opens a block device for reading. fd is an O_PATH descriptor of its node.
func OpenDevice(fd, flags int) (*os.File, error) {
	path := ProcPath(fd)
	dev, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(dev), path), nil
}

// SizeOf returns the size of a device in bytes.
func SizeOf(dev *os.File) (uint64, error) {
	var size uint64
	if err := Ioctl(int(dev.Fd()), unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return 0, &fs.PathError{Op: "BLKGETSIZE64", Path: dev.Name(), Err: err}
	}
	return size, nil
}

// Ioctl is ioctl(2) with a pointer, for requests without a function in x/sys/unix.
func Ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// IsReadOnly reports whether the kernel refuses writes to a block device.
func IsReadOnly(dev *os.File) (bool, error) {
	value, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKROGET)
	if err != nil {
		return false, &fs.PathError{Op: "BLKROGET", Path: dev.Name(), Err: err}
	}
	return value&0xff != 0, nil
}

// DeviceUsage returns the size of the block device that is mounted at p, or at DeviceName in the
// directory at p. ok is false if there is no block device.
func (p Handle) DeviceUsage() (u mounter.Usage, ok bool, err error) {
	at, err := p.Stat()
	if err == nil && !at.Mounted && at.Kind() == unix.S_IFDIR {
		if p, err = p.Node(); err != nil {
			return u, false, nil
		}
		defer p.Close()
		at, err = p.Stat()
	}
	if err != nil || !at.Mounted || at.Kind() != unix.S_IFBLK {
		return u, false, nil
	}
	fd, err := p.OpenPath()
	if err != nil {
		return u, true, err
	}
	defer unix.Close(fd)
	dev, err := OpenDevice(fd, 0)
	if err != nil {
		return u, true, err
	}
	defer dev.Close()
	size, err := SizeOf(dev)
	return mounter.Usage{TotalBytes: int64(size)}, true, err
}

// SetDeviceReadOnly makes a device read-only or writable. The kernel keeps the setting with the
// device number, also for the next file.
func SetDeviceReadOnly(dev *os.File, readOnly bool) error {
	value := 0
	if readOnly {
		value = 1
	}
	if err := unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, value); err != nil {
		return &fs.PathError{Op: "BLKROSET", Path: dev.Name(), Err: err}
	}
	return nil
}
