package rig

import (
	"cmp"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Numbers of CSI spec v1.12, csi.proto. Version 1.13 reserves them.
const (
	controllerVolumeCondition = csi.ControllerServiceCapability_RPC_Type(11) // VOLUME_CONDITION
	nodeVolumeCondition       = csi.NodeServiceCapability_RPC_Type(4)        // VOLUME_CONDITION
	// volume_condition has this number in the VolumeStatus of ListVolumesResponse and of
	// ControllerGetVolumeResponse, and in NodeGetVolumeStatsResponse.
	fieldVolumeCondition = protowire.Number(2)
)

// Condition is a VolumeCondition of CSI v1.12.
type Condition struct {
	Abnormal bool
	Message  string
}

// encode returns the field volume_condition. protobuf-go of v1.12 omits zero values in the same
// way.
func (c Condition) encode() []byte {
	var b []byte
	if c.Abnormal {
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 1)
	}
	if c.Message != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), c.Message)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldVolumeCondition, protowire.BytesType), b)
}

// foreign is the state of a driver that poses as another vendor's of CSI v1.12.
type foreign struct {
	conditions map[string][]byte // by volume ID: the encoded field
	unready    bool
}

// SetCondition sets the condition of a volume of a foreign driver. A volume without a call has
// Condition{}.
func (d *Driver) SetCondition(volumeID string, c Condition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.foreign.conditions[volumeID] = c.encode()
}

// SetReady sets the answer of a foreign driver's Probe, for liveness probes. The driver is ready
// from the start.
func (d *Driver) SetReady(ready bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.foreign.unready = !ready
}

// volumeCondition returns the encoded field for a volume.
func (d *Driver) volumeCondition(volumeID string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.foreign.conditions[volumeID]; ok {
		return c
	}
	return Condition{}.encode()
}

// openSocket gives the socket the mode of other vendors' drivers, which run as root and with a
// umask of 022.
func openSocket(path string) error { return os.Chmod(path, 0o755) }

// newCalls are the calls that CSI v1.12 does not have.
var newCalls = []string{"ControllerListVolumeHealth", "ControllerGetVolumeHealth", "NodeGetVolumeHealth",
	"NodeGetStorageHealth"}

// refuse returns the error of a call that CSI v1.12 does not have.
func refuse(method string) error {
	if slices.Contains(newCalls, method) {
		return status.Error(codes.Unimplemented, "unknown method "+method)
	}
	return nil
}

// pose turns an answer into that of a foreign driver.
func (d *Driver) pose(request any, answer proto.Message) {
	switch r := answer.(type) {
	case *csi.GetPluginInfoResponse:
		r.VendorVersion, r.Manifest = "v4.2.0-foreign", map[string]string{"vendor": "example.org"}
	case *csi.GetPluginCapabilitiesResponse:
		r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.PluginCapability) bool {
			return c.GetService().GetType() == csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS
		})
	case *csi.ProbeResponse:
		d.mu.Lock()
		r.Ready = wrapperspb.Bool(!d.foreign.unready)
		d.mu.Unlock()
	case *csi.ControllerGetCapabilitiesResponse:
		r.Capabilities = append(slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() > csi.ControllerServiceCapability_RPC_GET_SNAPSHOT // the last of v1.12
		}), &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: controllerVolumeCondition}}})
	case *csi.NodeGetCapabilitiesResponse:
		r.Capabilities = append(slices.DeleteFunc(r.Capabilities, func(c *csi.NodeServiceCapability) bool {
			return c.GetRpc().GetType() > csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP // the last of v1.12
		}), &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: nodeVolumeCondition}}})
	case *csi.ListVolumesResponse:
		for _, e := range r.GetEntries() {
			e.Status = cmp.Or(e.GetStatus(), &csi.ListVolumesResponse_VolumeStatus{})
			e.Status.ProtoReflect().SetUnknown(d.volumeCondition(e.GetVolume().GetVolumeId()))
		}
	case *csi.ControllerGetVolumeResponse:
		r.Status = cmp.Or(r.GetStatus(), &csi.ControllerGetVolumeResponse_VolumeStatus{})
		r.Status.ProtoReflect().SetUnknown(d.volumeCondition(r.GetVolume().GetVolumeId()))
	case *csi.NodeGetVolumeStatsResponse:
		r.ProtoReflect().SetUnknown(d.volumeCondition(request.(*csi.NodeGetVolumeStatsRequest).GetVolumeId()))
	}
}
