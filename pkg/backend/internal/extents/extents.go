// Package extents finds the ranges of a file that hold data, and the ranges in which two files
// differ. The package asks the filesystem for the addresses of the blocks instead of reading them.
// A file and its reflink share the blocks that were not written since. Where the addresses prove
// nothing, the package reads the blocks.
//
// The content of the files must not change during a call, as that of snapshots does not. The
// filesystem may move their blocks. A call moves the offset of a file and takes less than 1 MiB of
// memory. Ranges are reported in ascending order, without overlaps. They start and end at multiples
// of Block; the last range may end at the end of the file. Adjacent ranges are reported as a range
// of at most 1 GiB, so that a caller can resume after an interruption.
package extents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Block is the unit of all ranges, in bytes.
const Block = 4096

// ErrOffset reports an offset that is negative or beyond the end.
var ErrOffset = errors.New("offset out of range")

// Each is called for every range, in order. Its first error ends the iteration, which returns that
// error.
type Each func(offset, length int64) error

// Allocated calls each for the ranges of a file that hold data. All other ranges read as zeros;
// reported ranges may, too. The first range ends after from, and may start at the beginning of
// from's block. Errors: ErrOffset, the error of the context.
func Allocated(ctx context.Context, file *os.File, from int64, each Each) error {
	f, err := newSide(file)
	if err != nil {
		return err
	}
	if from < 0 || from > f.size {
		return fmt.Errorf("%w: %d of a file of %d bytes", ErrOffset, from, f.size)
	}
	if from == f.size {
		return nil
	}
	out := newMerger(from, f.size, each)
	for at := floor(from); at < f.size; {
		found, end, err := f.window(ctx, at, ceil(f.size))
		if err != nil {
			return err
		}
		for _, e := range found {
			if err := out.add(e.start, e.end); err != nil {
				return err
			}
		}
		at = end
	}
	return out.flush()
}

// Delta calls each for the ranges in which target differs from base. A base that is shorter is
// compared as if zeros followed; ranges beyond the end of target are not reported. The first range
// ends after from, and may start at the beginning of from's block. Errors: ErrOffset if from is not
// within target, the error of the context.
//
// related asserts that both files come from a common file by reflinks (FICLONE), in any number of
// steps, and without a copy of data. Files on different disks can have blocks at the same
// addresses. If related is true, Delta reports a superset, as it reports a block that was rewritten
// with the same data. If related is false, or the addresses of the filesystem prove nothing, Delta
// reads the blocks, and the result is exact.
func Delta(ctx context.Context, base, target *os.File, related bool, from int64, each Each) error {
	b, err := newSide(base)
	if err != nil {
		return err
	}
	t, err := newSide(target)
	if err != nil {
		return err
	}
	d := delta{base: b, target: t}
	if related {
		if d.trusted, d.count, err = sameDisk(base, target); err != nil {
			return err
		}
	}
	return d.run(ctx, from, each)
}

// extent is a range of a file that holds data, with its address on the disk.
type extent struct {
	start, end int64
	physical   int64 // if plain
	plain      bool  // equal addresses mean equal data
}

// side is one of the files of a comparison, or the file of Allocated.
type side struct {
	file *os.File
	size int64

	// window returns the extents from start on, in order and between start and end. The list is
	// complete up to the returned offset, which is end or, if there are too many extents, less.
	window func(ctx context.Context, start, limit int64) (found []extent, end int64, err error)
}

func newSide(file *os.File) (*side, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file.Name())
	}
	f := &side{file: file, size: info.Size()}
	look := newLook(file)
	f.window = func(ctx context.Context, start, limit int64) ([]extent, int64, error) {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if start >= ceil(f.size) {
			return nil, limit, nil
		}
		found, end, err := look(ctx, start, min(limit, ceil(f.size)))
		if err == nil && end == ceil(f.size) {
			end = limit
		}
		return found, end, err
	}
	return f, nil
}

