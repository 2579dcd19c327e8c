package backendtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// copier is a subject that creates volumes from sources, with Restore or with Clone.
type copier struct {
	*subject

	// sourceOf returns the ID of the source: a new snapshot for Restore, the volume itself for
	// Clone.
	sourceOf func(volume string) (id string)

	// remove deletes the source.
	remove func(id string) error

	// call is Restore or Clone.
	call func(context.Context, string, backend.CreateOptions) (backend.Volume, error)

	// from returns the field of a volume that must name the source, and the field that must be
	// empty.
	from func(backend.Volume) (id, other string)

	// field is the name of the first field of from.
	field string
}

// restoring returns a test that uses snapshots and Restore.
func restoring(test func(c *copier)) func(s *subject) {
	return func(s *subject) {
		optional[backend.Snapshotter](s)
		made := 0
		test(&copier{
			subject: s,
			sourceOf: func(volume string) string {
				made++
				return snapshotting(s).snap(fmt.Sprint("snap-", made), volume).ID
			},
			remove: func(id string) error {
				return s.Backend.(backend.Snapshotter).DeleteSnapshot(context.Background(), id, nil)
			},
			call: func(ctx context.Context, id string, o backend.CreateOptions) (backend.Volume, error) {
				return s.Backend.(backend.Snapshotter).Restore(ctx, id, o)
			},
			from:  func(v backend.Volume) (string, string) { return v.SourceSnapshot, v.SourceVolume },
			field: "SourceSnapshot",
		})
	}
}

// cloning returns a test that uses volumes and Clone.
func cloning(test func(c *copier)) func(s *subject) {
	return func(s *subject) {
		optional[backend.Cloner](s)
		test(&copier{
			subject:  s,
			sourceOf: func(volume string) string { return volume },
			remove:   func(id string) error { return s.Delete(context.Background(), id, nil) },
			call: func(ctx context.Context, id string, o backend.CreateOptions) (backend.Volume, error) {
				return s.Backend.(backend.Cloner).Clone(ctx, id, o)
			},
			from:  func(v backend.Volume) (string, string) { return v.SourceVolume, v.SourceSnapshot },
			field: "SourceVolume",
		})
	}
}

// copy creates a volume from the source with this ID.
func (c *copier) copy(id string, o backend.CreateOptions) backend.Volume {
	c.Helper()
	v, err := c.call(context.Background(), id, o)
	if err != nil {
		c.Fatalf("create volume %.40q from %q: %v", o.Name, id, err)
	}
	if from, other := c.from(v); from != id || other != "" {
		c.Errorf("%s = %q, want %q; the other source field = %q, want empty", c.field, from, id, other)
	}
	return v
}

// refusedCopy checks that a copy fails with an error in want and changes nothing.
func (c *copier) refusedCopy(id string, o backend.CreateOptions, want ...error) error {
	c.Helper()
	return c.leavesNothing(fmt.Sprintf("a copy of %.60q, %+v", id, o), func() error {
		_, err := c.call(context.Background(), id, o)
		return err
	}, want...)
}

func copies(c *copier) {
	v := c.create(c.request("pvc-1"))
	c.write(v.ID, "one")
	source := c.sourceOf(v.ID)
	first := c.copy(source, c.request("copy-1"))
	c.holds(first.ID, "one")
	if again := c.copy(source, c.request("copy-1")); again.ID != first.ID || first.ID == v.ID {
		c.Errorf("the second call returned volume %s, want %s as the first, and not %s", again.ID, first.ID, v.ID)
	}
	c.write(first.ID, "the copy's")
	c.holds(v.ID, "one")
	c.write(v.ID, "two")
	c.holds(first.ID, "the copy's")
	ofCopy := c.copy(c.sourceOf(first.ID), c.request("copy-2"))
	c.holds(ofCopy.ID, "the copy's")
	c.delete(first.ID)
	c.holds(ofCopy.ID, "the copy's")

	holds := "one" // the content of the snapshot; a clone has the present content of its source
	if source == v.ID {
		holds = "two"
	}
	last := c.copy(source, c.request("copy-3"))
	if err := c.remove(source); err != nil {
		c.Fatal(err)
	}
	again, err := c.call(context.Background(), source, c.request("copy-3"))
	if err != nil || !reflect.DeepEqual(again, last) {
		c.Errorf("the same call after the source was deleted = %+v, %v, want %+v", again, err, last)
	}
	c.reopen()
	if got, err := c.Get(context.Background(), last.ID, nil); err != nil || !reflect.DeepEqual(got, last) {
		c.Errorf("Get = %+v, %v, want %+v", got, err, last)
	}
	c.holds(last.ID, holds)
	c.refusedCopy(source, c.request("copy-4"), backend.ErrNotFound)
}

