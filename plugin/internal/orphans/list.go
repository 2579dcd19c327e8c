package orphans

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// Exec returns a function that lists a driver by its command list, in a pod of the controller. A
// port would need users and rights of its own, which the API server has for pods/exec, and a
// NetworkPolicy could prevent it.
func Exec(c cluster.Client, d *cluster.Driver, program string) func(context.Context) (*inventory.Inventory, error) {
	return func(ctx context.Context) (*inventory.Inventory, error) {
		var out bytes.Buffer
		if err := InController(ctx, c, d, []string{program, "list"}, &out); err != nil {
			return nil, err
		}
		return decode(out.Bytes())
	}
}

// InController runs a command of the driver in the first ready pod of its controller.
func InController(ctx context.Context, c cluster.Client, d *cluster.Driver, command []string, out *bytes.Buffer) error {
	for _, p := range d.ControllerPods() {
		if !p.Ready() || p.DeletionTimestamp != nil {
			continue
		}
		if err := c.Pods.Exec(ctx, p.Pod, "driver", command, out); err != nil {
			return fmt.Errorf("%v in pod %s: %w", command, p.Name, err)
		}
		return nil
	}
	return errors.New("no pod of the controller is ready: kubectl causeway doctor finds the reason")
}
