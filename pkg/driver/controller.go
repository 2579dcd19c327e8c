package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// controller is the Controller service. Its responses depend on the backend alone. CSI spec v1.13,
// Controller Service RPC.
type controller struct {
	csi.UnimplementedControllerServer
	backend  backend.Backend
	topology *topology
}

func (c *controller) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return ControllerCapabilities(c.backend), nil
}

func (c *controller) CreateVolume(ctx context.Context,
	req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	create, err := c.creator(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	o, err := c.createOptions(req)
	if err != nil {
		return nil, err
	}
	v, err := create(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("create volume %q: %w", req.GetName(), err)
	}
	return &csi.CreateVolumeResponse{Volume: c.volume(v)}, nil
}

func (c *controller) DeleteVolume(ctx context.Context,
	req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := c.backend.Delete(ctx, req.GetVolumeId(), req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("delete volume %.128q: %w", req.GetVolumeId(), err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms the capabilities and parameters with which the backend can
// mount the volume. If the backend rejects them, the response has a message; the call does not
// fail.
func (c *controller) ValidateVolumeCapabilities(ctx context.Context,
	req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, fmt.Errorf("%w: the volume capabilities are missing", backend.ErrInvalid)
	}
	v, err := c.persistent(ctx, req.GetVolumeId(), req.GetSecrets())
	if err != nil {
		return nil, err
	}
	if err := c.supports(ctx, v, req); errors.Is(err, backend.ErrInvalid) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: newScrubber(req).scrub(err.Error())}, nil
	} else if err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
		MutableParameters:  req.GetMutableParameters(),
	}}, nil
}

// supports returns nil if v has the capabilities and parameters of the request, and ErrInvalid if
// not. Other errors come from the backend.
func (c *controller) supports(ctx context.Context, v backend.Volume, req *csi.ValidateVolumeCapabilitiesRequest) error {
	parsed, err := c.topology.parseCapabilities(req.GetVolumeCapabilities())
	if err != nil {
		return err
	}
	for _, vc := range parsed {
		vc.Context, vc.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
		mount, err := c.backend.Mount(ctx, v.ID, vc.Access)
		if err != nil {
			return err
		}
		if err := checkShared(mount, vc.SharedWrite); err != nil {
			return err
		}
	}
	if key, differs := differing(ownKeys(req.GetParameters()), v.Parameters); differs {
		return fmt.Errorf("%w: the volume was created with another value of parameter %.64q", backend.ErrInvalid, key)
	}
	if key, differs := differing(ownKeys(req.GetMutableParameters()), v.Mutable); differs {
		return fmt.Errorf("%w: the volume has another value of mutable parameter %.64q", backend.ErrInvalid, key)
	}
	return nil
}

func (c *controller) ControllerGetVolume(ctx context.Context,
	req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := c.persistent(ctx, req.GetVolumeId(), nil)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: c.volume(v),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: v.Nodes},
	}, nil
}

func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	lister, ok := c.backend.(backend.Lister)
	if !ok {
		return c.UnimplementedControllerServer.ListVolumes(ctx, req)
	}
	after, limit, err := parsePage(req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	volumes, more, err := lister.List(ctx, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	if n := fitting(volumes); n < len(volumes) {
		volumes, more = volumes[:n], true
	}
	resp := &csi.ListVolumesResponse{}
	for _, v := range volumes {
		resp.Entries = append(resp.Entries, c.entry(v))
	}
	if more && len(volumes) > 0 {
		resp.NextToken = nextToken(volumes[len(volumes)-1].ID)
	}
	return resp, nil
}

// GetCapacity ignores reserved keys: a request has all parameters of a StorageClass unchanged, also
// the names of secrets.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	reporter, ok := c.backend.(backend.CapacityReporter)
	if !ok {
		return c.UnimplementedControllerServer.GetCapacity(ctx, req)
	}
	o := backend.CreateOptions{Parameters: ownKeys(req.GetParameters())}
	if len(req.GetVolumeCapabilities()) > 0 {
		parsed, err := c.topology.parseCapabilities(req.GetVolumeCapabilities())
		if err != nil {
			return nil, err
		}
		for _, vc := range parsed {
			o.Access = append(o.Access, vc.Access)
		}
	} else if fsType := req.GetParameters()[fsTypeKey]; fsType != "" { // external-provisioner passes no capabilities
		o.Access = []backend.Access{{FSType: fsType}}
	}
	capacity, err := reporter.Capacity(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("get capacity: %w", err)
	}
	if !c.topology.within(req.GetAccessibleTopology()) {
		capacity = backend.Capacity{}
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: capacity.Available,
		MaximumVolumeSize: wrapperspb.Int64(capacity.Maximum),
	}, nil
}

