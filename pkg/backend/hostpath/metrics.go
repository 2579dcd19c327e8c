package hostpath

import (
	"slices"
	"time"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Metrics returns the current figures of the index and the filesystem.
func (b *Backend) Metrics() []backend.Metric {
	objects := b.catalog.Stats()
	running := b.jobs.Stats()
	var disk store.Space
	var available int64
	if s, err := b.ready(); err == nil {
		if disk, err = s.Space(); err == nil {
			available = disk.Offered(objects.Reserved)
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
		gauge("inline_volumes", "Inline volumes.", float64(objects.Hidden)),
		gauge("snapshots", "Snapshots, including members of groups.", float64(objects.Snapshots)),
		gauge("snapshot_groups", "Groups of snapshots.", float64(objects.Groups)),
		gauge("unreadable_records", "Volumes, snapshots and groups whose record is unusable. The driver leaves them "+
			"alone.", float64(objects.Broken)),
		gauge("promised_bytes", "Reserved bytes: the sizes of all volumes, and the bytes of snapshots, shared blocks "+
			"included. Images with ntfs, which take all of their space at once, are not among them.",
			float64(objects.Reserved)),
		gauge("copies", "Snapshots, restored volumes and clones that are being made.", float64(running.Running)),
		counter("copied_bytes_total", "Bytes of all copies, shared blocks and holes included.", running.Bytes),
		counter("unfrozen_cuts_total", "Copies of mounted images that were made without a freeze, which failed or "+
			"took too long.", b.count.unfrozen.Load()),
		counter("copy_errors_total", "Copies that failed.", running.Failed),
		gauge("storage_size_bytes", "Size of the root's filesystem, without the blocks that only root may use.",
			float64(disk.Total)),
		gauge("storage_free_bytes", "Free space of the root's filesystem.", float64(disk.Free)),
		gauge("storage_inodes", "Inodes of the root's filesystem; 0 if it has no fixed number.", float64(disk.Inodes)),
		gauge("storage_free_inodes", "Free inodes of the root's filesystem.", float64(disk.FreeInodes)),
		gauge("storage_available_bytes", "Capacity for new volumes, as GetCapacity reports it.", float64(available)),
		gauge("open_seconds", "Time that the start took to sweep the root and read its records.",
			time.Duration(b.count.openTime.Load()).Seconds()),
		counter("swept_total", "Incomplete volumes and snapshots that the start found and moved to the trash.",
			b.count.swept.Load()),
		gauge("trash_entries", "Deleted objects that still take space.", float64(b.count.trashed.Load())),
		counter("background_panics_total", "Panics of background tasks, which are then restarted.",
			b.count.panics.Load()),
		counter("trash_removed_files_total", "Files and directories removed from the trash.",
			b.count.removedFiles.Load()),
		counter("trash_errors_total", "Failed attempts to remove a deleted object.",
			b.count.trashErrors.Load()),
		counter("trimmed_bytes_total", "Bytes that images take less on the disk after their trims.",
			b.count.trimmed.Load()),
		counter("trim_errors_total", "Failed trims of an image.", b.count.trimErrors.Load()),
		gauge("stalled_copies", "Volumes and snapshots of which a copy hangs in the kernel.",
			float64(b.troubles.stalledSources())),
	}
	all = append(all, helperMetrics(b.helpers())...)
	for _, r := range b.resources() {
		all = append(all, r.metrics()...)
	}
	return all
}

// resources returns the limited resources, the Mounter's included, and the jobs that use them.
func (b *Backend) resources() []resource {
	var checks []fair.Entry
	for _, c := range b.cfg.Images.Checks() {
		claim := fair.Request{Kind: kindCheck, Tenant: c.Tenant, Volume: c.Image}
		checks = append(checks, fair.Entry{Request: claim, Running: c.Running, Since: c.Since})
	}
	return []resource{
		{"copy", []string{kindSnapshot, kindClone, kindRestore}, b.slots.copies.Entries()},
		{"cut", []string{kindSnapshot, kindClone, kindRestore, kindGroup}, b.slots.pointInTime.Entries()},
		{"format", []string{kindFormat, kindUUID}, b.slots.formats.Entries()},
		{"check", []string{kindCheck}, checks},
	}
}

// helpers returns the pools of helper processes, of the Mounter and of copies.
func (b *Backend) helpers() []mounter.Helpers {
	return slices.Concat(b.cfg.Images.Helpers(), b.exec.pools())
}

// withoutHelpers has, by pool, the effect of a pool without a free helper.
var withoutHelpers = map[string]string{
	"freeze": "snapshots of mounted images are made without a freeze, and groups of them are UNAVAILABLE",
	"mount": "mounted images do not grow, snapshots of them are made without a freeze, and groups of them are " +
		"UNAVAILABLE",
	"copy": "snapshots, restores and clones are UNAVAILABLE, and deleted volumes keep their space",
}

// exhaustedHelpers returns a condition for each pool that has no free helper.
func exhaustedHelpers(pools []mounter.Helpers) (all []backend.Condition) {
	for _, p := range pools {
		if p.Busy >= p.Limit {
			all = append(all, condition(backend.Degraded, "HelpersExhausted",
				"all %d helper processes of the pool %q are busy or hang: %s: end the pods of the volumes with "+
					"FilesystemStalled or CopyStalled", p.Limit, p.Pool, withoutHelpers[p.Pool])...)
		}
	}
	return all
}

// helperMetrics returns the number of busy helpers of each pool.
func helperMetrics(pools []mounter.Helpers) (all []backend.Metric) {
	for _, p := range pools {
		labels := map[string]string{"pool": p.Pool}
		all = append(all, backend.Metric{Name: "helpers", Help: "Helper processes that are busy or hang, of 64.",
			Labels: labels, Value: float64(p.Busy)})
	}
	return all
}

// resource is a limited resource and the jobs that use it.
type resource struct {
	name    string
	kinds   []string // of jobs that use it
	entries []fair.Entry
}

// metrics returns the numbers of jobs of each kind that run and wait.
func (r resource) metrics() (all []backend.Metric) {
	running, waiting, oldest := map[string]int{}, map[string]int{}, time.Duration(0)
	for _, e := range r.entries {
		if e.Running {
			running[e.Kind]++
			continue
		}
		waiting[e.Kind]++
		oldest = max(oldest, time.Since(e.Since))
	}
	for _, kind := range r.kinds {
		labels := map[string]string{"resource": r.name, "kind": kind}
		all = append(all,
			backend.Metric{Name: "slots_used", Help: "Slots of a limited resource in use, by kind of job.",
				Labels: labels, Value: float64(running[kind])},
			backend.Metric{Name: "slot_waiters",
				Help:   "Jobs that wait for a slot of a limited resource, by kind of job.",
				Labels: labels, Value: float64(waiting[kind])})
	}
	return append(all, backend.Metric{
		Name: "slot_wait_seconds", Help: "Time for which the oldest job has waited for a slot of a limited resource.",
		Labels: map[string]string{"resource": r.name}, Value: oldest.Seconds(),
	})
}
