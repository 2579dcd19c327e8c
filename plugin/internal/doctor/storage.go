package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

func storageChecks() []Check {
	lists := []cluster.Source{cluster.PodList}
	return []Check{
		{"storage-metrics", lists, storageMetrics},
		{"storage-space", lists, storageSpace},
		{"shares", lists, shares},
		{"volume-health", lists, volumeHealth},
	}
}

// limit is a metric whose value is a fault above a limit.
type limit struct {
	metric                    string
	above                     float64
	severity                  Severity
	cause, remedy, page, unit string
}

// helpers is the metric of helper processes that work or hang, by pool. A pool has 64.
const (
	helpers     = "causeway_helpers"
	manyHelpers = 32
)

var limits = []limit{
	{"causeway_unreadable_records", 0, Error, "records of volumes, snapshots or groups cannot be read: the driver " +
		"leaves these alone",
		"see RecordUnreadable: the log of the driver names the files", pageVolume, ""},
	{"causeway_stalled_copies", 0, Error, "copies hang in the kernel: a process in a pod holds the lock of a file, " +
		"or the filesystem stalls",
		"end the pods that use the volumes with CopyStalled; if the copies still hang, see dmesg on the node",
		pageVolume, ""},
	{helpers, manyHelpers, Warning, "helper processes are busy or hang", "see causeway_copies; if the number stays, " +
		"end the pods of the volumes with FilesystemStalled or CopyStalled", pageStorage, ""},
	{"causeway_slot_wait_seconds", 600, Warning, "copies or formats wait for a slot for more than ten minutes",
		"see which jobs hold the slots: causeway_slots_used", "docs/reference/metrics.md#the-driver", " s"},
	{"causeway_background_panics_total", 0, Warning, "a background task of the driver panicked and was restarted: " +
		"a defect",
		"report it with the stack in the log of the driver, and restart the driver", pageStorage, ""},
}

// storageMetrics compares the metrics of drivers with their limits.
func storageMetrics(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			lack := exhausted(d, p)
			for _, l := range limits {
				if l.metric == helpers && len(lack) > 0 {
					continue
				}
				for _, s := range p.DriverMetrics.Samples(l.metric) {
					if s.Value > l.above {
						all = append(all, Finding{Severity: l.severity, Object: p.Object() + nodeOf(p), Cause: l.cause,
							Evidence: l.metric + " " + s.String() + l.unit, Remedy: l.remedy, Page: l.page})
					}
				}
			}
			all = slices.Concat(all, lack, otherConditions(d, p))
		}
	}
	return all
}

// exhausted finds pools without a free helper process, by the condition of the driver.
func exhausted(d *cluster.Driver, p *cluster.Pod) (all []Finding) {
	for _, s := range p.DriverMetrics.Samples("causeway_storage_conditions") {
		if s.Labels["reason"] != "HelpersExhausted" || s.Value == 0 {
			continue
		}
		evidence := "causeway_storage_conditions " + s.String()
		for _, pool := range p.DriverMetrics.Samples(helpers) {
			if pool.Value > manyHelpers {
				evidence += "\n" + helpers + " " + pool.String()
			}
		}
		m := storageConditions[d.SMB()]["HelpersExhausted"]
		all = append(all, m.finding(Error, p.Object()+nodeOf(p), evidence))
	}
	return all
}

// reportedElsewhere are reasons of conditions of the storage that other functions or checks report:
// of storage-metrics, storage-space, driver-ready and shares.
var reportedElsewhere = []string{
	"HelpersExhausted", "TaskPanicked",
	"StorageAlmostFull", "StorageInodesExhausted",
	"RootUnusable",
	"ServerUnreachable", "CredentialsRejected", "AccessDenied", "ShareMissing",
}

// otherConditions finds the conditions of the storage that no other function reports, also those of
// a backend that is not known here.
func otherConditions(d *cluster.Driver, p *cluster.Pod) (all []Finding) {
	for _, s := range p.DriverMetrics.Samples("causeway_storage_conditions") {
		reason := s.Labels["reason"]
		if s.Value == 0 || slices.Contains(reportedElsewhere, reason) {
			continue
		}
		m, ok := storageConditions[d.SMB()][reason]
		if !ok {
			m = message{cause: fmt.Sprintf("the storage has the condition %.64s", reason),
				remedy: "see the log of the driver", page: pageStorage}
		}
		evidence := "causeway_storage_conditions " + s.String()
		if entries, ok := p.DriverMetrics.Value("causeway_trash_entries"); ok && reason == "TrashStuck" {
			evidence += fmt.Sprintf(", causeway_trash_entries %g", entries)
		}
		all = append(all, m.finding(Warning, p.Object()+nodeOf(p), evidence))
	}
	return all
}

// objectInodes is the number of inodes that the driver needs for a volume.
const objectInodes = 3

// storageSpace finds roots without space or inodes.
func storageSpace(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			size, ok := p.DriverMetrics.Value("causeway_storage_size_bytes")
			free, _ := p.DriverMetrics.Value("causeway_storage_free_bytes")
			available, _ := p.DriverMetrics.Value("causeway_storage_available_bytes")
			promised, _ := p.DriverMetrics.Value("causeway_promised_bytes")
			inodes, _ := p.DriverMetrics.Value("causeway_storage_inodes") // 0 if their number is not fixed
			freeInodes, hasInodes := p.DriverMetrics.Value("causeway_storage_free_inodes")
			if !ok || size == 0 {
				continue
			}
			f := Finding{Severity: Warning, Object: p.Object() + nodeOf(p), Page: pageStorage,
				Evidence: fmt.Sprintf("size %.0f, free %.0f, available %.0f, promised %.0f bytes", size, free,
					available, promised)}
			conditions := storageConditions[d.SMB()]
			full, noInodes := conditions["StorageAlmostFull"], conditions["StorageInodesExhausted"]
			switch {
			case free < size/10: // the limit of the condition, and of CausewayStorageAlmostFull
				f.Cause, f.Remedy = full.cause, full.remedy
				if free < size*3/100 { // CausewayStorageFull
					f.Severity = Error
				}
			case hasInodes && inodes > 0 && freeInodes < inodes/20:
				f.Cause, f.Remedy = "less than a twentieth of the inodes of the root is free", noInodes.remedy
				if freeInodes < objectInodes {
					f.Severity, f.Cause = Error, noInodes.cause
				}
				f.Evidence = fmt.Sprintf("%.0f of %.0f inodes are free", freeInodes, inodes)
			default:
				continue
			}
			all = append(all, f)
		}
	}
	return all
}

// shares finds shares that the controller cannot use. A driver that just started may still connect.
func shares(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.ControllerPods() {
			started, ok := p.DriverMetrics.Value("process_start_time_seconds")
			now := v.Now.Add(p.DriverReady.Ahead) // on the clock of the pod
			if ok && now.Sub(time.Unix(int64(started), 0)) < patience {
				continue
			}
			for _, s := range p.DriverMetrics.Samples("causeway_share_up") {
				if s.Value != 1 {
					all = append(all, Finding{Severity: Error, Object: "share " + s.Labels["source"],
						Cause:    "the controller cannot use the share: its server is away, or rejects the credentials",
						Evidence: p.Name + ": causeway_share_up " + s.String(),
						Remedy: "kubectl -n " + p.Namespace + " logs " + p.Name +
							" -c driver has the error; then repair the server, the network or the Secret",
						Page: pageSMB + "#when-the-server-is-away"})
				}
			}
		}
	}
	return all
}
