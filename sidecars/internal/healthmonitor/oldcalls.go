package healthmonitor

import (
	"cmp"
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/sidecars/internal/volumecondition"
)

// reasonAbnormal marks a condition that a driver of CSI v1.12 or older reports. It is also the
// reason of upstream's events.
const reasonAbnormal = eventAbnormal

// fromVolumeCondition returns the condition for the status of a claim. CSI v1.12 calls a volume
// abnormal that is not available or not operating optimally; it does not say which. The API server
// requires one of three statuses, of which Degraded is the weakest. The reason tells it from the
// status Degraded of CSI v1.13, which means that the volume is usable.
func fromVolumeCondition(c volumecondition.Condition) []v1.VolumeHealthCondition {
	if !c.Abnormal {
		return nil
	}
	return []v1.VolumeHealthCondition{condition(v1.VolumeHealthDegraded, reasonAbnormal, c.Message)}
}

// isVolumeCondition reports whether a condition comes from a VolumeCondition.
func isVolumeCondition(c v1.VolumeHealthCondition) bool {
	return c.Status == v1.VolumeHealthDegraded && c.Reason == reasonAbnormal
}

// conditionCalls are the calls of CSI v1.12 and older.
type conditionCalls struct{ csi.ControllerClient }

func (c conditionCalls) page(ctx context.Context, size int32, token string) ([]report, string, error) {
	resp, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: size, StartingToken: token})
	var reports []report
	for _, e := range resp.GetEntries() {
		c, err := volumecondition.Of(e.GetStatus())
		reports = append(reports, report{id: e.GetVolume().GetVolumeId(), conditions: fromVolumeCondition(c), err: err})
	}
	return reports, resp.GetNextToken(), err
}

// get accepts an answer without a volume, as upstream's monitor does.
func (c conditionCalls) get(ctx context.Context, id string) (report, error) {
	resp, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil {
		return report{}, err
	}
	status, err := volumecondition.Of(resp.GetStatus())
	return report{id: cmp.Or(resp.GetVolume().GetVolumeId(), id), conditions: fromVolumeCondition(status),
		err: err}, nil
}
