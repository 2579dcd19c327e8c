package mounter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Loop devices make a file a disk. The kernel attaches one file to two devices without complaint, with a page cache
// each, which ruins what is on it. So a file is looked for before it is attached, by its device and inode, which the
// kernel knows for certain: names of backing files are cut, go stale and belong to another mount namespace.
// See loop(4).

// backing names the file behind a loop device, as stat(2) does.
type backing struct{ dev, ino uint64 }

// loopMajor is the major number of loop devices: Documentation/admin-guide/devices.txt.
const loopMajor = 7

// maxLoopTries bounds how often another one is asked for when somebody else took the free device.
const maxLoopTries = 100

// maxLoopPause bounds the pause between two of these tries.
const maxLoopPause = 10 * time.Millisecond

// loops knows which device has which file. Its zero value knows none. No lock is held across a system
// call on a device or its file: one image must not hold up the others.
type loops struct {
	mu       sync.Mutex       // of the maps
	byFile   map[backing]int  // a hint: whoever uses it asks the kernel
	files    map[int]attached // by the number of the device
	shown    map[fileID]int   // by the root of a mounted btrfs, whose device number doesn't tell its disk's
	standard map[uint64]int   // the read-ahead of a device by default, in sectors, by the filesystem of its file
	asks     asks[int, backing]
}

// attached is the file that a device had. The device has it still if its sequence number, which the
// kernel changes whenever it gives a device a file or takes it away, is the same.
type attached struct {
	file     backing
	sequence string
}

// loopOptions say how a file is attached.
type loopOptions struct {
	readOnly  bool
	sector    int  // logical block size, in bytes
	buffered  bool // through the page cache; else past it, where the file's filesystem can
	readAhead int  // in bytes; 0 is the kernel's default
	autoclear bool // the kernel detaches it when nobody has it open or mounted any more
}

// loop says how the file of an Image or a Disk is attached. Of an Image, the mount is what may be read-only.
func (m Mount) loop() loopOptions {
	return loopOptions{
		readOnly: m.Kind == Disk && m.ReadOnly, sector: m.Sector,
		buffered: m.Buffered, readAhead: m.ReadAhead, autoclear: true,
	}
}

// attach returns the device of a file, open, and whether it was attached before. The caller holds the
// image's lock, so that no other call attaches the same file. Errors: ErrConflict if it is attached
// with another sector size, or read-only where writing is asked for.
func (l *loops) attach(file *os.File, o loopOptions) (dev *os.File, was bool, err error) {
	b, err := backingOf(file)
	if err != nil {
		return nil, false, err
	}
	n, found, err := l.of(b)
	if err != nil {
		return nil, false, err
	}
	if found {
		if dev, err = openLoop(n, o.readOnly); err == nil {
			err = fits(dev, b, o)
		}
	} else if dev, n, err = l.configure(file, o); err == nil {
		l.remember(b, n)
		l.noteFile(n, attached{b, sequenceOf(n)}) // it stays, as dev is open
		err = l.learn(dev, b)
	}
	if err == nil {
		err = l.tune(dev, file, b, o)
	}
	if err != nil && dev != nil {
		dev.Close()
		dev = nil
	}
	return dev, found, err
}

// fits returns an error unless dev has the file called b, in a way that is as good as o.
func fits(dev *os.File, b backing, o loopOptions) error {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	sector, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKSSZGET)
	switch {
	case err != nil:
		return &fs.PathError{Op: "BLKSSZGET", Path: dev.Name(), Err: err}
	case info.Device != b.dev || info.Inode != b.ino:
		return fmt.Errorf("%w: another process has attached another file to %s during the call: repeat the call", ErrBusy, dev.Name())
	case info.Offset != 0 || info.Sizelimit != 0:
		return fmt.Errorf("%w: %s shows a part of its file only", ErrConflict, dev.Name())
	case info.Flags&unix.LO_FLAGS_READ_ONLY != 0 && !o.readOnly:
		return fmt.Errorf("%w: %s is attached for reading only", ErrConflict, dev.Name())
	case sector != o.sector:
		return fmt.Errorf("%w: %s has sectors of %d bytes, not %d", ErrConflict, dev.Name(), sector, o.sector)
	}
	return nil
}

// configure attaches the file to a free device, and returns that, open, and its number.
func (l *loops) configure(file *os.File, o loopOptions) (*os.File, int, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: uint32(o.sector)}
	if o.readOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if !o.buffered {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	if o.autoclear {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	for range maxLoopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, 0, &fs.PathError{Op: "LOOP_CTL_GET_FREE", Path: control.Name(), Err: err}
		}
		dev, err := configureFree(n, &config, o)
		switch {
		case err == nil:
			return dev, n, nil
		case errors.Is(err, unix.EINVAL) && config.Info.Flags&unix.LO_FLAGS_DIRECT_IO != 0:
			config.Info.Flags &^= unix.LO_FLAGS_DIRECT_IO // the disk has larger sectors than this image
		case !errors.Is(err, unix.EBUSY):
			return nil, 0, err
		default: // another process was faster, and the number is offered until it is done
			time.Sleep(rand.N(maxLoopPause))
		}
	}
	return nil, 0, fmt.Errorf("%w: other processes took the free loop device %d times before it was attached: repeat the call", ErrBusy, maxLoopTries)
}

