package healthmonitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

type controller struct {
	cluster     *kube.Cluster
	limits      kube.Limits
	options     Options
	nodeWatcher bool
	unused      time.Duration
}

// New returns the health monitor.
func New(c *kube.Cluster) sidecar.Controller { return &controller{cluster: c} }

func (c *controller) Name() string { return "health-monitor" }

func (c *controller) About() string {
	return "Writes the health of volumes, as the driver reports it, to the status of claims, to events and " +
		"to metrics."
}

// defaults are those of upstream's csi-external-health-monitor-controller.
var defaults = Options{
	ListInterval: 5 * time.Minute, GetInterval: time.Minute, Timeout: 15 * time.Second, Workers: 10, PageSize: 500,
	PodEvents: true,
}

// Flags has the names and defaults of upstream's csi-external-health-monitor-controller.
func (c *controller) Flags(f *sidecar.Flags) {
	o := &c.options
	f.Duration(&o.ListInterval, "list-volumes-interval", defaults.ListInterval,
		"pause between two rounds, if the driver can list volumes")
	f.Duration(&o.GetInterval, "monitor-interval", defaults.GetInterval,
		"pause between two rounds that query each volume, and after a failed list")
	f.Duration(&o.Timeout, "timeout", defaults.Timeout, "time limit of a call to the driver")
	f.Int(&o.Workers, "worker-threads", defaults.Workers,
		"maximum number of volumes that are queried, and of claims that are written, at the same time")
	f.Int(&o.PageSize, "max-entries", defaults.PageSize,
		"maximum number of volumes in a page of a list; 0: the driver decides")
	f.Bool(&o.PodEvents, "pod-events", defaults.PodEvents,
		"write events on the pods that use a volume, too; this needs a cache of all pods")
	f.Bool(&o.UnknownConditions, "unknown-conditions", false,
		"report conditions of a type that CSI v1.13 does not have, with the status Unknown, as proposed for KEP-1432; "+
			"an API server that does not accept the status gets the other conditions only")
	c.limits.Flags(f)
	f.Bool(&c.nodeWatcher, "enable-node-watcher", false,
		"an error if true: the driver itself reports inaccessible volumes, and the redesign of KEP-1432 "+
			"removed upstream's node watcher")
	f.Duration(&c.unused, "volume-list-add-interval", 5*time.Minute,
		"accepted and ignored, so that upstream's manifests work: there is no queue")
	f.Duration(&c.unused, "node-list-add-interval", 5*time.Minute, "accepted and ignored, as there is no "+
		"node watcher")
}

func (c *controller) Validate() error {
	o := c.options
	switch {
	case c.nodeWatcher:
		return errors.New("--enable-node-watcher: there is no node watcher: remove the flag")
	case o.PageSize < 0 || o.PageSize > maxPageSize:
		return fmt.Errorf("--max-entries=%d: it must be 0 to %d", o.PageSize, maxPageSize)
	}
	return errors.Join(kube.Positive("list-volumes-interval", o.ListInterval),
		kube.Positive("monitor-interval", o.GetInterval),
		kube.Positive("timeout", o.Timeout), kube.Positive("worker-threads", o.Workers), c.limits.Validate())
}

// maxPageSize bounds the memory of a page: a volume has a few kilobytes.
const maxPageSize = 10_000

// Needs has the lease of upstream's monitor, so that the two never write at the same time.
func (*controller) Needs() sidecar.Needs {
	return sidecar.Needs{
		Driver: true, Capabilities: true, Cluster: true,
		Lock: func(driver string) string { return "external-health-monitor-leader-" + driver },
	}
}

func (c *controller) Build(_ context.Context, e *sidecar.Env) (sidecar.Runner, error) {
	if _, err := sourceOf(e.Driver, e.Controller, nil); err != nil {
		return nil, err // before a client and informers are made
	}
	client, events := c.cluster.Client(c.Name(), c.limits).Kube, record.NewBroadcaster()
	monitor, err := NewMonitor(Config{
		Options: c.options, Driver: e.Driver, Capabilities: e.Controller, Conn: e.Conn,
		Client: client, Informers: c.cluster.Informers(), Register: e.HTTP.Register,
		// The component is that of upstream's events.
		Recorder: events.NewRecorder(scheme.Scheme,
			corev1.EventSource{Component: "csi-pv-monitor-controller-" + e.Driver}),
	})
	if err != nil {
		return nil, err
	}
	return sidecar.RunnerFunc(func(ctx context.Context) error {
		defer events.Shutdown()
		events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events(corev1.NamespaceAll)})
		return monitor.Run(ctx)
	}), nil
}

// Rules implements kube.Ruled. There is no rule for secrets: no Kubernetes object names secrets for
// health calls.
func (c *controller) Rules(kube.Rights) kube.Rules {
	read := []string{"get", "list", "watch"}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"persistentvolumes", "persistentvolumeclaims"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
	if c.options.PodEvents {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read})
	}
	return kube.Rules{Cluster: rules}
}
