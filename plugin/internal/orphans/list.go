package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
// the next ready pod gets its turn. An error that several pods have is in the result once: the
// router in each of them reports the same error of a node.
func InController(ctx context.Context, c cluster.Client, d *cluster.Driver, limit time.Duration, command ...string) (
	[]byte, error) {
	type failure struct {
		pods []string
		err  error
	}
	var failures []*failure
	for _, p := range d.ControllerPods() {
		if !p.Ready() || p.DeletionTimestamp != nil {
			continue
		}
		out, err := cluster.Run(ctx, c, p.Pod, limit, command...)
		if err == nil {
			return out, nil
		}
		i := slices.IndexFunc(failures, func(f *failure) bool { return f.err.Error() == err.Error() })
		if i < 0 {
			i = len(failures)
			failures = append(failures, &failure{err: err})
		}
		failures[i].pods = append(failures[i].pods, p.Name)
		if ctx.Err() != nil {
			break
		}
	}
	var all []error
	for _, f := range failures {
		all = append(all, fmt.Errorf("%s in pod %s: %w", strings.Join(command, " "), strings.Join(f.pods, ", "), f.err))
	}
	if len(all) > 0 {
		return nil, errors.Join(all...)
	}
	return nil, errors.New("no pod of the controller is ready: kubectl causeway doctor finds the reason")
}
