package healthmonitor

import (
	"errors"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

func TestADriverWithoutHealthIsLeftOut(t *testing.T) {
	_, err := New(nil).Build(t.Context(), &sidecar.Env{Driver: driverName})
	if !errors.Is(err, sidecar.ErrNotSupported) {
		t.Errorf("Build: %v, want ErrNotSupported", err)
	}
}

func TestTheLockIsUpstreams(t *testing.T) {
	needs := New(nil).Needs()
	if got := needs.Lock(driverName); got != "external-health-monitor-leader-"+driverName || !needs.Cluster ||
		!needs.Capabilities {
		t.Errorf("lock %q, needs %+v", got, needs)
	}
}

func TestValidate(t *testing.T) {
	good := Options{ListInterval: time.Minute, GetInterval: time.Minute, Timeout: time.Second, Workers: 1}
	for _, c := range []struct {
		name   string
		change func(*controller)
		ok     bool
	}{
		{"what is usual is taken", func(*controller) {}, true},
		{"a node watcher is refused", func(c *controller) { c.nodeWatcher = true }, false},
		{"no interval between lists is refused", func(c *controller) { c.options.ListInterval = 0 }, false},
		{"no interval between rounds is refused", func(c *controller) { c.options.GetInterval = -1 }, false},
		{"no time for a call is refused", func(c *controller) { c.options.Timeout = 0 }, false},
		{"nobody to work is refused", func(c *controller) { c.options.Workers = 0 }, false},
		{"a negative page is refused", func(c *controller) { c.options.PageSize = -1 }, false},
		{"a page beyond reason is refused", func(c *controller) { c.options.PageSize = 1 << 31 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			it := &controller{options: good}
			c.change(it)
			if err := it.Validate(); (err == nil) != c.ok {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

func TestPodsAreOnlyReadForTheirEvents(t *testing.T) {
	for _, events := range []bool{true, false} {
		it := &controller{options: Options{PodEvents: events}}
		pods := slices.ContainsFunc(it.Rules(kube.Rights{}).Cluster,
			func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
		if pods != events {
			t.Errorf("with pod events %v, rules for pods: %v", events, pods)
		}
	}
}
