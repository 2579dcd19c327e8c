package resizer

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	upstream "github.com/kubernetes-csi/external-resizer/v2/pkg/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// overConn implements upstream's client of the driver on an existing channel: upstream's own opens
// another.
type overConn struct{ conn *grpc.ClientConn }

var _ upstream.Client = overConn{}

func (c overConn) GetDriverName(ctx context.Context) (string, error) {
	return rpc.GetDriverName(ctx, c.conn)
}

func (c overConn) SupportsPluginControllerService(ctx context.Context) (bool, error) {
	services, err := rpc.GetPluginCapabilities(ctx, c.conn)
	return services[csi.PluginCapability_Service_CONTROLLER_SERVICE], err
}

func (c overConn) SupportsControllerResize(ctx context.Context) (bool, error) {
	return c.can(ctx, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
}

func (c overConn) SupportsControllerModify(ctx context.Context) (bool, error) {
	return c.can(ctx, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
}

func (c overConn) SupportsControllerSingleNodeMultiWriter(ctx context.Context) (bool, error) {
	return c.can(ctx, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
}

func (c overConn) can(ctx context.Context, what csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	all, err := rpc.GetControllerCapabilities(ctx, c.conn)
	return all[what], err
}

// SupportsNodeResize asks the node service, which may be missing on the socket of the controller
// plugin. Upstream's binary ends then; here that would end the other controllers, too.
func (c overConn) SupportsNodeResize(ctx context.Context) (bool, error) {
	answer, err := csi.NewNodeClient(c.conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, have := range answer.GetCapabilities() {
		if have.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME {
			return true, nil
		}
	}
	return false, nil
}

func (c overConn) Expand(ctx context.Context, id string, bytes int64, secrets map[string]string,
	capability *csi.VolumeCapability) (int64, bool, error) {
	answer, err := csi.NewControllerClient(c.conn).ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, Secrets: secrets, VolumeCapability: capability,
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})
	return answer.GetCapacityBytes(), answer.GetNodeExpansionRequired(), err
}

func (c overConn) Modify(ctx context.Context, id string, secrets, parameters map[string]string) error {
	_, err := csi.NewControllerClient(c.conn).ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
		VolumeId: id, Secrets: secrets, MutableParameters: parameters,
	})
	return err
}

// CloseConnection does nothing: the channel is shared.
func (c overConn) CloseConnection() {}
