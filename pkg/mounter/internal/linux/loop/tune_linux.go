package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

const (
	// sectorSize is the unit in which the kernel counts, in bytes, for disks of any sector size.
	sectorSize = 512
	// oldReadAhead is the default read-ahead of older kernels, in sectors: VM_READAHEAD_PAGES in
	// include/linux/mm.h. Newer kernels derive the default from the disk of the backing file.
	oldReadAhead = 128 << 10 / sectorSize
)

// TuneFile tunes the loop device of file, if file is attached. b is the identity of file.
func (l *Devices) TuneFile(file *os.File, b tree.Backing, o Options) error {
	n, found, err := l.DeviceForFile(file, b)
	if err != nil || !found {
		return err
	}
	dev, err := Open(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	return l.tune(dev, file, b, o)
}

// tune applies those options of o to dev that can change at any time, and verifies them with the
// kernel. file is the backing file of dev, and b its identity. The caller holds the lock of the
// image.
func (l *Devices) tune(dev, file *os.File, b tree.Backing, o Options) error {
	if o.readAhead < 0 {
		return fmt.Errorf("%w: read-ahead of %d bytes: must not be negative", fs.ErrInvalid, o.readAhead)
	}
	if err := setBuffered(dev, file, o.buffered); err != nil {
		return err
	}
	sectors := o.readAhead / sectorSize
	if o.readAhead == 0 {
		var err error
		if sectors, err = l.standardReadAhead(file.Name(), b); err != nil {
			return err
		}
	}
	return setReadAhead(dev, sectors)
}

// setBuffered sets whether a device uses the page cache of its file. If the file does not support
// direct I/O, the device stays buffered, without an error. Before a change to direct I/O the kernel
// writes out the whole file, and the device does not answer meanwhile. So setBuffered syncs the
// file first, to leave little for the kernel to write.
func setBuffered(dev, file *os.File, buffered bool) error {
	if is, err := isBuffered(dev); err != nil || is == buffered {
		return err
	}
	direct := 0
	if !buffered {
		direct = 1
		file.Sync() // the user of the device gets an error
	}
	err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_DIRECT_IO, direct)
	if errors.Is(err, unix.EINVAL) && !buffered { // no direct I/O: the filesystem, or larger sectors of its disk
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "LOOP_SET_DIRECT_IO", Path: dev.Name(), Err: err}
	}
	if is, err := isBuffered(dev); err != nil || is || !buffered {
		return err
	}
	return fmt.Errorf("%s still uses direct I/O: the kernel has not changed it", dev.Name())
}

func isBuffered(dev *os.File) (bool, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return false, &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	return info.Flags&unix.LO_FLAGS_DIRECT_IO == 0, nil
}

// learn records the read-ahead that the kernel has given to a device that has just been attached to
// file b. This default depends on the filesystem of the file.
func (l *Devices) learn(dev *os.File, b tree.Backing) error {
	sectors, err := readAheadOf(dev)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.standard == nil {
		l.standard = map[uint64]int{}
	}
	l.standard[b.Dev] = sectors
	return nil
}

func (l *Devices) learned(b tree.Backing) (sectors int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sectors, ok = l.standard[b.Dev]
	return sectors, ok
}

// standardReadAhead returns the default read-ahead, in sectors, of a device whose backing file is
// at path. If this process has not yet attached a file of that filesystem, it briefly attaches an
// empty file without a name.
func (l *Devices) standardReadAhead(path string, b tree.Backing) (int, error) {
	if sectors, ok := l.learned(b); ok {
		return sectors, nil
	}
	fd, err := tree.Resolve(filepath.Dir(path), unix.O_RDWR|unix.O_TMPFILE)
	if err != nil {
		return 0, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	dev, _, err := l.configure(file, Options{Sector: sectorSize, buffered: true, Autoclear: true})
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	if err := l.learn(dev, b); err != nil {
		return 0, err
	}
	sectors, _ := l.learned(b)
	return sectors, nil
}

// setReadAhead sets the read-ahead of a device, in sectors. The kernel rounds it down to pages.
func setReadAhead(dev *os.File, sectors int) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.BLKRASET, sectors); err != nil {
		return &fs.PathError{Op: "BLKRASET", Path: dev.Name(), Err: err}
	}
	perPage := os.Getpagesize() / sectorSize
	if got, err := readAheadOf(dev); err != nil || got == sectors/perPage*perPage {
		return err
	}
	return fmt.Errorf("the kernel has not set the read-ahead of %s to %d sectors", dev.Name(), sectors)
}

// readAheadOf returns the read-ahead of a device, in sectors.
func readAheadOf(dev *os.File) (int, error) {
	sectors, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKRAGET)
	if err != nil {
		return 0, &fs.PathError{Op: "BLKRAGET", Path: dev.Name(), Err: err}
	}
	return sectors, nil
}
