package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// controller is the Controller service: it answers from the backend alone. CSI spec v1.13, Controller Service RPC.
type controller struct {
	csi.UnimplementedControllerServer
	backend backend.Backend
	place   *place
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return ControllerCapabilities(c.backend), nil
}

func (c *controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
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

func (c *controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := c.backend.Delete(ctx, req.GetVolumeId(), req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("delete volume %.128q: %w", req.GetVolumeId(), err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms what the backend would mount. What it would refuse is no error, but a message.
func (c *controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
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

// supports returns why v can't be what the request describes: ErrInvalid, or why that can't be told.
func (c *controller) supports(ctx context.Context, v backend.Volume, req *csi.ValidateVolumeCapabilitiesRequest) error {
	uses, err := c.place.uses(req.GetVolumeCapabilities())
	if err != nil {
		return err
	}
	for _, u := range uses {
		u.Context, u.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
		what, err := c.backend.Mount(ctx, v.ID, u.Access)
		if err != nil {
			return err
		}
		if err := checkShared(what, u.SharedWrite); err != nil {
			return err
		}
	}
	if key, differs := differing(ownKeys(req.GetParameters()), v.Parameters); differs {
		return fmt.Errorf("%w: the volume was made with another parameter %.64q", backend.ErrInvalid, key)
	}
	if key, differs := differing(ownKeys(req.GetMutableParameters()), v.Mutable); differs {
		return fmt.Errorf("%w: the volume has another mutable parameter %.64q", backend.ErrInvalid, key)
	}
	return nil
}

func (c *controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
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

// GetCapacity gets the parameters of a StorageClass as they are, secret names and all: reserved keys don't count.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	sizer, ok := c.backend.(backend.CapacityReporter)
	if !ok {
		return c.UnimplementedControllerServer.GetCapacity(ctx, req)
	}
	o := backend.CreateOptions{Parameters: ownKeys(req.GetParameters())}
	if len(req.GetVolumeCapabilities()) > 0 {
		uses, err := c.place.uses(req.GetVolumeCapabilities())
		if err != nil {
			return nil, err
		}
		for _, u := range uses {
			o.Access = append(o.Access, u.Access)
		}
	}
	room, err := sizer.Capacity(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("get capacity: %w", err)
	}
	if !c.place.within(req.GetAccessibleTopology()) {
		room = backend.Capacity{}
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: room.Available,
		MaximumVolumeSize: wrapperspb.Int64(room.Maximum),
	}, nil
}

func (c *controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	doctor, ok := c.backend.(backend.HealthReporter)
	if !ok {
		return c.UnimplementedControllerServer.ControllerGetVolumeHealth(ctx, req)
	}
	if err := required("volume ID", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if v, err := c.backend.Get(ctx, req.GetVolumeId(), nil); err == nil && v.Inline {
		return nil, errInline(req.GetVolumeId())
	}
	conditions, err := doctor.Health(ctx, req.GetVolumeId())
	if err != nil {
		return nil, fmt.Errorf("get the health of volume %.128q: %w", req.GetVolumeId(), err)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(req.GetVolumeId(), conditions)}, nil
}

func (c *controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	doctor, ok := c.backend.(backend.HealthReporter)
	if !ok {
		return c.UnimplementedControllerServer.ControllerListVolumeHealth(ctx, req)
	}
	after, limit, err := parsePage(req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	sick, more, err := doctor.ListHealth(ctx, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list the health of volumes: %w", err)
	}
	resp := &csi.ControllerListVolumeHealthResponse{}
	for _, d := range sick {
		resp.Entries = append(resp.Entries, volumeHealth(d.ID, d.Conditions))
	}
	if more && len(sick) > 0 {
		resp.NextToken = nextToken(sick[len(sick)-1].ID)
	}
	return resp, nil
}

// persistent returns the volume with this ID, if CreateVolume made it.
func (c *controller) persistent(ctx context.Context, id string, secrets map[string]string) (backend.Volume, error) {
	v, err := c.backend.Get(ctx, id, secrets)
	if err == nil && v.Inline {
		err = errInline(id)
	}
	return v, err
}

// errInline says that an inline volume is the node's alone.
func errInline(id string) error {
	return fmt.Errorf("%w: volume %.128q is a pod's inline volume", backend.ErrNotFound, id)
}

// volume returns v as CSI has it.
func (c *controller) volume(v backend.Volume) *csi.Volume {
	volume := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size, VolumeContext: v.Context, ContentSource: contentSource(v)}
	if c.place.local {
		volume.AccessibleTopology = []*csi.Topology{c.place.topology}
	}
	return volume
}

// entry returns v as ListVolumes has it.
func (c *controller) entry(v backend.Volume) *csi.ListVolumesResponse_Entry {
	e := &csi.ListVolumesResponse_Entry{Volume: c.volume(v)}
	if is[backend.Attacher](c.backend) {
		e.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.Nodes}
	}
	return e
}

// volumeHealth returns what is wrong with a volume as CSI has it.
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
