package extents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// span is a reported range.
type span struct{ offset, length int64 }

// collect returns an Each that collects the ranges.
func collect(spans *[]span) Each {
	return func(offset, length int64) error {
		*spans = append(*spans, span{offset, length})
		return nil
	}
}

// newFile returns a file with a content.
func newFile(t testing.TB, content []byte) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// legal fails the test unless spans have the form that the package documents, for a first offset
// and a size.
func legal(t testing.TB, spans []span, from, size int64) {
	t.Helper()
	last := floor(from)
	for i, s := range spans {
		end := s.offset + s.length
		switch {
		case s.length <= 0, s.offset < last, end > size, end <= from,
			s.offset%Block != 0, end%Block != 0 && end != size,
			i > 0 && s.offset == last && spans[i-1].length < maxRange:
			t.Fatalf("range %d of %v from %d in a file of %d", i, spans, from, size)
		}
		last = end
	}
}

// apply copies spans from one content to another.
func apply(spans []span, from, onto []byte) {
	for _, s := range spans {
		copy(onto[s.offset:s.offset+s.length], from[s.offset:])
	}
}

// content returns the content of a file.
func content(t testing.TB, f *os.File) []byte {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// holds checks Allocated and Delta for two files: from an offset on, all data and all differences
// are reported. If related is false, and with verified, all reported blocks differ.
func holds(t testing.TB, base, target *os.File, related bool, from int64) {
	t.Helper()
	ctx := context.Background()
	old, now := content(t, base), content(t, target)
	size := int64(len(now))
	var allocated, changed, exact, compared []span
	err := errors.Join(
		Allocated(ctx, target, from, collect(&allocated)),
		Delta(ctx, base, target, related, from, collect(&changed)),
		Delta(ctx, base, target, related, from, verified(ctx, base, target, collect(&exact))),
		Delta(ctx, base, target, false, from, collect(&compared)))
	if err != nil {
		t.Fatal(err)
	}
	before := make([]byte, size) // the content of base, truncated or extended to target's size
	copy(before, old)
	for name, c := range map[string]struct {
		spans []span
		onto  []byte
	}{
		"allocated": {allocated, make([]byte, size)},
		"changed":   {changed, before},
		"exact":     {exact, before},
		"compared":  {compared, before},
	} {
		legalFor := c.spans
		if name == "exact" { // verified may split ranges at the ends of those that it gets
			legalFor = nil
		}
		legal(t, legalFor, from, size)
		got := bytes.Clone(c.onto)
		apply(c.spans, now, got)
		if at := diff(got[from:], now[from:]); at >= 0 {
			t.Fatalf("%s from %d: byte %d is missing: %v", name, from, int64(at)+from, c.spans)
		}
	}
	for _, spans := range [][]span{exact, compared} {
		for _, s := range spans {
			for at := s.offset; at < s.offset+s.length; at += Block {
				end := min(at+Block, size)
				if bytes.Equal(before[at:end], now[at:end]) {
					t.Fatalf("block %d is equal, but is reported", at)
				}
			}
		}
	}
}

// diff returns the first offset at which two contents differ, or -1.
func diff(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// fill returns n bytes with a value.
func fill(n int, with byte) []byte { return bytes.Repeat([]byte{with}, n) }

func TestFilesOfAllSizes(t *testing.T) {
	for _, oldSize := range []int{0, 1, Block - 1, Block, 3*Block + 17, chunk + 5, 3 * chunk} {
		for _, newSize := range []int{0, 1, Block, 3*Block + 18, chunk + 4, 2*chunk + 1} {
			old, now := fill(oldSize, 'a'), fill(newSize, 'a')
			if newSize > 2*Block {
				now[Block+1] = 'b'
				now[newSize-1] = 'b'
			}
			base, target := newFile(t, old), newFile(t, now)
			for _, from := range []int64{0, 1, Block, int64(newSize) - 1, int64(newSize)} {
				if from >= 0 && from <= int64(newSize) {
					holds(t, base, target, false, from)
				}
			}
		}
	}
}

func TestDeltaOfUnrelatedFilesIsExact(t *testing.T) {
	old := fill(2*chunk+100, 'a')
	now := bytes.Clone(old)
	for _, at := range []int{0, 3*Block - 1, 3 * Block, chunk - 1, chunk, 2*chunk + 99} {
		now[at] = 'b'
	}
	var got []span
	if err := Delta(context.Background(), newFile(t, old), newFile(t, now), false, 0, collect(&got)); err != nil {
		t.Fatal(err)
	}
	want := []span{{0, Block}, {2 * Block, 2 * Block}, {chunk - Block, 2 * Block}, {2 * chunk, 100}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestOffsetsOutOfRange(t *testing.T) {
	base, target := newFile(t, fill(3*Block, 'a')), newFile(t, fill(2*Block, 'b'))
	never := func(offset, length int64) error { return fmt.Errorf("called for %d, %d", offset, length) }
	for _, from := range []int64{-1, -Block, 2*Block + 1, 3 * Block} {
		if err := Allocated(context.Background(), target, from, never); !errors.Is(err, ErrOffset) {
			t.Errorf("Allocated from %d = %v", from, err)
		}
		for _, related := range []bool{false, true} {
			if err := Delta(context.Background(), base, target, related, from, never); !errors.Is(err, ErrOffset) {
				t.Errorf("Delta from %d = %v", from, err)
			}
		}
	}
	if err := errors.Join(Allocated(context.Background(), target, 2*Block, never),
		Delta(context.Background(), base, target, true, 2*Block, never)); err != nil {
		t.Errorf("from the end: %v", err)
	}
}

func TestOnlyRegularFilesAreAccepted(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	file := newFile(t, nil)
	for name, err := range map[string]error{
		"Allocated":       Allocated(context.Background(), dir, 0, nil),
		"Delta of base":   Delta(context.Background(), dir, file, true, 0, nil),
		"Delta of target": Delta(context.Background(), file, dir, true, 0, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnErrorOfEachEndsTheIteration(t *testing.T) {
	old := make([]byte, 4*chunk)
	now := bytes.Clone(old)
	for at := 0; at < len(now); at += 2 * Block {
		now[at] = 1
	}
	base, target := newFile(t, old), newFile(t, now)
	stop := errors.New("stop")
	for name, call := range map[string]func(ctx context.Context, each Each) error{
		"Delta": func(ctx context.Context, each Each) error { return Delta(ctx, base, target, false, 0, each) },
		"Verified": func(ctx context.Context, each Each) error {
			return Delta(ctx, base, target, false, 0, verified(ctx, base, target, each))
		},
	} {
		calls := 0
		err := call(context.Background(), func(int64, int64) error {
			if calls++; calls == 3 {
				return stop
			}
			return nil
		})
		if !errors.Is(err, stop) || calls != 3 {
			t.Errorf("%s = %v after %d calls", name, err, calls)
		}
		ctx, cancel := context.WithCancel(context.Background())
		calls = 0
		err = call(ctx, func(int64, int64) error { calls++; cancel(); return nil })
		if !errors.Is(err, context.Canceled) || calls >= len(now)/(2*Block) {
			t.Errorf("%s = %v after %d calls of a canceled context", name, err, calls)
		}
	}
	if err := Allocated(context.Background(), target, 0, func(int64, int64) error { return stop }); !errors.Is(err,
		stop) {
		t.Errorf("Allocated = %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, err := range []error{Allocated(ctx, target, 0, nil), Delta(ctx, base, target, true, 0, nil)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("of a context that was canceled before: %v", err)
		}
	}
}

func TestRangesAreMerged(t *testing.T) {
	var got []span
	m := newMerger(Block+1, 10*Block+5, collect(&got))
	for _, s := range [][2]int64{{Block + 7, Block + 8}, {2*Block - 1, 2*Block + 1}, {3 * Block, 4 * Block},
		{6*Block + 9, 6*Block + 10}, {6*Block + 20, 6*Block + 30}, {10*Block + 1, 11 * Block}} {
		if err := m.add(s[0], s[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.flush(), m.flush()); err != nil {
		t.Fatal(err)
	}
	if want := []span{{Block, 3 * Block}, {6 * Block, Block}, {10 * Block, 5}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLongRangesAreSplit(t *testing.T) {
	var got []span
	m := newMerger(0, 10*maxRange, collect(&got))
	for at := int64(0); at < 3*maxRange; at += maxRange / 2 {
		if err := m.add(at, at+maxRange/2); err != nil {
			t.Fatal(err)
		}
	}
	if want := []span{{0, maxRange}, {maxRange, maxRange}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// disk is a filesystem that returns given extents of a file.
type disk struct {
	extents []extent
	atOnce  int // number of extents in an answer
	looks   int
	moved   func(look int, e []extent) // changes the answer
}

func (d *disk) window(_ context.Context, start, limit int64) ([]extent, int64, error) {
	d.looks++
	all := slices.Clone(d.extents)
	if d.moved != nil {
		d.moved(d.looks, all)
	}
	var found []extent
	for _, e := range all {
		if e.end <= start || e.start >= limit {
			continue
		}
		if e.start < start {
			e.physical, e.start = e.physical+start-e.start, start
		}
		e.end = min(e.end, limit)
		if found = appendExtent(found, e); len(found) == d.atOnce {
			return found, e.end, nil
		}
	}
	return found, limit, nil
}

// pair returns the comparison of two files with given extents.
func pair(t *testing.T, old, now []byte, base, target *disk) *delta {
	b, n := newFile(t, old), newFile(t, now)
	return &delta{
		trusted: true,
		base:    &side{file: b, size: int64(len(old)), window: base.window},
		target:  &side{file: n, size: int64(len(now)), window: target.window},
	}
}

func TestOnlyPlainExtentsAreComparedByAddress(t *testing.T) {
	data := func(start, end, physical int64) extent {
		return extent{start: start * Block, end: end * Block, physical: physical * Block, plain: true}
	}
	doubtful := func(start, end int64) extent { return extent{start: start * Block, end: end * Block} }
	// The files differ only in block 1. Other reported blocks were not read.
	for name, tc := range map[string]struct {
		base, target []extent
		want         []span
	}{
		"the same address": {[]extent{data(0, 4, 100)}, []extent{data(0, 4, 100)}, nil},
		"another address":  {[]extent{data(0, 4, 100)}, []extent{data(0, 4, 200)}, []span{{0, 4 * Block}}},
		"two other addresses": {[]extent{data(0, 4, 100)}, []extent{data(0, 2, 200), data(2, 4, 300)},
			[]span{{0, 4 * Block}}},
		"a block at another address": {[]extent{data(0, 4, 100)},
			[]extent{data(0, 1, 100), data(1, 2, 300), data(2, 4, 102)}, []span{{Block, Block}}},
		"the same address, split": {[]extent{data(0, 4, 100)}, []extent{data(0, 1, 100), data(2, 4, 102)},
			[]span{{Block, Block}}},
		"the address of another block": {[]extent{data(0, 4, 100)}, []extent{data(0, 4, 101)}, []span{{0, 4 * Block}}},
		"two holes":                    {nil, nil, nil},
		"data and a hole":              {[]extent{data(2, 3, 100)}, nil, []span{{2 * Block, Block}}},
		"a hole and data":              {nil, []extent{data(3, 4, 100)}, []span{{3 * Block, Block}}},
		"both doubtful":                {[]extent{doubtful(0, 4)}, []extent{doubtful(0, 4)}, []span{{Block, Block}}},
		"base doubtful":                {[]extent{doubtful(0, 4)}, []extent{data(0, 4, 100)}, []span{{Block, Block}}},
		"target doubtful":              {[]extent{data(0, 4, 100)}, []extent{doubtful(0, 4)}, []span{{Block, Block}}},
		"doubtful and a hole":          {[]extent{doubtful(0, 1)}, []extent{doubtful(1, 2)}, []span{{Block, Block}}},
	} {
		for atOnce := 1; atOnce <= 3; atOnce++ {
			now := make([]byte, 4*Block)
			now[Block] = 1
			d := pair(t, make([]byte, 4*Block), now, &disk{extents: tc.base, atOnce: atOnce},
				&disk{extents: tc.target, atOnce: atOnce})
			var got []span
			if err := d.run(context.Background(), 0, collect(&got)); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s, %d at once: got %v, want %v", name, atOnce, got, tc.want)
			}
		}
	}
}

func TestExtentsThatMoveAreRequestedAgainThenRead(t *testing.T) {
	old, now := fill(2*Block, 'a'), fill(2*Block, 'a')
	now[Block] = 'b'
	layout := func() []extent { return []extent{{start: 0, end: 2 * Block, physical: 100 * Block, plain: true}} }
	for name, tc := range map[string]struct {
		stays int // the look from which on base is not moved
		want  []span
		looks int
	}{
		"base stays":                 {0, nil, 2},               // the disk returns equal addresses
		"base moves once":            {2, []span{{0, 8192}}, 4}, // and then has another address
		"base moves again and again": {100, []span{{Block, Block}}, 2 * attempts},
	} {
		base := &disk{extents: layout(), atOnce: 10,
			moved: func(look int, e []extent) { e[0].physical += int64(min(look-1, tc.stays)) * Block }}
		var got []span
		err := pair(t, old, now, base, &disk{extents: layout(), atOnce: 10}).run(context.Background(), 0, collect(&got))
		if err != nil || !slices.Equal(got, tc.want) || base.looks != tc.looks {
			t.Errorf("%s: %v, %v after %d looks, want %v after %d", name, got, err, base.looks, tc.want, tc.looks)
		}
	}
}

func TestCountedExtentsAreRequestedOnce(t *testing.T) {
	old, now := fill(2*Block, 'a'), fill(2*Block, 'a')
	now[Block] = 'b'
	layout := []extent{{start: 0, end: 2 * Block, physical: 100 * Block, plain: true}}
	for name, tc := range map[string]struct {
		changes int // how many times the number changes
		want    []span
		looks   int
	}{
		"they stay":             {0, nil, 1},
		"some are moved":        {1, nil, 2},
		"more and more of them": {100, []span{{Block, Block}}, attempts},
	} {
		base := &disk{extents: layout, atOnce: 10}
		d, asked := pair(t, old, now, base, &disk{extents: layout, atOnce: 10}), 0
		d.count = func() ([2]uint32, error) {
			asked++
			return [2]uint32{7, uint32(min(asked/2, tc.changes))}, nil
		}
		var got []span
		if err := d.run(context.Background(), 0, collect(&got)); err != nil || !slices.Equal(got, tc.want) ||
			base.looks != tc.looks {
			t.Errorf("%s: %v, %v after %d looks, want %v after %d", name, got, err, base.looks, tc.want, tc.looks)
		}
	}
	d, wrong := pair(t, old, now, &disk{}, &disk{}), errors.New("wrong")
	d.count = func() ([2]uint32, error) { return [2]uint32{}, wrong }
	if err := d.run(context.Background(), 0, nil); !errors.Is(err, wrong) {
		t.Errorf("an error: %v", err)
	}
}

// TestOneFileEndsInABlock: both files share a block, but one file ends in it.
func TestOneFileEndsInABlock(t *testing.T) {
	now := fill(2*Block, 'a')
	one := []extent{{start: 0, end: 2 * Block, physical: 100 * Block, plain: true}}
	var got []span
	d := pair(t, now[:Block+10], now, &disk{extents: one, atOnce: 10}, &disk{extents: one, atOnce: 10})
	if err := d.run(context.Background(), 0, collect(&got)); err != nil || !slices.Equal(got, []span{{Block, Block}}) {
		t.Errorf("got %v, %v", got, err)
	}
	got = nil
	d = pair(t, now, now[:Block+10], &disk{extents: one, atOnce: 10}, &disk{extents: one, atOnce: 10})
	if err := d.run(context.Background(), 0, collect(&got)); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestAnyDisk makes disks with a known layout of a few blocks, which are smaller than Block.
func TestAnyDisk(t *testing.T) {
	const unit, units = Block / 4, 64
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		blocks := [units * 4][]byte{} // of the disk, by address
		for i := range blocks {
			blocks[i] = fill(unit, byte(1+i%3)) // blocks at other addresses may be equal
		}
		layout := func(like *disk) (*disk, []byte) {
			d, data := &disk{atOnce: 1 + r.IntN(5)}, make([]byte, units*unit)
			for i := range int64(units) {
				e := extent{start: i * unit, end: (i + 1) * unit, physical: r.Int64N(int64(len(blocks))) * unit,
					plain: r.IntN(10) > 0}
				if like != nil && r.IntN(8) > 0 {
					at := slices.IndexFunc(like.extents,
						func(e extent) bool { return e.start <= i*unit && e.end > i*unit })
					if at < 0 {
						continue
					}
					e.physical, e.plain = like.extents[at].physical+i*unit-like.extents[at].start,
						like.extents[at].plain
				} else if r.IntN(4) == 0 {
					continue
				}
				if e.physical/unit >= int64(len(blocks)) {
					continue
				}
				copy(data[e.start:], blocks[e.physical/unit])
				d.extents = append(d.extents, e)
			}
			return d, data
		}
		base, old := layout(nil)
		target, now := layout(base)
		size := int64(units*unit - r.IntN(2*unit))
		now = now[:size]
		from := r.Int64N(size)
		var got []span
		if err := pair(t, old, now, base, target).run(context.Background(), from, collect(&got)); err != nil {
			t.Fatal(err)
		}
		legal(t, got, from, size)
		apply(got, now, old)
		if at := diff(old[from:size], now[from:]); at >= 0 {
			t.Fatalf("seed %d from %d: byte %d is missing: %v", seed, from, at, got)
		}
	}
}

// TestManyExtents needs several windows.
func TestManyExtents(t *testing.T) {
	const pieces = 5000
	path := filepath.Join(t.TempDir(), "sparse")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range int64(pieces) {
		if _, err := f.WriteAt([]byte{1}, 2*i*Block); err != nil {
			t.Fatal(err)
		}
	}
	empty := newFile(t, nil)
	if err := os.Truncate(empty.Name(), 2*pieces*Block); err != nil {
		t.Fatal(err)
	}
	holds(t, empty, f, true, 7*Block+3)
	var got []span
	if err := Delta(context.Background(), empty, f, false, 0, collect(&got)); err != nil || len(got) != pieces {
		t.Errorf("%d ranges, %v; want %d", len(got), err, pieces)
	}
}

// verified returns an Each that compares each range in both files, and calls each for the blocks
// that differ.
func verified(ctx context.Context, base, target *os.File, each Each) Each {
	c := comparison{base: base, target: target}
	return func(offset, length int64) error {
		out := newMerger(offset, offset+length, each)
		if err := c.run(ctx, offset, offset+length, out.add); err != nil {
			return err
		}
		return out.flush()
	}
}
