package agent

import (
	"cmp"
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

// Start implements Starter. The runtime is asked again after Open: the process of found, which was
// that of the container before, is the same, and not a later one with the same number.
func (n Native) Start(ctx context.Context, id string, found cri.Container,
	find func(context.Context) (cri.Container, error), s worker.Spec) (Worker, error) {
	c, failed := n.Node.Open(found.PID, id)
	if failed == nil {
		defer c.Close() // a worker that cannot be killed must not keep the agent's descriptors open
	}
	again, err := find(ctx)
	if err == nil && again.PID != found.PID {
		err = fmt.Errorf("%w: it has restarted", container.ErrGone)
	}
	if err = cmp.Or(err, failed); err != nil { // Open cannot tell a container that has ended from another process
		return nil, err
	}
	s.Label = found.Label
	return c.Start(n.Program, s)
}
