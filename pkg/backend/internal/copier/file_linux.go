package copier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	chunk = 16 << 20  // what is copied between two looks at the context, in bytes
	small = 128 << 10 // a file up to this size is read and written in one go: asking for its holes costs more
	block = 4096      // the smallest hole that is kept by looking for zeros
)

// Clone makes dst, an empty file, share all blocks of src: one FICLONE, a point in time, which can't be interrupted
// and holds writers of src up. It is for who holds a freeze: nothing is made durable, dst.Sync is the caller's. Where
// the filesystem can't, or not for these two files, the error is errors.ErrUnsupported.
func Clone(src, dst *os.File) error {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	in, out := int(src.Fd()), int(dst.Fd())
	if err := copyNoCow(in, out); err != nil {
		return fmt.Errorf("clone %q: %w", src.Name(), err)
	}
	err := retry(func() error { return unix.IoctlFileClone(out, in) })
	if err != nil && cannot(err) {
		return fmt.Errorf("clone %q: %w: %w", src.Name(), errors.ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("clone %q: %w", src.Name(), err)
	}
	return nil
}

// step is how much CloneWithin shares between two looks at the context, in bytes.
const step = 256 << 20

// CloneWithin is Clone piece by piece, so that it can end with ctx: it is a point in time only while nobody writes to
// src. After an error dst is to be truncated before it is used.
func CloneWithin(ctx context.Context, src, dst *os.File) error {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	in, out := int(src.Fd()), int(dst.Fd())
	var from unix.Statx_t
	err := errors.Join(statx(in, &from), copyNoCow(in, out))
	for at := int64(0); err == nil && at < int64(from.Size); at += step {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("clone %q: %w", src.Name(), err)
		}
		r := unix.FileCloneRange{Src_fd: int64(in), Src_offset: uint64(at), Dest_offset: uint64(at)}
		if rest := int64(from.Size) - at; rest > step {
			r.Src_length = step // 0 is up to the end
		}
		err = retry(func() error { return unix.IoctlFileCloneRange(out, &r) })
	}
	if err != nil && cannot(err) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("clone %q: %w", src.Name(), err)
	}
	return nil
}