// configureFree gives a free device its file, and returns the device. Errors: unix.EBUSY if it is not
// free any more. It does not open the device exclusively: if another process was faster, its mount(2)
// would fail for that moment. LOOP_CONFIGURE claims the device itself.
func configureFree(n int, config *unix.LoopConfig, o loopOptions) (*os.File, error) {
	dev, err := openLoop(n, o.readOnly)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), config); err != nil {
		dev.Close()
		return nil, &fs.PathError{Op: "LOOP_CONFIGURE", Path: dev.Name(), Err: err}
	}
	if err := reset(dev, o.readOnly); err != nil {
		return nil, errors.Join(err, setAutoclear(dev, true), dev.Close()) // the kernel detaches it
	}
	return dev, nil
}

// reset sets what the kernel may keep from the file that the device had before.
func reset(dev *os.File, readOnly bool) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.BLKRASET, oldReadAhead); err != nil {
		return &fs.PathError{Op: "BLKRASET", Path: dev.Name(), Err: err}
	}
	return setDeviceReadOnly(dev, readOnly)
}

// of returns the number of the device that has a file. Errors: ErrNoAnswer if it cannot be told, as
// another device does not answer.
func (l *loops) of(b backing) (n int, ok bool, err error) {
	if n, ok := l.hint(b); ok {
		if has, err := l.has(n, b); err == nil && has {
			return n, true, nil
		}
		l.forget(b, n)
	}
	names, err := filepath.Glob("/sys/block/loop*/loop") // those that have a file
	if err != nil {
		return 0, false, err
	}
	for _, name := range names {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(name)), "loop"))
		if err != nil {
			continue
		}
		has, err := l.has(n, b)
		if errors.Is(err, unix.ENXIO) || isDead(err) { // detached meanwhile, or of a dead filesystem, which b is not on
			continue
		}
		if errors.Is(err, fs.ErrNotExist) { // it must not be taken for detached
			return 0, false, fmt.Errorf("%w: the node's /dev has to be visible here", err)
		}
		if err != nil {
			return 0, false, err
		}
		if has {
			l.remember(b, n)
			return n, true, nil
		}
	}
	return 0, false, nil
}

// has reports whether device n has the file b. A device that has it is asked itself.
func (l *loops) has(n int, b backing) (bool, error) {
	has, err := l.fileOf(n)
	if err != nil || has != b {
		return false, err
	}
	has, err = fileOfLoop(n)
	return has == b, err
}

// fileOf returns the file behind a device. It asks the device only if that may have got another file
// since the last answer. The device answers no question while it is changed (LOOP_SET_DIRECT_IO
// writes out the whole file, for example), and EIO while the file's filesystem is dead. A device that
// is just being detached may count as attached still. Errors: unix.ENXIO if there is no file,
// ErrNoAnswer.
func (l *loops) fileOf(n int) (backing, error) {
	sequence := sequenceOf(n)
	if a, ok := l.lastFile(n); ok && sequence != "" && a.sequence == sequence {
		return a.file, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	var has backing
	r, err := l.asks.ask(n, func() (backing, error) { return fileOfLoop(n) })
	if err == nil {
		has, err = r.wait(ctx)
	}
	if errors.Is(err, errNoAnswer) {
		return has, fmt.Errorf("%w: %s %w", ErrNoAnswer, loopPath(n), err)
	}
	if err == nil && sequence != "" && sequenceOf(n) == sequence {
		l.noteFile(n, attached{has, sequence})
	}
	return has, err
}

// sequenceOf returns a device's sequence number (Linux 5.15), or "".
func sequenceOf(n int) string {
	text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/diskseq", n))
	if err != nil {
		return ""
	}
	return string(text)
}

func (l *loops) lastFile(n int) (attached, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.files[n]
	return a, ok
}

func (l *loops) noteFile(n int, a attached) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files == nil {
		l.files = map[int]attached{}
	}
	l.files[n] = a
}

func (l *loops) hint(b backing) (n int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok = l.byFile[b]
	return n, ok
}

func (l *loops) forget(b backing, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byFile[b] == n {
		delete(l.byFile, b)
	}
}

// remember notes that device n has the file b.
func (l *loops) remember(b backing, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byFile == nil {
		l.byFile = map[backing]int{}
	}
	l.byFile[b] = n
}

// holds reports whether what is mounted at a place is on, or is, the device that has a file.
func (l *loops) holds(at state, b backing) (bool, error) {
	n, ok := l.number(at)
	if !ok {
		return false, nil
	}
	has, err := l.fileOf(n)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return has == b, err
}

