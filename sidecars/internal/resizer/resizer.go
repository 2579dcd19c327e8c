// Package resizer runs kubernetes-csi/external-resizer: it expands volumes, and changes volumes to
// another VolumeAttributesClass.
package resizer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/controller"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/features"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifier"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifycontroller"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/resizer"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/util"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

type sidecarController struct {
	cluster       *kube.Cluster
	flags         *sidecar.Flags
	work          kube.Work
	resizeTimeout time.Duration
	modifyTimeout time.Duration
	resync        time.Duration
	metadata      bool
	handleInUse   bool
}

// New returns the resizer.
func New(c *kube.Cluster) sidecar.Controller { return &sidecarController{cluster: c} }

func (c *sidecarController) Name() string { return "resizer" }

func (c *sidecarController) About() string {
	return "Grows volumes whose claims ask for more, and changes those whose claims name another VolumeAttributesClass."
}

func (c *sidecarController) Flags(f *sidecar.Flags) {
	c.flags = f
	c.work.Flags(f, kube.WorkFlags{
		Timeout: 10 * time.Second, TimeoutUsage: "time limit of a call. It overrides resize-timeout and modify-timeout",
		Workers: 10, WorkersFlag: "workers",
		WorkersUsage: "maximum number of volumes that are expanded, and that are changed, at the same time",
	})
	f.Old("workers", "worker-threads")
	f.Duration(&c.resizeTimeout, "resize-timeout", 10*time.Second, "time limit of a ControllerExpandVolume call")
	f.Duration(&c.modifyTimeout, "modify-timeout", 10*time.Second, "time limit of a ControllerModifyVolume call")
	f.Duration(&c.resync, "resync-period", 10*time.Minute, "interval at which all objects are processed again")
	f.Bool(&c.metadata, "extra-modify-metadata", false,
		"send the driver the names of claim and volume when a volume is changed")
	f.Bool(&c.handleInUse, "handle-volume-inuse-error", true,
		"watch pods, so that the expansion of a volume that must not be in use is repeated when the volume "+
			"is no longer in use")
}

func (c *sidecarController) Validate() error {
	return errors.Join(kube.Positive("resize-timeout", c.resizeTimeout),
		kube.Positive("modify-timeout", c.modifyTimeout), c.work.Validate())
}

func (c *sidecarController) Needs() sidecar.Needs {
	return sidecar.Needs{Driver: true, Capabilities: true, Cluster: true,
		Lock: func(driver string) string { return "external-resizer-" + util.SanitizeName(driver) }}
}

// timeouts returns the timeouts of expansion and change. Upstream's --timeout overrides both.
// Without the prefix of this controller it does not override a timeout that has the prefix.
func (c *sidecarController) timeouts() (resize, modify time.Duration) {
	pick := func(name string, own time.Duration) time.Duration {
		if c.flags.SaidHere("timeout") || c.flags.Said("timeout") && !c.flags.SaidHere(name) {
			return c.work.Timeout
		}
		return own
	}
	return pick("resize-timeout", c.resizeTimeout), pick("modify-timeout", c.modifyTimeout)
}

// Rules implements kube.Ruled.
func (c *sidecarController) Rules(d kube.Rights) kube.Rules {
	return kube.ResizerRules(d.Secrets, c.handleInUse, c.cluster.Gate(features.VolumeAttributesClass))
}

// Build makes those of upstream's two controllers that the driver supports.
func (c *sidecarController) Build(_ context.Context, env *sidecar.Env) (sidecar.Runner, error) {
	if !env.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil, fmt.Errorf("%w: it has no controller service", sidecar.ErrNotSupported)
	}
	client := c.cluster.Client(c.Name(), c.work.Limits).Kube
	driver := overConn{env.Conn}
	resizeTimeout, modifyTimeout := c.timeouts()
	var runs []func(int, context.Context, *sync.WaitGroup)
	grow, err := resizer.NewResizerFromClient(driver, resizeTimeout, client, env.Driver)
	switch {
	case err == nil:
		runs = append(runs, controller.NewResizeController(grow.Name(), grow, client, c.resync, c.cluster.Informers(),
			c.work.Limiter(), c.handleInUse, c.work.Retry.Max).Run)
	case !errors.Is(err, resizer.ResizeNotSupportErr):
		return nil, err
	}
	change, err := modifier.NewModifierFromClient(driver, modifyTimeout, client, c.cluster.Informers(), c.metadata,
		env.Driver)
	switch {
	case err == nil && utilfeature.DefaultFeatureGate.Enabled(features.VolumeAttributesClass):
		runs = append(runs, modifycontroller.NewModifyController(change.Name(), change, client, c.resync,
			c.work.Retry.Max, c.metadata, c.cluster.Informers(), c.work.Limiter()).Run)
	case err != nil && !errors.Is(err, modifier.ModifyNotSupportErr):
		return nil, err
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("%w: it neither grows nor changes volumes", sidecar.ErrNotSupported)
	}
	return sidecar.RunnerFunc(func(ctx context.Context) error { return c.together(ctx, runs) }), nil
}

// together runs both until both have ended. An early return of either ends the other.
func (c *sidecarController) together(ctx context.Context, runs []func(int, context.Context, *sync.WaitGroup)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var both, workers sync.WaitGroup
	for _, run := range runs {
		both.Go(func() {
			defer cancel()
			run(c.work.Workers, ctx, &workers)
		})
	}
	both.Wait()
	workers.Wait()
	return nil
}
