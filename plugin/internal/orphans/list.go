package orphans

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// Exec returns a function that lists a driver by its command list, in a pod of the controller. A
// port would need users and rights of its own, which the API server has for pods/exec, and a
// NetworkPolicy could prevent it.
func Exec(c cluster.Client, d *cluster.Driver, program string) func(context.Context) (*inventory.Inventory, error) {
	return func(ctx context.Context) (*inventory.Inventory, error) {
		data, err := InController(ctx, c, d, cluster.ListTimeout, program, "list")
		if err != nil {
			return nil, err
		}
		return decode(data)
	}
}

// InController runs a command of the driver in a ready pod of its controller. If it fails there,
// the next ready pod gets its turn.
func InController(ctx context.Context, c cluster.Client, d *cluster.Driver, limit time.Duration, command ...string) (
	[]byte, error) {
	var failed []error
	for _, p := range d.ControllerPods() {
		if !p.Ready() || p.DeletionTimestamp != nil {
			continue
		}
		out, err := cluster.Run(ctx, c, p.Pod, limit, command...)
		if err == nil {
			return out, nil
		}
		failed = append(failed, fmt.Errorf("%v in pod %s: %w", command, p.Name, err))
		if ctx.Err() != nil {
			break
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return nil, errors.New("no pod of the controller is ready: kubectl causeway doctor finds the reason")
}
