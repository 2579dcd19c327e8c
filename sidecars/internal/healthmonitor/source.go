package healthmonitor

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	v1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
	"github.com/causeway-csi/causeway/sidecars/internal/volumecondition"
)

// report is the answer of a driver for a volume.
type report struct {
	id         string
	conditions []v1.VolumeHealthCondition
	unknown    int   // statuses of types that this version does not know
	err        error // the answer cannot be read
}

// calls are the CSI calls that report the health of volumes.
type calls interface {
	// page returns a page of a list, and the token of the next page.
	page(ctx context.Context, size int32, token string) ([]report, string, error)
	// get returns the report for a volume.
	get(ctx context.Context, id string) (report, error)
}

// source is the set of calls that a driver has.
type source struct {
	calls
	lists, gets  bool
	listsHealthy bool // a list has all volumes, not only abnormal ones
}

// sourceOf returns the calls to use. Those of CSI v1.13 come first. For older drivers the condition
// is the same as in upstream's monitor: VOLUME_CONDITION, and LIST_VOLUMES or GET_VOLUME. Errors:
// sidecar.ErrNotSupported.
func sourceOf(driver string, can rpc.ControllerCapabilitySet, c csi.ControllerClient) (source, error) {
	list, get := can[csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH],
		can[csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH]
	if list || get {
		return source{calls: healthCalls{c}, lists: list, gets: true}, nil // the spec requires GET with LIST
	}
	list, get = can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES],
		can[csi.ControllerServiceCapability_RPC_GET_VOLUME]
	if can[volumecondition.Capability] && (list || get) {
		return source{calls: conditionCalls{c}, lists: list, gets: get, listsHealthy: true}, nil
	}
	return source{}, fmt.Errorf("%w: %s cannot report the health of its volumes: its controller capabilities have "+
		"neither LIST_VOLUME_HEALTH "+
		"nor GET_VOLUME_HEALTH (CSI v1.13), nor VOLUME_CONDITION with LIST_VOLUMES or GET_VOLUME (CSI v1.12 and "+
		"older)", sidecar.ErrNotSupported, driver)
}

// healthCalls are the calls of CSI v1.13.
type healthCalls struct{ csi.ControllerClient }

func (c healthCalls) page(ctx context.Context, size int32, token string) ([]report, string, error) {
	resp, err := c.ControllerListVolumeHealth(ctx,
		&csi.ControllerListVolumeHealthRequest{MaxEntries: size, StartingToken: token})
	var reports []report
	for _, h := range resp.GetEntries() {
		reports = append(reports, healthReport(h))
	}
	return reports, resp.GetNextToken(), err
}

func (c healthCalls) get(ctx context.Context, id string) (report, error) {
	resp, err := c.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
	return healthReport(resp.GetVolumeHealth()), err
}

func healthReport(h *csi.VolumeHealth) report {
	all, unknown := conditions(h)
	return report{id: h.GetVolumeId(), conditions: all, unknown: unknown}
}
