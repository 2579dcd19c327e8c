package extents

import (
	"context"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newLook returns a function that works as side.window, but not beyond the end of the file.
func newLook(file *os.File) func(ctx context.Context, start, limit int64) ([]extent, int64, error) {
	request := &fiemap{}
	return func(ctx context.Context, start, limit int64) ([]extent, int64, error) {
		if request != nil {
			found, end, err := request.readExtents(ctx, file, start, limit)
			if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, unix.EBADR) && !errors.Is(err, unix.ENOTTY) {
				return found, end, err
			}
			request = nil // tmpfs has no FIEMAP
		}
		return seek(file, start, limit)
	}
}

// atOnce is the number of extents of a request. It limits the memory.
const atOnce = 2048

// fiemap is struct fiemap of linux/fiemap.h, with space for extents.
type fiemap struct {
	start, length uint64
	flags         uint32
	mapped        uint32
	count         uint32
	_             uint32
	extents       [atOnce]fiemapExtent
}

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

const (
	iocFiemap     = 0xC020660B // FS_IOC_FIEMAP
	iocGetXattr   = 0x801C581F // FS_IOC_FSGETXATTR
	fiemapSync    = 1          // FIEMAP_FLAG_SYNC: data that is not written yet has no address
	flagRealtime  = 1          // FS_XFLAG_REALTIME
	flagLast      = 0x1        // FIEMAP_EXTENT_LAST
	flagUnwritten = 0x800      // FIEMAP_EXTENT_UNWRITTEN: allocated, and reads as zeros
	flagMerged    = 0x1000     // FIEMAP_EXTENT_MERGED
	flagShared    = 0x2000     // FIEMAP_EXTENT_SHARED
	harmless      = flagLast | flagMerged | flagShared
)

// turn serializes requests for extents: two concurrent requests on xfs take eight times as long.
var turn = make(chan struct{}, 1)

func (r *fiemap) readExtents(ctx context.Context, file *os.File, start, limit int64) ([]extent, int64, error) {
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	r.start, r.length, r.flags, r.count = uint64(start), uint64(limit-start), fiemapSync, atOnce
	if err := ioctl(file, iocFiemap, unsafe.Pointer(r)); err != nil {
		return nil, 0, &os.PathError{Op: "fiemap", Path: file.Name(), Err: err}
	}
	var found []extent
	for _, e := range r.extents[:r.mapped] {
		if e.flags&^harmless == flagUnwritten {
			continue
		}
		// An extent with any other flag, also an unknown flag, is data whose address proves
		// nothing.
		f := extent{start: int64(e.logical), end: int64(e.logical + e.length), plain: e.flags&^harmless == 0}
		if f.plain {
			f.physical = int64(e.physical)
		}
		if f.start < start { // the filesystem may return the whole extent
			if f.plain {
				f.physical += start - f.start
			}
			f.start = start
		}
		if f.end = min(f.end, limit); f.start < f.end {
			found = appendExtent(found, f)
		}
	}
	if r.mapped < atOnce {
		return found, limit, nil
	}
	last := r.extents[atOnce-1]
	end := min(int64(last.logical+last.length), limit)
	if end <= start {
		return nil, 0, &os.PathError{Op: "fiemap", Path: file.Name(),
			Err: errors.New("the filesystem returned extents out of order")}
	}
	return found, end, nil
}

// seek finds ranges of data, without addresses.
func seek(file *os.File, start, limit int64) ([]extent, int64, error) {
	var found []extent
	for at := start; at < limit; {
		data, err := file.Seek(at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO) || (err == nil && data >= limit):
			return found, limit, nil
		case errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported):
			return []extent{{start: start, end: limit}}, limit, nil // all bytes may be data
		case err != nil:
			return nil, 0, err
		}
		hole, err := file.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return nil, 0, err
		}
		at = min(hole, limit)
		if found = append(found, extent{start: data, end: at}); len(found) == atOnce {
			return found, at, nil
		}
	}
	return found, limit, nil
}

// sameDisk reports whether the addresses of two files on this filesystem type are comparable: both
// are on one disk, and the filesystem never overwrites shared blocks in place. count may be nil.
func sameDisk(base, target *os.File) (trusted bool, count func() ([2]uint32, error), err error) {
	b, err := diskOf(base)
	if err != nil {
		return false, nil, err
	}
	t, err := diskOf(target)
	if err != nil || b != t {
		return false, nil, err
	}
	switch b.kind {
	case unix.BTRFS_SUPER_MAGIC: // its addresses span all its disks
		return true, nil, nil
	case unix.XFS_SUPER_MAGIC:
		xb, err := xattrOf(base)
		if err != nil {
			return false, nil, err
		}
		xt, err := xattrOf(target)
		return err == nil && xb.flags&flagRealtime == xt.flags&flagRealtime,
			func() ([2]uint32, error) { return counts(base, target) }, err
	}
	return false, nil, nil
}

// diskID identifies the filesystem of a file: its type and its device.
type diskID struct {
	kind   int64
	device uint64
}

func diskOf(file *os.File) (diskID, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return diskID{}, err
	}
	var fs unix.Statfs_t
	var stat unix.Stat_t
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = errors.Join(unix.Fstatfs(int(fd), &fs), unix.Fstat(int(fd), &stat))
	})
	id := diskID{kind: int64(fs.Type), device: uint64(stat.Dev)} //nolint:unconvert // 32 bits on 386
	return id, errors.Join(err, failed)
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags   uint32
	_       uint32
	extents uint32
	_       [16]byte
}

func xattrOf(file *os.File) (x fsxattr, err error) {
	if err := ioctl(file, iocGetXattr, unsafe.Pointer(&x)); err != nil {
		return x, &os.PathError{Op: "get the extended attributes of", Path: file.Name(), Err: err}
	}
	return x, nil
}

// counts returns the numbers of extents of two files on xfs. Programs that move extents (xfs_fsr)
// reduce their number.
func counts(base, target *os.File) (extents [2]uint32, err error) {
	for i, file := range []*os.File{base, target} {
		x, err := xattrOf(file)
		if err != nil {
			return extents, err
		}
		extents[i] = x.extents
	}
	return extents, nil
}

// ioctl keeps the file open until the call returns: a finalizer could close it after f.Fd().
func ioctl(file *os.File, request uintptr, arg unsafe.Pointer) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	if err := conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg))
	}); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}
