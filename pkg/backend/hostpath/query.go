package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// List returns volumes from the index. One whose record can't be read is in ListHealth only: nothing is known of it.
func (b *Backend) List(_ context.Context, after string, limit int) (page []backend.Volume, more bool, err error) {
	if _, err := b.ready(); err != nil {
		return nil, false, err
	}
	b.catalog.VolumesAfter(after, func(_ string, v *volume, _ error) bool {
		switch {
		case v == nil:
			return true
		case len(page) == limit:
			more = true
			return false
		}
		page = append(page, v.public())
		return true
	})
	return page, more, nil
}

// Capacity returns the room for directories and images.
func (b *Backend) Capacity(ctx context.Context, o backend.CreateOptions) (backend.Capacity, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Capacity{}, err
	}
	o.Required, o.Limit = 0, 0
	want := new(volume)
	if err := want.plan(o, nil); err != nil {
		access := o.Access
		o.Access = nil
		if err := want.plan(o, nil); err != nil || len(access) == 0 {
			return backend.Capacity{}, err
		}
		return backend.Capacity{}, nil // there can be no volume for such a use
	}
	if want.Kind == directory && want.set(enforceKey) == required {
		if _, why := s.mechanism(ctx); why != nil {
			return backend.Capacity{}, nil
		}
	}
	disk, err := s.Space()
	if err != nil {
		return backend.Capacity{}, err
	}
	room := disk.Offered(b.catalog.Reserved())
	return backend.Capacity{Available: room, Maximum: room}, nil
}

// reserve promises size bytes, or returns ErrExhausted.
func (b *Backend) reserve(s *root, size int64) error {
	disk, err := s.Space()
	if err != nil {
		return err
	}
	if disk.ReadOnly {
		return fmt.Errorf("%w: the root %s is read-only", backend.ErrExhausted, s.Path())
	}
	err = b.catalog.Reserve(size, func(reserved int64) int64 { return disk.Available(reserved) })
	if err != nil {
		err = fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	return err
}

// Health looks at the record and the directory of one volume.
func (b *Backend) Health(_ context.Context, id string) ([]backend.Condition, error) {
	s, err := b.ready()
	if err != nil {
		return nil, err
	}
	v, err := b.volume(id)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, err
	}
	failing, failed := b.cfg.Images.Failing()
	if failed != nil {
		return nil, failed
	}
	return b.diagnose(s, id, v, err, failing), nil
}

// ListHealth looks at every volume above after until it has found limit sick ones.
func (b *Backend) ListHealth(ctx context.Context, after string, limit int) (sick []backend.Diagnosis, more bool, err error) {
	s, err := b.ready()
	if err != nil {
		return nil, false, err
	}
	failing, err := b.cfg.Images.Failing()
	if err != nil {
		return nil, false, err
	}
	var volumes []*volume
	var broken []error
	var ids []string
	b.catalog.VolumesAfter(after, func(id string, v *volume, err error) bool {
		ids, volumes, broken = append(ids, id), append(volumes, v), append(broken, err)
		return true
	})
	for i, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		if conditions := b.diagnose(s, id, volumes[i], broken[i], failing); len(conditions) > 0 {
			if len(sick) == limit {
				return sick, true, nil
			}
			sick = append(sick, backend.Diagnosis{ID: id, Conditions: conditions})
		}
	}
	return sick, false, nil
}

// diagnose returns what is wrong with the volume called id. err is the reason why its record cannot
// be used, and failing are the images whose filesystems have failed, by their paths.
func (b *Backend) diagnose(s *root, id string, v *volume, err error, failing map[string]mounter.Failure) []backend.Condition {
	return append(b.observe(s, id, v, err, failing), b.troubles.conditions(id)...)
}

// observe returns what the volume's record, its data and its filesystem show.
func (b *Backend) observe(s *root, id string, v *volume, err error, failing map[string]mounter.Failure) []backend.Condition {
	switch {
	case errors.Is(err, record.ErrNewer):
		return condition(backend.Inaccessible, "RecordOfNewerVersion", "%v: run the release that made it, or a newer one", err)
	case err != nil:
		dir := s.Path(volumesDir, id)
		if at, statErr := os.Lstat(dir); statErr != nil || !at.IsDir() { // a link may lead to another tenant's data
			return condition(backend.Inaccessible, "RecordUnreadable", "when the driver started: %v: %s is not a directory: move the volume's directory back there, and restart the driver", err, dir)
		}
		return condition(backend.Inaccessible, "RecordUnreadable", "when the driver started: %v: the data is untouched in %s: repair the record, and restart the driver", err, dir)
	}
	info, err := s.data(v)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return condition(backend.DataLoss, "DataMissing", "%s is gone: restore it from a backup", s.dataPath(v))
	case errors.Is(err, beneath.ErrType):
		return condition(backend.DataLoss, "DataMissing", "%v", fmt.Errorf(obstructed, err))
	case err != nil:
		return condition(backend.Inaccessible, "DataUnreadable", "%v", err)
	case v.Kind == image && info.Size() < v.Size:
		return condition(backend.DataLoss, "ImageTruncated", "%s has %d bytes of %d: restore it from a backup", s.dataPath(v), info.Size(), v.Size)
	}
	if f, ok := failing[s.dataPath(v)]; ok {
		return failed(f)
	}
	return b.unenforced(s, v)
}

