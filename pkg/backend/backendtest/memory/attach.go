package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// attachment is a volume on a node.
type attachment struct {
	number string // by which that node finds it, as a disk by its LUN
	use    use
}

// use is what was asked of an attachment.
type use struct {
	capability                     string
	readOnly, manyNodes, oneWriter bool
}

// numberKey is the one in Access.PublishContext.
const numberKey = "number"

// Attach gives the volume a number on the node.
func (b *Backend) Attach(_ context.Context, id string, o backend.AttachOptions) (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.findPersistent(id)
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains(b.cfg.Nodes, o.Node):
		return nil, fmt.Errorf("%w: the node", backend.ErrNotFound)
	}
	if err := checkAccess(o.Access, v.data.block); err != nil {
		return nil, err
	}
	u := use{capability: o.Capability, readOnly: o.Access.ReadOnly, manyNodes: o.ManyNodes, oneWriter: o.OneWriter}
	a, ok := v.nodes[o.Node]
	if ok && a.use != u {
		return nil, fmt.Errorf("%w: it is attached to that node with another capability, or read-only on one side", backend.ErrExists)
	}
	if !ok {
		if err := v.shares(u); err != nil {
			return nil, err
		}
		if n := b.attachedTo(o.Node); b.cfg.Limit > 0 && n >= b.cfg.Limit {
			return nil, fmt.Errorf("%w: %d volumes are attached to the node, which takes no more", backend.ErrExhausted, n)
		}
		b.attached++
		a = attachment{number: strconv.Itoa(b.attached), use: u}
		v.nodes[o.Node] = a
	}
	return map[string]string{numberKey: a.number}, nil
}

// shares returns ErrInUse if one node more can't have v as u says.
func (v *volume) shares(u use) error {
	for _, node := range slices.Sorted(maps.Keys(v.nodes)) {
		other := v.nodes[node].use
		switch {
		case !u.manyNodes || !other.manyNodes:
			return fmt.Errorf("%w: it is attached to node %q, and may be on one node only", backend.ErrInUse, node)
		case (u.oneWriter || other.oneWriter) && !u.readOnly && !other.readOnly:
			return fmt.Errorf("%w: it is attached to node %q for writing, and may have one writer only", backend.ErrInUse, node)
		}
	}
	return nil
}

// NodeLimit returns how many volumes a node takes.
func (b *Backend) NodeLimit() int64 { return b.cfg.Limit }

// attachedTo returns how many volumes a node has. b.mu must be held.
func (b *Backend) attachedTo(node string) (n int64) {
	for _, v := range b.volumes {
		if _, ok := v.nodes[node]; ok {
			n++
		}
	}
	return n
}

// Detach takes the number away.
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

// attachedReadOnly reports whether what Attach returned is of a read-only attachment of v. Nothing is of none.
func (v *volume) attachedReadOnly(attachment map[string]string) (bool, error) {
	if attachment == nil {
		return false, nil
	}
	for _, a := range v.nodes {
		if maps.Equal(attachment, map[string]string{numberKey: a.number}) {
			return a.use.readOnly, nil
		}
	}
	return false, fmt.Errorf("%w: volume %s is not attached like that", backend.ErrInvalid, v.id)
}
