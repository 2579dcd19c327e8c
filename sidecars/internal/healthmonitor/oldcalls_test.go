package healthmonitor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// Encoded by the Go package of CSI spec v1.12.0.
const (
	statusLost   = "\x12\r\b\x01\x12\tdisk lost"  // VolumeCondition{Abnormal: true, Message: "disk lost"}
	statusNormal = "\x12\x00"                     // VolumeCondition{}
	statusFine   = "\x12\x06\x12\x04fine"         // VolumeCondition{Message: "fine"}
	statusBad    = "\x12\v\b\x01\x12\tdisk l\x80" // a message of 7 bytes that claims 9
)

// ListVolumes returns the volumes of statuses in pages of a single volume.
func (d *fakeDriver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists++
	if d.listErr != nil {
		return nil, d.listErr
	}
	ids := slices.Sorted(maps.Keys(d.statuses))
	ids = slices.DeleteFunc(ids, func(id string) bool { return d.unlisted[id] || id <= req.GetStartingToken() })
	resp := &csi.ListVolumesResponse{}
	for _, id := range ids[:min(len(ids), 1)] {
		e := &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: id},
			Status: &csi.ListVolumesResponse_VolumeStatus{}}
		e.Status.ProtoReflect().SetUnknown([]byte(d.statuses[id]))
		resp.Entries = append(resp.Entries, e)
		if len(ids) > 1 {
			resp.NextToken = id
		}
	}
	return resp, nil
}

func (d *fakeDriver) ControllerGetVolume(_ context.Context,
	req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gets++
	id := req.GetVolumeId()
	unknown, ok := d.statuses[id]
	switch {
	case d.errs[id] != nil:
		return nil, d.errs[id]
	case !ok:
		return nil, status.Errorf(codes.NotFound, "no volume %q", id)
	}
	resp := &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: id},
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}
	if d.answersAs != nil {
		resp.Volume.VolumeId = *d.answersAs
	}
	resp.Status.ProtoReflect().SetUnknown([]byte(unknown))
	return resp, nil
}

// Capabilities of drivers of CSI v1.12.
var (
	conditionsByList = rpc.ControllerCapabilitySet{11: true, csi.ControllerServiceCapability_RPC_LIST_VOLUMES: true}
	conditionsByGet  = rpc.ControllerCapabilitySet{11: true, csi.ControllerServiceCapability_RPC_GET_VOLUME: true}
	conditionsByBoth = rpc.ControllerCapabilitySet{11: true, csi.ControllerServiceCapability_RPC_LIST_VOLUMES: true,
		csi.ControllerServiceCapability_RPC_GET_VOLUME: true}
)

// startOld starts a monitor of a driver of CSI v1.12 with these volumes and claims for a and b.
func startOld(t *testing.T, can rpc.ControllerCapabilitySet, statuses map[string]string) *harness {
	t.Helper()
	d := holding(nil)
	d.statuses = statuses
	return start(t, newAPI(true, bounds("a", "b")...), d, func(c *Config) { c.Capabilities = can })
}

func TestTheCallsFollowFromTheCapabilities(t *testing.T) {
	for _, c := range []struct {
		name             string
		can              rpc.ControllerCapabilitySet
		old, lists, gets bool
		err              error
	}{
		{name: "nothing", err: sidecar.ErrNotSupported},
		{name: "volumes without conditions", err: sidecar.ErrNotSupported, can: rpc.ControllerCapabilitySet{
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES: true, csi.ControllerServiceCapability_RPC_GET_VOLUME: true}},
		{name: "conditions without a call for volumes", err: sidecar.ErrNotSupported,
			can: rpc.ControllerCapabilitySet{11: true}},
		{name: "conditions in a list", can: conditionsByList, old: true, lists: true},
		{name: "conditions of single volumes", can: conditionsByGet, old: true, gets: true},
		{name: "conditions in both", can: conditionsByBoth, old: true, lists: true, gets: true},
		{name: "CSI v1.13", can: listAndGet, lists: true, gets: true},
		{name: "both versions: the newer is used", lists: false, gets: true, can: rpc.ControllerCapabilitySet{11: true,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES: true, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := sourceOf(driverName, c.can, nil)
			if !errors.Is(err, c.err) || got.lists != c.lists || got.gets != c.gets || got.listsHealthy != c.old {
				t.Errorf("sourceOf = %+v, %v", got, err)
			}
			if _, old := got.calls.(conditionCalls); old != c.old {
				t.Errorf("the calls are %T", got.calls)
			}
		})
	}
}

func TestAVolumeConditionIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		can         rpc.ControllerCapabilitySet
		lists, gets int // in a round
	}{
		"by ListVolumes":                     {conditionsByList, 2, 0},
		"by ListVolumes of a driver of both": {conditionsByBoth, 2, 0},
		"by ControllerGetVolume":             {conditionsByGet, 0, 2},
	} {
		t.Run(name, bubble(func(t *testing.T) {
			h := startOld(t, c.can, map[string]string{"vol-a": statusLost, "vol-b": statusFine})
			h.runRound()
			if lists, gets := h.driver.calls(); lists != c.lists || gets != c.gets {
				t.Errorf("%d lists and %d gets, want %d and %d", lists, gets, c.lists, c.gets)
			}
			h.wants("status", h.health("claim-a"), "Degraded(VolumeConditionAbnormal) disk lost")
			h.wants("status of the normal volume", h.health("claim-b"))
			h.wants("events", h.events.said(),
				"Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: disk lost")
			h.gathers(`# HELP csi_sidecars_volume_health_abnormal 1 for each claim whose volume has this status; a claim that is well has no series.
# TYPE csi_sidecars_volume_health_abnormal gauge
csi_sidecars_volume_health_abnormal{driver_name="health.csi.example.com",namespace="team",persistentvolumeclaim="claim-a",status="Abnormal"} 1
`, prefix+"abnormal")
			h.restart()
			h.runRound()
			h.wants("events after a restart", h.events.said())

			h.driver.set(func(d *fakeDriver) { d.statuses["vol-a"] = statusNormal })
			h.runRound()
			h.wants("status after recovery", h.health("claim-a"))
			h.wants("events of recovery", h.events.said(),
				"Normal VolumeConditionNormal PersistentVolumeClaim claim-a: the volume is healthy again, no longer "+
					"abnormal")
		}))
	}
}

func TestANewMessageOfAVolumeConditionCausesAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startOld(t, conditionsByList, map[string]string{"vol-a": statusLost, "vol-b": statusNormal})
		h.runRound()
		h.events.said()
		h.driver.set(func(d *fakeDriver) { d.statuses["vol-a"] = "\x12\x02\b\x01" })
		h.runRound()
		h.wants("events soon after", h.events.said())
		time.Sleep(textEvery)
		h.runRound()
		h.wants("events later", h.events.said(),
			"Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: the CSI driver reports an abnormal condition "+
				"without a message")
		time.Sleep(textEvery)
		h.runRound()
		h.wants("events of the same message", h.events.said())
	})
}

func TestAVolumeWithoutAReadableConditionStaysAsItWas(t *testing.T) {
	for name, change := range map[string]func(*fakeDriver){
		"malformed":            func(d *fakeDriver) { d.statuses["vol-a"] = statusBad },
		"no condition":         func(d *fakeDriver) { d.statuses["vol-a"] = "" },
		"not in the list":      func(d *fakeDriver) { d.unlisted["vol-a"] = true },
		"the whole list fails": func(d *fakeDriver) { d.listErr = status.Error(codes.Internal, "no list") },
	} {
		t.Run(name, bubble(func(t *testing.T) {
			h := startOld(t, conditionsByList, map[string]string{"vol-a": statusLost, "vol-b": statusNormal})
			h.runRound()
			h.events.said()
			h.driver.set(change)
			h.runRound()
			h.wants("status", h.health("claim-a"), "Degraded(VolumeConditionAbnormal) disk lost")
			h.wants("events", h.events.said())
			if _, gets := h.driver.calls(); gets > 0 {
				t.Errorf("%d calls of ControllerGetVolume, which the driver does not have", gets)
			}
		}))
	}
}

func TestAnAnswerThatCannotBeReadIsLogged(t *testing.T) {
	for name, can := range map[string]rpc.ControllerCapabilitySet{"list": conditionsByList, "get": conditionsByGet,
		"both": conditionsByBoth} {
		t.Run(name, bubble(func(t *testing.T) {
			h := startOld(t, can, map[string]string{"vol-a": statusBad, "vol-b": statusLost})
			wait, err := h.round(t.Context())
			if err == nil || strings.Count(err.Error(), "vol-a") != 1 || strings.Contains(err.Error(), "vol-b") {
				t.Errorf("round: %v, want one error for vol-a", err)
			}
			if lists := can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES]; lists != (wait == h.ListInterval) {
				t.Errorf("the next round is in %v: one volume must not change the interval", wait)
			}
			h.wants("status of the other volume", h.health("claim-b"), "Degraded(VolumeConditionAbnormal) disk lost")
			h.gathers(`# HELP csi_sidecars_volume_health_get_failures_total Single volumes for which the driver had no answer.
# TYPE csi_sidecars_volume_health_get_failures_total counter
csi_sidecars_volume_health_get_failures_total{driver_name="health.csi.example.com",grpc_status_code="Unknown"} 1
`, prefix+"get_failures_total")
		}))
	}
}

func TestAnAnswerMustBeForTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for id, want := range map[string][]string{"vol-x": nil, "": {"Degraded(VolumeConditionAbnormal) disk lost"}} {
			h := startOld(t, conditionsByGet, map[string]string{"vol-a": statusLost, "vol-b": statusNormal})
			h.driver.answersAs = &id
			_, err := h.round(t.Context())
			h.wants("status after an answer for "+id, h.health("claim-a"), want...)
			if (err == nil) != (want != nil) {
				t.Errorf("an answer for volume %q: %v", id, err)
			}
		}
	})
}

func TestAListWithoutAVolumeIsFollowedByAQueryForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startOld(t, conditionsByBoth, map[string]string{"vol-a": statusLost, "vol-b": statusNormal})
		h.driver.unlisted["vol-a"] = true
		h.runRound()
		if lists, gets := h.driver.calls(); lists != 1 || gets != 1 {
			t.Errorf("%d lists and %d gets, want 1 and 1", lists, gets)
		}
		h.wants("status", h.health("claim-a"), "Degraded(VolumeConditionAbnormal) disk lost")
	})
}
