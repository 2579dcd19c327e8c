//go:build !winetest

package win

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/Microsoft/go-winio/vhd"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"golang.org/x/sys/windows"
)

// windowsDisks are the disks of Windows, as a DiskHost. librarydisks_windows.go has the calls that
// the library makes.
type windowsDisks struct{ windowsLinks }

func newDiskHost() links.DiskHost { return windowsDisks{} }

var (
	virtdisk             = windows.NewLazySystemDLL("virtdisk.dll")
	procResizeVirtual    = virtdisk.NewProc("ResizeVirtualDisk")
	procVirtualDiskState = virtdisk.NewProc("GetVirtualDiskInformation")
)

// resizeParameters is RESIZE_VIRTUAL_DISK_PARAMETERS, version 1.
type resizeParameters struct {
	version uint32
	_       uint32
	newSize uint64
}

// virtualDiskState is GET_VIRTUAL_DISK_INFO.
type virtualDiskState struct {
	version uint32
	_       uint32
	data    [24]byte // a union
}

// Versions of GET_VIRTUAL_DISK_INFO.
const (
	virtualDiskSize     = 1   // the first 8 bytes are the size of the disk
	virtualDiskIsLoaded = 0xd // the first 4 bytes are not 0 while the disk is attached
)

// The sizes are those of Windows.
var (
	_ [16]byte = [unsafe.Sizeof(resizeParameters{})]byte{}
	_ [32]byte = [unsafe.Sizeof(virtualDiskState{})]byte{}
)

// withVHDX opens a virtual disk without access and without cache, and calls do with its handle.
func withVHDX(path string, do func(h syscall.Handle) error) error {
	h, err := vhd.OpenVirtualDisk(long(path), vhd.VirtualDiskAccessNone, vhd.OpenVirtualDiskFlagNone)
	if err != nil {
		return vhdxError("open", path, err)
	}
	return errors.Join(vhdxError("use", path, do(h)), syscall.CloseHandle(h))
}

// vhdxError gives an error of virtdisk.dll its path, and its class.
func vhdxError(op, path string, err error) error {
	const facility = 0xc03a0000 // of virtual disks: winerror.h
	var number syscall.Errno
	if errors.As(err, &number) && (number&0xffff0000 == facility || number == windows.ERROR_FILE_CORRUPT) {
		err = fmt.Errorf("%w: %w", mounter.ErrFormat, err)
	}
	return pathError(op, path, err)
}

func (windowsDisks) CreateVHDX(path string, size int64) error {
	parameters := vhd.CreateVirtualDiskParameters{Version: 2, Version2: vhd.CreateVersion2{MaximumSize: uint64(size)}}
	h, err := vhd.CreateVirtualDisk(long(path), vhd.VirtualDiskAccessNone,
		vhd.CreateVirtualDiskFlagFullPhysicalAllocation, &parameters)
	if err != nil {
		return pathError("create", path, err)
	}
	return syscall.CloseHandle(h)
}

func (windowsDisks) ResizeVHDX(path string, size int64) error {
	return withVHDX(path, func(h syscall.Handle) error {
		parameters := resizeParameters{version: 1, newSize: uint64(size)}
		r, _, _ := procResizeVirtual.Call(uintptr(h), 0, uintptr(unsafe.Pointer(&parameters)), 0)
		return errno(r)
	})
}

// errno is the error of a function that returns its error number.
func errno(r uintptr) error {
	if r == 0 {
		return nil
	}
	return syscall.Errno(r)
}

// stateOf asks for a version of GET_VIRTUAL_DISK_INFO.
func stateOf(h syscall.Handle, version uint32) (virtualDiskState, error) {
	state := virtualDiskState{version: version}
	size := uint32(unsafe.Sizeof(state))
	r, _, _ := procVirtualDiskState.Call(uintptr(h), uintptr(unsafe.Pointer(&size)), uintptr(unsafe.Pointer(&state)), 0)
	return state, errno(r)
}

