//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// directoryCloud is a cloud with the disks and snapshots in a directory each:
//
//	<dir>/disks/<id>/{image,record.json}
//	<dir>/snapshots/<id>/{image,record.json}
//	<dir>/unfinished/            incomplete and deleted objects; removed at start
//
// A directory is filled in unfinished, made durable, and renamed into its place. A record is
// replaced by a rename. So a crash leaves the old state or the new one. The size of a disk is that
// of its image. The comments of cloud describe the methods.
type directoryCloud struct {
	dir   *os.File // locked
	nodes []string // that the cloud knows; nil: any
	limit int64    // of the disks on a node; 0: none
	log   *slog.Logger

	// mu is held by every call, but not while a disk is detached: that takes as long as the disk
	// takes to write.
	mu        sync.Mutex
	disks     map[string]record // durable disks, by ID, as the snapshots
	snapshots map[string]backend.Snapshot
}

// record is the record of a disk. It is replaced, not changed, except for plugged.
type record struct {
	Serial   string                `json:"serial"`
	Snapshot string                `json:"snapshot,omitempty"`
	Origin   string                `json:"origin,omitempty"`
	Attached map[string]attachment `json:"attached"` // by node
	size     int64                 // bytes
	plugged  map[string]bool       // nodes that have a loop device of it now
}

// Directories and files of the cloud.
const (
	disksDir, snapshotsDir, unfinishedDir = "disks", "snapshots", "unfinished"
	imageName, recordName                 = "image", "record.json"
)

// openCloud opens the cloud, and attaches the disks that were attached when the machine went down.
func openCloud(path string, nodes []string, limit int64, log *slog.Logger) (_ cloud, err error) {
	c := &directoryCloud{nodes: nodes, limit: limit, log: log, disks: map[string]record{},
		snapshots: map[string]backend.Snapshot{}}
	if c.dir, err = os.Open(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.dir.Close()
		}
	}()
	if err := unix.Flock(int(c.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%s is used by another process: %w", path, err)
	}
	if err := os.RemoveAll(c.path(unfinishedDir)); err != nil {
		return nil, err
	}
	for _, dir := range []string{disksDir, snapshotsDir, unfinishedDir} {
		if err := os.Mkdir(c.path(dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	if err := errors.Join(c.dir.Sync(), syncDir(c.path(disksDir)), syncDir(c.path(snapshotsDir)),
		c.canClone()); err != nil {
		return nil, err
	}
	return c, c.load()
}

// load reads the records. A loop device does not survive a boot, so it is attached again. If that
// fails, the node does not have the disk until the next AttachDisk, but no other node can have it.
func (c *directoryCloud) load() error {
	if err := eachRecord(c, disksDir, func(id string, r record, size int64) {
		r.size, r.plugged = size, map[string]bool{}
		c.disks[id] = r
		for node := range r.Attached {
			if err := c.plug(id, node); err != nil {
				c.log.Error("a disk is not attached again: the CO must call ControllerPublishVolume", "volume", id,
					"node", node, "error", err)
			}
		}
	}); err != nil {
		return err
	}
	return eachRecord(c, snapshotsDir, func(id string, n backend.Snapshot, size int64) {
		n.ID, n.Size = id, size
		c.snapshots[id] = n
	})
}

// eachRecord calls do for everything in a directory, with its ID and the size of its image. A
// record that a killed call has replaced becomes durable.
func eachRecord[T any](c *directoryCloud, dir string, do func(id string, r T, size int64)) error {
	entries, err := os.ReadDir(c.path(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		var r T
		err := syncDir(c.path(dir, e.Name()))
		data, readErr := os.ReadFile(c.path(dir, e.Name(), recordName))
		if err = errors.Join(err, readErr); err == nil {
			err = json.Unmarshal(data, &r)
		}
		info, statErr := os.Stat(c.image(dir, e.Name()))
		if err = errors.Join(err, statErr); err != nil {
			return fmt.Errorf("%s: %w", c.path(dir, e.Name()), err)
		}
		do(e.Name(), r, info.Size())
	}
	return nil
}

// Close closes the directory. Attached disks stay attached.
func (c *directoryCloud) Close() error { return c.dir.Close() }

func (c *directoryCloud) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir.Name()}, elem...)...)
}

