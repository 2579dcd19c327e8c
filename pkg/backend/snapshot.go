package backend

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Snapshotter is a Backend that can keep what a volume holds at a moment, and make new volumes of it. A snapshot never
// changes, and doesn't need its volume: that may be deleted.
//
// Making a snapshot, and a volume from one, may take longer than any caller waits. Then the work goes on when ctx has
// ended, and the next call with the same arguments joins it: ErrBusy while it lasts, and what came of it when it is
// done. Close of a backend ends it, and leaves nothing half-made.
type Snapshotter interface {
	// Snapshot makes the snapshot of o.Name, or finds the one that an earlier call made. It returns when the data is
	// cut, durable, and of use to Restore. Errors: ErrNotFound for an unknown volume, and an inline one; ErrExists if the
	// one it finds is of another volume or has other parameters; ErrInvalid for parameters; ErrExhausted;
	// ErrPrecondition where it could be made if the volume were not in use. CSI spec v1.13, CreateSnapshot.
	Snapshot(ctx context.Context, o SnapshotOptions) (Snapshot, error)

	// GetSnapshot returns the snapshot. Errors: ErrNotFound, for malformed IDs too. CSI spec v1.13, GetSnapshot.
	GetSnapshot(ctx context.Context, id string, secrets map[string]string) (Snapshot, error)

	// DeleteSnapshot deletes a snapshot. An ID that is unknown or malformed is no error. Volumes made from it stay.
	// Errors: ErrInUse while it is being made or a volume is being made from it, ErrInvalid for a member of a group:
	// in all these cases it is untouched. CSI spec v1.13, DeleteSnapshot.
	DeleteSnapshot(ctx context.Context, id string, secrets map[string]string) error

	// ListSnapshots returns up to limit snapshots with IDs above after, in the order of their IDs, and whether there
	// are more: all, or those of the volume source if it isn't "". A volume that is unknown, perhaps deleted, is no error.
	// CSI spec v1.13, ListSnapshots.
	ListSnapshots(ctx context.Context, source, after string, limit int) (snapshots []Snapshot, more bool, err error)

	// Restore makes the volume of o.Name with what the snapshot holds, or finds the one that an earlier call made. The
	// snapshot may be deleted then. A volume that was made otherwise, or from another one, is ErrExists, to Create and
	// Clone too. Errors: those of Create; ErrNotFound for an unknown snapshot; ErrOutOfRange if o.Limit is below its
	// size, or o.Required isn't 0 and below it; ErrInvalid if no such volume can be made of it. CSI spec v1.13,
	// CreateVolume with a snapshot as its content source.
	Restore(ctx context.Context, snapshot string, o CreateOptions) (Volume, error)
}

// SnapshotOptions is a CreateSnapshotRequest that the driver has checked as far as that doesn't depend on the backend.
type SnapshotOptions struct {
	Name       string            // as CreateOptions.Name
	Source     string            // ID of the volume
	Parameters map[string]string // without the keys that Kubernetes reserves; unknown ones are ErrInvalid
	Secrets    map[string]string
	Namespace  string // of the VolumeSnapshot; as CreateOptions.Namespace
}

// Snapshot is what is known of a snapshot.
type Snapshot struct {
	ID      string    // at most 128 bytes
	Source  string    // ID of the volume that it was made of
	Size    int64     // bytes that a volume made from it has at least
	Created time.Time // when the data was cut
	Group   string    // ID of the group that it is a member of, or ""
}

// Cloner is a Backend that can make new volumes of what another one holds.
type Cloner interface {
	// Clone makes the volume of o.Name with what the volume source holds at a moment during the call, or finds the one
	// that an earlier call made; source may be deleted then. How it goes on beyond ctx, and the errors, are those of
	// Snapshotter.Restore; ErrPrecondition as for Snapshotter.Snapshot. CSI spec v1.13, CreateVolume with a volume as
	// its content source.
	Clone(ctx context.Context, source string, o CreateOptions) (Volume, error)
}

// GroupSnapshotter is a Snapshotter that can make snapshots of several volumes at one point in time: there is a moment
// for which it holds that every write acknowledged before it is in the snapshots, and that what is in one of them, from
// after that moment, depends on nothing which is missing in another.
type GroupSnapshotter interface {
	Snapshotter

	// SnapshotGroup makes the group of o.Name, or finds the one that an earlier call made. There are snapshots of all
	// its volumes or, after an error, of none. Errors: ErrNotFound for an unknown volume; ErrExists if the one it finds
	// has other volumes or parameters; ErrInvalid; ErrExhausted; ErrPrecondition for volumes that, as they are, can't be
	// cut at one point in time. CSI spec v1.13, CreateVolumeGroupSnapshot.
	SnapshotGroup(ctx context.Context, o GroupOptions) (Group, error)

	// GetGroup returns the group. snapshots are the IDs of its members, if the caller says any. Errors: ErrNotFound, and
	// ErrInvalid if they aren't. CSI spec v1.13, GetVolumeGroupSnapshot.
	GetGroup(ctx context.Context, id string, snapshots []string, secrets map[string]string) (Group, error)

	// DeleteGroup deletes the group and its members. An ID that is unknown or malformed is no error. Errors: ErrInUse
	// while a volume is being made from a member, and ErrInvalid as above: nothing was deleted then.
	// CSI spec v1.13, DeleteVolumeGroupSnapshot.
	DeleteGroup(ctx context.Context, id string, snapshots []string, secrets map[string]string) error
}