// delta is a comparison of two files.
type delta struct {
	base, target *side
	trusted      bool // addresses are comparable
	count        func() (extents [2]uint32, err error)
	reader       comparison
	out          *merger
}

func (d *delta) run(ctx context.Context, from int64, each Each) error {
	if from < 0 || from > d.target.size {
		return fmt.Errorf("%w: %d of a file of %d bytes", ErrOffset, from, d.target.size)
	}
	if from == d.target.size {
		return nil
	}
	d.reader = comparison{base: d.base.file, target: d.target.file}
	d.out = newMerger(from, d.target.size, each)
	at, end := floor(from), ceil(d.target.size)
	// In the block in which only one of the files ends, equal addresses do not mean equal data: the
	// bytes behind the end of a file are undefined.
	if seam := min(d.base.size, d.target.size); d.base.size != d.target.size && seam%Block != 0 && at <= seam {
		if err := d.walk(ctx, at, floor(seam)); err != nil {
			return err
		}
		if err := d.reader.run(ctx, floor(seam), min(ceil(seam), d.target.size), d.out.add); err != nil {
			return err
		}
		at = ceil(seam)
	}
	if err := d.walk(ctx, at, end); err != nil {
		return err
	}
	return d.out.flush()
}

// walk passes through both files, a window at a time.
func (d *delta) walk(ctx context.Context, at, limit int64) error {
	for at < limit {
		base, target, end, err := d.bothExtents(ctx, at, limit)
		if err != nil {
			return err
		}
		for at < end {
			b, bEnd := next(&base, at, end)
			t, tEnd := next(&target, at, end)
			until := min(bEnd, tEnd)
			if err := d.decide(ctx, at, until, b, t); err != nil {
				return err
			}
			at = until
		}
	}
	return nil
}

// attempts is the limit of attempts for a range whose extents are being moved.
const attempts = 3

// bothExtents returns the extents of both files from at on, and the offset up to which both lists
// are complete. All plain extents had their addresses at the same moment. Otherwise the filesystem
// could free an extent of base and give its address to target between the two requests, and the
// extents would seem equal.
//
// So bothExtents reads the extents of base again after those of target, which takes half as long
// again. This is not necessary where the extents of both files can be counted and the filesystem
// moves them only to reduce their number: on xfs, where the time matters most.
func (d *delta) bothExtents(ctx context.Context, at, limit int64) (base, target []extent, end int64, err error) {
	for range attempts {
		before, err := d.counts()
		if err != nil {
			return nil, nil, 0, err
		}
		if base, end, err = d.base.window(ctx, at, limit); err != nil {
			return nil, nil, 0, err
		}
		if target, end, err = d.target.window(ctx, at, end); err != nil {
			return nil, nil, 0, err
		}
		stayed, err := d.stayed(ctx, at, end, base, before)
		if err != nil {
			return nil, nil, 0, err
		}
		if stayed {
			return base, target, end, nil
		}
	}
	doubtful := []extent{{start: at, end: end}}
	return doubtful, doubtful, end, nil
}

// stayed reports whether the extents of base from at to end are still at their addresses.
func (d *delta) stayed(ctx context.Context, at, end int64, base []extent, before [2]uint32) (bool, error) {
	if !d.trusted {
		return true, nil
	}
	if d.count != nil {
		after, err := d.count()
		return after == before, err
	}
	again, againEnd, err := d.base.window(ctx, at, end)
	return againEnd == end && slices.Equal(truncate(base, end), again), err
}

// counts returns the numbers of extents of the files, or nothing if they are unknown.
func (d *delta) counts() (extents [2]uint32, err error) {
	if !d.trusted || d.count == nil {
		return extents, nil
	}
	return d.count()
}

// decide reports a range in which the files differ. In each file the range is a hole or lies in a
// single extent.
func (d *delta) decide(ctx context.Context, at, until int64, base, target *extent) error {
	switch {
	case base == nil && target == nil:
		return nil
	case !d.trusted, base != nil && !base.plain, target != nil && !target.plain:
		return d.reader.run(ctx, at, until, d.out.add)
	case base != nil && target != nil && base.physical-base.start == target.physical-target.start:
		return nil
	}
	return d.out.add(at, until)
}