func copySizes(c *copier) {
	o := c.request("pvc-1")
	o.Required = 2 * Size
	v := c.create(o)
	c.write(v.ID, "one")
	source := c.sourceOf(v.ID)
	for i, size := range []struct{ required, limit int64 }{
		{0, 0}, {0, v.Size}, {0, 4 * Size}, {v.Size, 0}, {v.Size, v.Size}, {3 * Size, 0}, {3 * Size, 3 * Size},
	} {
		o := c.request(fmt.Sprint("copy-", i))
		o.Required, o.Limit = size.required, size.limit
		got := c.copy(source, o)
		if got.Size < max(o.Required, v.Size) || (o.Limit > 0 && got.Size > o.Limit) {
			c.Errorf("a copy of %d bytes with a size from %d to %d has %d bytes", v.Size, o.Required, o.Limit, got.Size)
		}
		c.holds(got.ID, "one")
		c.delete(got.ID)
	}
	for _, size := range []struct{ required, limit int64 }{
		{1, 0}, {v.Size - 4096, 0}, {0, v.Size - 4096}, {Size, Size},
	} {
		o := c.request("copy")
		o.Required, o.Limit = size.required, size.limit
		c.refusedCopy(source, o, backend.ErrOutOfRange)
	}
	o.Name, o.Required = "copy", 1<<60
	c.refusedCopy(source, o, backend.ErrExhausted, backend.ErrOutOfRange)
}

func copyConflicts(c *copier) {
	v, other := c.create(c.request("pvc-1")), c.create(c.request("pvc-2"))
	source, otherSource := c.sourceOf(v.ID), c.sourceOf(other.ID)
	got := c.copy(source, c.request("copy"))
	c.refusedCopy(source, c.request("pvc-2"), backend.ErrExists) // created without a source
	c.refusedCopy(otherSource, c.request("copy"), backend.ErrExists)
	c.refused(c.request("copy"), backend.ErrExists)
	larger := c.request("copy")
	larger.Required = got.Size + 1
	c.refusedCopy(source, larger, backend.ErrExists)
	if b, ok := c.Backend.(backend.Cloner); ok && source != v.ID {
		c.leavesNothing("Clone with the name of a restored volume", func() error {
			_, err := b.Clone(context.Background(), v.ID, c.request("copy"))
			return err
		}, backend.ErrExists)
	}
	if again := c.copy(source, c.request("copy")); again.ID != got.ID {
		c.Errorf("after the rejected calls the copy is %s, want %s", again.ID, got.ID)
	}
}

func copyRefused(c *copier) {
	v := c.create(c.request("pvc-1"))
	source := c.sourceOf(v.ID)
	for _, bad := range append(unusual(source), "\x00", source+"\x00", source[:len(source)-1],
		strings.Repeat("x", 4096)) {
		c.refusedCopy(bad, c.request("copy"), backend.ErrNotFound)
	}
	o := c.request("copy")
	o.Parameters = c.with("color-of-the-disk", "blue")
	if err := c.refusedCopy(source, o, backend.ErrInvalid); !strings.Contains(err.Error(), "color-of-the-disk") {
		c.Errorf("%v does not name the parameter", err)
	}
	o = c.request("copy")
	o.Access = []backend.Access{{FSType: "fat12"}}
	c.refusedCopy(source, o, backend.ErrInvalid)
	if c.hasFilesystemOfOneNode(v.ID) {
		o.Access = []backend.Access{{SharedWrite: true}}
		c.refusedCopy(source, o, backend.ErrInvalid)
	}
	o.Access = []backend.Access{{Block: !c.access.Block}} // a backend may support this copy
	if got, err := c.call(context.Background(), source, o); err == nil {
		c.delete(got.ID)
	} else {
		c.refusedCopy(source, o, backend.ErrInvalid)
	}
	if b, ok := c.Backend.(backend.Inliner); ok {
		handle := "csi-" + strings.Repeat("0", 64)
		if _, err := b.CreateInline(context.Background(), handle,
			backend.CreateOptions{Access: []backend.Access{{}}, Parameters: c.inline()}); err != nil {
			c.Fatal(err)
		}
		c.refusedCopy(handle, c.request("copy"), backend.ErrNotFound)
	}
}

// copyCanceled makes a call with a canceled context. The call may have started a job, which the
// next call finds.
func copyCanceled(c *copier) {
	source := c.sourceOf(c.create(c.request("pvc-1")).ID)
	before := c.state()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.call(ctx, source, c.request("copy")); err != nil && !errors.Is(err, context.Canceled) {
		c.Errorf("a canceled call = %v, want the error of the context", err)
	}
	v, err := retry(c, func() (backend.Volume, error) {
		return c.call(context.Background(), source, c.request("copy"))
	})
	if err != nil {
		c.Fatal(err)
	}
	c.delete(v.ID)
	if after := c.state(); after != before {
		c.Errorf("objects are %s, want %s as before", after, before)
	}
}

func copyRaces(c *copier) {
	before := c.state()
	for i := range 8 {
		v := c.create(c.request("pvc-1"))
		c.write(v.ID, "one")
		source := c.sourceOf(v.ID)
		made, ok := race(c, func() (backend.Volume, error) {
			return c.call(context.Background(), source, c.request(fmt.Sprint("copy-", i)))
		}, func() error { return c.remove(source) })
		if ok {
			c.holds(made.ID, "one")
			c.delete(made.ID)
		}
		c.delete(v.ID)
	}
	if after := c.state(); after != before {
		c.Errorf("objects are %s, want %s as before", after, before)
	}
}
