package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// groupController is the GroupController service: snapshots of several volumes at one point in
// time. Only a driver with a GroupSnapshotter serves it. CSI spec v1.13, Group Controller Service
// RPCs.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	groups   backend.GroupSnapshotter
	topology *topology
}

// registerGroups registers the GroupController service if the backend is a GroupSnapshotter.
func registerGroups(server *grpc.Server, b backend.Backend, t *topology) {
	if groups, ok := b.(backend.GroupSnapshotter); ok {
		csi.RegisterGroupControllerServer(server, &groupController{groups: groups, topology: t})
	}
}

func (g *groupController) GroupControllerGetCapabilities(context.Context,
	*csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return GroupCapabilities(), nil
}

// CreateVolumeGroupSnapshot creates all snapshots of a group, or none, and returns when they are
// ready to use.
func (g *groupController) CreateVolumeGroupSnapshot(ctx context.Context,
	req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	o, err := groupOptions(req)
	if err != nil {
		return nil, err
	}
	group, err := g.groups.SnapshotGroup(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("create group snapshot %q: %w", req.GetName(), err)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.topology.group(group)}, nil
}

// deletionPolicyKey is a field of a VolumeGroupSnapshotClass, which does not concern a driver. The
// storage tests of Kubernetes (v1.37) also write it as a parameter of the class, and would all fail
// with a driver that rejected this parameter.
const deletionPolicyKey = "deletionPolicy"

// groupOptions checks a request and returns the options for the backend.
func groupOptions(req *csi.CreateVolumeGroupSnapshotRequest) (backend.GroupOptions, error) {
	o := backend.GroupOptions{
		Name: req.GetName(), Sources: req.GetSourceVolumeIds(), Parameters: ownKeys(req.GetParameters()),
		Secrets: req.GetSecrets(), Namespace: namespaceOf(req.GetParameters(), groupNamespace),
	}
	switch policy, set := o.Parameters[deletionPolicyKey]; {
	case set && policy != "Delete" && policy != "Retain":
		return o, fmt.Errorf("%w: parameter %s is %.64q, must be Delete or Retain: only the field of the class has "+
			"an effect", backend.ErrInvalid, deletionPolicyKey, policy)
	case set:
		delete(o.Parameters, deletionPolicyKey) // ownKeys has returned a copy
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

// distinct returns an error for an ID that is empty or occurs twice. name describes the IDs.
func distinct(name string, ids []string) error {
	seen := map[string]bool{}
	for _, id := range ids {
		if err := required(name, id); err != nil {
			return err
		}
		if seen[id] {
			return fmt.Errorf("%w: the %s %.128q occurs twice", backend.ErrInvalid, name, id)
		}
		seen[id] = true
	}
	return nil
}

// GetVolumeGroupSnapshot returns a group snapshot. If the request has snapshot IDs, the backend
// compares them with the members.
func (g *groupController) GetVolumeGroupSnapshot(ctx context.Context,
	req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if err := checkGroup(req); err != nil {
		return nil, err
	}
	group, err := g.groups.GetGroup(ctx, req.GetGroupSnapshotId(), req.GetSnapshotIds(), req.GetSecrets())
	if err != nil {
		return nil, fmt.Errorf("get group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.topology.group(group)}, nil
}

// DeleteVolumeGroupSnapshot deletes a group snapshot with its members. The backend compares the
// snapshot IDs, too.
func (g *groupController) DeleteVolumeGroupSnapshot(ctx context.Context,
	req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if err := checkGroup(req); err != nil {
		return nil, err
	}
	if err := g.groups.DeleteGroup(ctx, req.GetGroupSnapshotId(), req.GetSnapshotIds(), req.GetSecrets()); err != nil {
		return nil, fmt.Errorf("delete group snapshot %.128q: %w", req.GetGroupSnapshotId(), err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// checkGroup returns an error for a request without a group snapshot ID, or with a duplicate
// snapshot ID. The spec requires the snapshot IDs, for drivers that need them; csi-sanity sends
// none.
func checkGroup(req interface {
	GetGroupSnapshotId() string
	GetSnapshotIds() []string
}) error {
	if err := required("group snapshot ID", req.GetGroupSnapshotId()); err != nil {
		return err
	}
	return distinct("snapshot ID", req.GetSnapshotIds())
}

// group converts a group snapshot to the message of CSI.
func (t *topology) group(group backend.Group) *csi.VolumeGroupSnapshot {
	return &csi.VolumeGroupSnapshot{
		GroupSnapshotId: group.ID, Snapshots: each(group.Snapshots, t.snapshot),
		CreationTime: timestamppb.New(group.Created), ReadyToUse: true,
	}
}