func (c *directoryCloud) image(dir, id string) string { return c.path(dir, id, imageName) }

func (c *directoryCloud) lock() (unlock func()) {
	c.mu.Lock()
	return c.mu.Unlock
}

// canClone returns an error for a filesystem without reflinks. A copy of an attached disk that
// takes time would have no point in time.
func (c *directoryCloud) canClone() error {
	from, to := c.path(unfinishedDir, "from"), c.path(unfinishedDir, "to")
	err := makeImage(from, "", 0)
	if err == nil {
		err = makeImage(to, from, 0)
	}
	if err != nil {
		return fmt.Errorf("the filesystem must have reflinks, as xfs and btrfs: %w", err)
	}
	return errors.Join(os.Remove(from), os.Remove(to))
}

// make creates the object id in dir, durably: a record, and an image of size bytes with the content
// of the image from, or empty if from is "". An error other than ErrUnavailable means that nothing
// is left.
func (c *directoryCloud) make(dir, id string, record any, from string, size int64) error {
	half, whole := c.path(unfinishedDir, id), c.path(dir, id)
	err := os.RemoveAll(half)
	if err == nil {
		err = os.Mkdir(half, 0o700)
	}
	if err == nil {
		err = errors.Join(makeImage(filepath.Join(half, imageName), from, size), writeRecord(half, record))
	}
	if err == nil {
		err = os.Rename(half, whole)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFBIG) {
		err = fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	if err == nil {
		if err = c.settle(dir); err == nil {
			return nil
		}
		err = errors.Join(err, os.Rename(whole, half)) // not visible yet
	}
	return errors.Join(err, os.RemoveAll(half))
}

func makeImage(path, from string, size int64) error {
	image, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer image.Close()
	if from != "" {
		source, err := os.Open(from)
		if err != nil {
			return err
		}
		defer source.Close()
		if err := unix.IoctlFileClone(int(image.Fd()), int(source.Fd())); err != nil {
			return &fs.PathError{Op: "FICLONE", Path: from, Err: err}
		}
	}
	return errors.Join(image.Truncate(size), image.Sync())
}

// writeRecord replaces the record in a directory, durably.
func writeRecord(dir string, record any) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, recordName+".new")
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(temp, filepath.Join(dir, recordName))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(dir)
}

// remove deletes the object id in dir, if all has it. Its space is freed now, or at the next start.
func remove[T any](c *directoryCloud, dir, id string, all map[string]T) error {
	if _, ok := all[id]; !ok {
		return nil
	}
	gone := c.path(unfinishedDir, id)
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	// moved by a call that failed later
	if err := os.Rename(c.path(dir, id), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(c.settle(dir), c.settle(unfinishedDir)); err != nil {
		return err
	}
	delete(all, id)
	os.RemoveAll(gone)
	return nil
}

// settle makes the entries of a directory durable. If that fails, the outcome of the call is
// unknown.
func (c *directoryCloud) settle(dir string) error {
	return unavailable(syncDir(c.path(dir)))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// find looks an object up by its ID. Errors: ErrNotFound.
func find[T any](all map[string]T, what, id string) (T, error) {
	found, ok := all[id]
	if !ok {
		return found, fmt.Errorf("%w: %s %.64q", backend.ErrNotFound, what, id)
	}
	return found, nil
}

// page returns up to limit objects with IDs above after, in their order, and whether there are
// more.
func page[T, U any](all map[string]T, after string, limit int,
	show func(id string, o T) (shown U, wanted bool)) (shown []U, more bool, err error) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		o, wanted := show(id, all[id])
		switch {
		case id <= after || !wanted:
		case len(shown) == limit:
			return shown, true, nil
		default:
			shown = append(shown, o)
		}
	}
	return shown, false, nil
}

