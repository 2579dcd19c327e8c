package backend

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Snapshotter is a [Backend] that can create snapshots, and volumes from them. A snapshot is the
// content of a volume at one point in time. A snapshot never changes and does not need its volume,
// which may be deleted.
//
// Snapshot and Restore may take longer than any caller waits. The job then continues after ctx has
// ended. A later call with the same arguments waits for the job and returns its result, or
// [ErrBusy] shortly before the deadline of the call. The method Close of a backend ends the job and
// leaves nothing incomplete.
type Snapshotter interface {
	// Snapshot creates the snapshot of o.Name. Snapshot returns when the data is copied, durable
	// and ready for Restore. A repeated call returns the snapshot of the first call. Errors:
	// [ErrNotFound] for an unknown volume and an inline volume; [ErrExists] if the existing
	// snapshot has another source or other parameters; [ErrInvalid] for an invalid parameter;
	// [ErrExhausted]; [ErrPrecondition] if the volume must not be in use for that, and is. CSI spec
	// v1.13, CreateSnapshot.
	Snapshot(ctx context.Context, o SnapshotOptions) (Snapshot, error)

	// GetSnapshot returns the snapshot with this ID. Errors: [ErrNotFound], also for a malformed
	// ID. CSI spec v1.13, GetSnapshot.
	GetSnapshot(ctx context.Context, id string, secrets map[string]string) (Snapshot, error)

	// DeleteSnapshot deletes a snapshot. DeleteSnapshot returns nil for an unknown or malformed ID.
	// Volumes that were restored from the snapshot remain. Errors: [ErrInUse] while a call creates
	// the snapshot or a volume from it; [ErrInvalid] for a member of a group. The snapshot is
	// unchanged then. CSI spec v1.13, DeleteSnapshot.
	DeleteSnapshot(ctx context.Context, id string, secrets map[string]string) error

	// ListSnapshots returns up to limit snapshots with an ID greater than after, in ascending order
	// of their IDs, and reports whether more follow. If source is not "", ListSnapshots lists only
	// the snapshots of that volume. An unknown or deleted volume is no error. CSI spec v1.13,
	// ListSnapshots.
	ListSnapshots(ctx context.Context, source, after string, limit int) (snapshots []Snapshot, more bool, err error)

	// Restore creates the volume of o.Name with the content of the snapshot. A repeated call
	// returns the volume of the first call, even if the snapshot is deleted by then. Restore,
	// Create and Clone return [ErrExists] if the existing volume has another source. Errors: those
	// of Create; [ErrNotFound] for an unknown snapshot; [ErrOutOfRange] if o.Limit is below the
	// size of the snapshot, or if o.Required is not 0 and below that size; [ErrInvalid] if the
	// snapshot cannot become such a volume. CSI spec v1.13, CreateVolume with a snapshot as
	// volume_content_source.
	Restore(ctx context.Context, snapshot string, o CreateOptions) (Volume, error)
}

// SnapshotOptions is a CreateSnapshotRequest. The driver has made every check that does not depend
// on the backend. CSI spec v1.13, CreateSnapshot.
type SnapshotOptions struct {
	Name   string // As CreateOptions.Name.
	Source string // Volume ID of the source.

	// Parameters are the parameters of the VolumeSnapshotClass, without the keys that Kubernetes
	// reserves. The backend returns [ErrInvalid] for an unknown key.
	Parameters map[string]string

	Secrets   map[string]string // Secrets of the request.
	Namespace string            // Namespace of the VolumeSnapshot. As CreateOptions.Namespace.
}

// Snapshot describes a snapshot. CSI spec v1.13, Snapshot.
type Snapshot struct {
	ID      string    // Snapshot ID, at most 128 bytes.
	Source  string    // Volume ID of the source.
	Size    int64     // Least size in bytes of a volume that is restored from the snapshot.
	Created time.Time // Point in time of the data.
	Group   string    // ID of the group snapshot that the snapshot is a member of, or "".
}

