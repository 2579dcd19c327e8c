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
		gauge("unreadable_records", "Volumes, snapshots and groups whose record is unusable. They are left as they "+
			"are.", float64(objects.Broken)),
		gauge("promised_bytes", "Sum of the sizes of all volumes, and of what snapshots hold.",
			float64(objects.Reserved)),
		gauge("copies", "Snapshots, restored volumes and clones that are being made.", float64(work.Running)),
		counter("copied_bytes_total", "Bytes that were copied for them, shared blocks and holes included.", work.Bytes),
		counter("unfrozen_cuts_total", "Copies of mounted images that were made without a freeze, as it couldn't be "+
			"made or took too long.", b.count.unfrozen.Load()),
		counter("copy_errors_total", "Copies that failed.", work.Failed),
		gauge("storage_size_bytes", "Size of the root's filesystem, without what only root may use.",
			float64(disk.Total)),
		gauge("storage_free_bytes", "Free space of the root's filesystem.", float64(disk.Free)),
		gauge("storage_available_bytes", "Room for new volumes, as GetCapacity reports it.", float64(room)),
		gauge("open_seconds", "How long it took at start to sweep the root and read its records.",
			time.Duration(b.count.openTime.Load()).Seconds()),
		counter("swept_total", "Incomplete volumes and snapshots that the start found and moved to the trash.",
			b.count.swept.Load()),
		gauge("trash_entries", "Deleted volumes that still take space.", float64(b.count.trashed.Load())),
		counter("background_panics_total", "Panics of tasks in the background, which are then run again.",
			b.count.panics.Load()),
		counter("trash_removed_files_total", "Files and directories removed from the trash.",
			b.count.removedFiles.Load()),
		counter("trash_errors_total", "Deleted volumes that could not be removed on a try.",
			b.count.trashErrors.Load()),
		gauge("stalled_copies", "Volumes and snapshots of which a copy hangs in the kernel.",
			float64(b.troubles.hanging())),
	}
	all = append(all, helperMetrics(b.helpers())...)
	for _, r := range b.resources() {
		all = append(all, r.metrics()...)
	}
	return all
}

// resources returns the limited resources, the Mounter's too, and their users now.
func (b *Backend) resources() []resource {
	var checks []fair.Entry
	for _, c := range b.cfg.Images.Checks() {
		claim := fair.Claim{Kind: kindCheck, Tenant: c.Tenant, Volume: c.Image}
		checks = append(checks, fair.Entry{Claim: claim, Running: c.Running, Since: c.Since})
	}
	return []resource{
		{"copy", []string{kindSnapshot, kindClone, kindRestore}, b.slots.copies.Entries()},
		{"cut", []string{kindSnapshot, kindClone, kindRestore, kindGroup}, b.slots.cuts.Entries()},
		{"format", []string{kindFormat, kindUUID}, b.slots.formats.Entries()},
		{"check", []string{kindCheck}, checks},
	}
}

// helpers returns the pools of helper processes, of the Mounter and of copies.
func (b *Backend) helpers() []mounter.Helpers {
	return slices.Concat(b.cfg.Images.Helpers(), b.exec.pools())
}

// withoutHelpers is the effect where a pool has no free helper.
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
				"all %d helper processes of the pool %q are at work or hang: %s: end the pods of the volumes with "+
					"FilesystemStalled or CopyStalled", p.Limit, p.Pool, withoutHelpers[p.Pool])...)
		}
	}
	return all
}

// helperMetrics returns the number of busy helpers of each pool.
func helperMetrics(pools []mounter.Helpers) (all []backend.Metric) {
	for _, p := range pools {
		labels := map[string]string{"pool": p.Pool}
		all = append(all, backend.Metric{Name: "helpers", Help: "Helper processes that are at work or hang, of 64.",
			Labels: labels, Value: float64(p.Busy)})
	}
	return all
}

// resource is a limited resource and its users.
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
			backend.Metric{Name: "slots_used", Help: "Slots of a limited resource that are held, by the kind of work.",
				Labels: labels, Value: float64(running[kind])},
			backend.Metric{Name: "slot_waiters", Help: "Work that waits for a slot of a limited resource, by its kind.",
				Labels: labels, Value: float64(waiting[kind])})
	}
	return append(all, backend.Metric{
		Name: "slot_wait_seconds", Help: "For how long the oldest work waits for a slot of a limited resource.",
		Labels: map[string]string{"resource": r.name}, Value: oldest.Seconds(),
	})
}