// Held returns how many bytes of the disk a file takes, as if it shared none of them.
func Held(file *os.File) (int64, error) {
	defer runtime.KeepAlive(file)
	var st unix.Statx_t
	if err := statx(int(file.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at %q: %w", file.Name(), err)
	}
	return int64(st.Blocks) * 512, nil
}

// File copies src, a regular file, to dst, which is a new and empty one: by Clone where that can be, else its data
// without its holes. It copies what the size is at the start. dst is durable, its entry in the directory isn't. Who
// syncs src first spares its writers a wait. errors.Is knows ENOSPC and EDQUOT. After an error dst is to be discarded.
func File(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	defer runtime.KeepAlive(src) // or the collector may close it in the middle
	defer runtime.KeepAlive(dst)
	in, out := int(src.Fd()), int(dst.Fd())
	var from, to unix.Statx_t
	err := errors.Join(statx(in, &from), statx(out, &to))
	if err == nil && (from.Mode&unix.S_IFMT != unix.S_IFREG || to.Mode&unix.S_IFMT != unix.S_IFREG || to.Size != 0) {
		err = fmt.Errorf("not from a regular file to an empty one: %w", unix.EINVAL)
	}
	c := content{progress: o.Progress}
	if err == nil {
		err = c.copy(ctx, in, out, int64(from.Size))
	}
	if err == nil {
		err = retry(func() error { return unix.Fsync(out) })
	}
	if err != nil {
		return Copied, fmt.Errorf("copy %q: %w", src.Name(), err)
	}
	return c.how(), nil
}

// content copies what is in files, and remembers what it has learned about the filesystem.
type content struct {
	progress *Progress
	noClone  atomic.Bool // the filesystem can't
	noRange  atomic.Bool
	written  atomic.Bool // a file was copied
}

func (c *content) how() How {
	if c.written.Load() {
		return Copied
	}
	return Cloned
}

func (c *content) add(n int64) {
	if c.progress != nil {
		c.progress.bytes.Add(n)
	}
}

// copy copies the content of in, size bytes, to out, which is empty.
func (c *content) copy(ctx context.Context, in, out int, size int64) error {
	if size == 0 {
		return nil
	}
	if err := c.share(ctx, in, out, size); err != nil || c.progress == nil {
		return err
	}
	var st unix.Statx_t
	if err := statx(out, &st); err != nil {
		return err
	}
	c.progress.held.Add(int64(st.Blocks) * 512)
	return nil
}

// share makes out hold what in does, by sharing blocks where that can be.
func (c *content) share(ctx context.Context, in, out int, size int64) error {
	cloned, err := c.clone(in, out)
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	if cloned {
		c.add(size)
		return nil
	}
	c.written.Store(true)
	end, err := c.extents(ctx, in, out, size)
	if err != nil {
		return err
	}
	if end < size { // it has shrunk
		if err := unix.Ftruncate(out, end); err != nil {
			return fmt.Errorf("truncate: %w", err)
		}
	}
	return nil
}

// clone tries to share the blocks.
func (c *content) clone(in, out int) (cloned bool, err error) {
	if c.noClone.Load() {
		return false, nil
	}
	if err := copyNoCow(in, out); err != nil {
		return false, err
	}
	err = retry(func() error { return unix.IoctlFileClone(out, in) })
	if err == nil || !cannot(err) {
		return err == nil, err
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ETXTBSY) { // these are about the one file
		c.noClone.Store(true)
	}
	return false, nil
}

// extents copies the data of in, and leaves holes where it has holes. It returns where in ends, size at most.
func (c *content) extents(ctx context.Context, in, out int, size int64) (end int64, err error) {
	if size <= small {
		return c.read(ctx, in, out, 0, size, size)
	}
	if err := unix.Ftruncate(out, size); err != nil {
		return 0, fmt.Errorf("truncate: %w", err)
	}
	for at := int64(0); at < size; {
		data, hole, err := nextData(in, at, size)
		if err != nil {
			return 0, fmt.Errorf("look for data: %w", err)
		}
		c.add(data - at)
		if at, err = c.span(ctx, in, out, data, hole, size); err != nil {
			return 0, err
		}
		if at < hole {
			break
		}
	}
	var now unix.Statx_t
	err = statx(in, &now)
	return min(size, int64(now.Size)), err
}

// nextData returns the first extent of data of fd at or after at, both ends size at most.
func nextData(fd int, at, size int64) (data, hole int64, err error) {
	data, err = unix.Seek(fd, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // a hole up to the end
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // the filesystem can't tell
		return at, size, nil
	case err != nil:
		return 0, 0, err
	}
	hole, err = unix.Seek(fd, data, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) { // it has shrunk
		return size, size, nil
	}
	return min(data, size), min(hole, size), err
}

// span copies what is from at to hole, and returns where it stopped: before hole if the file has shrunk.
func (c *content) span(ctx context.Context, in, out int, at, hole, size int64) (int64, error) {
	for at < hole && !c.noRange.Load() {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		r, w := at, at
		n, err := unix.CopyFileRange(in, &r, out, &w, int(min(chunk, hole-at)), 0)
		switch {
		case err != nil && cannot(err):
			c.noRange.Store(true)
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return at, fmt.Errorf("copy at %d: %w", at, err)
		case n == 0: // the end; some filesystems say so of what they can't do
			return c.read(ctx, in, out, at, hole, size)
		default:
			flush(out, at, int64(n))
			c.add(int64(n))
			at += int64(n)
		}
	}
	if at == hole {
		return at, nil
	}
	return c.read(ctx, in, out, at, hole, size)
}

// buffers are what read reads into.
var buffers = sync.Pool{New: func() any { return new([small]byte) }}

var zeros [block]byte

// read copies what is from at to hole by reading and writing, without blocks of zeros. It returns where it stopped.
func (c *content) read(ctx context.Context, in, out int, at, hole, size int64) (int64, error) {
	buffer := buffers.Get().(*[small]byte)
	defer buffers.Put(buffer)
	end := at // of what is written
	for at < hole {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		n, err := unix.Pread(in, buffer[:min(small, hole-at)], at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return at, fmt.Errorf("read at %d: %w", at, err)
		}
		if n == 0 {
			break
		}
		if end, err = writeSparse(out, buffer[:n], at, end); err != nil {
			return at, fmt.Errorf("write at %d: %w", at, err)
		}
		c.add(int64(n))
		at += int64(n)
	}
	if size <= small && end < at { // a larger file has its size
		if err := unix.Ftruncate(out, at); err != nil {
			return at, fmt.Errorf("truncate: %w", err)
		}
	}
	return at, nil
}

// writeSparse writes what is at an offset of the file, but for its blocks of zeros. It returns where the last byte
// that was written ends, or end if none was.
func writeSparse(fd int, what []byte, at, end int64) (int64, error) {
	isZero := func(from int) bool {
		part := what[from:min(from+block, len(what))]
		return bytes.Equal(part, zeros[:len(part)])
	}
	for from := 0; from < len(what); {
		to := from
		for to < len(what) && !isZero(to) {
			to = min(to+block, len(what))
		}
		if to == from {
			from += block
			continue
		}
		for from < to {
			n, err := unix.Pwrite(fd, what[from:to], at+int64(from))
			if err != nil && !errors.Is(err, unix.EINTR) {
				return end, err
			}
			from += max(n, 0)
		}
		end = at + int64(to)
	}
	return end, nil
}

// flush starts to write a chunk out, and waits for the one before. Else gigabytes would be dirty at the end, and
// whoever on the node calls fsync then would wait for all of them. An error is left to fsync, which tells it again.
func flush(fd int, at, n int64) {
	if n < chunk {
		return
	}
	unix.SyncFileRange(fd, at, n, unix.SYNC_FILE_RANGE_WRITE)
	if at >= chunk {
		const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
		unix.SyncFileRange(fd, at-chunk, chunk, wait)
	}
}

// cannot tells whether the error of a call says that the filesystem, the kernel or these two files don't have it.
func cannot(err error) bool {
	for _, e := range []unix.Errno{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.ENOTTY, unix.ETXTBSY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retry calls what again while a signal interrupts it: the Go runtime sends itself some.
func retry(what func() error) error {
	for {
		if err := what(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func statx(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, st)
}

const (
	getFlags = unix.FS_IOC_GETFLAGS
	setFlags = unix.FS_IOC_SETFLAGS
	noCow    = 0x00800000 // FS_NOCOW_FL
)

// copyNoCow gives out, a file or directory of btrfs without content, the flag C if in has it, and takes it if in
// hasn't: files of which one has it can't share blocks. Other filesystems have no such flag.
func copyNoCow(in, out int) error {
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(out, &fs) }); err != nil || fs.Type != unix.BTRFS_SUPER_MAGIC {
		return err
	}
	from, err := unix.IoctlGetUint32(in, getFlags)
	if err != nil { // another filesystem without flags
		return nil
	}
	to, err := unix.IoctlGetUint32(out, getFlags)
	if err != nil || (from^to)&noCow == 0 {
		return err
	}
	err = unix.IoctlSetPointerInt(out, setFlags, int(to^noCow))
	if err != nil && cannot(err) { // it is compressed, say; then the blocks are copied
		return nil
	}
	return err
}
