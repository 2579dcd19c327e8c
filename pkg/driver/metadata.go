package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// metadata is the SnapshotMetadata service. Its calls return the blocks of a snapshot that hold
// data, and the blocks that differ between two snapshots. CSI spec v1.13, Snapshot Metadata Service
// RPCs.
type metadata struct {
	csi.UnimplementedSnapshotMetadataServer
	differ backend.Differ
	block  int64 // length of all ranges in bytes; 0: ranges of any length
}

// maxRanges is the maximum number of ranges in a message, also if the request allows more. Such a
// message has some 50 KiB.
const maxRanges = 2048

// minMetadataBlock is the shortest length of blocks, in bytes. Other lengths are multiples of it.
const minMetadataBlock = 4096

func (m *metadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest,
	stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	id, from := req.GetSnapshotId(), req.GetStartingOffset()
	if err := required("snapshot ID", id); err != nil {
		return err
	}
	out, err := m.ranges(stream.Context(), id, from, req.GetMaxResults(), req.GetSecrets())
	if err != nil {
		return fmt.Errorf("blocks of snapshot %.128q: %w", id, err)
	}
	out.send = func(style csi.BlockMetadataType, capacity int64, blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{BlockMetadataType: style,
			VolumeCapacityBytes: capacity, BlockMetadata: blocks})
	}
	if err := m.differ.Allocated(stream.Context(), id, from, req.GetSecrets(), out.add); err != nil {
		return fmt.Errorf("blocks of snapshot %.128q: %w", id, err)
	}
	return out.end()
}

func (m *metadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest,
	stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	base, target, from := req.GetBaseSnapshotId(), req.GetTargetSnapshotId(), req.GetStartingOffset()
	if err := required("base snapshot ID", base, "target snapshot ID", target); err != nil {
		return err
	}
	out, err := m.ranges(stream.Context(), target, from, req.GetMaxResults(), req.GetSecrets())
	if err != nil {
		return fmt.Errorf("changes of snapshot %.128q: %w", target, err)
	}
	out.send = func(style csi.BlockMetadataType, capacity int64, blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{BlockMetadataType: style,
			VolumeCapacityBytes: capacity, BlockMetadata: blocks})
	}
	if err := m.differ.Delta(stream.Context(), base, target, from, req.GetSecrets(), out.add); err != nil {
		return fmt.Errorf("changes of snapshot %.128q since %.128q: %w", target, base, err)
	}
	return out.end()
}

// ranges returns an empty ranges for a snapshot.
func (m *metadata) ranges(ctx context.Context, id string, from int64, limit int32,
	secrets map[string]string) (*ranges, error) {
	if limit < 0 {
		return nil, fmt.Errorf("%w: invalid max_results %d: must not be negative", backend.ErrInvalid, limit)
	}
	capacity, err := m.differ.SnapshotSize(ctx, id, secrets)
	if err != nil {
		return nil, err
	}
	if from < 0 || from > capacity {
		return nil, fmt.Errorf("%w: the starting offset is %d, the volume has %d bytes", backend.ErrOutOfRange, from,
			capacity)
	}
	out := &ranges{capacity: capacity, limit: int(limit), style: csi.BlockMetadataType_VARIABLE_LENGTH}
	if limit == 0 || limit > maxRanges {
		out.limit = maxRanges
	}
	// In another volume the last block would be shorter, which FIXED_LENGTH cannot express.
	if m.block > 0 && capacity%m.block == 0 {
		out.style, out.block, out.next = csi.BlockMetadataType_FIXED_LENGTH, m.block, from/m.block*m.block
	}
	return out, nil
}

// ranges are the ranges of a response. A message is sent as soon as it is full.
type ranges struct {
	capacity int64
	limit    int // ranges in a message
	style    csi.BlockMetadataType
	block    int64
	next     int64 // for FIXED_LENGTH: offset before which all blocks are sent
	send     func(style csi.BlockMetadataType, capacity int64, blocks []*csi.BlockMetadata) error

	waiting []*csi.BlockMetadata
	sent    bool
}

// add adds a range. For FIXED_LENGTH, it adds the blocks that the range touches.
func (r *ranges) add(offset, length int64) error {
	if r.block == 0 {
		return r.put(offset, length)
	}
	for at := max(r.next, offset/r.block*r.block); at < offset+length; at += r.block {
		if err := r.put(at, r.block); err != nil {
			return err
		}
		r.next = at + r.block
	}
	return nil
}

func (r *ranges) put(offset, length int64) error {
	r.waiting = append(r.waiting, &csi.BlockMetadata{ByteOffset: offset, SizeBytes: length})
	if len(r.waiting) < r.limit {
		return nil
	}
	return r.flush()
}

func (r *ranges) flush() error {
	blocks := r.waiting
	r.waiting, r.sent = nil, true
	return r.send(r.style, r.capacity, blocks)
}

// end sends the remaining ranges. Without any range, end sends an empty message, which has the
// capacity.
func (r *ranges) end() error {
	if len(r.waiting) == 0 && r.sent {
		return nil
	}
	return r.flush()
}

// CheckMetadataBlock returns an error for a value that is invalid for Config.MetadataBlock.
func CheckMetadataBlock(bytes int64) error {
	if bytes < 0 || bytes%minMetadataBlock != 0 {
		return fmt.Errorf("invalid block length %d: must be 0 or a multiple of %d", bytes, minMetadataBlock)
	}
	return nil
}

// registerMetadata registers the SnapshotMetadata service if the backend is a Differ.
func registerMetadata(server *grpc.Server, cfg Config) {
	if differ, ok := cfg.Backend.(backend.Differ); ok {
		csi.RegisterSnapshotMetadataServer(server, &metadata{differ: differ, block: cfg.MetadataBlock})
	}
}