// failed returns what a failure of the filesystem in an image is to who uses it.
func failed(f mounter.Failure) []backend.Condition {
	switch f.Kind {
	case mounter.Down:
		return condition(backend.Inaccessible, "FilesystemDown", "%s: see dmesg; end its pods, and it is checked or its log replayed when it is staged again", f.Message)
	case mounter.Stalled:
		return condition(backend.Degraded, "FilesystemStalled", "%s: end the pods that use the volume", f.Message)
	case mounter.TurnedReadOnly:
		return condition(backend.Degraded, "FilesystemReadOnly", "%s after an error: see dmesg; end its pods, and it is checked when it is staged again", f.Message)
	}
	return condition(backend.Degraded, "FilesystemErrors", "%s: see dmesg; end its pods, and it is checked when it is staged again; take a snapshot before", f.Message)
}

// almostFull is below which part of a disk being free it is time to act: 1/almostFull of it.
const almostFull = 20

// StorageHealth tells whether the root is there and writable, has room, and can empty its trash.
func (b *Backend) StorageHealth(ctx context.Context) ([]backend.Condition, error) {
	if _, err := b.Probe(ctx); err != nil {
		severity := backend.Inaccessible
		if store.IsReadOnly(err) {
			severity = backend.Degraded
		}
		return condition(severity, "RootUnusable", "%v", err), nil
	}
	var all []backend.Condition
	if why := b.count.stuck.Load(); why != nil {
		all = condition(backend.Degraded, "TrashStuck", "deleted volumes keep their space: %s", *why)
	}
	if why := b.count.unswept.Load(); why != nil {
		all = append(all, condition(backend.Degraded, "SweepFailed", "an incomplete object of an earlier process keeps its space until a start can move it to the trash: %s", *why)...)
	}
	if why := b.count.lastPanic.Load(); why != nil {
		all = append(all, condition(backend.Degraded, "TaskPanicked", "%d times since the start a background task ended with a panic, and was run again; the last time: %s: report it with the stack from the log", b.count.panics.Load(), *why)...)
	}
	all = append(all, exhaustedHelpers(b.helpers())...)
	s, err := b.ready()
	if err != nil {
		return nil, err
	}
	disk, err := s.Space()
	if err != nil {
		return nil, err
	}
	if disk.Free < disk.Total/almostFull {
		all = append(all, condition(backend.Degraded, "StorageAlmostFull",
			"%d of %d bytes are free: when none are left, writes to volumes fail: make the disk of %s larger, or delete snapshots and volumes", disk.Free, disk.Total, s.Path())...)
	}
	if disk.NoInodes() {
		all = append(all, condition(backend.Degraded, "StorageInodesExhausted",
			"%d of %d inodes are free: no volume can be made and no file: delete files in volumes, snapshots or volumes, or make the disk of %s again with more inodes (df -i)", disk.FreeInodes, disk.Inodes, s.Path())...)
	}
	return all, nil
}

func condition(s backend.Severity, reason, format string, a ...any) []backend.Condition {
	return []backend.Condition{{Severity: s, Reason: reason, Message: fmt.Sprintf(format, a...)}}
}

// Metrics returns what the index and the filesystem say now.
func (b *Backend) Metrics() []backend.Metric {
	objects := b.catalog.Stats()
	work := b.jobs.Stats()
	var disk store.Space
	var room int64
	if s, err := b.ready(); err == nil {
		if disk, err = s.Space(); err == nil {
			room = disk.Offered(objects.Reserved)
		}
	}
	gauge := func(name, help string, value float64) backend.Metric {
		return backend.Metric{Name: name, Help: help, Value: value}
	}
	counter := func(name, help string, value int64) backend.Metric {
		return backend.Metric{Name: name, Help: help, Value: float64(value), Counter: true}
	}
	all := []backend.Metric{
		gauge("volumes", "Volumes made by CreateVolume.", float64(objects.Volumes)),
		gauge("inline_volumes", "Inline ephemeral volumes.", float64(objects.Hidden)),
		gauge("snapshots", "Snapshots, members of groups too.", float64(objects.Snapshots)),
		gauge("snapshot_groups", "Groups of snapshots.", float64(objects.Groups)),
		gauge("unreadable_records", "Volumes, snapshots and groups whose record can't be used; they are left alone.", float64(objects.Broken)),
		gauge("promised_bytes", "Sum of the sizes of all volumes, and of what snapshots hold.", float64(objects.Reserved)),
		gauge("copies", "Snapshots, restored volumes and clones that are being made.", float64(work.Running)),
		counter("copied_bytes_total", "Bytes that were copied for them, shared blocks and holes included.", work.Bytes),
		counter("unfrozen_cuts_total", "Copies of mounted images that were made without a freeze, as it couldn't be made or took too long.", b.count.unfrozen.Load()),
		counter("copy_errors_total", "Copies that failed.", work.Failed),
		gauge("storage_size_bytes", "Size of the root's filesystem, without what only root may use.", float64(disk.Total)),
		gauge("storage_free_bytes", "Free space of the root's filesystem.", float64(disk.Free)),
		gauge("storage_available_bytes", "Room for new volumes, as GetCapacity reports it.", float64(room)),
		gauge("open_seconds", "How long it took at start to sweep the root and read its records.", time.Duration(b.count.openTime.Load()).Seconds()),
		counter("swept_total", "Incomplete volumes and snapshots that the start found and moved to the trash.", b.count.swept.Load()),
		gauge("trash_entries", "Deleted volumes that still take space.", float64(b.count.trashed.Load())),
		counter("background_panics_total", "Panics of tasks in the background, which are then run again.", b.count.panics.Load()),
		counter("trash_removed_files_total", "Files and directories removed from the trash.", b.count.removedFiles.Load()),
		counter("trash_errors_total", "Deleted volumes that could not be removed on a try.", b.count.trashErrors.Load()),
		gauge("stalled_copies", "Volumes and snapshots of which a copy hangs in the kernel.", float64(b.troubles.hanging())),
	}
	all = append(all, helperMetrics(b.helpers())...)
	for _, r := range b.resources() {
		all = append(all, r.metrics()...)
	}
	return all
}
