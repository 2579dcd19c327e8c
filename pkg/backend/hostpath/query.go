package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// List returns volumes from the index. Only ListHealth returns a volume whose record cannot be
// read.
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

// Capacity returns the capacity for directories or images, as o requests: 0 if no such volume can
// be made. Create makes a volume of Maximum bytes, and refuses a byte more.
func (b *Backend) Capacity(ctx context.Context, o backend.CreateOptions) (backend.Capacity, error) {
	s, err := b.ready()
	if err != nil {
		return backend.Capacity{}, err
	}
	o = withKind(o, b.kinds[0])
	o.Required, o.Limit = 0, 0
	if len(o.Access) == 0 {
		o.Access = []backend.Access{{}}
	}
	if kind(o.Parameters[kindKey]) == directory {
		// CreateVolume explains that a directory has no filesystem. Without capacity it would not
		// be called.
		o.Access = slices.Clone(o.Access)
		for i := range o.Access {
			o.Access[i].FSType = ""
		}
	}
	want := new(volume)
	if err := want.plan(o, nil); err != nil {
		o.Access = nil
		return backend.Capacity{}, want.plan(o, nil) // no error: no volume can have these capabilities
	}
	if b.servable(want.content, o.Access) != nil {
		return backend.Capacity{}, nil
	}
	if want.Kind == directory && want.value(enforceKey) == required {
		if _, why := s.mechanism(ctx); why != nil {
			return backend.Capacity{}, nil
		}
	}
	disk, err := s.Space()
	if err != nil {
		return backend.Capacity{}, err
	}
	available := disk.Offered(b.catalog.Reserved())
	largest := want.largest(available)
	if largest == 0 {
		return backend.Capacity{}, nil
	}
	return backend.Capacity{Available: available, Maximum: largest}, nil
}

// Health returns the conditions of one volume: of its record, its data, its filesystem and its
// copies.
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
	return b.conditionsOf(s, id, v, err, failing)
}

// ListHealth examines the volumes whose IDs are above after, and returns the first volumes with a
// condition, at most limit.
func (b *Backend) ListHealth(ctx context.Context, after string,
	limit int) (unhealthy []backend.VolumeHealth, more bool, err error) {
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
		conditions, err := b.conditionsOf(s, id, volumes[i], broken[i], failing)
		if err != nil {
			return nil, false, err
		}
		if len(conditions) > 0 {
			if len(unhealthy) == limit {
				return unhealthy, true, nil
			}
			unhealthy = append(unhealthy, backend.VolumeHealth{ID: id, Conditions: conditions})
		}
	}
	return unhealthy, false, nil
}

// conditionsOf returns the conditions of the volume id. err is the reason why its record cannot be
// used. failing are the images whose filesystems have failed, by path. Errors: EMFILE, ENFILE and
// ENOMEM, which are no condition of a volume.
func (b *Backend) conditionsOf(s *root, id string, v *volume, err error,
	failing map[string]mounter.Failure) ([]backend.Condition, error) {
	observed, err := b.observe(s, id, v, err, failing)
	return append(observed, b.troubles.conditions(id)...), err
}

// observe returns the conditions that the volume's record, data and filesystem show. Errors: those
// of conditionsOf.
func (b *Backend) observe(s *root, id string, v *volume, err error,
	failing map[string]mounter.Failure) ([]backend.Condition, error) {
	switch {
	case errors.Is(err, record.ErrNewer):
		return condition(backend.Inaccessible, "RecordOfNewerVersion",
			"%v: run the release that made it, or a newer release", err), nil
	case err != nil:
		dir := s.Path(volumesDir, id)
		if at, statErr := os.Lstat(dir); statErr != nil || !at.IsDir() { // a link may lead to another tenant's data
			return condition(backend.Inaccessible, "RecordUnreadable",
				"when the driver started: %v: %s is not a directory: move the volume's directory back there, and "+
					"restart the driver", err, dir), nil
		}
		return condition(backend.Inaccessible, "RecordUnreadable",
			"when the driver started: %v: the data is untouched in %s: repair the record, and restart the "+
				"driver", err, dir), nil
	}
	size := v.Size
	if v.Kind == image {
		size, err = s.imageSize(v)
	} else {
		err = s.checkData(v)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.lacksRecord(id):
		return condition(backend.DataLoss, "DataMissing", "%s and the record beside it are missing: move the "+
			"volume's directory back with all of its files, or restore the data to a new volume", s.dataPath(v)), nil
	case errors.Is(err, fs.ErrNotExist):
		return condition(backend.DataLoss, "DataMissing", "%s is missing: restore it from a backup", s.dataPath(v)), nil
	case errors.Is(err, beneath.ErrType):
		return condition(backend.DataLoss, "DataMissing", "%v", fmt.Errorf(obstructed, err)), nil
	case isShortage(err):
		return nil, err
	case err != nil:
		return condition(backend.Inaccessible, "DataUnreadable", "%v", err), nil
	case size < v.Size:
		return condition(backend.DataLoss, "ImageTruncated", "%s has %d bytes of %d: restore it from a backup",
			s.dataPath(v), size, v.Size), nil
	}
	f, failed := failing[s.dataPath(v)]
	if failed && f.Kind != mounter.PageCached {
		return conditionOf(f), nil
	}
	if s.lacksRecord(id) {
		return condition(backend.Degraded, "RecordMissing", "%s is missing: the volume is unusable from the next "+
			"start of the driver on: restore the record, or copy the data to a new volume",
			s.Path(volumesDir, id, recordFile)), nil
	}
	if failed && v.asksFor(directIOKey, "true") {
		return conditionOf(f), nil
	}
	return b.unenforced(s, v), nil
}

