package healthmonitor

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// odd is a condition of a type that CSI v1.13 does not have.
func odd(reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
	return entry(csi.VolumeHealthErrorType(99), reason, message)
}

func reportsUnknown(c *Config) { c.UnknownConditions = true }

// TestUnknownConditionsAreIgnored: without the flag they have no effect, as CSI v1.13 requires.
func TestUnknownConditionsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": {odd("Odd", "")}, "vol-b": {odd("Odd", ""), degraded("Slow", "")}})
		api := newAPI(true, bounds("a", "b")...)
		api.unknown = true
		h := start(t, api, d)
		h.runRound()
		h.wants("status", h.health("claim-a"))
		h.wants("status beside a known condition", h.health("claim-b"), "Degraded(Slow)")
		if said := strings.Join(h.events.said(), "\n"); strings.Contains(said, "Odd") || !strings.Contains(said, "Slow") {
			t.Errorf("the events are %s", said)
		}
	})
}

// TestUnknownConditionsAreReported: an API server that has the status gets it, after the others.
func TestUnknownConditionsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": {odd("Odd", "what is this?"), degraded("Slow", "")}})
		api := newAPI(true, bound("a")...)
		api.unknown = true
		h := start(t, api, d, reportsUnknown)
		h.runRound()
		h.wants("status", h.health("claim-a"), "Degraded(Slow)", "Unknown(Odd) what is this?")
		h.gathers(`
# HELP csi_sidecars_volume_health_abnormal_volumes Volumes with this status, as the driver's controller side has them.
# TYPE csi_sidecars_volume_health_abnormal_volumes gauge
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Abnormal"} 0
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="DataLoss"} 0
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Degraded"} 1
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Inaccessible"} 0
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Unknown"} 1
`, prefix+"abnormal_volumes")
		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = nil })
		h.runRound()
		h.runRound()
		h.wants("status of a volume that is well again", h.health("claim-a"))
	})
}

// TestAnAPIServerWithoutTheStatus: the known conditions are written, events have all, and the
// status Unknown is retried later.
func TestAnAPIServerWithoutTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": {lost("Gone", ""), odd("Odd", "")}, "vol-b": {odd("Odd", "")}})
		api := newAPI(true, bounds("a", "b")...)
		h := start(t, api, d, reportsUnknown)
		h.runRound()
		h.wants("status", h.health("claim-a"), "DataLoss(Gone)")
		h.wants("status without a known condition", h.health("claim-b"))
		if said := strings.Join(h.events.said(), "\n"); strings.Count(said, "Unknown") != 2 {
			t.Errorf("the events are %s", said)
		}
		if n := api.written(); n > 3 { // one or both are rejected once, and claim-a is written
			t.Errorf("%d writes in the first round", n)
		}
		for range 5 {
			h.runRound()
		}
		if n := api.written(); n > 0 {
			t.Errorf("%d writes although nothing has changed", n)
		}
		h.gathers(`
# HELP csi_sidecars_volume_health_write_failures_total Claims whose status could not be written.
# TYPE csi_sidecars_volume_health_write_failures_total counter
csi_sidecars_volume_health_write_failures_total{driver_name="health.csi.example.com"} 0
`, prefix+"write_failures_total")
		api.set(func(a *fakeAPI) { a.unknown = true }) // upgraded
		time.Sleep(fieldRetry)
		h.runRound()
		h.wants("status after the upgrade", h.health("claim-a"), "DataLoss(Gone)", "Unknown(Odd)")
		h.wants("status after the upgrade", h.health("claim-b"), "Unknown(Odd)")
		if said := h.events.said(); len(said) > 0 {
			t.Errorf("the conditions are the same, and the events are %q", said)
		}
	})
}
