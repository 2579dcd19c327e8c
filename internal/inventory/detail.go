package inventory

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Detail has the answers of the driver about one volume.
type Detail struct {
	Driver    string      `json:"driver"`           // name
	Volume    *Object     `json:"volume,omitempty"` // nil if the driver has no answer
	Snapshots []Object    `json:"snapshots"`        // of the volume
	Health    []Condition `json:"health"`           // empty: healthy, or no answer
	Errors    []string    `json:"errors,omitempty"` // of calls without an answer
}

// Condition is a condition of a volume.
type Condition struct {
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// One asks the driver at conn for one volume. A call that fails is in Errors: the others may have
// the cause. Errors: those of GetPluginInfo.
func One(ctx context.Context, conn grpc.ClientConnInterface, id string, o Options) (*Detail, error) {
	driver, err := name(ctx, conn, o)
	if err != nil {
		return nil, err
	}
	c, d := csi.NewControllerClient(conn), &Detail{Driver: driver, Snapshots: []Object{}, Health: []Condition{}}
	ask := func(what string, call func(context.Context) error) {
		ctx, cancel := o.call(ctx)
		defer cancel()
		if err := call(ctx); err != nil {
			d.Errors = append(d.Errors, fmt.Sprintf("%s: %v", what, err))
		}
	}
	ask("ControllerGetVolume", func(ctx context.Context) error {
		resp, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		if err == nil {
			v := volume(&csi.ListVolumesResponse_Entry{Volume: resp.GetVolume()})
			d.Volume = &v
		}
		return err
	})
	ask("ControllerGetVolumeHealth", func(ctx context.Context) error {
		resp, err := c.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
		for _, s := range resp.GetVolumeHealth().GetHealthStatuses() {
			d.Health = append(d.Health, Condition{s.GetStatus().String(), s.GetReason(), s.GetMessage()})
		}
		return err
	})
	ask("ListSnapshots", func(ctx context.Context) error {
		all, err := pages(ctx, o, func(ctx context.Context, token string) ([]Object, string, error) {
			resp, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: o.Page, StartingToken: token,
				SourceVolumeId: id},
				grpc.MaxCallRecvMsgSize(maxMessage))
			return entries(resp.GetEntries(), snapshot), resp.GetNextToken(), err
		})
		for _, s := range all {
			d.Snapshots = append(d.Snapshots, s)
		}
		return err
	})
	return d, nil
}