// Cloner is a [Backend] that can create a volume with the content of another volume.
type Cloner interface {
	// Clone creates the volume of o.Name with the content of the volume source at a point in time
	// during the call. A repeated call returns the volume of the first call, even if source is
	// deleted by then. As with [Snapshotter], the job continues after ctx has ended. Errors: those
	// of Restore, with source as the snapshot; [ErrPrecondition] as for Snapshot. CSI spec
	// v1.13, CreateVolume with a volume as volume_content_source.
	Clone(ctx context.Context, source string, o CreateOptions) (Volume, error)
}

// GroupSnapshotter is a [Snapshotter] that can create snapshots of several volumes at one point in
// time. Every write that was acknowledged before that point is in the snapshots. A later write may
// be in a snapshot only if all writes on which it depends are in the snapshots, too.
type GroupSnapshotter interface {
	Snapshotter

	// SnapshotGroup creates the group snapshot of o.Name. A repeated call returns the group of the
	// first call. After success there is a snapshot of every volume, after an error of none.
	// Errors: [ErrNotFound] for an unknown volume; [ErrExists] if the existing group has other
	// sources or parameters; [ErrInvalid]; [ErrExhausted]; [ErrPrecondition] if the present state
	// of the volumes does not allow snapshots of one point in time. CSI spec v1.13,
	// CreateVolumeGroupSnapshot.
	SnapshotGroup(ctx context.Context, o GroupOptions) (Group, error)

	// GetGroup returns the group snapshot with this ID. snapshots are the IDs of its members, or
	// empty if the caller does not know them. Errors: [ErrNotFound]; [ErrInvalid] if snapshots are
	// not the members. CSI spec v1.13, GetVolumeGroupSnapshot.
	GetGroup(ctx context.Context, id string, snapshots []string, secrets map[string]string) (Group, error)

	// DeleteGroup deletes the group snapshot and its members. DeleteGroup returns nil for an
	// unknown or malformed ID. Errors: [ErrInUse] while a call creates the group or a volume from a
	// member; [ErrInvalid] as for GetGroup. After an error nothing is deleted. CSI spec v1.13,
	// DeleteVolumeGroupSnapshot.
	DeleteGroup(ctx context.Context, id string, snapshots []string, secrets map[string]string) error
}

// GroupOptions is a CreateVolumeGroupSnapshotRequest. The driver has made every check that does not
// depend on the backend. CSI spec v1.13, CreateVolumeGroupSnapshot.
type GroupOptions struct {
	Name    string   // As CreateOptions.Name.
	Sources []string // Volume IDs of the sources, not empty, without duplicates.

	// Parameters are the parameters of the VolumeGroupSnapshotClass, without the keys that
	// Kubernetes reserves. The backend returns [ErrInvalid] for an unknown key.
	Parameters map[string]string

	Secrets   map[string]string // Secrets of the request.
	Namespace string            // Namespace of the VolumeGroupSnapshot. As CreateOptions.Namespace.
}

// Group describes a group snapshot. CSI spec v1.13, VolumeGroupSnapshot.
type Group struct {
	ID        string     // ID of the group snapshot, at most 128 bytes.
	Snapshots []Snapshot // The members, in ascending order of their IDs.
	Created   time.Time  // Point in time of the data.
}

