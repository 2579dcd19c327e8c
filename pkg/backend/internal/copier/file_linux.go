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
	// chunk is the number of bytes that are copied, step the number of bytes that are shared,
	// between two checks of the context. A step is a multiple of the block size of any filesystem.
	chunk = 16 << 20
	step  = 256 << 20

	// small is the size up to which a file is read and written at once, as a search for holes costs
	// more.
	small = 128 << 10

	// block is the smallest run of zeros that becomes a hole, in bytes.
	block = 4096
)

// Clone makes dst, an empty file, share all blocks of src by a single FICLONE. The copy is of a
// point in time. The call cannot be interrupted, and blocks writers of src. Clone is for the holder
// of a freeze and does not sync: the caller calls dst.Sync. Errors: errors.ErrUnsupported if the
// filesystem cannot share the blocks of these two files.
func Clone(src, dst *os.File) error {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	in, out := int(src.Fd()), int(dst.Fd())
	err := copyFlags(in, out)
	if err == nil {
		err = unsupported(retry(func() error { return unix.IoctlFileClone(out, in) }))
	}
	if err != nil {
		return fmt.Errorf("clone %q: %w", src.Name(), err)
	}
	return nil
}

// CloneWithin is Clone in steps, and ends with ctx. The copy is of a point in time only if no
// process writes to src. After an error the caller truncates dst before dst is used again.
func CloneWithin(ctx context.Context, src, dst *os.File) error {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	in, out := int(src.Fd()), int(dst.Fd())
	var from unix.Statx_t
	err := errors.Join(statx(in, &from), copyFlags(in, out))
	for at := int64(0); err == nil && at < int64(from.Size); at += step {
		if err = ctx.Err(); err == nil {
			err = unsupported(cloneStep(in, out, at, int64(from.Size)))
		}
	}
	if err != nil {
		return fmt.Errorf("clone %q: %w", src.Name(), err)
	}
	return nil
}

// cloneStep makes out share up to step bytes of in from an offset. The last step reaches to the end
// of in, which may have moved.
func cloneStep(in, out int, at, size int64) error {
	r := unix.FileCloneRange{Src_fd: int64(in), Src_offset: uint64(at), Dest_offset: uint64(at)}
	if size-at > step {
		r.Src_length = step // 0 means up to the end
	}
	return retry(func() error { return unix.IoctlFileCloneRange(out, &r) })
}

