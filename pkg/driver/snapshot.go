package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// CreateSnapshot creates a snapshot, and returns when the snapshot is ready to use: the backend
// returns no earlier.
func (c *controller) CreateSnapshot(ctx context.Context,
	req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	snapshotter, ok := c.backend.(backend.Snapshotter)
	if !ok {
		return c.UnimplementedControllerServer.CreateSnapshot(ctx, req)
	}
	o, err := c.topology.snapshotOptions(req)
	if err != nil {
		return nil, err
	}
	s, err := snapshotter.Snapshot(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("create snapshot %q of volume %.128q: %w", req.GetName(), req.GetSourceVolumeId(), err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: c.topology.snapshot(s)}, nil
}

// snapshotOptions checks a request and returns the options for the backend. A snapshot has the
// topology of its volume, so a requirement that excludes this topology cannot be met.
func (t *topology) snapshotOptions(req *csi.CreateSnapshotRequest) (backend.SnapshotOptions, error) {
	o := backend.SnapshotOptions{
		Name: req.GetName(), Source: req.GetSourceVolumeId(), Parameters: ownKeys(req.GetParameters()),
		Secrets: req.GetSecrets(), Namespace: namespaceOf(req.GetParameters(), snapshotNamespace),
	}
	if err := required("name", o.Name, "source volume ID", o.Source); err != nil {
		return o, err
	}
	if err := checkName(o.Name); err != nil {
		return o, err
	}
	return o, t.reachable(req.GetAccessibilityRequirements())
}

func (c *controller) DeleteSnapshot(ctx context.Context,
	req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
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
	return &csi.GetSnapshotResponse{Snapshot: c.topology.snapshot(s)}, nil
}

func (c *controller) ListSnapshots(ctx context.Context,
	req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	snapshotter, ok := c.backend.(backend.Snapshotter)
	if !ok {
		return c.UnimplementedControllerServer.ListSnapshots(ctx, req)
	}
	after, limit, err := parsePage(req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	if req.GetSnapshotId() != "" {
		return c.listByID(ctx, snapshotter, req)
	}
	snapshots, more, err := snapshotter.ListSnapshots(ctx, req.GetSourceVolumeId(), after, limit)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	resp := &csi.ListSnapshotsResponse{Entries: each(snapshots,
		func(s backend.Snapshot) *csi.ListSnapshotsResponse_Entry {
			return &csi.ListSnapshotsResponse_Entry{Snapshot: c.topology.snapshot(s)}
		})}
	if more && len(snapshots) > 0 {
		resp.NextToken = nextToken(snapshots[len(snapshots)-1].ID)
	}
	return resp, nil
}

// listByID lists the snapshot with an ID, or nothing if no snapshot has this ID. The CO polls in
// this way, so listByID does not read other snapshots: a damaged snapshot must not fail the call
// for another.
func (c *controller) listByID(ctx context.Context, snapshotter backend.Snapshotter,
	req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	s, err := snapshotter.GetSnapshot(ctx, req.GetSnapshotId(), req.GetSecrets())
	if source := req.GetSourceVolumeId(); errors.Is(err, backend.ErrNotFound) ||
		(err == nil && source != "" && source != s.Source) {
		return &csi.ListSnapshotsResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshot %.128q: %w", req.GetSnapshotId(), err)
	}
	entry := &csi.ListSnapshotsResponse_Entry{Snapshot: c.topology.snapshot(s)}
	return &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{entry}}, nil
}

// snapshot converts s to the message of CSI.
func (t *topology) snapshot(s backend.Snapshot) *csi.Snapshot {
	snapshot := &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, CreationTime: timestamppb.New(s.Created),
		ReadyToUse: true, GroupSnapshotId: s.Group,
	}
	if t.local {
		snapshot.AccessibleTopology = []*csi.Topology{t.node}
	}
	return snapshot
}

// creator returns the function that creates a volume, empty or with the content of a source.
func (c *controller) creator(
	source *csi.VolumeContentSource,
) (func(context.Context, backend.CreateOptions) (backend.Volume, error), error) {
	switch {
	case source == nil:
		return c.backend.Create, nil
	case source.GetSnapshot() != nil:
		snapshotter, ok := c.backend.(backend.Snapshotter)
		if !ok {
			return nil, fmt.Errorf("%w: this storage cannot restore snapshots", backend.ErrInvalid)
		}
		id := source.GetSnapshot().GetSnapshotId()
		return func(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
			return snapshotter.Restore(ctx, id, o)
		}, required("ID of the source snapshot", id)
	case source.GetVolume() != nil:
		cloner, ok := c.backend.(backend.Cloner)
		if !ok {
			return nil, fmt.Errorf("%w: this storage cannot clone volumes", backend.ErrInvalid)
		}
		id := source.GetVolume().GetVolumeId()
		return func(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
			return cloner.Clone(ctx, id, o)
		}, required("ID of the source volume", id)
	}
	return nil, fmt.Errorf("%w: the volume content source has neither snapshot nor volume", backend.ErrInvalid)
}

// contentSource returns the source of v as the message of CSI, or nil if v was created empty.
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
