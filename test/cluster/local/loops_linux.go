package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loop is a loop device that has a backing file.
type loop struct {
	path    string // /dev/loopN
	number  uint64 // of the device itself
	backing string // the path as the kernel tells it, which has lost its beginning once the mounts of a node are gone
	file    file   // the backing file
	device  uint64 // the device that the backing file is, if it is a device
	mute    bool   // it does not tell file and device: the filesystem of its file is dead
}

// file identifies a file independent of its path.
type file struct{ on, inode uint64 } // the device of its filesystem, and its number there

// loops returns all loop devices in use.
func loops() ([]loop, error) {
	dirs, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var found []loop
	for _, d := range dirs {
		l := loop{path: filepath.Join("/dev", strings.Split(d, "/")[3])}
		if err := l.read(d); err == nil {
			found = append(found, l)
		} else if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENXIO) && !errors.Is(err,
			unix.ENODEV) { // detached meanwhile
			return nil, fmt.Errorf("%s: %w", l.path, err)
		}
	}
	return found, nil
}

func (l *loop) read(backing string) error {
	name, err := os.ReadFile(backing)
	if err != nil {
		return err
	}
	dev, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer dev.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(dev.Fd()), &stat); err != nil {
		return err
	}
	l.number, l.backing = stat.Rdev, strings.TrimSpace(string(name))
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if l.mute = errors.Is(err, unix.EIO); l.mute {
		return nil
	}
	if err != nil {
		return err
	}
	l.file, l.device = file{info.Device, info.Inode}, info.Rdevice
	return nil
}

// ours returns the devices that a cluster's nodes have attached: those of their data disks, and,
// repeatedly, those whose backing file is on such a device, or is such a device. A device that does
// not answer is identified by the path of its file.
func (f files) ours(all []loop) []loop {
	disks := f.disks()
	numbers := map[uint64]bool{}
	var found []loop
	for grown := true; grown; {
		grown = false
		for _, l := range all {
			mine := l.mute && strings.HasPrefix(l.backing, f.dir+"/") || disks[l.file] || numbers[l.file.on] ||
				l.device != 0 && numbers[l.device]
			if mine && !numbers[l.number] {
				numbers[l.number], grown = true, true
				found = append(found, l)
			}
		}
	}
	return found
}

// disks returns the nodes' data disks.
func (f files) disks() map[file]bool {
	found := map[file]bool{}
	paths, err := filepath.Glob(f.node("*").disk())
	if err != nil {
		return nil // the directory is no pattern
	}
	for _, p := range paths {
		var s unix.Stat_t
		if unix.Stat(p, &s) == nil {
			found[file{s.Dev, s.Ino}] = true
		}
	}
	return found
}

// detachLoops waits until the loop devices are gone that go with their mounts, and detaches the
// others, such as those that a kubelet makes for block volumes.
func (f files) detachLoops() error {
	var left []loop
	for try := range 100 {
		all, err := loops()
		if err != nil {
			return err
		}
		if left = f.ours(all); len(left) == 0 {
			return nil
		}
		if try >= 20 {
			for _, l := range left {
				l.detach()
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%d loop devices cannot be detached, such as %s of %s: a process has them open", len(left),
		left[0].path, left[0].backing)
}

// detach has the kernel detach the device, now or when its last user closes it, unless it has
// changed.
func (l loop) detach() {
	dev, err := os.Open(l.path)
	if err != nil {
		return
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if l.mute && errors.Is(err, unix.EIO) || err == nil && l.file == (file{info.Device, info.Inode}) {
		unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
	}
}