// GroupOptions is a CreateVolumeGroupSnapshotRequest that the driver has checked as far as that doesn't depend on the
// backend.
type GroupOptions struct {
	Name       string            // as CreateOptions.Name
	Sources    []string          // IDs of the volumes, at least one, none twice
	Parameters map[string]string // without the keys that Kubernetes reserves; unknown ones are ErrInvalid
	Secrets    map[string]string
	Namespace  string // of the VolumeGroupSnapshot; as CreateOptions.Namespace
}

// Group is what is known of a group of snapshots.
type Group struct {
	ID        string     // at most 128 bytes
	Snapshots []Snapshot // its members, in the order of their IDs
	Created   time.Time  // when their data was cut
}

// PartSnapshotter is a GroupSnapshotter that can make its part of a group over several nodes: the snapshots of the volumes
// that it has. CSI has no calls for this; the driver's router makes them on all nodes together.
type PartSnapshotter interface {
	GroupSnapshotter

	// SnapshotPart makes the part of o.Name, or finds the one that an earlier call made, perhaps of another cut, settled
	// or not. It calls o.Frozen when no volume of the part is written to; when that has returned nil it cuts, lets
	// writes go on, and makes the cut durable; then it calls o.Durable, and when that has returned nil it makes the
	// part, which isn't settled. Neither is called where the part is found. The context that they get ends with ctx and
	// with the backend, and that of o.Frozen when writes can't be held up any longer, too.
	//
	// Other than SnapshotGroup it doesn't outlive its caller. If one of the two returns an error, or ctx ends before
	// o.Durable has returned, that is returned, perhaps with what else went wrong, and nothing is left.
	// Errors: those of SnapshotGroup; ErrInvalid as PartOptions.Check; ErrExists if the part that it finds is of other
	// volumes, or of a group of others; ErrBusy while another call makes the part, of whatever volumes.
	SnapshotPart(ctx context.Context, o PartOptions) (Part, error)

	// GetPart returns the part of the group. Errors: ErrNotFound, for malformed IDs, for groups without parts, and until
	// the part is made.
	GetPart(ctx context.Context, group string) (Part, error)

	// SettlePart notes, durably, that all parts of that cut are there; again is fine. From now on the part goes with its
	// group only. Errors: ErrNotFound, ErrPrecondition if the part is of another cut, ErrBusy while it is settled or deleted.
	SettlePart(ctx context.Context, group, cut string) error

	// DiscardPart deletes a part that isn't settled, with its snapshots. None at all is no error. Errors:
	// ErrPrecondition if it is settled or of another cut, ErrInUse while it is being made or a volume is being made from
	// a member, ErrBusy as for SettlePart: nothing was deleted then.
	DiscardPart(ctx context.Context, group, cut string) error
}

// PartOptions is what a part is made of.
type PartOptions struct {
	GroupOptions          // Sources are those of the part
	All          []string // IDs of the volumes of all parts, in ascending order, none twice
	Cut          string   // what the parts that are made together have in common, and no others; 1 to 64 bytes
	Frozen       func(context.Context) error
	Durable      func(context.Context) error
}

// maxCut is how long PartOptions.Cut may be, in bytes.
const maxCut = 64

// Check returns ErrInvalid for what no part can be made of: the router doesn't ask for it, and every backend refuses it.
func (o PartOptions) Check() error {
	if len(o.Cut) == 0 || len(o.Cut) > maxCut {
		return fmt.Errorf("%w: a cut has 1 to %d bytes, this one has %d", ErrInvalid, maxCut, len(o.Cut))
	}
	if len(o.Sources) == 0 {
		return fmt.Errorf("%w: a part without volumes", ErrInvalid)
	}
	for i, id := range o.All {
		if i > 0 && id <= o.All[i-1] {
			return fmt.Errorf("%w: the volumes of all parts are not in ascending order: %.128q is after %.128q", ErrInvalid, id, o.All[i-1])
		}
	}
	for i, id := range o.Sources {
		if _, ok := slices.BinarySearch(o.All, id); !ok || slices.Contains(o.Sources[:i], id) {
			return fmt.Errorf("%w: volume %.128q is twice in the part, or not among those of all parts", ErrInvalid, id)
		}
	}
	return nil
}

// Part is what is known of a part of a group. GetGroup and DeleteGroup know it too, as the group with its snapshots.
type Part struct {
	Group            // with the snapshots of the part
	All     []string // as in PartOptions
	Cut     string
	Settled bool
}
