package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// differ is a subject with a backend.Differ.
type differ struct {
	*snapshotter
	backend.Differ
	start int64 // offset in bytes of the test's content; before it is a fake filesystem
}

// differing skips the test if the volumes are not block images. differing first checks that all
// methods reject a snapshot of such a volume.
func differing(s *subject) *differ {
	s.Helper()
	d := &differ{snapshotter: snapshotting(s), Differ: optional[backend.Differ](s)}
	m, end := d.where(d.create(d.request("pvc-0")).ID)
	end()
	switch m.Kind {
	case mounter.Directory, mounter.Share:
		snapshot := d.snap("snap-0", d.create(d.request("pvc-0")).ID).ID
		d.refuses(snapshot, snapshot, 0, backend.ErrInvalid)
		s.Skip("these volumes are not block images")
	case mounter.Image:
		d.start = MiB
	}
	return d
}

// reopen closes the backend and opens the storage again, like a new process.
func (d *differ) reopen() {
	d.Helper()
	d.snapshotter.reopen()
	d.Differ = d.Backend.(backend.Differ)
}

// refuses checks that Delta returns want, and if base and target are equal, that Allocated and
// SnapshotSize do so, too. SnapshotSize may succeed if want is ErrOutOfRange.
func (d *differ) refuses(base, target string, from int64, want error) {
	d.Helper()
	ctx := context.Background()
	never := func(offset, length int64) error {
		d.Errorf("a range of %d bytes at %d was reported, want none", length, offset)
		return nil
	}
	if err := d.Delta(ctx, base, target, from, nil, never); !errors.Is(err, want) {
		d.Errorf("Delta(%.60q, %.60q) from %d = %v, want %v", base, target, from, err, want)
	}
	if base != target {
		return
	}
	if err := d.Allocated(ctx, target, from, nil, never); !errors.Is(err, want) {
		d.Errorf("Allocated(%.60q) from %d = %v, want %v", target, from, err, want)
	}
	if size, err := d.SnapshotSize(ctx, target, nil); !errors.Is(err, want) && !errors.Is(want, backend.ErrOutOfRange) {
		d.Errorf("SnapshotSize(%.60q) = %d, %v, want %v", target, size, err, want)
	}
}

// image is a snapshot with its content.
type image struct {
	backend.Snapshot
	bytes []byte
}

// takeImage creates a snapshot, and reads its content from a restored volume, which it deletes
// then.
func (d *differ) takeImage(name, volume string) image {
	d.Helper()
	v, err := d.Get(context.Background(), volume, nil)
	if err != nil {
		d.Fatal(err)
	}
	i := image{Snapshot: d.snap(name, volume)}
	if size, err := d.SnapshotSize(context.Background(), i.ID, nil); err != nil || size != v.Size {
		d.Errorf("SnapshotSize of a snapshot of a volume of %d bytes = %d, %v", v.Size, size, err)
	}
	o := d.request("copy of " + name)
	o.Required = 0
	look, err := d.Restore(context.Background(), i.ID, o)
	if err != nil {
		d.Fatal(err)
	}
	m, end := d.where(look.ID)
	if i.bytes, err = os.ReadFile(m.Source); err != nil {
		d.Fatal(err)
	}
	end()
	i.bytes = i.bytes[:v.Size]
	d.delete(look.ID)
	return i
}

// scribble writes random data and zeros at random offsets.
func (d *differ) scribble(volume string, size int64, seed uint64) {
	d.Helper()
	m, end := d.where(volume)
	defer end()
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 12 {
		p := make([]byte, 1+random.Int64N(48<<10))
		at := d.start + random.Int64N(size-d.start-int64(len(p))+1)
		if i == 0 {
			at = size - int64(len(p)) // up to the end
		}
		for j := range p {
			if i%3 != 2 {
				p[j] = byte(random.Uint32())
			}
		}
		d.writeAt(m, at, p)
	}
}

// writeTo writes p to a volume.
func (d *differ) writeTo(volume string, at int64, p []byte) {
	d.Helper()
	m, end := d.where(volume)
	defer end()
	d.writeAt(m, at, p)
}

// allocated returns zeros with the ranges of target that Allocated reports.
func (d *differ) allocated(target image, from int64) []byte {
	d.Helper()
	return d.apply("Allocated", nil, target, from, func(each func(offset, length int64) error) error {
		return d.Allocated(context.Background(), target.ID, from, nil, each)
	})
}

// delta returns base with the ranges of target that Delta reports.
func (d *differ) delta(base, target image, from int64) []byte {
	d.Helper()
	return d.apply("Delta", base.bytes, target, from, func(each func(offset, length int64) error) error {
		return d.Delta(context.Background(), base.ID, target.ID, from, nil, each)
	})
}

// apply returns a copy of old with the reported ranges of target. apply checks that the ranges are
// valid.
func (d *differ) apply(
	name string, old []byte, target image, from int64, report func(each func(offset, length int64) error) error,
) []byte {
	d.Helper()
	size := int64(len(target.bytes))
	result := make([]byte, size)
	copy(result, old)
	end := int64(-1)
	err := report(func(offset, length int64) error {
		if offset < 0 || length <= 0 || offset < end || offset+length > size || offset+length <= from {
			d.Errorf("%s of %d bytes from %d: invalid range of %d bytes at %d after a range that ends at %d",
				name, size, from, length, offset, end)
			return errors.New("invalid range")
		}
		end = offset + length
		copy(result[offset:end], target.bytes[offset:end])
		return nil
	})
	if err != nil {
		d.Errorf("%s from %d: %v", name, from, err)
	}
	return result
}

