package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// groupController is the GroupController service: snapshots of several volumes at one point in time. It is served only if
// the backend can make them. CSI spec v1.13, Group Controller Service RPCs.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	groups backend.GroupSnapshotter
	place  *place
}

// registerGroups serves the GroupController service if the backend has what it needs.
func registerGroups(server *grpc.Server, b backend.Backend, p *place) {
	if groups, ok := b.(backend.GroupSnapshotter); ok {
		csi.RegisterGroupControllerServer(server, &groupController{groups: groups, place: p})
	}
}

func (g *groupController) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return GroupCapabilities(), nil
}

// CreateVolumeGroupSnapshot cuts all snapshots of a group, or none. It answers when they can be used.
func (g *groupController) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	o, err := groupOptions(req)
	if err != nil {
		return nil, err
	}
	group, err := g.groups.SnapshotGroup(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("create group snapshot %q: %w", req.GetName(), err)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.place.group(group)}, nil
}

// deletionPolicyKey is a field of a VolumeGroupSnapshotClass, which is no driver's business. Kubernetes' own storage tests (v1.37) write it
// among the class's parameters, too: a driver that refused it would fail them all.
const deletionPolicyKey = "deletionPolicy"

// groupOptions turns a checked request into what a backend is asked for.
func groupOptions(req *csi.CreateVolumeGroupSnapshotRequest) (backend.GroupOptions, error) {
	o := backend.GroupOptions{
		Name: req.GetName(), Sources: req.GetSourceVolumeIds(), Parameters: ownKeys(req.GetParameters()), Secrets: req.GetSecrets(),
		Namespace: namespaceOf(req.GetParameters(), groupNamespace),
	}
	switch policy, said := o.Parameters[deletionPolicyKey]; {
	case said && policy != "Delete" && policy != "Retain":
		return o, fmt.Errorf("%w: parameter %s is %.64q; the class has a field for it, which counts", backend.ErrInvalid, deletionPolicyKey, policy)
	case said:
		delete(o.Parameters, deletionPolicyKey) // of a copy
	}
	if err := required("name", o.Name); err != nil {
		return o, err
	}
	if err := checkName(o.Name); err != nil {
		return o, err
	}
	if len(o.Sources) == 0 {
		return o, fmt.Errorf("%w: the source volume IDs are missing", backend.ErrInvalid)
	}
	return o, distinct("source volume ID", o.Sources)
}

// distinct returns an error for an ID that is empty or there twice.
func distinct(what string, ids []string) error {
	seen := map[string]bool{}
	for _, id := range ids {
		if err := required(what, id); err != nil {
			return err
		}
		if seen[id] {
			return fmt.Errorf("%w: the %s %.128q is there twice", backend.ErrInvalid, what, id)
		}
		seen[id] = true
	}
	return nil
}

// GetVolumeGroupSnapshot returns a group. The IDs of its snapshots are compared with those in the request, where it has any.
func (g *groupController) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if err := checkGroup(req); err != nil {
		return nil, err
	}
	group, err := g.groups.GetGroup(ctx, req.GetGroupSnapshotId(), req.GetSnapshotIds(), req.GetSecrets())
	if err != nil {
		return nil, fmt.Errorf("get group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.place.group(group)}, nil
}

// DeleteVolumeGroupSnapshot deletes a group with its snapshots. Their IDs are compared too.
func (g *groupController) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if err := checkGroup(req); err != nil {
		return nil, err
	}
	if err := g.groups.DeleteGroup(ctx, req.GetGroupSnapshotId(), req.GetSnapshotIds(), req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("delete group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// checkGroup returns an error for a request that names no group, or a snapshot twice. The spec requires the IDs of the
// snapshots, for drivers that can't do without; csi-sanity sends none.
func checkGroup(req interface {
	GetGroupSnapshotId() string
	GetSnapshotIds() []string
}) error {
	if err := required("group snapshot ID", req.GetGroupSnapshotId()); err != nil {
		return err
	}
	return distinct("snapshot ID", req.GetSnapshotIds())
}

// group returns a group as CSI has it.
func (p *place) group(group backend.Group) *csi.VolumeGroupSnapshot {
	return &csi.VolumeGroupSnapshot{
		GroupSnapshotId: group.ID, Snapshots: each(group.Snapshots, p.snapshot),
		CreationTime: timestamppb.New(group.Created), ReadyToUse: true,
	}
}
