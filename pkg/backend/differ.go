package backend

import "context"

// Differ is a [Backend] that reports which blocks of a snapshot hold data, and which blocks differ
// between two snapshots. The snapshots are block images. Differ needs only the snapshots: their
// volume may be deleted. CSI spec v1.13, SnapshotMetadata service.
type Differ interface {
	// SnapshotSize returns the size in bytes that the volume had at the time of the snapshot. The
	// size never changes. Errors: [ErrNotFound]; [ErrInvalid] for a snapshot that is not a block
	// image. CSI spec v1.13, SnapshotMetadata service, volume_capacity_bytes.
	SnapshotSize(ctx context.Context, id string, secrets map[string]string) (int64, error)

	// Allocated calls each for the ranges of the snapshot that hold data, in ascending order,
	// without overlaps. Offsets and lengths are in bytes. A range that is not reported reads as
	// zeros; a reported range may also read as zeros. The first range ends after from and may start
	// before from. Allocated calls each from a single goroutine. If each returns an error,
	// Allocated does not call it again and returns that error, wrapped or not. Errors:
	// [ErrNotFound]; [ErrInvalid] as for SnapshotSize; [ErrOutOfRange] unless from is between 0 and
	// the size of the snapshot. If from is the size, Allocated reports no range and returns nil.
	// CSI spec v1.13, GetMetadataAllocated.
	Allocated(ctx context.Context, id string, from int64, secrets map[string]string,
		each func(offset, length int64) error) error

	// Delta calls each, in the same way as Allocated, for the ranges of target that differ from
	// base. A range that is not reported is equal in both; a reported range may also be equal. If
	// target is larger than base, base counts as zeros beyond its end. Delta reports nothing beyond
	// the end of target. Either of the two may be the older snapshot. Errors: those of Allocated,
	// with the size of target; [ErrInvalid] if base and target are not snapshots of the same
	// volume. CSI spec v1.13, GetMetadataDelta.
	Delta(ctx context.Context, base, target string, from int64, secrets map[string]string,
		each func(offset, length int64) error) error
}