// equal checks that got is equal to the content of the snapshot, from an offset on.
func (d *differ) equal(name string, got []byte, want image, from int64) {
	d.Helper()
	from = max(from, d.start)
	if a, b := got[from:], want.bytes[from:]; !bytes.Equal(a, b) {
		at := from
		for i := range a {
			if a[i] != b[i] {
				at += int64(i)
				break
			}
		}
		d.Errorf("%s: the result differs from snapshot %s at %d", name, want.ID, at)
	}
}

// offsets returns valid values of from for the snapshot.
func (d *differ) offsets(i image) []int64 {
	size := int64(len(i.bytes))
	return []int64{0, 1, 4095, 4096, d.start + 100<<10, size / 2, size - 4096, size - 1, size}
}

// oddSize creates a volume with a size that is a multiple of 4 KiB only.
func (d *differ) oddSize() backend.Volume {
	d.Helper()
	o := d.request("pvc-1")
	o.Required = Size + 4096
	return d.create(o)
}

func allocates(s *subject) {
	d := differing(s)
	v := d.oddSize()
	empty := d.takeImage("empty", v.ID)
	d.scribble(v.ID, v.Size, 1)
	full := d.takeImage("full", v.ID)
	d.delete(v.ID)
	d.reopen()
	for _, i := range []image{empty, full} {
		for _, from := range d.offsets(i) {
			d.equal(fmt.Sprint("Allocated from ", from), d.allocated(i, from), i, from)
		}
	}
}

func changes(s *subject) {
	d := differing(s)
	v := d.oddSize()
	images := []image{d.takeImage("empty", v.ID)}
	same := bytes.Repeat([]byte("16 bytes, always"), 16<<10) // written at the old end, and in the added space
	for i := range 3 {
		d.scribble(v.ID, v.Size, uint64(i))
		d.writeTo(v.ID, v.Size-int64(len(same)), same)
		images = append(images, d.takeImage(fmt.Sprint("snap-", i), v.ID))
	}
	if e, ok := s.Backend.(backend.Expander); ok {
		size, _, err := e.Expand(context.Background(), v.ID, backend.ExpandOptions{Required: v.Size + MiB})
		if err != nil {
			d.Fatal(err)
		}
		images = append(images, d.takeImage("grown", v.ID))
		d.scribble(v.ID, size, 7)
		d.writeTo(v.ID, v.Size, same)
		images = append(images, d.takeImage("grown, and written to", v.ID))
	}
	d.delete(v.ID)
	d.reopen()
	for i, base := range images {
		for j, target := range images {
			if i > 0 && j > 0 && max(i, j)-min(i, j) > 2 { // test only near snapshots, and each with the first
				continue
			}
			d.equal(fmt.Sprintf("Delta from snapshot %s", base.ID), d.delta(base, target, 0), target, 0)
		}
	}
	base, target := images[1], images[2]
	for _, from := range d.offsets(target) {
		d.equal(fmt.Sprint("Delta from ", from), d.delta(base, target, from), target, from)
	}
}

func changesRefused(s *subject) {
	d := differing(s)
	one, two := d.create(d.request("pvc-1")), d.create(d.request("pvc-2"))
	d.scribble(one.ID, one.Size, 1)
	first, other := d.takeImage("first", one.ID), d.takeImage("other", two.ID)
	d.refuses(first.ID, other.ID, 0, backend.ErrInvalid)
	d.refuses(other.ID, first.ID, 0, backend.ErrInvalid)
	ofCopy := d.takeImage("of a restored volume", d.restore("restored", first.ID).ID)
	d.refuses(first.ID, ofCopy.ID, 0, backend.ErrInvalid)
	for _, from := range []int64{-1, one.Size + 1, 1 << 62, -1 << 62} {
		d.refuses(first.ID, first.ID, from, backend.ErrOutOfRange)
	}
	for _, bad := range append(unusual(first.ID), "", "\x00", first.ID+"\x00", strings.Repeat("x", 4096), one.ID) {
		d.refuses(bad, bad, 0, backend.ErrNotFound)
		d.refuses(first.ID, bad, 0, backend.ErrNotFound)
		d.refuses(bad, first.ID, 0, backend.ErrNotFound)
	}
}

// stopsEarly returns an error from each, and cancels the context.
func stopsEarly(s *subject) {
	d := differing(s)
	v := d.create(d.request("pvc-1"))
	empty := d.takeImage("empty", v.ID)
	d.scribble(v.ID, v.Size, 1)
	full := d.takeImage("full", v.ID)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	enough := errors.New("enough")
	for name, report := range map[string]func(ctx context.Context, each func(offset, length int64) error) error{
		"Allocated": func(ctx context.Context, each func(offset, length int64) error) error {
			return d.Allocated(ctx, full.ID, 0, nil, each)
		},
		"Delta": func(ctx context.Context, each func(offset, length int64) error) error {
			return d.Delta(ctx, empty.ID, full.ID, 0, nil, each)
		},
	} {
		calls := 0
		err := report(context.Background(), func(int64, int64) error { calls++; return enough })
		if !errors.Is(err, enough) || calls != 1 {
			d.Errorf("%s = %v after %d ranges, want the error of the first range", name, err, calls)
		}
		if err := report(ctx, func(int64, int64) error { return nil }); err != nil &&
			!errors.Is(err, context.Canceled) {
			d.Errorf("a canceled %s = %v, want the error of the context", name, err)
		}
	}
}