// lacksRecord reports whether the record of a volume is gone. The running driver has its content.
func (s *root) lacksRecord(id string) bool {
	_, err := os.Lstat(s.Path(volumesDir, id, recordFile))
	return errors.Is(err, fs.ErrNotExist)
}

// isShortage reports whether err is the machine's shortage of files or memory, which says nothing
// about the object of the call.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// conditionOf returns the condition of a volume whose filesystem has failed.
func conditionOf(f mounter.Failure) []backend.Condition {
	switch f.Kind {
	case mounter.PageCached:
		return condition(backend.Degraded, "DirectIOOff",
			"%s, and direct-io of the volume is true: the disk has no direct I/O, or needs larger sectors for it: "+
				"set direct-io to false, or copy the files to a new volume of at least %d bytes with a filesystem, "+
				"neither a clone nor restored", f.Message, int64(mounter.LargeImage))
	case mounter.Unmountable:
		return condition(backend.Inaccessible, "FilesystemUnmountable",
			"%s: see dmesg; if the filesystem is damaged, end the pods that use the volume and wait until they are "+
				"gone, copy the image, and repair it by hand", f.Message)
	case mounter.Down:
		return condition(backend.Inaccessible, "FilesystemDown",
			"%s: see dmesg; end the pods that use the volume: the next NodeStageVolume checks the filesystem or "+
				"replays its log", f.Message)
	case mounter.Stalled:
		return condition(backend.Degraded, "FilesystemStalled", "%s: end the pods that use the volume", f.Message)
	case mounter.TurnedReadOnly:
		return condition(backend.Degraded, "FilesystemReadOnly",
			"%s after an error: see dmesg; end the pods that use the volume: the next NodeStageVolume checks the "+
				"filesystem", f.Message)
	}
	return condition(backend.Degraded, "FilesystemErrors",
		"%s: see dmesg; take a snapshot, then end the pods that use the volume: the next NodeStageVolume checks the "+
			"filesystem", f.Message)
}

// almostFull is the fraction of free space, 1/almostFull of a disk, below which an operator should
// act. The alert CausewayStorageAlmostFull and kubectl causeway doctor have the same limit.
const almostFull = 10

// StorageHealth reports whether the root exists and is writable, has space, and can empty its
// trash.
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
		all = append(all, condition(backend.Degraded, "SweepFailed",
			"an incomplete object of an earlier process keeps its space until a start can move it to the trash: "+
				"%s", *why)...)
	}
	if why := b.count.lastPanic.Load(); why != nil {
		all = append(all, condition(backend.Degraded, "TaskPanicked",
			"background tasks panicked %d times since the start, and were restarted; the last panic: %s: report it "+
				"with the stack from the log", b.count.panics.Load(), *why)...)
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
	if disk.Free < disk.Total/cmp.Or(b.cfg.almostFull, almostFull) {
		all = append(all, condition(backend.Degraded, "StorageAlmostFull",
			"%d of %d bytes are free: on a full disk, writes to volumes fail: make the disk of %s larger, or delete "+
				"snapshots or volumes", disk.Free, disk.Total, s.Path())...)
	}
	if disk.NoInodes() {
		all = append(all, condition(backend.Degraded, "StorageInodesExhausted",
			"%d of %d inodes are free: no volume and no file can be made: delete files in volumes, or delete "+
				"snapshots or volumes, or make the disk and the filesystem of %s larger (df -i)",
			disk.FreeInodes, disk.Inodes, s.Path())...)
	}
	return all, nil
}