// number returns the number of the loop device that a mount is on, or that a device node stands for.
func (l *loops) number(at state) (int, bool) {
	switch {
	case at.mode&unix.S_IFMT == unix.S_IFBLK:
		return int(at.device.minor), at.device.major == loopMajor
	case at.id.major == loopMajor:
		return int(at.id.minor), true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.shown[at.id]
	return n, ok
}

// showsOn notes that the root of a btrfs on a device is called id.
func (l *loops) showsOn(id fileID, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown == nil {
		l.shown = map[fileID]int{}
	}
	l.shown[id] = n
}

// users returns where the device that has the file b is mounted, sorted, or the device if it is not
// mounted. A node that was mounted for another file does not count: the number of its device became
// this one's later.
func (l *loops) users(b backing) ([]string, error) {
	n, ok, err := l.of(b)
	if err != nil || !ok {
		return nil, err
	}
	filesystems, nodes, err := mountsOf(n)
	if err != nil {
		return nil, err
	}
	paths := []string{}
	for _, i := range filesystems {
		paths = append(paths, i.Mountpoint)
	}
	for _, i := range nodes {
		if !isStale(i.Mountpoint, b) {
			paths = append(paths, i.Mountpoint)
		}
	}
	if len(paths) == 0 && !released(n, b) {
		paths = append(paths, loopPath(n))
	}
	slices.Sort(paths)
	return paths, nil
}

// mountsOf returns the mounts of what is on a device, and those of its node.
func mountsOf(n int) (filesystems, nodes []*mountinfo.Info, err error) {
	node := loopPath(n)
	_, err = mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		switch {
		case i.Source == node, i.Major == loopMajor && i.Minor == n:
			filesystems = append(filesystems, i)
		case i.Root == strings.TrimPrefix(node, "/dev"):
			nodes = append(nodes, i)
		}
		return true, false // it is kept here
	})
	return filesystems, nodes, err
}

// isClaimed reports whether something has a device for itself: a filesystem that is mounted, here or where it isn't
// seen, or that lives on without a mount because it is frozen.
func isClaimed(n int) (bool, error) {
	fd, err := unix.Open(loopPath(n), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: loopPath(n), Err: err}
	}
	return false, unix.Close(fd)
}

// released reports whether a device that nobody has mounted gives its file up. It goes with whoever has it open last,
// and that may be somebody who only looks, for a moment.
func released(n int, b backing) bool {
	for wait := time.Millisecond; wait <= 32*time.Millisecond; wait *= 2 {
		if has, err := fileOfLoop(n); errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) || (err == nil && has != b) {
			return true
		}
		time.Sleep(wait)
	}
	return false
}

// setDeviceReadOnly says whether a device can be written to. The kernel keeps what was said of the number before.
func setDeviceReadOnly(dev *os.File, readOnly bool) error {
	value := 0
	if readOnly {
		value = 1
	}
	if err := unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, value); err != nil {
		return &fs.PathError{Op: "BLKROSET", Path: dev.Name(), Err: err}
	}
	return nil
}

// setAutoclear says whether the kernel is to detach a device when nobody has it open or mounted any more.
func setAutoclear(dev *os.File, on bool) error {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if isDead(err) { // the kernel cannot ask the file's filesystem; the driver's devices have no other settings
		info, err = &unix.LoopInfo64{}, nil
	}
	if err != nil {
		return &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	if info.Flags &^= unix.LO_FLAGS_AUTOCLEAR; on {
		info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	if err := unix.IoctlLoopSetStatus64(int(dev.Fd()), info); err != nil {
		return &fs.PathError{Op: "LOOP_SET_STATUS64", Path: dev.Name(), Err: err}
	}
	return nil
}

// loopUsage tells the size of a device.
func loopUsage(n int) (Usage, error) {
	dev, err := openLoop(n, true)
	if err != nil {
		return Usage{}, err
	}
	defer dev.Close()
	size, err := dev.Seek(0, io.SeekEnd)
	return Usage{TotalBytes: size}, err
}

// fileOfLoop returns the file behind a device. Errors: unix.ENXIO if there is none.
func fileOfLoop(n int) (backing, error) {
	dev, err := openLoop(n, true)
	if err != nil {
		return backing{}, err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return backing{}, &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	return backing{info.Device, info.Inode}, nil
}

func openLoop(n int, readOnly bool) (*os.File, error) {
	flag := os.O_RDWR
	if readOnly {
		flag = os.O_RDONLY
	}
	return os.OpenFile(loopPath(n), flag|unix.O_CLOEXEC, 0)
}

func loopPath(n int) string { return "/dev/loop" + strconv.Itoa(n) }

// loopNumber returns the number of a loop device called path.
func loopNumber(path string) (int, bool) {
	digits, ok := strings.CutPrefix(path, "/dev/loop")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil
}

// backing returns how a file would be known behind a loop device.
func (s state) backing() backing { return backing{unix.Mkdev(s.id.major, s.id.minor), s.id.ino} }

func backingOf(file *os.File) (backing, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return backing{}, &fs.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	return backing{st.Dev, st.Ino}, nil
}
