package kube

import (
	"context"
	"fmt"
	"sync"

	"github.com/kubernetes-csi/csi-lib-utils/connection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

var exits sync.Once

// catchExits leads the two ways in which upstream's code ends a process, a panic in a worker and a fatal log line, to fail:
// it names the controller and gives leases up before the process ends. The goroutine that did it never goes on. A panic in a
// goroutine that nobody guards still ends the process at once, by Go's own rule.
func catchExits(fail func(error)) {
	exits.Do(func() {
		utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, reason any) {
			fail(sidecar.Panicked(reason))
			select {}
		})
		klog.OsExit = func(code int) {
			fail(&sidecar.Failure{Controller: sidecar.OfStack(), Err: fmt.Errorf("it ended the process with code %d; the lines before say why", code)})
			select {}
		}
	})
}

// Migrated is upstream's label on CSI calls of a driver that took over from an in-tree one: whether the call is for such a volume.
// Other drivers' calls have none.
func (c *Cluster) Migrated(ctx context.Context) string {
	if !c.migrated.Load() {
		return ""
	}
	info, ok := ctx.Value(connection.AdditionalInfoKey).(connection.AdditionalInfo)
	if !ok {
		return "false"
	}
	return info.Migrated
}