func (c *directoryCloud) CreateDisk(_ context.Context, d disk) (disk, error) {
	defer c.lock()()
	if old, ok := c.disks[d.ID]; ok {
		return old.disk(d.ID), nil
	}
	var err error
	image, held := "", int64(0)
	if d.SourceSnapshot != "" {
		var n backend.Snapshot
		n, err = find(c.snapshots, "snapshot", d.SourceSnapshot)
		image, held = c.image(snapshotsDir, d.SourceSnapshot), n.Size
	} else if d.SourceVolume != "" {
		var r record
		r, err = find(c.disks, "volume", d.SourceVolume)
		image, held = c.image(disksDir, d.SourceVolume), r.size
	}
	if err == nil && d.Size < held {
		err = fmt.Errorf("%w: invalid size %d: the source has %d bytes", backend.ErrOutOfRange, d.Size, held)
	}
	if err != nil {
		return d, err
	}
	// 20 bytes are as many as virtio shows of a serial number.
	r := record{Serial: rand.Text()[:20], Snapshot: d.SourceSnapshot, Origin: d.SourceVolume,
		Attached: map[string]attachment{}, size: d.Size, plugged: map[string]bool{}}
	if err := c.make(disksDir, d.ID, r, image, d.Size); err != nil {
		return d, err
	}
	c.disks[d.ID] = r
	return r.disk(d.ID), nil
}

// disk returns the disk of a record.
func (r record) disk(id string) disk {
	nodes := slices.Sorted(maps.Keys(r.plugged))
	return disk{backend.Volume{ID: id, Size: r.size, SourceSnapshot: r.Snapshot, SourceVolume: r.Origin, Nodes: nodes},
		r.Serial}
}

func (c *directoryCloud) Disk(_ context.Context, id string) (disk, error) {
	defer c.lock()()
	r, err := find(c.disks, "volume", id)
	return r.disk(id), err
}

func (c *directoryCloud) Disks(_ context.Context, after string, limit int) (disks []disk, more bool, err error) {
	defer c.lock()()
	return page(c.disks, after, limit, func(id string, r record) (disk, bool) { return r.disk(id), true })
}

func (c *directoryCloud) DeleteDisk(_ context.Context, id string) error {
	defer c.lock()()
	if nodes := slices.Sorted(maps.Keys(c.disks[id].Attached)); len(nodes) > 0 {
		return fmt.Errorf("%w: volume %s is attached to %q", backend.ErrInUse, id, nodes)
	}
	return remove(c, disksDir, id, c.disks)
}

func (c *directoryCloud) GrowDisk(_ context.Context, id string, size int64) error {
	defer c.lock()()
	r, err := find(c.disks, "volume", id)
	if err != nil {
		return err
	}
	image, err := os.OpenFile(c.image(disksDir, id), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	if size > r.size {
		if err := image.Truncate(size); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrOutOfRange, err)
		}
		r.size = size // also if the sync fails: a later call must not make the image smaller
		c.disks[id] = r
	}
	err = image.Sync() // also when a call is repeated: the first may have died here
	for node := range r.plugged {
		err = errors.Join(err, replug(label(r.Serial, id, node)))
	}
	return unavailable(err)
}

// AttachDisk records that a disk is attached, and then attaches it: a crash between is made good by
// the next call, or by the next start.
func (c *directoryCloud) AttachDisk(_ context.Context, id, node string, a attachment) (attachment, error) {
	defer c.lock()()
	r, err := find(c.disks, "volume", id)
	if err != nil {
		return a, err
	}
	if c.nodes != nil && !slices.Contains(c.nodes, node) {
		return a, fmt.Errorf("%w: node %.64q, must be one of %q", backend.ErrNotFound, node, c.nodes)
	}
	if old, ok := r.Attached[node]; ok {
		a.Size = old.Size
		if a != old {
			return a, fmt.Errorf("%w: the disk is attached to node %q with another capability, or read-only on one "+
				"side", backend.ErrExists, node)
		}
	} else {
		if err := errors.Join(r.shares(a), c.hasRoom(node)); err != nil {
			return a, err
		}
		r.Attached = maps.Clone(r.Attached)
		r.Attached[node] = a
		if err := c.rewrite(id, r); err != nil {
			return a, err
		}
	}
	return a, unavailable(c.plug(id, node))
}