func (c *controller) ControllerGetVolumeHealth(ctx context.Context,
	req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	reporter, ok := c.backend.(backend.HealthReporter)
	if !ok {
		return c.UnimplementedControllerServer.ControllerGetVolumeHealth(ctx, req)
	}
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if is[backend.Inliner](c.backend) {
		if v, err := c.backend.Get(ctx, req.GetVolumeId(), nil); err == nil && v.Inline {
			return nil, errInline(req.GetVolumeId())
		}
	}
	conditions, err := reporter.Health(ctx, req.GetVolumeId())
	if err != nil {
		return nil, fmt.Errorf("get the health of volume %.128q: %w", req.GetVolumeId(), err)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(req.GetVolumeId(), conditions)}, nil
}

func (c *controller) ControllerListVolumeHealth(ctx context.Context,
	req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	reporter, ok := c.backend.(backend.HealthReporter)
	if !ok {
		return c.UnimplementedControllerServer.ControllerListVolumeHealth(ctx, req)
	}
	after, limit, err := parsePage(req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	unhealthy, more, err := reporter.ListHealth(ctx, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list the health of volumes: %w", err)
	}
	resp := &csi.ControllerListVolumeHealthResponse{}
	for _, v := range unhealthy {
		resp.Entries = append(resp.Entries, volumeHealth(v.ID, v.Conditions))
	}
	if more && len(unhealthy) > 0 {
		resp.NextToken = nextToken(unhealthy[len(unhealthy)-1].ID)
	}
	return resp, nil
}

// persistent returns the volume with this ID. An inline volume is ErrNotFound.
func (c *controller) persistent(ctx context.Context, id string, secrets map[string]string) (backend.Volume, error) {
	v, err := c.backend.Get(ctx, id, secrets)
	if err == nil && v.Inline {
		err = errInline(id)
	}
	return v, err
}

// errInline returns the error for an inline volume, which only the Node service of its node serves.
func errInline(id string) error {
	return fmt.Errorf("%w: volume %.128q is a pod's inline volume", backend.ErrNotFound, id)
}

// volume converts v to the message of CSI.
func (c *controller) volume(v backend.Volume) *csi.Volume {
	volume := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size, VolumeContext: v.Context,
		ContentSource: contentSource(v)}
	if c.topology.local {
		volume.AccessibleTopology = []*csi.Topology{c.topology.volume}
	}
	return volume
}

// entry converts v to an entry of ListVolumes.
func (c *controller) entry(v backend.Volume) *csi.ListVolumesResponse_Entry {
	e := &csi.ListVolumesResponse_Entry{Volume: c.volume(v)}
	if is[backend.Attacher](c.backend) {
		e.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.Nodes}
	}
	return e
}

// volumeHealth converts the conditions of a volume to the message of CSI.
func volumeHealth(id string, conditions []backend.Condition) *csi.VolumeHealth {
	health := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		status := map[backend.Severity]csi.VolumeHealthErrorType{
			backend.Degraded:     csi.VolumeHealthErrorType_DEGRADED,
			backend.Inaccessible: csi.VolumeHealthErrorType_INACCESSIBLE,
			backend.DataLoss:     csi.VolumeHealthErrorType_DATA_LOSS,
		}[c.Severity]
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: status, Reason: c.Reason, Message: c.Message,
		})
	}
	return health
}
