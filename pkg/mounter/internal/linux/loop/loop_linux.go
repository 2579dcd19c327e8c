package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	rand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Major is the major number of loop devices: Documentation/admin-guide/devices.txt.
const Major = 7

// maxLoopTries bounds how often configure asks for another free device after another process has
// taken the device that the kernel offered.
const maxLoopTries = 100

// maxLoopPause bounds the pause between two tries.
const maxLoopPause = 10 * time.Millisecond

// Devices tracks the backing file of each loop device. Its zero value is empty and usable. No lock
// is held across a system call on a device or its file, so that one image cannot delay the others.
type Devices struct {
	mu       sync.Mutex           // guards the maps
	byFile   map[tree.Backing]int // the device of a file; a hint, which callers verify with the kernel
	files    map[int]attached     // the last known file, by device number
	shown    map[tree.FileID]int  // by the root of a mounted btrfs, which does not show the device number of its disk
	standard map[uint64]int       // the default read-ahead of a device in sectors, by the filesystem of its file
	asks     inflight.Group[int, tree.Backing]
}

// attached is the last known backing file of a device. The device still has that file if its
// sequence number is the same: the kernel changes the number whenever it attaches or detaches a
// file.
type attached struct {
	File     tree.Backing
	Sequence string
}

// Options are the options with which a file is attached.
type Options struct {
	readOnly  bool
	Sector    int  // logical block size, in bytes
	buffered  bool // use the page cache of the file; else direct I/O, where the file's filesystem supports it
	readAhead int  // in bytes; 0 is the kernel's default
	Autoclear bool // the kernel detaches the device when no process has it open and no mount uses it
}

// OptionsOf returns the options for the file of an Image or a Disk. A read-only Image has a
// writable device: only its mount is read-only.
func OptionsOf(m mounter.Mount) Options {
	return Options{
		readOnly: m.Kind == mounter.Disk && m.ReadOnly, Sector: m.Sector,
		buffered: m.Buffered, readAhead: m.ReadAhead, Autoclear: true,
	}
}

