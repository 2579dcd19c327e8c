package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// CreateSnapshot cuts a snapshot. It answers when that can be used: the backend returns no earlier.
func (c *controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	snapshotter, ok := c.backend.(backend.Snapshotter)
	if !ok {
		return c.UnimplementedControllerServer.CreateSnapshot(ctx, req)
	}
	o, err := c.place.snapshotOptions(req)
	if err != nil {
		return nil, err
	}
	s, err := snapshotter.Snapshot(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q of volume %.128q: %w", req.GetName(), req.GetSourceVolumeId(), err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: c.place.snapshot(s)}, nil
}

// snapshotOptions turns a checked request into what a backend is asked for. A snapshot can be used where its volume is:
// a requirement that excludes this place can't be met.
func (p *place) snapshotOptions(req *csi.CreateSnapshotRequest) (backend.SnapshotOptions, error) {
	o := backend.SnapshotOptions{
		Name: req.GetName(), Source: req.GetSourceVolumeId(), Parameters: ownKeys(req.GetParameters()), Secrets: req.GetSecrets(),
		Namespace: namespaceOf(req.GetParameters(), snapshotNamespace),
	}
	if err := required("name", o.Name, "source volume ID", o.Source); err != nil {
		return o, err
	}
	if err := checkName(o.Name); err != nil {
		return o, err
	}
	return o, p.reachable(req.GetAccessibilityRequirements())
}

func (c *controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	snapshotter, ok := c.backend.(backend.Snapshotter)
	if !ok {
		return c.UnimplementedControllerServer.DeleteSnapshot(ctx, req)
	}
	if err := required("snapshot ID", req.GetSnapshotId()); err != nil {
		return nil, err
	}
	if err := snapshotter.DeleteSnapshot(ctx, req.GetSnapshotId(), req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("delete snapshot %.128q: %w", req.GetSnapshotId(), err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	snapshotter, ok := c.backend.(backend.Snapshotter)
	if !ok {
		return c.UnimplementedControllerServer.GetSnapshot(ctx, req)
	}
	if err := required("snapshot ID", req.GetSnapshotId()); err != nil {
		return nil, err
	}
	s, err := snapshotter.GetSnapshot(ctx, req.GetSnapshotId(), req.GetSecrets())
	if err != nil {
		return nil, fmt.Errorf("get snapshot %.128q: %w", req.GetSnapshotId(), err)
	}
	return &csi.GetSnapshotResponse{Snapshot: c.place.snapshot(s)}, nil
}

func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	snapshotter, ok := c.backend.(backend.Snapshotter)
	if !ok {
		return c.UnimplementedControllerServer.ListSnapshots(ctx, req)
	}
	after, limit, err := parsePage(req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	if req.GetSnapshotId() != "" {
		return c.listOne(ctx, snapshotter, req)
	}
	snapshots, more, err := snapshotter.ListSnapshots(ctx, req.GetSourceVolumeId(), after, limit)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	resp := &csi.ListSnapshotsResponse{Entries: each(snapshots, func(s backend.Snapshot) *csi.ListSnapshotsResponse_Entry {
		return &csi.ListSnapshotsResponse_Entry{Snapshot: c.place.snapshot(s)}
	})}
	if more && len(snapshots) > 0 {
		resp.NextToken = nextToken(snapshots[len(snapshots)-1].ID)
	}
	return resp, nil
}

// listOne lists the snapshot with an ID, or nothing if there is none. The others aren't looked at: the CO polls in this
// way, and what is wrong with one of them must not be in the way.
func (c *controller) listOne(ctx context.Context, snapshotter backend.Snapshotter, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	s, err := snapshotter.GetSnapshot(ctx, req.GetSnapshotId(), req.GetSecrets())
	if source := req.GetSourceVolumeId(); errors.Is(err, backend.ErrNotFound) || (err == nil && source != "" && source != s.Source) {
		return &csi.ListSnapshotsResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshot %.128q: %w", req.GetSnapshotId(), err)
	}
	return &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: c.place.snapshot(s)}}}, nil
}

// snapshot returns s as CSI has it.
func (p *place) snapshot(s backend.Snapshot) *csi.Snapshot {
	snapshot := &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, CreationTime: timestamppb.New(s.Created),
		ReadyToUse: true, GroupSnapshotId: s.Group,
	}
	if p.local {
		snapshot.AccessibleTopology = []*csi.Topology{p.topology}
	}
	return snapshot
}

// creator returns what makes a volume, empty or with what its content source holds.
func (c *controller) creator(source *csi.VolumeContentSource) (func(context.Context, backend.CreateOptions) (backend.Volume, error), error) {
	switch {
	case source == nil:
		return c.backend.Create, nil
	case source.GetSnapshot() != nil:
		snapshotter, ok := c.backend.(backend.Snapshotter)
		if !ok {
			return nil, fmt.Errorf("%w: this storage makes no volumes of snapshots", backend.ErrInvalid)
		}
		id := source.GetSnapshot().GetSnapshotId()
		return func(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
			return snapshotter.Restore(ctx, id, o)
		}, required("ID of the source snapshot", id)
	case source.GetVolume() != nil:
		cloner, ok := c.backend.(backend.Cloner)
		if !ok {
			return nil, fmt.Errorf("%w: this storage makes no volumes of other volumes", backend.ErrInvalid)
		}
		id := source.GetVolume().GetVolumeId()
		return func(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
			return cloner.Clone(ctx, id, o)
		}, required("ID of the source volume", id)
	}
	return nil, fmt.Errorf("%w: the volume content source says neither snapshot nor volume", backend.ErrInvalid)
}

// contentSource returns what v was made from, as CSI has it: nil if it was made empty.
func contentSource(v backend.Volume) *csi.VolumeContentSource {
	switch {
	case v.SourceSnapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.SourceSnapshot},
		}}
	case v.SourceVolume != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.SourceVolume},
		}}
	}
	return nil
}
