package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// attachment is the attachment of a volume to a node.
type attachment struct {
	number string // by which that node finds the volume, like the LUN of a disk
	use    use
}

// use holds the options of an attachment.
type use struct {
	capability                     string
	readOnly, manyNodes, oneWriter bool
}

// numberKey is the key of attachment.number in the publish context.
const numberKey = "number"

// Attach attaches the volume to the node and returns the number of the attachment in the publish
// context. See [backend.Attacher] for the errors. CSI spec v1.13, ControllerPublishVolume.
func (b *Backend) Attach(_ context.Context, id string, o backend.AttachOptions) (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.findPersistent(id)
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains(b.cfg.Nodes, o.Node):
		return nil, fmt.Errorf("%w: node %.128q", backend.ErrNotFound, o.Node)
	}
	if err := checkAccess(o.Access, v.data.block); err != nil {
		return nil, err
	}
	u := use{capability: o.Capability, readOnly: o.Access.ReadOnly, manyNodes: o.ManyNodes, oneWriter: o.OneWriter}
	a, ok := v.nodes[o.Node]
	if ok && a.use != u {
		return nil, fmt.Errorf("%w: volume %s is attached to node %q with another volume capability or read-only flag",
			backend.ErrExists, id, o.Node)
	}
	if !ok {
		if err := v.shares(u); err != nil {
			return nil, err
		}
		if n := b.attachedTo(o.Node); b.cfg.Limit > 0 && n >= b.cfg.Limit {
			return nil, fmt.Errorf("%w: %d volumes are attached to node %q, its limit", backend.ErrExhausted, n, o.Node)
		}
		b.attached++
		a = attachment{number: strconv.Itoa(b.attached), use: u}
		v.nodes[o.Node] = a
	}
	return map[string]string{numberKey: a.number}, nil
}

// shares returns ErrInUse if v cannot be attached to a further node with u.
func (v *volume) shares(u use) error {
	for _, node := range slices.Sorted(maps.Keys(v.nodes)) {
		other := v.nodes[node].use
		switch {
		case !u.manyNodes || !other.manyNodes:
			return fmt.Errorf("%w: volume %s is attached to node %q and cannot be shared with another node",
				backend.ErrInUse, v.id, node)
		case (u.oneWriter || other.oneWriter) && !u.readOnly && !other.readOnly:
			return fmt.Errorf("%w: volume %s is attached to node %q for writing: only a single writer is allowed",
				backend.ErrInUse, v.id, node)
		}
	}
	return nil
}

// NodeLimit returns [Config].Limit. CSI spec v1.13, NodeGetInfo, max_volumes_per_node.
func (b *Backend) NodeLimit() int64 { return b.cfg.Limit }

// attachedTo returns the number of volumes that are attached to the node. The caller holds b.mu.
func (b *Backend) attachedTo(node string) (n int64) {
	for _, v := range b.volumes {
		if _, ok := v.nodes[node]; ok {
			n++
		}
	}
	return n
}

// Detach detaches the volume from the node, or from all nodes if node is "", and always returns
// nil. CSI spec v1.13, ControllerUnpublishVolume.
func (b *Backend) Detach(_ context.Context, id, node string, _ map[string]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch v, ok := b.volumes[id]; {
	case !ok:
	case node == "":
		clear(v.nodes)
	default:
		delete(v.nodes, node)
	}
	return nil
}

// attachedReadOnly reports whether v is attached read-only with this publish context. The result is
// false for a nil context, and ErrInvalid for a context that is not of v.
func (v *volume) attachedReadOnly(attachment map[string]string) (bool, error) {
	if attachment == nil {
		return false, nil
	}
	for _, a := range v.nodes {
		if maps.Equal(attachment, map[string]string{numberKey: a.number}) {
			return a.use.readOnly, nil
		}
	}
	return false, fmt.Errorf("%w: volume %s has no attachment with this publish context", backend.ErrInvalid, v.id)
}
