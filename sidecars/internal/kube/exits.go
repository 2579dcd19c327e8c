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

// catchExits redirects panics of workers and fatal log lines of upstream's code to fail, which
// names the controller and releases leases before the process ends. The goroutine does not
// continue. A panic in an unguarded goroutine still ends the process at once.
func catchExits(fail func(error)) {
	exits.Do(func() {
		utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, reason any) {
			fail(sidecar.Panicked(reason))
			select {}
		})
		klog.OsExit = func(code int) {
			fail(&sidecar.Failure{Controller: sidecar.OfStack(),
				Err: fmt.Errorf("it ended the process with code %d; the lines before say why", code)})
			select {}
		}
	})
}

// Migrated returns upstream's label "migrated" of a CSI call: whether its volume comes from an
// in-tree driver, or "" for drivers that do not replace an in-tree driver.
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
