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
	return l.loops.tuneFile(m.Source, src.backing(), m.loop())
}

// tuneFile tunes the device that has the file at path, which is b, if one has it.
func (l *loops) tuneFile(path string, b backing, o loopOptions) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, found, err := l.find(b)
	if err != nil || !found {
		return err
	}
	dev, err := openLoop(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	return l.tune(dev, path, b, o)
}

// tune gives the device that has the file at path what of o can be changed at any time, and asks the kernel whether it
// has it. The caller has the lock.
func (l *loops) tune(dev *os.File, path string, b backing, o loopOptions) error {
	if o.readAhead < 0 {
		return fmt.Errorf("%w: to read %d bytes ahead", fs.ErrInvalid, o.readAhead)
	}
	if err := setBuffered(dev, o.buffered); err != nil {
		return err
	}
	sectors := o.readAhead / sectorSize
	if o.readAhead == 0 {
		var err error
		if sectors, err = l.standardReadAhead(path, b); err != nil {
			return err
		}
	}
	return setReadAhead(dev, sectors)
}

// setBuffered says whether a device goes through the page cache. Where it has to, it may.
func setBuffered(dev *os.File, buffered bool) error {
	if is, err := isBuffered(dev); err != nil || is == buffered {
		return err
	}
	direct := 1
	if buffered {
		direct = 0
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
	if l.standard == nil {
		l.standard = map[uint64]int{}
	}
	l.standard[b.dev] = sectors
	return nil
}

// standardReadAhead returns how far the kernel reads a device ahead that has the file at path, in sectors. If this
// process has attached none from that filesystem, it does for a moment, with an empty file that has no name.
func (l *loops) standardReadAhead(path string, b backing) (int, error) {
	if sectors, ok := l.standard[b.dev]; ok {
		return sectors, nil
	}
	dir := filepath.Dir(path)
	file, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	dev, _, err := l.configure(file, loopOptions{sector: sectorSize, buffered: true, autoclear: true})
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	err = l.learn(dev, b)
	return l.standard[b.dev], err
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
