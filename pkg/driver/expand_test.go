package driver

import (
	"context"
	"math"
	"os/exec"
	"testing"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newSize returns a capacity range in bytes.
func newSize(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

func (v *volume) expand(r *csi.CapacityRange) (*csi.ControllerExpandVolumeResponse, error) {
	return v.ControllerExpandVolume(context.Background(),
		&csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: r})
}

func (v *volume) nodeExpand(path string, r *csi.CapacityRange) (*csi.NodeExpandVolumeResponse, error) {
	return v.NodeExpandVolume(context.Background(),
		&csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: path, CapacityRange: r})
}

func TestVolumesGrowWhileTheyAreUsed(t *testing.T) {
	const G = 1 << 30
	xfs := capability(sharedMode)
	xfs.GetMount().FsType = "xfs"
	for name, tc := range map[string]struct {
		kind       string
		capability *csi.VolumeCapability
		node       bool // the node must expand the volume, too
	}{
		"a directory": {"directory", capability(sharedMode), false},
		"an image":    {"image", xfs, true},
		"a device":    {"image", device(sharedMode), true},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMounter(t, func(t *testing.T, d *testDriver) {
				if tc.node && !d.hasImages() {
					t.Skip("this process cannot use images")
				}
				if _, err := exec.LookPath("mkfs.xfs"); err != nil && d.real && tc.capability == xfs {
					namespace.Skip(t, err)
				}
				req := createRequest("v")
				req.Parameters = map[string]string{"kind": tc.kind}
				req.VolumeCapabilities = []*csi.VolumeCapability{tc.capability}
				resp, err := d.CreateVolume(context.Background(), req)
				d.want(codes.OK, err)
				v := &volume{testDriver: d, id: resp.GetVolume().GetVolumeId(), capability: tc.capability,
					staging: d.path("staging")}
				d.want(codes.OK, v.stage())
				d.want(codes.OK, v.publish("one"))
				_, err = v.nodeExpand(d.path("one"), newSize(G, 0))
				d.want(codes.OutOfRange, err) // before ControllerExpandVolume
				for range 2 {
					grown, err := v.expand(newSize(G, 2*G))
					if d.want(codes.OK, err); grown.GetCapacityBytes() != G ||
						grown.GetNodeExpansionRequired() != tc.node {
						t.Errorf("ControllerExpandVolume = %v", grown)
					}
					grownNode, err := v.nodeExpand(d.path("one"), newSize(G, 2*G))
					if d.want(codes.OK, err); grownNode.GetCapacityBytes() != G {
						t.Errorf("NodeExpandVolume = %v", grownNode)
					}
				}
				stats, err := d.NodeGetVolumeStats(context.Background(),
					&csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: d.path("one")})
				d.want(codes.OK, err)
				if total := stats.GetUsage()[0].GetTotal(); d.real && tc.node && (total > G || total < G*9/10) {
					t.Errorf("the volume has %d bytes, want about 1 GiB", total)
				}
				d.want(codes.OK, v.unpublish("one"))
				_, err = v.nodeExpand(d.path("one"), nil)
				d.want(codes.NotFound, err)
				d.want(codes.OK, v.unstage())
				d.want(codes.OK, v.delete())
			})
		})
	}
}

func TestImpossibleExpansionsAreRejected(t *testing.T) {
	d := startDriver(t)
	v := d.create("v", capability(sharedMode))
	for name, tc := range map[string]struct {
		r    *csi.CapacityRange
		code codes.Code
	}{
		"no range":                            {nil, codes.InvalidArgument},
		"an empty range":                      {newSize(0, 0), codes.InvalidArgument},
		"a negative size":                     {newSize(-1, 0), codes.InvalidArgument},
		"more than the limit":                 {newSize(2<<20, 1<<20), codes.OutOfRange},
		"smaller than it is":                  {newSize(0, 1), codes.OutOfRange},
		"larger than the disk":                {newSize(1<<60, 0), codes.OutOfRange},
		"the largest number":                  {newSize(math.MaxInt64, 0), codes.OutOfRange},
		"as large as it is":                   {newSize(1<<20, 1<<20), codes.OK},
		"less than the size, without a limit": {newSize(1, 0), codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := v.expand(tc.r)
			if got := status.Code(err); got != tc.code {
				t.Errorf("%v: got %s, want %s", err, got, tc.code)
			}
		})
	}
	for _, id := range []string{"none", "..", handle(1)} {
		v.id = id
		_, err := v.expand(newSize(1<<21, 0))
		d.want(codes.NotFound, err)
	}
	v.id = ""
	_, err := v.expand(newSize(1<<21, 0))
	d.want(codes.InvalidArgument, err)
}
