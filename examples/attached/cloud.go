//go:build linux

package main

import (
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

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// cloud has the disks and snapshots, each in a directory of its own:
//
//	<dir>/disks/<id>/{image,record.json}
//	<dir>/snapshots/<id>/{image,record.json}
//	<dir>/unfinished/            what was not finished, or is being deleted; removed at start
//
// A directory is filled in unfinished, made durable, and renamed into its place. A record is replaced
// by a rename. So a crash leaves the old state or the new one. The size of a disk is that of its image.
type cloud struct {
	dir *os.File // locked
	log *slog.Logger

	// mu is held by every call, but not while a disk is detached: that takes as long as the disk takes
	// to write. The driver makes one changing call at a time for each volume.
	mu        sync.Mutex
	disks     map[string]*disk
	snapshots map[string]*backend.Snapshot
}

// disk is the record of a disk.
type disk struct {
	Serial   string                `json:"serial"`             // of no other disk, ever
	Snapshot string                `json:"snapshot,omitempty"` // ID of what it was made from
	Origin   string                `json:"origin,omitempty"`   // the same
	Attached map[string]attachment `json:"attached"`           // by node
	size     int64                 // bytes
}

// attachment is how a disk is attached to a node.
type attachment struct {
	Capability string `json:"capability"`
	ReadOnly   bool   `json:"readOnly"`
	ManyNodes  bool   `json:"manyNodes"`
	OneWriter  bool   `json:"oneWriter"`
}

// Directories and files of the cloud.
const (
	disksDir, snapshotsDir, unfinishedDir = "disks", "snapshots", "unfinished"
	imageName, recordName                 = "image", "record.json"
)

// openCloud opens the cloud, and attaches what was attached when the machine went down.
func openCloud(path string, log *slog.Logger) (_ *cloud, err error) {
	c := &cloud{log: log, disks: map[string]*disk{}, snapshots: map[string]*backend.Snapshot{}}
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
	if err := errors.Join(c.dir.Sync(), c.canClone()); err != nil {
		return nil, err
	}
	return c, c.load()
}

// load reads the records. A loop device does not survive a boot, so it is attached again. If that
// fails, the other disks are served all the same.
func (c *cloud) load() error {
	if err := eachRecord(c, disksDir, func(id string, d *disk, size int64) error {
		d.size, c.disks[id] = size, d
		for node, a := range d.Attached {
			if err := plug(c.image(disksDir, id), label(d.Serial, id, node), a.ReadOnly); err != nil {
				c.log.Error("a disk is not attached again: restart the controller", "volume", id, "node", node, "error", err)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return eachRecord(c, snapshotsDir, func(id string, n *backend.Snapshot, size int64) error {
		n.ID, n.Size, c.snapshots[id] = id, size, n
		return nil
	})
}

// eachRecord calls do for everything in a directory, with its ID and the size of its image.
func eachRecord[T any](c *cloud, dir string, do func(id string, record *T, size int64) error) error {
	entries, err := os.ReadDir(c.path(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		record := new(T)
		data, err := os.ReadFile(c.path(dir, e.Name(), recordName))
		if err == nil {
			err = json.Unmarshal(data, record)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.path(dir, e.Name()), err)
		}
		info, err := os.Stat(c.image(dir, e.Name()))
		if err != nil {
			return err
		}
		if err := do(e.Name(), record, info.Size()); err != nil {
			return err
		}
	}
	return nil
}

// Close gives the directory up. What is attached stays attached.
func (c *cloud) Close() error { return c.dir.Close() }

func (c *cloud) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir.Name()}, elem...)...)
}

func (c *cloud) image(dir, id string) string { return c.path(dir, id, imageName) }

// canClone returns an error for a filesystem without reflinks. A copy of an attached disk that takes
// time would not be of one moment.
func (c *cloud) canClone() error {
	from, err := os.CreateTemp(c.path(unfinishedDir), "")
	if err != nil {
		return err
	}
	defer os.Remove(from.Name())
	defer from.Close()
	to, err := os.CreateTemp(c.path(unfinishedDir), "")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name())
	defer to.Close()
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil {
		return fmt.Errorf("the filesystem must have reflinks, as xfs and btrfs: %w", err)
	}
	return nil
}