// Attach attaches file to a loop device, unless it is attached already. Attach returns the open
// device, and in was whether the file was attached before the call. The caller holds the lock of
// the image, so that no other call attaches the same file. Errors: ErrConflict if the file is
// attached with another sector size, or is attached read-only and o asks for a writable device.
func (l *Devices) Attach(file *os.File, o Options) (dev *os.File, was bool, err error) {
	b, err := tree.BackingOf(file)
	if err != nil {
		return nil, false, err
	}
	n, found, err := l.DeviceForFile(file, b)
	if err != nil {
		return nil, false, err
	}
	if found {
		dev, err = openAttached(n, b, o)
		if found = !errors.Is(err, unix.ENXIO); !found { // the kernel has detached it after its last unmount
			l.forget(b, n)
		}
	}
	if !found {
		if dev, n, err = l.configure(file, o); err == nil {
			l.remember(b, n)
			l.noteFile(n, attached{b, sequenceOf(n)}) // the file stays attached while dev is open
			err = l.learn(dev, b)
		}
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

// openAttached opens a device that has the backing file b. Errors: those of fits, unix.ENXIO if the
// device has no file by now.
func openAttached(n int, b tree.Backing, o Options) (*os.File, error) {
	dev, err := Open(n, o.readOnly)
	if err != nil {
		return nil, err
	}
	if err := fits(dev, b, o); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

// OpenOwn opens a device that has the backing file b. It returns nil if the device has another file
// by now, or none: the number of a detached device is soon that of another file, also of another
// process. While a device is open, the kernel neither detaches its file nor attaches another.
func OpenOwn(n int, b tree.Backing) (*os.File, error) {
	dev, err := Open(n, true)
	if errors.Is(err, unix.ENXIO) { // it is being detached
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	switch {
	case tree.IsDead(err): // only the filesystem of its file knows the file
		return dev, nil
	case err == nil && b == tree.Backing{Dev: info.Device, Ino: info.Inode}:
		return dev, nil
	case err == nil, errors.Is(err, unix.ENXIO):
		return nil, dev.Close()
	}
	return nil, errors.Join(&fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}, dev.Close())
}

// fits returns an error unless dev has the backing file b, attached in a way that satisfies o.
func fits(dev *os.File, b tree.Backing, o Options) error {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	sector, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKSSZGET)
	switch {
	case err != nil:
		return &fs.PathError{Op: "BLKSSZGET", Path: dev.Name(), Err: err}
	case info.Device != b.Dev || info.Inode != b.Ino:
		return fmt.Errorf("%w: another process attached another file to %s during the call: repeat the call",
			mounter.ErrBusy, dev.Name())
	case info.Offset != 0 || info.Sizelimit != 0:
		return fmt.Errorf("%w: %s exposes only a part of its file", mounter.ErrConflict, dev.Name())
	case info.Flags&unix.LO_FLAGS_READ_ONLY != 0 && !o.readOnly:
		return fmt.Errorf("%w: %s is attached read-only", mounter.ErrConflict, dev.Name())
	case sector != o.Sector:
		return fmt.Errorf("%w: %s has sectors of %d bytes, not %d", mounter.ErrConflict, dev.Name(), sector, o.Sector)
	}
	return nil
}

// configure attaches the file to a free device, and returns the open device and its number.
func (l *Devices) configure(file *os.File, o Options) (*os.File, int, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: uint32(o.Sector)}
	if o.readOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if !o.buffered {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	if o.Autoclear {
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
			config.Info.Flags &^= unix.LO_FLAGS_DIRECT_IO // the sectors of the disk are larger than those of the image
		case !errors.Is(err, unix.EBUSY):
			return nil, 0, err
		default: // another process was faster; the kernel offers the same number until that process has finished
			time.Sleep(rand.N(maxLoopPause))
		}
	}
	return nil, 0, fmt.Errorf("%w: other processes took the free loop device %d times: repeat the call",
		mounter.ErrBusy, maxLoopTries)
}

// configureFree attaches a file to a free device and returns the open device. Errors: unix.EBUSY if
// the device is no longer free. configureFree does not open the device exclusively: an exclusive
// open would make the mount(2) of a faster process fail. LOOP_CONFIGURE claims the device itself.
func configureFree(n int, config *unix.LoopConfig, o Options) (*os.File, error) {
	dev, err := Open(n, o.readOnly)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), config); err != nil {
		dev.Close()
		return nil, &fs.PathError{Op: "LOOP_CONFIGURE", Path: dev.Name(), Err: err}
	}
	if err := reset(dev, o.readOnly); err != nil {
		return nil, errors.Join(err, SetAutoclear(dev, true), dev.Close()) // the kernel detaches the device
	}
	return dev, nil
}

// reset sets the properties that the kernel may keep from the previous file of the device.
func reset(dev *os.File, readOnly bool) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.BLKRASET, oldReadAhead); err != nil {
		return &fs.PathError{Op: "BLKRASET", Path: dev.Name(), Err: err}
	}
	return tree.SetDeviceReadOnly(dev, readOnly)
}

// DeviceForFile returns the number of the device whose backing file is file, which has the identity
// b. Errors: ErrNoAnswer if a device does not answer, and could be the device of the file.
func (l *Devices) DeviceForFile(file *os.File, b tree.Backing) (n int, ok bool, err error) {
	n, ok, err = l.DeviceFor(b)
	if errors.Is(err, mounter.ErrNoAnswer) && isOpenOnce(file) {
		return 0, false, nil
	}
	return n, ok, err
}

// DeviceFor returns the number of the device whose backing file is b. Errors: ErrNoAnswer if no
// device is known to have the file, and some devices do not answer.
func (l *Devices) DeviceFor(b tree.Backing) (n int, ok bool, err error) {
	if n, ok := l.hint(b); ok {
		if has, err := l.has(n, b); err == nil && has {
			return n, true, nil
		}
		l.forget(b, n)
	}
	names, err := filepath.Glob("/sys/block/loop*/loop") // exists only for devices with a backing file
	if err != nil {
		return 0, false, err
	}
	var silent error
	for _, name := range names {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(name)), "loop"))
		if err != nil {
			continue
		}
		has, err := l.has(n, b)
		// The device was detached meanwhile, or its file is on a dead filesystem, where b is not.
		if errors.Is(err, unix.ENXIO) || tree.IsDead(err) {
			continue
		}
		if errors.Is(err, mounter.ErrNoAnswer) {
			silent = err
			continue
		}
		if errors.Is(err, fs.ErrNotExist) { // a missing node does not prove that the device is detached
			if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
				continue // the device was removed meanwhile
			}
			return 0, false, fmt.Errorf("%w: the node's /dev must be visible to the driver", err)
		}
		if err != nil {
			return 0, false, err
		}
		if has {
			l.remember(b, n)
			return n, true, nil
		}
	}
	return 0, false, silent
}

