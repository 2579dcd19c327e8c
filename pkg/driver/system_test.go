package driver

import (
	"context"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// TestVolumesOfAnotherSystem: a node that cannot mount a volume has no capacity for it, and the
// router tries the next node.
func TestVolumesOfAnotherSystem(t *testing.T) {
	if newFakeWindows == nil {
		t.Skip("no symbolic links here")
	}
	image := map[string]string{"kind": "image"}
	ext4 := map[string]string{"kind": "image", fsTypeKey: "ext4"}
	block := []*csi.VolumeCapability{blockUse(singleMode)}
	mount := []*csi.VolumeCapability{capability(singleMode)}
	for name, tc := range map[string]struct {
		parameters     map[string]string
		capabilities   []*csi.VolumeCapability
		linux, windows bool
	}{
		"a directory":            {nil, mount, true, true},
		"an image":               {image, mount, true, false},
		"an image with ext4":     {ext4, nil, true, false},
		"a block device":         {image, block, true, false},
		"an unknown filesystem":  {map[string]string{"kind": "image", fsTypeKey: "none"}, nil, false, false},
		"a directory with ext4":  {map[string]string{fsTypeKey: "ext4"}, nil, true, true},
		"an image with anything": {image, nil, true, false},
	} {
		for system, want := range map[string]bool{"Linux": tc.linux, "Windows": tc.windows} {
			t.Run(name+" on "+system, func(t *testing.T) {
				d := startDriver(t, func(d *testDriver) { d.links = system == "Windows" })
				resp, err := d.GetCapacity(context.Background(),
					&csi.GetCapacityRequest{Parameters: tc.parameters, VolumeCapabilities: tc.capabilities})
				if err != nil || (resp.GetAvailableCapacity() > 0) != want || resp.GetMaximumVolumeSize().GetValue() != resp.GetAvailableCapacity() {
					t.Errorf("GetCapacity: got %+v, %v, want capacity: %t", resp, err, want)
				}
				if tc.capabilities == nil {
					return
				}
				req := createRequest("v")
				req.Parameters, req.VolumeCapabilities = tc.parameters, tc.capabilities
				_, err = d.CreateVolume(context.Background(), req)
				if want {
					d.want(codes.OK, err)
					return
				}
				d.want(codes.ResourceExhausted, err)
				if !strings.Contains(err.Error(), system) {
					t.Errorf("CreateVolume = %v, want the operating system", err)
				}
			})
		}
	}
}
