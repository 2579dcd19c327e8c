package hostpath

import (
	"slices"
	"time"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// slots are the limited resources of a node, shared fairly among namespaces and volumes.
type slots struct {
	copies  *fair.Slots // of data, which is limited by the disk
	cuts    *fair.Slots // at one moment, under a freeze if a filesystem is mounted
	formats *fair.Slots // runs of mkfs, and of the programs that change a UUID
}

// Kinds of work in slots.
const (
	kindSnapshot = "snapshot"
	kindClone    = "clone"
	kindRestore  = "restore"
	kindGroup    = "group"
	kindFormat   = "format"
	kindUUID     = "uuid"
	kindCheck    = "check"
)

// More copies at a time would only make each of them slower; of the others, two cores run few.
func newSlots() slots {
	return slots{
		copies:  fair.New(fair.Limits{Slots: 4, Tenant: 2, Kind: 3}),
		cuts:    fair.New(fair.Limits{Slots: 4, Tenant: 2, Kind: 3}),
		formats: fair.New(fair.Limits{Slots: 8, Tenant: 4, Kind: 7}),
	}
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
	"mount":  "mounted images do not grow, snapshots of them are made without a freeze, and groups of them are UNAVAILABLE",
	"copy":   "snapshots, restores and clones are UNAVAILABLE, and deleted volumes keep their space",
}

// exhaustedHelpers returns a condition for each pool that has no free helper.
func exhaustedHelpers(pools []mounter.Helpers) (all []backend.Condition) {
	for _, p := range pools {
		if p.Busy >= p.Limit {
			all = append(all, condition(backend.Degraded, "HelpersExhausted",
				"all %d helper processes of the pool %q are at work or hang: %s: end the pods of the volumes with FilesystemStalled or CopyStalled", p.Limit, p.Pool, withoutHelpers[p.Pool])...)
		}
	}
	return all
}

// helperMetrics returns how many helpers of each pool are busy.
func helperMetrics(pools []mounter.Helpers) (all []backend.Metric) {
	for _, p := range pools {
		labels := map[string]string{"pool": p.Pool}
		all = append(all, backend.Metric{Name: "helpers", Help: "Helper processes that are at work or hang, of 64.", Labels: labels, Value: float64(p.Busy)})
	}
	return all
}

// resource is a limited resource and its users.
type resource struct {
	name    string
	kinds   []string // of work that use it
	entries []fair.Entry
}

// metrics returns how much work of each kind runs and waits.
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
			backend.Metric{Name: "slots_used", Help: "Slots of a limited resource that are held, by the kind of work.", Labels: labels, Value: float64(running[kind])},
			backend.Metric{Name: "slot_waiters", Help: "Work that waits for a slot of a limited resource, by its kind.", Labels: labels, Value: float64(waiting[kind])})
	}
	return append(all, backend.Metric{
		Name: "slot_wait_seconds", Help: "For how long the oldest work waits for a slot of a limited resource.",
		Labels: map[string]string{"resource": r.name}, Value: oldest.Seconds(),
	})
}
