package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// ControllerModifyVolume changes those parameters of a volume that the request names, and no others. A request that names
// none is INVALID_ARGUMENT, as the spec requires some; one that has reserved keys only says of which claim the volume is
// (external-resizer, --extra-modify-metadata), and changes nothing. CSI spec v1.13, ControllerModifyVolume.
func (c *controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	modifier, ok := c.backend.(backend.Modifier)
	if !ok {
		return c.UnimplementedControllerServer.ControllerModifyVolume(ctx, req)
	}
	id := req.GetVolumeId()
	if err := required("volume ID", id); err != nil {
		return nil, err
	}
	if len(req.GetMutableParameters()) == 0 {
		return nil, fmt.Errorf("%w: the mutable parameters are missing", backend.ErrInvalid)
	}
	parameters := ownKeys(req.GetMutableParameters())
	if len(parameters) == 0 {
		_, err := c.persistent(ctx, id, req.GetSecrets())
		return &csi.ControllerModifyVolumeResponse{}, err
	}
	if err := modifier.Modify(ctx, id, parameters, req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("modify volume %.128q: %w", id, err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// mutable returns the mutable parameters of a new volume, which there are only if the backend can change them later.
func mutable(b backend.Backend, parameters map[string]string) (map[string]string, error) {
	own := ownKeys(parameters)
	if len(own) > 0 && !is[backend.Modifier](b) {
		return nil, fmt.Errorf("%w: unknown mutable parameters %.64q: this storage has none", backend.ErrInvalid, slices.Sorted(maps.Keys(own)))
	}
	return own, nil
}

// differing returns the first key, in order, of which has says something else than asked, or nothing.
func differing(asked, has map[string]string) (key string, differs bool) {
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		if value, ok := has[key]; !ok || value != asked[key] {
			return key, true
		}
	}
	return "", false
}
