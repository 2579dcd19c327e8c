//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// A disk is attached to a node if a loop device of its image has the label of the two. So on a
// machine that plays all nodes, a node finds its own disks only. The number of a loop device does
// not identify a disk: after a boot, another disk can have it.

// label is the text that the kernel keeps as the file name of the loop device of a disk on a node.
// It has the serial number, and a digest of the volume and the node: 53 bytes, of 63 that the
// kernel keeps.
func label(serial, volume, node string) string {
	sum := sha256.Sum256([]byte(node + "\x00" + volume))
	return serial + "@" + hex.EncodeToString(sum[:16])
}

// loop is a loop device with a label.
type loop struct {
	path               string
	sequence           uint64 // changes when the device gets another file; 0 before Linux 5.15
	readOnly, vanishes bool   // vanishes: it is detached when the last program closes it
}

// findLoop returns the loop device with a label. Errors: fs.ErrNotExist; ErrPrecondition if there
// are two, of which neither is taken.
func findLoop(label string) (loop, error) {
	names, err := filepath.Glob("/sys/block/loop*/loop") // those that have a file
	if err != nil {
		return loop{}, err
	}
	var found []loop
	for _, name := range names {
		l, has, err := look(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return l, err
		}
		if has == label {
			found = append(found, l)
		}
	}
	switch len(found) {
	case 0:
		return loop{}, fmt.Errorf("%w: a disk with the label %s", fs.ErrNotExist, label)
	case 1:
		return found[0], nil
	}
	return loop{}, fmt.Errorf("%w: %s and %s have the same label %s", backend.ErrPrecondition, found[0].path,
		found[1].path, label)
}

// look returns a loop device and its label: "" if it has no file, or its filesystem is dead. The
// label is of the file with the sequence number.
func look(name string) (l loop, label string, err error) {
	l.path = filepath.Join("/dev", name)
	dev, err := os.Open(l.path)
	if errors.Is(err, unix.ENXIO) {
		return l, "", nil
	} else if err != nil { // also ENOENT, which must not pass for a device without this label
		return l, "", fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	defer dev.Close()
	for range 10 {
		l.sequence = sequence(name)
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EIO) {
			return l, "", nil
		} else if err != nil {
			return l, "", &fs.PathError{Op: "LOOP_GET_STATUS64", Path: l.path, Err: err}
		}
		if sequence(name) == l.sequence {
			l.readOnly, l.vanishes = info.Flags&unix.LO_FLAGS_READ_ONLY != 0, info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0
			return l, unix.ByteSliceToString(info.File_name[:]), nil
		}
	}
	return l, "", fmt.Errorf("%w: %s gets one file after the other", backend.ErrUnavailable, l.path)
}

// openLoop opens the loop device with a label. As long as it is open, it keeps its file. Errors:
// fs.ErrNotExist; ErrInUse if the device is mounted and flag has O_EXCL.
func openLoop(label string, flag int) (*os.File, error) {
	l, err := findLoop(label)
	if err != nil {
		return nil, err
	}
	dev, err := os.OpenFile(l.path, flag, 0)
	for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait < time.Second; wait *= 2 {
		time.Sleep(wait) // another program that found the device free claims it for a moment: LOOP_CONFIGURE
		dev, err = os.OpenFile(l.path, flag, 0)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%w: %s is mounted: unstage the volume first", backend.ErrInUse, l.path)
	} else if err != nil {
		return nil, err
	}
	if now, has, err := look(filepath.Base(l.path)); err != nil || has != label || now.sequence != l.sequence {
		dev.Close()
		return nil, errors.Join(fmt.Errorf("%w: %s is being detached", backend.ErrUnavailable, l.path), err)
	}
	return dev, nil
}

// sequence returns the sequence number of a device: Documentation/ABI/stable/sysfs-block of Linux.
func sequence(name string) uint64 {
	text, _ := os.ReadFile(filepath.Join("/sys/block", name, "diskseq"))
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// plug attaches an image under a label. If it is attached already, the device gets the size of the
// image.
func plug(image, label string, readOnly bool) error {
	old, err := findLoop(label)
	switch {
	case err == nil && (old.vanishes || old.readOnly != readOnly):
		return fmt.Errorf("%w: %s is being detached", backend.ErrUnavailable, old.path)
	case err == nil:
		return replug(label)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	flag, config := os.O_RDWR, unix.LoopConfig{}
	if readOnly {
		flag, config.Info.Flags = os.O_RDONLY, unix.LO_FLAGS_READ_ONLY
	}
	file, err := os.OpenFile(image, flag, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	config.Fd = uint32(file.Fd())
	copy(config.Info.File_name[:], label)
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return &fs.PathError{Op: "LOOP_CTL_GET_FREE", Path: control.Name(), Err: err}
		}
		err = configure(fmt.Sprintf("/dev/loop%d", n), flag, &config)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(time.Millisecond) // another program was faster
	}
	return fmt.Errorf("%w: no loop device is free", backend.ErrUnavailable)
}

func configure(path string, flag int, config *unix.LoopConfig) error {
	dev, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), config); err != nil {
		return &fs.PathError{Op: "LOOP_CONFIGURE", Path: path, Err: err}
	}
	return nil
}

// unplug detaches the device with a label. Errors: ErrInUse while it is mounted; ErrUnavailable
// while a program has it open.
func unplug(ctx context.Context, label string) error {
	dev, err := openLoop(label, os.O_RDONLY|unix.O_EXCL)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	err = dev.Sync() // the writes to the device must reach the image
	if err == nil {
		err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
	}
	if err = errors.Join(err, dev.Close()); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	for wait := time.Millisecond; wait < 2*time.Second && ctx.Err() == nil; wait *= 2 { // udev may look at it
		if _, err := findLoop(label); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(wait)
	}
	return fmt.Errorf("%w: %s is still open", backend.ErrUnavailable, dev.Name())
}

// replug makes the loop device with a label, if present, read the new size of its image.
func replug(label string) error {
	dev, err := openLoop(label, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer dev.Close()
	return unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0)
}

// newFinder returns the finder of a node: EDIT: see finder_windows.go.
func newFinder(node string) finder { return findLoops(node) }

// findLoops returns the finder of a node. An author replaces it by host.FindDevice, which needs
// the serial number alone. Errors of the finder: ErrPrecondition if the node does not have the
// device, or two of the same label.
func findLoops(node string) finder {
	return func(_ context.Context, serial, volume string) (string, uint64, bool, error) {
		l, err := findLoop(label(serial, volume, node))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: no disk of this node has the serial number %.64q", backend.ErrPrecondition, serial)
		}
		return l.path, l.sequence, l.readOnly, err
	}
}