// isOpenOnce reports whether file is the only open description of its file on this node. Then no
// loop device has the file, as a device keeps its file open. The question does not reach the
// devices: the kernel grants a write lease only to the sole user of a file. false proves nothing,
// as some filesystems grant no leases. See F_SETLEASE in fcntl(2).
func isOpenOnce(file *os.File) bool {
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// has reports whether device n has the backing file b. The device itself confirms a positive answer
// of the cache.
func (l *Devices) has(n int, b tree.Backing) (bool, error) {
	has, err := l.FileOf(n)
	if err != nil || has != b {
		return false, err
	}
	has, err = FileOfDevice(n)
	return has == b, err
}

// FileOf returns the backing file of a device. FileOf asks the device only if its file may have
// changed since the last answer. A device does not answer during a change: for example,
// LOOP_SET_DIRECT_IO writes out the whole file. The device returns EIO while the filesystem of the
// file is dead. For a device that is being detached, FileOf may still return the file. Errors:
// unix.ENXIO if the device has no file, ErrNoAnswer.
func (l *Devices) FileOf(n int) (tree.Backing, error) {
	sequence := sequenceOf(n)
	if a, ok := l.lastFile(n); ok && sequence != "" && a.Sequence == sequence {
		return a.File, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), inflight.AnswerTime)
	defer cancel()
	var has tree.Backing
	r, err := l.asks.Start(n, func() (tree.Backing, error) { return FileOfDevice(n) })
	if err == nil {
		has, err = r.Wait(ctx)
	}
	if errors.Is(err, inflight.ErrNoAnswer) {
		return has, fmt.Errorf("%w: %s %w", mounter.ErrNoAnswer, Path(n), err)
	}
	if err == nil && sequence != "" && sequenceOf(n) == sequence {
		l.noteFile(n, attached{has, sequence})
	}
	return has, err
}

// sequenceOf returns the sequence number of a device, or "" on Linux before 5.15, which has none.
func sequenceOf(n int) string {
	text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/diskseq", n))
	if err != nil {
		return ""
	}
	return string(text)
}

func (l *Devices) lastFile(n int) (attached, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.files[n]
	return a, ok
}

func (l *Devices) noteFile(n int, a attached) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files == nil {
		l.files = map[int]attached{}
	}
	l.files[n] = a
}

func (l *Devices) hint(b tree.Backing) (n int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok = l.byFile[b]
	return n, ok
}

func (l *Devices) forget(b tree.Backing, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byFile[b] == n {
		delete(l.byFile, b)
	}
}

// remember records that device n has the backing file b.
func (l *Devices) remember(b tree.Backing, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byFile == nil {
		l.byFile = map[tree.Backing]int{}
	}
	l.byFile[b] = n
}

// Backs reports whether the mount that at describes is a filesystem on the device with the backing
// file b, or the node of that device.
func (l *Devices) Backs(at tree.State, b tree.Backing) (bool, error) {
	n, ok := l.NumberOf(at)
	if !ok {
		return false, nil
	}
	has, err := l.FileOf(n)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return has == b, err
}