func (windowsDisks) VHDX(path string) (info links.VHDXInfo, err error) {
	err = withVHDX(path, func(h syscall.Handle) error {
		size, err := stateOf(h, virtualDiskSize)
		if err != nil {
			return err
		}
		loaded, err := stateOf(h, virtualDiskIsLoaded)
		if err != nil {
			return err
		}
		info.Size = *(*int64)(unsafe.Pointer(&size.data[0]))
		info.Attached = *(*int32)(unsafe.Pointer(&loaded.data[0])) != 0
		if !info.Attached {
			return nil
		}
		name, err := vhd.GetVirtualDiskPhysicalPath(h)
		if errors.Is(err, windows.ERROR_DEV_NOT_EXIST) || errors.Is(err, windows.ERROR_NOT_READY) {
			return nil // not yet
		}
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(name, physicalDrive), 10, 32)
		info.Number, info.HasNumber = uint32(n), err == nil
		return err
	})
	return info, err
}

// physicalDrive is the path of a disk without its number.
const physicalDrive = `\\.\PhysicalDrive`

func (windowsDisks) AttachVHDX(path string) error {
	return withVHDX(path, func(h syscall.Handle) error {
		const flags = vhd.AttachVirtualDiskFlagNoDriveLetter | vhd.AttachVirtualDiskFlagPermanentLifetime
		return vhd.AttachVirtualDisk(h, flags, &vhd.AttachVirtualDiskParameters{Version: 1})
	})
}

func (windowsDisks) DetachVHDX(path string) error { return withVHDX(path, vhd.DetachVirtualDisk) }

func (windowsDisks) RemoveVHDX(path string) error { return os.Remove(path) }

func (windowsDisks) ReadDisk(disk uint32, data []byte, offset int64) error {
	name, err := windows.UTF16PtrFromString(physicalDrive + strconv.FormatUint(uint64(disk), 10))
	if err != nil {
		return err
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, nil,
		windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(h), physicalDrive)
	defer file.Close()
	_, err = io.ReadFull(io.NewSectionReader(file, offset, math.MaxInt64-offset), data)
	return err
}

// folderName is the path of a directory as the functions for mount points take it.
func folderName(dir string) (*uint16, error) { return windows.UTF16PtrFromString(long(dir) + `\`) }

func (windowsDisks) MountVolume(volume, dir string) error {
	folder, err := folderName(dir)
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(volume)
	if err != nil {
		return err
	}
	return pathError("mount "+volume, dir, windows.SetVolumeMountPoint(folder, name))
}

func (windowsDisks) UnmountVolume(dir string) error {
	folder, err := folderName(dir)
	if err != nil {
		return err
	}
	return pathError("remove the mount point", dir, windows.DeleteVolumeMountPoint(folder))
}

func (w windowsDisks) VolumeAt(dir string) (volume string, present bool, err error) {
	e, err := w.Entry(dir)
	if err != nil || e.Kind != links.PlainDir || e.Text == "" {
		return "", false, err
	}
	volume = `\\?\` + e.Text
	folder, err := folderName(dir)
	if err != nil {
		return "", false, err
	}
	h, err := windows.CreateFile(folder, 0,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, windows.ERROR_NOT_READY),
		errors.Is(err, windows.ERROR_DEV_NOT_EXIST), errors.Is(err, windows.ERROR_NO_SUCH_DEVICE),
		errors.Is(err, windows.ERROR_GEN_FAILURE):
		return volume, false, nil
	case err != nil:
		return "", false, pathError("open", dir, err)
	}
	return volume, true, windows.CloseHandle(h)
}

// fsctlIsVolumeDirty is FSCTL_IS_VOLUME_DIRTY, and volumeIsDirty is a bit of its answer.
const fsctlIsVolumeDirty, volumeIsDirty = 0x90078, 1

func (windowsDisks) Flags(volume string) (dirty, readOnly bool, err error) {
	root, err := windows.UTF16PtrFromString(volume)
	if err != nil {
		return false, false, err
	}
	var flags uint32
	if err := windows.GetVolumeInformation(root, nil, 0, nil, nil, &flags, nil, 0); err != nil {
		return false, false, pathError("flags", volume, err)
	}
	name, err := windows.UTF16PtrFromString(strings.TrimSuffix(volume, `\`)) // the volume itself
	if err != nil {
		return false, false, err
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, nil,
		windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		return false, false, pathError("open", volume, err)
	}
	defer windows.CloseHandle(h)
	var answer, n uint32
	if err := windows.DeviceIoControl(h, fsctlIsVolumeDirty, nil, 0, (*byte)(unsafe.Pointer(&answer)),
		uint32(unsafe.Sizeof(answer)), &n, nil); err != nil {
		return false, false, pathError("dirty bit", volume, err)
	}
	return answer&volumeIsDirty != 0, flags&windows.FILE_READ_ONLY_VOLUME != 0, nil
}
