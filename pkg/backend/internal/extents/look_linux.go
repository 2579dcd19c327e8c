package extents

import (
	"context"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newLook returns a function that looks at extents, as side.window does, but not beyond the end of the file.
func newLook(file *os.File) func(ctx context.Context, start, limit int64) ([]extent, int64, error) {
	request := &fiemap{}
	return func(ctx context.Context, start, limit int64) ([]extent, int64, error) {
		if request != nil {
			found, end, err := request.look(ctx, file, start, limit)
			if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, unix.EBADR) && !errors.Is(err, unix.ENOTTY) {
				return found, end, err
			}
			request = nil // tmpfs has none
		}
		return seek(file, start, limit)
	}
}

// atOnce is how many extents are asked for at once. It bounds the memory.
const atOnce = 2048

// fiemap is struct fiemap of linux/fiemap.h, with room for extents.
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
	fiemapSync    = 1          // FIEMAP_FLAG_SYNC: of what isn't written yet, nobody knows where it will be
	flagRealtime  = 1          // FS_XFLAG_REALTIME
	flagLast      = 0x1        // FIEMAP_EXTENT_LAST
	flagUnwritten = 0x800      // FIEMAP_EXTENT_UNWRITTEN: allocated, and reads as zeros
	flagMerged    = 0x1000     // FIEMAP_EXTENT_MERGED
	flagShared    = 0x2000     // FIEMAP_EXTENT_SHARED
	harmless      = flagLast | flagMerged | flagShared
)

// turn is held by whoever asks for extents: on xfs two at once take eight times as long.
var turn = make(chan struct{}, 1)

func (r *fiemap) look(ctx context.Context, file *os.File, start, limit int64) ([]extent, int64, error) {
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
		// What has any other flag, a new one too, is data whose address says nothing.
		f := extent{start: int64(e.logical), end: int64(e.logical + e.length), plain: e.flags&^harmless == 0}
		if f.plain {
			f.physical = int64(e.physical)
		}
		if f.start < start { // the filesystem may tell of the whole extent
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
		return nil, 0, &os.PathError{Op: "fiemap", Path: file.Name(), Err: errors.New("the filesystem tells of extents out of order")}
	}
	return found, end, nil
}

// seek finds what holds data, but not where.
func seek(file *os.File, start, limit int64) ([]extent, int64, error) {
	var found []extent
	for at := start; at < limit; {
		data, err := file.Seek(at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO) || (err == nil && data >= limit):
			return found, limit, nil
		case errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported):
			return []extent{{start: start, end: limit}}, limit, nil // it may all be data
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

// sameDisk reports whether addresses of two files on this kind of filesystem can be compared: both are addresses of
// one disk, and shared blocks are never written in place.
func sameDisk(base, target *os.File) (bool, error) {
	var disks [2]struct {
		unix.Statfs_t
		unix.Stat_t
		fsxattr
	}
	for i, file := range []*os.File{base, target} {
		conn, err := file.SyscallConn()
		if err != nil {
			return false, err
		}
		var failed error
		err = conn.Control(func(fd uintptr) {
			failed = errors.Join(unix.Fstatfs(int(fd), &disks[i].Statfs_t), unix.Fstat(int(fd), &disks[i].Stat_t))
		})
		if err := errors.Join(err, failed); err != nil {
			return false, err
		}
	}
	if disks[0].Type != disks[1].Type || disks[0].Dev != disks[1].Dev {
		return false, nil
	}
	switch int64(disks[0].Type) {
	case unix.BTRFS_SUPER_MAGIC: // its addresses are of all its disks together
		return true, nil
	case unix.XFS_SUPER_MAGIC:
		err := errors.Join(ioctl(base, iocGetXattr, unsafe.Pointer(&disks[0].fsxattr)), ioctl(target, iocGetXattr, unsafe.Pointer(&disks[1].fsxattr)))
		return err == nil && disks[0].xflags&flagRealtime == disks[1].xflags&flagRealtime, err
	}
	return false, nil
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	xflags uint32
	_      [24]byte
}

// ioctl keeps the file open until it is done: f.Fd() alone wouldn't.
func ioctl(file *os.File, request uintptr, arg unsafe.Pointer) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	if err := conn.Control(func(fd uintptr) { _, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)) }); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}