// NumberOf returns the number of the loop device of a mount: the device that holds its filesystem,
// or the device of a device node.
func (l *Devices) NumberOf(at tree.State) (int, bool) {
	switch {
	case at.Mode&unix.S_IFMT == unix.S_IFBLK:
		return int(at.Device.Minor), at.Device.Major == Major
	case at.ID.Major == Major:
		return int(at.ID.Minor), true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.shown[at.ID]
	return n, ok
}

// ShowsOn records that the root of the btrfs on device n has the identifier id.
func (l *Devices) ShowsOn(id tree.FileID, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown == nil {
		l.shown = map[tree.FileID]int{}
	}
	l.shown[id] = n
}

// MountPointsOfFile returns the users of the backing file that fd, a descriptor with O_PATH, refers
// to. See users.
func (l *Devices) MountPointsOfFile(fd int, b tree.Backing) ([]string, error) {
	paths, err := l.Users(b)
	if !errors.Is(err, mounter.ErrNoAnswer) {
		return paths, err
	}
	// O_NONBLOCK: a lease of another process fails the open, which then does not wait.
	file, failed := os.OpenFile(tree.ProcPath(fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if failed != nil {
		return nil, err
	}
	defer file.Close()
	if isOpenOnce(file) {
		return nil, nil
	}
	return nil, err
}

// Users returns the sorted mount points of the device with the backing file b and of its
// filesystem. If the device is attached but not mounted, users returns the path of the device. A
// device node that was mounted for another backing file does not count: the number of its device
// was used again.
func (l *Devices) Users(b tree.Backing) ([]string, error) {
	n, ok, err := l.DeviceFor(b)
	if err != nil || !ok {
		return nil, err
	}
	filesystems, nodes, err := MountsOf(n)
	if err != nil {
		return nil, err
	}
	paths := []string{}
	for _, i := range filesystems {
		paths = append(paths, i.Mountpoint)
	}
	for _, i := range nodes {
		if !tree.IsStale(i.Mountpoint, b) {
			paths = append(paths, i.Mountpoint)
		}
	}
	if len(paths) == 0 && !Released(n, b) {
		paths = append(paths, Path(n))
	}
	slices.Sort(paths)
	return paths, nil
}

// MountsOf returns the mounts of the filesystem on a device, and the mounts of its node.
func MountsOf(n int) (filesystems, nodes []*mountinfo.Info, err error) {
	node := Path(n)
	_, err = mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		switch {
		case i.Source == node, i.Major == Major && i.Minor == n:
			filesystems = append(filesystems, i)
		case i.Root == strings.TrimPrefix(node, "/dev"):
			nodes = append(nodes, i)
		}
		return true, false // the variables above keep the entry
	})
	return filesystems, nodes, err
}

// IsClaimed reports whether a device has an exclusive user. This is a filesystem that is mounted in
// any mount namespace, or a filesystem that is frozen and so outlives its last mount.
func IsClaimed(n int) (bool, error) {
	fd, err := unix.Open(Path(n), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: Path(n), Err: err}
	}
	return false, unix.Close(fd)
}

// Released reports whether an unmounted device gives up its file within about 500 ms. The kernel
// detaches the file when the last process closes the device, and a process that only inspects the
// device can be the last for a moment.
func Released(n int, b tree.Backing) bool {
	for wait := time.Millisecond; wait <= 256*time.Millisecond; wait *= 2 {
		if has, err := FileOfDevice(n); errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) ||
			(err == nil && has != b) {
			return true
		}
		time.Sleep(wait)
	}
	return false
}

// SetAutoclear sets whether the kernel detaches a device after its last close and unmount.
func SetAutoclear(dev *os.File, on bool) error {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if tree.IsDead(err) { // the filesystem of the file does not answer; the driver's devices have no other settings
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

// Usage returns the size of a device.
func Usage(n int) (mounter.Usage, error) {
	dev, err := Open(n, true)
	if err != nil {
		return mounter.Usage{}, err
	}
	defer dev.Close()
	size, err := dev.Seek(0, io.SeekEnd)
	return mounter.Usage{TotalBytes: size}, err
}

// FileOfDevice asks a device for its backing file. Errors: unix.ENXIO if the device has none.
func FileOfDevice(n int) (tree.Backing, error) {
	dev, err := Open(n, true)
	if err != nil {
		return tree.Backing{}, err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return tree.Backing{}, &fs.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	return tree.Backing{Dev: info.Device, Ino: info.Inode}, nil
}

// Open opens the loop device with number n.
func Open(n int, readOnly bool) (*os.File, error) {
	flag := os.O_RDWR
	if readOnly {
		flag = os.O_RDONLY
	}
	return os.OpenFile(Path(n), flag|unix.O_CLOEXEC, 0)
}

// Path returns the path of the loop device with number n.
func Path(n int) string { return "/dev/loop" + strconv.Itoa(n) }

// Number returns the number of the loop device at path, and false for other paths.
func Number(path string) (int, bool) {
	digits, ok := strings.CutPrefix(path, "/dev/loop")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil
}

// NumberAt returns the number of the loop device whose node is mounted at p, or at DeviceName in
// the directory at p. Without such a device, loop returns false.
func NumberAt(p tree.Handle) (int, bool) {
	at, err := p.Stat()
	if err == nil && !at.Mounted && at.Mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.NodeState()
	}
	return int(at.Device.Minor), err == nil && at.Mounted &&
		at.Mode&unix.S_IFMT == unix.S_IFBLK && at.Device.Major == Major
}
