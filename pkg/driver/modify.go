package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// ControllerModifyVolume changes only the parameters of a volume that the request names. A request
// without parameters is INVALID_ARGUMENT, because the spec requires some. A request with only
// reserved keys names the claim of the volume (external-resizer, --extra-modify-metadata), and
// changes nothing. CSI spec v1.13, ControllerModifyVolume.
func (c *controller) ControllerModifyVolume(ctx context.Context,
	req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
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

// mutable returns the mutable parameters of a new volume. If the backend is not a Modifier, any
// parameter is an error.
func mutable(b backend.Backend, parameters map[string]string) (map[string]string, error) {
	own := ownKeys(parameters)
	if len(own) > 0 && !is[backend.Modifier](b) {
		return nil, fmt.Errorf("%w: unknown mutable parameters %.64q: this storage has none", backend.ErrInvalid,
			slices.Sorted(maps.Keys(own)))
	}
	return own, nil
}

// differing returns the first key of asked, in sorted order, whose value in has is different or
// missing.
func differing(asked, has map[string]string) (key string, differs bool) {
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		if value, ok := has[key]; !ok || value != asked[key] {
			return key, true
		}
	}
	return "", false
}
