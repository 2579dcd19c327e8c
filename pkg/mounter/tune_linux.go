package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	sectorSize = 512 // of the kernel's accounts, whatever a disk has
	// oldReadAhead is how far older kernels read a device ahead that nobody has told otherwise, in sectors:
	// VM_READAHEAD_PAGES in include/linux/mm.h. Newer ones look at the disk below.
	oldReadAhead = 128 << 10 / sectorSize
)

func (l *linux) Tune(ctx context.Context, m Mount) error {
	if m.Kind != Image && m.Kind != Disk {
		return nil
	}
	src, release, err := l.lockSource(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	file, err := src.openImage()
	if err != nil {
		return err
	}
	defer file.Close()
	return l.loops.tuneFile(file, src.backing(), m.loop())
}

// tuneFile tunes the device that has the file, which is b, if one has it.
func (l *loops) tuneFile(file *os.File, b backing, o loopOptions) error {
	n, found, err := l.of(b)
	if err != nil || !found {
		return err
	}
	dev, err := openLoop(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	return l.tune(dev, file, b, o)
}

// tune gives the device that has the file what of o can be changed at any time, and asks the kernel
// whether it has it. The caller has the image's lock.
func (l *loops) tune(dev, file *os.File, b backing, o loopOptions) error {
	if o.readAhead < 0 {
		return fmt.Errorf("%w: to read %d bytes ahead", fs.ErrInvalid, o.readAhead)
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

// setBuffered says whether a device goes through the page cache. Where it has to, it may. The kernel
// writes the file out first, and meanwhile the device answers no question. So it is written out
// before, and little is left.
func setBuffered(dev, file *os.File, buffered bool) error {
	if is, err := isBuffered(dev); err != nil || is == buffered {
		return err
	}
	direct := 0
	if !buffered {
		direct = 1
		file.Sync() // an error is told to the device's user
	}
	err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_DIRECT_IO, direct)
	if errors.Is(err, unix.EINVAL) && !buffered { // the file's filesystem can't, or its disk has larger sectors
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "LOOP_SET_DIRECT_IO", Path: dev.Name(), Err: err}
	}
	if is, err := isBuffered(dev); err != nil || is || !buffered {
		return err
	}
	return fmt.Errorf("%s goes past the page cache still", dev.Name())
}

func isBuffered(dev *os.File) (bool, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return false, &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	return info.Flags&unix.LO_FLAGS_DIRECT_IO == 0, nil
}

// learn notes how far the kernel reads a device ahead that has just got its file, b: it depends on where that is.
func (l *loops) learn(dev *os.File, b backing) error {
	sectors, err := readAheadOf(dev)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.standard == nil {
		l.standard = map[uint64]int{}
	}
	l.standard[b.dev] = sectors
	return nil
}

func (l *loops) learned(b backing) (sectors int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sectors, ok = l.standard[b.dev]
	return sectors, ok
}

// standardReadAhead returns how far the kernel reads a device ahead that has the file at path, in sectors. If this
// process has attached none from that filesystem, it does for a moment, with an empty file that has no name.
func (l *loops) standardReadAhead(path string, b backing) (int, error) {
	if sectors, ok := l.learned(b); ok {
		return sectors, nil
	}
	fd, err := resolve(filepath.Dir(path), unix.O_RDWR|unix.O_TMPFILE)
	if err != nil {
		return 0, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	dev, _, err := l.configure(file, loopOptions{sector: sectorSize, buffered: true, autoclear: true})
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

// setReadAhead sets how many sectors a device is read ahead. The kernel rounds that down to pages.
func setReadAhead(dev *os.File, sectors int) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.BLKRASET, sectors); err != nil {
		return &fs.PathError{Op: "BLKRASET", Path: dev.Name(), Err: err}
	}
	perPage := os.Getpagesize() / sectorSize
	if got, err := readAheadOf(dev); err != nil || got == sectors/perPage*perPage {
		return err
	}
	return fmt.Errorf("%s isn't read %d sectors ahead", dev.Name(), sectors)
}

// readAheadOf returns how many sectors a device is read ahead.
func readAheadOf(dev *os.File) (int, error) {
	sectors, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKRAGET)
	if err != nil {
		return 0, &fs.PathError{Op: "BLKRAGET", Path: dev.Name(), Err: err}
	}
	return sectors, nil
}