// PartSnapshotter is a [GroupSnapshotter] that can create its part of a group snapshot over several
// nodes: the snapshots of its own volumes. CSI has no calls for parts. The router of the driver
// creates the parts on all nodes, and then commits all of them or discards all of them.
type PartSnapshotter interface {
	GroupSnapshotter

	// SnapshotPart creates the part of o.Name in these steps:
	//   - It stops writes to the volumes of the part, and calls o.Frozen.
	//   - When o.Frozen has returned nil, it takes the snapshots, lets writes continue, and makes
	//     the snapshots durable. Then it calls o.Durable.
	//   - When o.Durable has returned nil, it records the part, which is not committed yet.
	//
	// If the part exists, SnapshotPart returns it and calls neither function. The existing part may
	// have another AttemptID, and may be committed. The context of both functions ends with ctx and
	// with the backend; the context of o.Frozen also ends when the backend can no longer hold back
	// writes.
	//
	// Unlike SnapshotGroup, SnapshotPart does not continue after ctx has ended. If either function
	// returns an error, or ctx ends before o.Durable has returned, SnapshotPart returns that error,
	// perhaps joined with others, and leaves nothing behind. Errors: those of SnapshotGroup;
	// [ErrInvalid] as [PartOptions.Check]; [ErrExists] if the existing part has other sources, or
	// belongs to a group of other volumes; [ErrBusy] while another call creates the part, from any
	// volumes.
	SnapshotPart(ctx context.Context, o PartOptions) (Part, error)

	// GetPart returns the part of the group with this ID. Errors: [ErrNotFound], also for a
	// malformed ID, for a group without parts, and until the part is recorded.
	GetPart(ctx context.Context, group string) (Part, error)

	// CommitPart records durably that the parts of all nodes exist. A repeated call returns nil. A
	// committed part can only be deleted with its group. Errors: [ErrNotFound]; [ErrPrecondition]
	// if the part has another AttemptID; [ErrBusy] while another call commits or deletes the part.
	CommitPart(ctx context.Context, group, attemptID string) error

	// DiscardPart deletes a part that is not committed, with its snapshots. DiscardPart returns nil
	// if there is no such part. Errors: [ErrPrecondition] if the part is committed or has another
	// AttemptID; [ErrInUse] while a call creates the part or a volume from a member; [ErrBusy] as
	// for CommitPart. After an error nothing is deleted.
	DiscardPart(ctx context.Context, group, attemptID string) error
}

// PartOptions describes a part of a group snapshot to create.
type PartOptions struct {
	GroupOptions // Sources are the volumes of this part.

	// All are the volume IDs of all parts, in ascending order, without duplicates.
	All []string

	// AttemptID identifies an attempt to create all parts of the group. All parts of the attempt
	// have this AttemptID, and no other parts do. AttemptID has 1 to 64 bytes.
	AttemptID string

	// Frozen is called when nothing writes to the volumes of the part. It returns nil when the same
	// holds on all nodes. Writes stay stopped while Frozen runs. nil: not called.
	Frozen func(context.Context) error

	// Durable is called when the snapshots of the part are durable. It returns nil when the
	// snapshots of all parts are durable. nil: not called.
	Durable func(context.Context) error
}

// maxAttemptID is the greatest length of PartOptions.AttemptID, in bytes.
const maxAttemptID = 64

// Check returns [ErrInvalid] if o is not valid: if AttemptID is empty or too long, if Sources is
// empty, has duplicates or is not contained in All, or if All is not in ascending order. Every
// backend calls Check, and the router never sends options that fail the check.
func (o PartOptions) Check() error {
	if len(o.AttemptID) == 0 || len(o.AttemptID) > maxAttemptID {
		return fmt.Errorf("%w: invalid attempt ID of %d bytes: must have 1 to %d bytes", ErrInvalid, len(o.AttemptID),
			maxAttemptID)
	}
	if len(o.Sources) == 0 {
		return fmt.Errorf("%w: the part has no volumes", ErrInvalid)
	}
	for i, id := range o.All {
		if i > 0 && id <= o.All[i-1] {
			return fmt.Errorf("%w: the volumes of all parts are not in ascending order: %.128q is after %.128q",
				ErrInvalid, id, o.All[i-1])
		}
	}
	for i, id := range o.Sources {
		if _, ok := slices.BinarySearch(o.All, id); !ok || slices.Contains(o.Sources[:i], id) {
			return fmt.Errorf("%w: volume %.128q is a duplicate in the part, or not a volume of all parts",
				ErrInvalid, id)
		}
	}
	return nil
}

// Part describes a part of a group snapshot. GetGroup and DeleteGroup also accept a part, as a
// group with the snapshots of the part.
type Part struct {
	Group // ID of the group snapshot, and the snapshots of this part.

	All       []string // As PartOptions.All.
	AttemptID string   // PartOptions.AttemptID of the call that created the part.
	Committed bool     // CommitPart has succeeded: the part can only be deleted with its group.
}