// make creates the object id in dir: a record, and an image of size bytes with the content of the
// image from, or empty if from is "". An error other than ErrUnavailable means that nothing is left.
func (c *cloud) make(dir, id string, record any, from string, size int64) error {
	half := c.path(unfinishedDir, id)
	err := os.RemoveAll(half)
	if err == nil {
		err = os.Mkdir(half, 0o700)
	}
	if err == nil {
		err = errors.Join(makeImage(filepath.Join(half, imageName), from, size), writeRecord(half, record))
	}
	if err == nil {
		err = os.Rename(half, c.path(dir, id))
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFBIG) {
		err = fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(half))
	}
	return nil
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

// remove deletes the object id in dir. Its space is freed now, or at the next start.
func (c *cloud) remove(dir, id string) error {
	gone := c.path(unfinishedDir, id)
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(c.path(dir, id), gone); err != nil && !errors.Is(err, fs.ErrNotExist) { // moved by a call that failed later
		return err
	}
	if err := errors.Join(c.settle(dir), c.settle(unfinishedDir)); err != nil {
		return err
	}
	os.RemoveAll(gone)
	return nil
}

// settle makes the entries of a directory durable. If that fails, the outcome of the call is unknown.
func (c *cloud) settle(dir string) error {
	if err := syncDir(c.path(dir)); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// grow makes a disk larger, on all nodes that have it, too.
func (c *cloud) grow(id string, d *disk, size int64) error {
	if size > d.size {
		image, err := os.OpenFile(c.image(disksDir, id), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer image.Close()
		if err := image.Truncate(size); err != nil {
			return err
		}
		d.size = size // also if the sync fails: a later call must not make the image smaller
		if err := image.Sync(); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
	}
	for node := range d.Attached { // also when a call is repeated: the first may have died here
		if err := replug(label(d.Serial, id, node)); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
	}
	return nil
}

// attach records that a disk is attached, and then attaches it: a crash between is made good by the
// next call, or by the next start.
func (c *cloud) attach(id string, d *disk, node string, a attachment) error {
	if _, ok := d.Attached[node]; !ok {
		next := *d
		next.Attached = maps.Clone(d.Attached)
		next.Attached[node] = a
		if err := c.rewrite(id, d, &next); err != nil {
			return err
		}
	}
	if err := plug(c.image(disksDir, id), label(d.Serial, id, node), a.ReadOnly); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return nil
}

// detach detaches a disk from a node and then removes the record of that. c.mu is not held.
func (c *cloud) detach(id string, d *disk, node string) error {
	if err := unplug(label(d.Serial, id, node)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := d.Attached[node]; !ok {
		return nil
	}
	next := *d
	next.Attached = maps.Clone(d.Attached)
	delete(next.Attached, node)
	return c.rewrite(id, d, &next)
}

// rewrite replaces the record of a disk. After an error, the old record may count or the new one: the
// caller repeats its call.
func (c *cloud) rewrite(id string, d, next *disk) error {
	if err := writeRecord(c.path(disksDir, id), next); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	*d = *next
	return nil
}

// shares returns ErrInUse if no other node can have the disk as a says.
func (d *disk) shares(a attachment) error {
	for _, node := range slices.Sorted(maps.Keys(d.Attached)) {
		switch other := d.Attached[node]; {
		case !a.ManyNodes || !other.ManyNodes:
			return fmt.Errorf("%w: the disk is attached to node %q, must be on one node only", backend.ErrInUse, node)
		case (a.OneWriter || other.OneWriter) && !a.ReadOnly && !other.ReadOnly:
			return fmt.Errorf("%w: the disk is attached to node %q, which writes, and must have one writer only", backend.ErrInUse, node)
		}
	}
	return nil
}

// attachedTo returns the number of disks that a node has.
func (c *cloud) attachedTo(node string) (n int64) {
	for _, d := range c.disks {
		if _, ok := d.Attached[node]; ok {
			n++
		}
	}
	return n
}