// shares returns ErrInUse if no other node can have the disk with the access a.
func (r record) shares(a attachment) error {
	for _, node := range slices.Sorted(maps.Keys(r.Attached)) {
		switch other := r.Attached[node]; {
		case !a.ManyNodes || !other.ManyNodes:
			return fmt.Errorf("%w: the disk is attached to node %q, must be on one node only", backend.ErrInUse, node)
		case (a.OneWriter || other.OneWriter) && !a.ReadOnly && !other.ReadOnly:
			return fmt.Errorf("%w: the disk is attached to node %q, which writes, and must have one writer only",
				backend.ErrInUse, node)
		}
	}
	return nil
}

// hasRoom returns ErrExhausted if a node cannot have another disk.
func (c *directoryCloud) hasRoom(node string) error {
	n := int64(0)
	for _, r := range c.disks {
		if _, ok := r.Attached[node]; ok {
			n++
		}
	}
	if c.limit > 0 && n >= c.limit {
		return fmt.Errorf("%w: node %q has %d disks, must have at most %d", backend.ErrExhausted, node, n, c.limit)
	}
	return nil
}

// rewrite replaces the record of a disk. After an error, the old record or the new record can be in
// effect: the caller repeats its call.
func (c *directoryCloud) rewrite(id string, r record) error {
	if err := writeRecord(c.path(disksDir, id), r); err != nil {
		return unavailable(err)
	}
	c.disks[id] = r
	return nil
}

// plug attaches a disk to a node as its record describes.
func (c *directoryCloud) plug(id, node string) error {
	r := c.disks[id]
	err := plug(c.image(disksDir, id), label(r.Serial, id, node), r.Attached[node].ReadOnly)
	if err == nil {
		r.plugged[node] = true
	}
	return err
}

func (c *directoryCloud) DetachDisk(ctx context.Context, id, node string) error {
	unlock := c.lock()
	r := c.disks[id]
	unlock()
	for _, at := range slices.Sorted(maps.Keys(r.Attached)) {
		if node == "" || node == at {
			if err := c.detach(ctx, id, r.Serial, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// detach detaches a disk from a node, and then removes that from the record.
func (c *directoryCloud) detach(ctx context.Context, id, serial, node string) error {
	if err := unplug(ctx, label(serial, id, node)); err != nil {
		return err
	}
	defer c.lock()()
	r := c.disks[id]
	delete(r.plugged, node)
	r.Attached = maps.Clone(r.Attached)
	delete(r.Attached, node)
	return c.rewrite(id, r)
}

// CreateSnapshot copies by reflink.
func (c *directoryCloud) CreateSnapshot(_ context.Context, id, source string) (n backend.Snapshot, err error) {
	defer c.lock()()
	if old, ok := c.snapshots[id]; ok {
		return old, nil
	}
	r, err := find(c.disks, "volume", source)
	if err != nil {
		return n, err
	}
	n = backend.Snapshot{ID: id, Source: source, Size: r.size, Created: time.Now()}
	if err := c.make(snapshotsDir, id, n, c.image(disksDir, source), r.size); err != nil {
		return n, err
	}
	c.snapshots[id] = n
	return n, nil
}

func (c *directoryCloud) Snapshot(_ context.Context, id string) (backend.Snapshot, error) {
	defer c.lock()()
	return find(c.snapshots, "snapshot", id)
}

func (c *directoryCloud) Snapshots(_ context.Context, source, after string,
	limit int) ([]backend.Snapshot, bool, error) {
	defer c.lock()()
	return page(c.snapshots, after, limit, func(_ string, n backend.Snapshot) (backend.Snapshot, bool) {
		return n, source == "" || n.Source == source
	})
}

func (c *directoryCloud) DeleteSnapshot(_ context.Context, id string) error {
	defer c.lock()()
	return remove(c, snapshotsDir, id, c.snapshots)
}

// unavailable marks an error after which the caller repeats its call: the call may have had its
// effect.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
}
