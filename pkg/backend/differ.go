package backend

import "context"

// Differ is a Backend that knows which blocks of its snapshots hold data, and which of them changed between two. Its
// snapshots are block images, and answer for themselves: their volume may be gone. CSI spec v1.13, SnapshotMetadata
// service.
type Differ interface {
	// SnapshotSize returns how many bytes the volume had when the snapshot was made; it never changes. Errors:
	// ErrNotFound, ErrInvalid for a snapshot that isn't a block image. CSI spec v1.13, volume_capacity_bytes.
	SnapshotSize(ctx context.Context, id string, secrets map[string]string) (int64, error)

	// Allocated calls each for the ranges of the snapshot that hold data, in ascending order, without overlaps. What
	// is not reported reads as zeros; what is may. The first range ends after from, and may start before. Each is
	// called by one goroutine; if it returns an error, it isn't called again, and Allocated returns that error,
	// wrapped or not. Errors: ErrNotFound, ErrInvalid as above, ErrOutOfRange unless from is between 0 and the
	// snapshot's size; from the size itself on there is nothing, and no error. CSI spec v1.13, GetMetadataAllocated.
	Allocated(ctx context.Context, id string, from int64, secrets map[string]string, each func(offset, length int64) error) error

	// Delta calls each, in the same way, for the ranges of target that differ from base. What is not reported is the
	// same in both; what is may be. If target is larger, base counts as zeros beyond its end; nothing is reported
	// beyond target's. Which of the two is older doesn't matter. Errors: those of Allocated, with target's size, and
	// ErrInvalid if they aren't snapshots of one volume. CSI spec v1.13, GetMetadataDelta.
	Delta(ctx context.Context, base, target string, from int64, secrets map[string]string, each func(offset, length int64) error) error
}