// next returns the first extent if it contains at, and its end; otherwise the end of the hole at
// at. next drops extents that end before at.
func next(extents *[]extent, at, limit int64) (*extent, int64) {
	for len(*extents) > 0 && (*extents)[0].end <= at {
		*extents = (*extents)[1:]
	}
	if len(*extents) == 0 {
		return nil, limit
	}
	first := &(*extents)[0]
	if first.start > at {
		return nil, min(first.start, limit)
	}
	return first, min(first.end, limit)
}

// truncate returns the part of extents before end. It modifies extents.
func truncate(extents []extent, end int64) []extent {
	for len(extents) > 0 && extents[len(extents)-1].start >= end {
		extents = extents[:len(extents)-1]
	}
	if n := len(extents); n > 0 {
		extents[n-1].end = min(extents[n-1].end, end)
	}
	return extents
}

// appendExtent appends e to extents, or extends the last extent if e follows it on the disk.
func appendExtent(extents []extent, e extent) []extent {
	if n := len(extents); n > 0 {
		last := &extents[n-1]
		if last.end == e.start && last.plain == e.plain &&
			(!e.plain || last.physical+last.end-last.start == e.physical) {
			last.end = e.end
			return extents
		}
	}
	return append(extents, e)
}

// chunk is the number of bytes that are read of a file at a time.
const chunk = 256 << 10

// comparison compares two files by reading.
type comparison struct {
	base, target *os.File
	buffers      []byte
}

// run calls report for the blocks from start to end that differ. A shorter file reads as zeros
// behind its end.
func (c *comparison) run(ctx context.Context, start, end int64, report func(start, end int64) error) error {
	if c.buffers == nil {
		c.buffers = make([]byte, 2*chunk)
	}
	for at := start; at < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		until := min(floor(at)+chunk, end)
		b, t := c.buffers[:until-at], c.buffers[chunk:chunk+until-at]
		if err := read(c.base, b, at); err != nil {
			return err
		}
		if err := read(c.target, t, at); err != nil {
			return err
		}
		if bytes.Equal(b, t) {
			at = until
			continue
		}
		for first := at; at < until; at = min(floor(at)+Block, until) {
			from, to := at-first, min(floor(at)+Block, until)-first
			if bytes.Equal(b[from:to], t[from:to]) {
				continue
			}
			if err := report(first+from, first+to); err != nil {
				return err
			}
		}
	}
	return nil
}

// read fills buf from an offset on, with zeros beyond the end of the file.
func read(file *os.File, buf []byte, offset int64) error {
	n, err := file.ReadAt(buf, offset)
	if err != nil && err != io.EOF {
		return err
	}
	clear(buf[n:])
	return nil
}

// maxRange is the length in bytes at which a range is reported although it continues.
const maxRange = 1 << 30

// merger merges ordered ranges into as few ranges of whole blocks as possible, and reports them.
type merger struct {
	each       Each
	size       int64
	start, end int64 // not reported yet; nothing if equal
}

func newMerger(from, size int64, each Each) *merger {
	return &merger{each: each, size: size, start: floor(from), end: floor(from)}
}

// add adds the blocks that overlap the range from start to end.
func (m *merger) add(start, end int64) error {
	start, end = max(floor(start), m.end), min(ceil(end), m.size)
	if start >= end {
		return nil
	}
	if start == m.end && m.end-m.start < maxRange {
		m.end = end
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	m.start, m.end = start, end
	return nil
}

// flush reports the pending range.
func (m *merger) flush() error {
	start := m.start
	if m.start = m.end; start == m.end {
		return nil
	}
	return m.each(start, m.end-start)
}

func floor(offset int64) int64 { return offset / Block * Block }

func ceil(offset int64) int64 { return floor(offset + Block - 1) }
