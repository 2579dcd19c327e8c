package driver

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// askedBackend records the access of the last call, and does nothing else.
type askedBackend struct {
	backend.Backend
	asked []backend.Access
}

var errAsked = errors.New("asked")

func (b *askedBackend) Create(_ context.Context, o backend.CreateOptions) (backend.Volume, error) {
	b.asked = o.Access
	return backend.Volume{}, errAsked
}

func (b *askedBackend) Capacity(_ context.Context, o backend.CreateOptions) (backend.Capacity, error) {
	b.asked = o.Access
	return backend.Capacity{}, nil
}

func (b *askedBackend) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	return backend.Volume{ID: id}, nil
}

func (b *askedBackend) Mount(_ context.Context, _ string, a backend.Access) (mounter.Mount, error) {
	b.asked = []backend.Access{a}
	return mounter.Mount{}, errAsked
}

func (b *askedBackend) Attach(context.Context, string, backend.AttachOptions) (map[string]string, error) {
	return nil, nil
}

func (b *askedBackend) Detach(context.Context, string, string, map[string]string) error { return nil }

// TestABackendGetsSharedWrite checks Access.SharedWrite in each call with a volume capability.
func TestABackendGetsSharedWrite(t *testing.T) {
	b := &askedBackend{}
	c := &controller{backend: b, topology: &topology{}}
	n := &node{backend: b, topology: &topology{}, records: &stagingRecords{}}
	ctx := context.Background()
	for name, call := range map[string]func(*csi.VolumeCapability){
		"CreateVolume": func(u *csi.VolumeCapability) {
			c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{u}})
		},
		"GetCapacity": func(u *csi.VolumeCapability) {
			c.GetCapacity(ctx, &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{u}})
		},
		"ValidateVolumeCapabilities": func(u *csi.VolumeCapability) {
			c.ValidateVolumeCapabilities(ctx,
				&csi.ValidateVolumeCapabilitiesRequest{VolumeId: "v", VolumeCapabilities: []*csi.VolumeCapability{u}})
		},
		"ControllerPublishVolume": func(u *csi.VolumeCapability) {
			c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n",
				VolumeCapability: u, Readonly: true})
		},
		"NodeStageVolume": func(u *csi.VolumeCapability) {
			n.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/staging",
				VolumeCapability: u})
		},
		"NodePublishVolume": func(u *csi.VolumeCapability) {
			n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: "/staging",
				TargetPath: "/target", VolumeCapability: u, Readonly: true})
		},
	} {
		for number, mode := range csi.VolumeCapability_AccessMode_Mode_name {
			m := csi.VolumeCapability_AccessMode_Mode(number)
			if m == csi.VolumeCapability_AccessMode_UNKNOWN {
				continue
			}
			for _, u := range []*csi.VolumeCapability{capability(m), blockUse(m)} {
				b.asked = nil
				call(u)
				want := m == oneWriterMode || m == manyMode
				if len(b.asked) != 1 || b.asked[0].SharedWrite != want {
					t.Errorf("%s with %s passes %+v, want SharedWrite %v", name, mode, b.asked, want)
				}
			}
		}
	}
}
