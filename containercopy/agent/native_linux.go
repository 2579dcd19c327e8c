package agent

import (
	"context"
	"fmt"

	"github.com/causeway-csi/causeway/containercopy/container"
	"github.com/causeway-csi/causeway/containercopy/cri"
	"github.com/causeway-csi/causeway/containercopy/worker"
)

// Native starts workers in containers that are processes of the node.
type Native struct {
	Node    container.Node
	Program container.Program
}

// Start implements Starter. It asks for the container twice, around a descriptor of its process: so
// the process is that of the container, and not a later one with the same number.
func (n Native) Start(ctx context.Context, id string, find func(context.Context) (cri.Container, error),
	s worker.Spec) (Worker, error) {
	found, err := find(ctx)
	if err != nil {
		return nil, err
	}
	c, err := n.Node.Open(found.PID, id)
	if err != nil {
		return nil, err
	}
	defer c.Close() // a worker that cannot be killed must not keep the agent's descriptors open
	again, err := find(ctx)
	if err == nil && again.PID != found.PID {
		err = fmt.Errorf("%w: it has restarted", container.ErrGone)
	}
	if err != nil {
		return nil, err
	}
	s.Label = found.Label
	return c.Start(n.Program, s)
}