// unsupported adds errors.ErrUnsupported to the error of a clone that the filesystem cannot make.
func unsupported(err error) error {
	if err != nil && cannot(err) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// OnDisk returns the number of bytes that a file takes on the disk. Shared blocks count.
func OnDisk(file *os.File) (int64, error) {
	defer runtime.KeepAlive(file)
	var st unix.Statx_t
	if err := statx(int(file.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at %q: %w", file.Name(), err)
	}
	return int64(st.Blocks) * 512, nil
}

// image is the path of File in a Progress.
type image string

func (i image) path(string) string { return string(i) }

// File copies src, a regular file, to dst, an empty file: by sharing its blocks if the filesystem
// supports that, otherwise by copying the data without the holes. File copies as many bytes as src
// has at the start. The copy is of a point in time only if no process writes to src. dst is durable
// when File returns, but not its entry in the directory. A caller that syncs src first spares the
// writers of src a wait. errors.Is finds ENOSPC and EDQUOT. After an error the caller discards dst.
func File(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	defer runtime.KeepAlive(src) // otherwise the garbage collector could close src during the copy
	defer runtime.KeepAlive(dst)
	var site worksite
	defer o.Progress.enter(&site)()
	site.beginEntry(image(src.Name()), "")
	c := content{progress: o.Progress, yield: o.Yield}
	if err := c.image(ctx, &site, int(src.Fd()), int(dst.Fd())); err != nil {
		return Copied, fmt.Errorf("copy %q: %w", src.Name(), err)
	}
	o.Progress.addEntry()
	return c.how(), nil
}

// content copies the content of files, and remembers which calls are unsupported.
type content struct {
	progress *Progress   // may be nil
	yield    func()      // may be nil
	noFlags  bool        // the target's filesystem has no flags to copy
	noClone  atomic.Bool // that filesystem cannot share blocks with the source
	noRange  atomic.Bool // that filesystem has no copy_file_range
	written  atomic.Bool // data was copied
}

func (c *content) how() How {
	if c.written.Load() {
		return Copied
	}
	return Cloned
}

// image copies a whole file, and makes it durable.
func (c *content) image(ctx context.Context, site *worksite, in, out int) error {
	var from, to unix.Statx_t
	if err := errors.Join(statx(in, &from), statx(out, &to)); err != nil {
		return err
	}
	if from.Mode&unix.S_IFMT != unix.S_IFREG || to.Mode&unix.S_IFMT != unix.S_IFREG || to.Size != 0 {
		return fmt.Errorf("the source must be a regular file, and the target an empty regular file: %w", unix.EINVAL)
	}
	if err := c.copy(ctx, site, in, out, int64(from.Size)); err != nil {
		return err
	}
	site.beginEntry(nil, "")
	if err := retry(func() error { return unix.Fsync(out) }); err != nil {
		return err
	}
	if err := statx(out, &to); err != nil {
		return err
	}
	c.progress.addHeld(int64(to.Blocks) * 512)
	return nil
}

// copy copies size bytes of in to out, which is empty, at a site.
func (c *content) copy(ctx context.Context, site *worksite, in, out int, size int64) error {
	if size == 0 {
		return nil
	}
	f := transfer{c, site, in, out, size}
	cloned, err := f.clone(ctx)
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	if cloned {
		return nil
	}
	c.written.Store(true)
	end, err := f.extents(ctx)
	if err != nil {
		return err
	}
	if end < size { // the source has shrunk
		if err := unix.Ftruncate(out, end); err != nil {
			return fmt.Errorf("truncate: %w", err)
		}
	}
	return nil
}

// copyFlags is the function copyFlags, without a system call if there are no flags.
func (c *content) copyFlags(in, out int) error {
	if c.noFlags {
		return nil
	}
	return copyFlags(in, out)
}

// transfer is the copy of the content of one file.
type transfer struct {
	*content
	site    *worksite
	in, out int
	size    int64 // bytes to copy: in may grow or shrink
}

// done records the progress of n bytes.
func (f *transfer) done(n int64) {
	f.progress.addBytes(n)
	f.site.moved()
	if f.yield != nil && f.size > small {
		f.yield()
	}
}

// clone tries to share the blocks. If it cannot, it leaves out empty.
func (f *transfer) clone(ctx context.Context) (cloned bool, err error) {
	if f.noClone.Load() {
		return false, nil
	}
	if err := f.copyFlags(f.in, f.out); err != nil {
		return false, err
	}
	if f.size > step {
		err = f.cloneSteps(ctx)
	} else if err = retry(func() error { return unix.IoctlFileClone(f.out, f.in) }); err == nil {
		f.done(f.size)
	}
	if err == nil || !cannot(err) {
		return err == nil, err
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ETXTBSY) { // errors that concern this file alone
		f.noClone.Store(true)
	}
	return false, unix.Ftruncate(f.out, 0)
}

// cloneSteps shares the blocks in steps, so that ctx can end it, and skips steps that are holes: a
// file of one byte may be 8 EiB long. EINVAL: in has shrunk.
func (f *transfer) cloneSteps(ctx context.Context) error {
	done := int64(0)
	for done < f.size {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, _, err := nextData(f.in, done, f.size)
		if err != nil {
			return err
		}
		if data == f.size { // the rest is a hole
			f.done(f.size - done)
			return unix.Ftruncate(f.out, f.size)
		}
		at := max(done, data-data%step)
		if err := cloneStep(f.in, f.out, at, f.size); err != nil {
			f.done(-done) // the caller copies these bytes again
			return err
		}
		end := at + min(step, f.size-at)
		f.done(end - done)
		done = end
	}
	return nil
}

// extents copies the data of in, and keeps its holes. extents returns the end of
// in, at most f.size.
func (f *transfer) extents(ctx context.Context) (end int64, err error) {
	if f.size <= small {
		return f.read(ctx, 0, f.size)
	}
	if err := unix.Ftruncate(f.out, f.size); err != nil {
		return 0, fmt.Errorf("truncate: %w", err)
	}
	for at := int64(0); at < f.size; {
		data, hole, err := nextData(f.in, at, f.size)
		if err != nil {
			return 0, fmt.Errorf("look for data: %w", err)
		}
		f.done(data - at)
		if at, err = f.span(ctx, data, hole); err != nil {
			return 0, err
		}
		if at < hole {
			break
		}
	}
	var now unix.Statx_t
	err = statx(f.in, &now)
	return min(f.size, int64(now.Size)), err
}

// nextData returns the first extent of data of a file at or after an offset. Both ends are at most
// size; data is size if there is no further extent.
func nextData(fd int, at, size int64) (data, hole int64, err error) {
	data, err = unix.Seek(fd, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // a hole up to the end
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // the filesystem does not report holes
		return at, size, nil
	case err != nil:
		return 0, 0, err
	}
	hole, err = unix.Seek(fd, data, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) { // the file has shrunk
		return size, size, nil
	}
	return min(data, size), min(hole, size), err
}

// span copies the bytes from at to hole, and returns where it stopped: before hole if in has
// shrunk.
func (f *transfer) span(ctx context.Context, at, hole int64) (int64, error) {
	for at < hole && !f.noRange.Load() {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		r, w := at, at
		n, err := unix.CopyFileRange(f.in, &r, f.out, &w, int(min(chunk, hole-at)), 0)
		switch {
		case err != nil && cannot(err):
			f.noRange.Store(true)
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return at, fmt.Errorf("copy at %d: %w", at, err)
		case n == 0: // the end of in; some filesystems return 0 if they cannot copy
			return f.read(ctx, at, hole)
		default:
			if err := flush(f.out, at, int64(n)); err != nil {
				return at, err
			}
			f.done(int64(n))
			at += int64(n)
		}
	}
	if at == hole {
		return at, nil
	}
	return f.read(ctx, at, hole)
}

// buffers are the buffers of read.
var buffers = sync.Pool{New: func() any { return new([small]byte) }}

var zeros [block]byte

// read copies the bytes from at to hole by reading and writing, without blocks of zeros. read
// returns where it stopped.
func (f *transfer) read(ctx context.Context, at, hole int64) (int64, error) {
	buffer := buffers.Get().(*[small]byte)
	defer buffers.Put(buffer)
	end := at // of the bytes that are written
	for at < hole {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		n, err := unix.Pread(f.in, buffer[:min(small, hole-at)], at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return at, fmt.Errorf("read at %d: %w", at, err)
		}
		if n == 0 {
			break
		}
		if end, err = writeSparse(f.out, buffer[:n], at, end); err != nil {
			return at, fmt.Errorf("write at %d: %w", at, err)
		}
		f.done(int64(n))
		at += int64(n)
	}
	if f.size <= small && end < at { // a larger file has its final size already
		if err := unix.Ftruncate(f.out, at); err != nil {
			return at, fmt.Errorf("truncate: %w", err)
		}
	}
	return at, nil
}

// writeSparse writes data at an offset of a file, without its blocks of zeros. writeSparse returns
// the end of the last byte that it wrote, or end if it wrote none.
func writeSparse(fd int, data []byte, at, end int64) (int64, error) {
	isZero := func(from int) bool {
		part := data[from:min(from+block, len(data))]
		return bytes.Equal(part, zeros[:len(part)])
	}
	for from := 0; from < len(data); {
		to := from
		for to < len(data) && !isZero(to) {
			to = min(to+block, len(data))
		}
		if to == from {
			from += block
			continue
		}
		for from < to {
			n, err := unix.Pwrite(fd, data[from:to], at+int64(from))
			if err != nil && !errors.Is(err, unix.EINTR) {
				return end, err
			}
			from += max(n, 0)
		}
		end = at + int64(to)
	}
	return end, nil
}

// flush starts to write a chunk to the disk, and waits for the chunk before it. Otherwise gigabytes
// would be dirty at the end, and each fsync on the node would wait for them. A wait returns the
// error of an earlier write, and fsync does not return it again.
func flush(out int, at, n int64) error {
	if n < chunk {
		return nil
	}
	err := retry(func() error { return unix.SyncFileRange(out, at, n, unix.SYNC_FILE_RANGE_WRITE) })
	if err == nil && at >= chunk {
		const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
		err = retry(func() error { return unix.SyncFileRange(out, at-chunk, chunk, wait) })
	}
	if err != nil && !cannot(err) {
		return fmt.Errorf("write to the disk at %d: %w", at, err)
	}
	return nil
}

// cannot reports whether the error of a call means that the kernel, the filesystem or these two
// files do not support it.
func cannot(err error) bool {
	for _, e := range []unix.Errno{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.ENOTTY, unix.ETXTBSY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
