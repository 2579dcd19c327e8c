// Package readytest provides a cluster for tests of package readiness and its users: a real API
// server, nodes that are objects alone, and a kubelet that reports pod states that a test sets.
package readytest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// Succeeded is the default state of a pod.
var Succeeded = core.PodStatus{Phase: core.PodSucceeded}

// Cluster runs as long as its test.
type Cluster struct {
	*kubernetes.Clientset
	Plane *controlplane.Plane

	mu    sync.Mutex
	said  core.PodStatus
	nodes []string
}

// Start starts a cluster, whose default namespace lets in restricted pods alone.
func Start(t *testing.T) *Cluster {
	t.Helper()
	p, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.NewForConfig(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Clientset: client, Plane: p, said: Succeeded}
	space, err := c.CoreV1().Namespaces().Get(t.Context(), "default", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	space.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	if _, err := c.CoreV1().Namespaces().Update(t.Context(), space, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	done.Go(func() { c.kubelet(ctx, t) })
	t.Cleanup(func() { stop(); done.Wait() })
	return c
}

// Say sets the state of all pods from now on.
func (c *Cluster) Say(s core.PodStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = s
}

// Nodes returns the nodes of the pods that there were, and forgets them.
func (c *Cluster) Nodes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.nodes
	c.nodes = nil
	return all
}

// Node makes a node that is ready, after change has changed it.
func (c *Cluster) Node(t *testing.T, name, os string, change func(*core.Node)) {
	t.Helper()
	n := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{core.LabelOSStable: os}},
		Status: core.NodeStatus{Conditions: []core.NodeCondition{{Type: core.NodeReady,
			Status: core.ConditionTrue}}},
	}
	if change != nil {
		change(n)
	}
	taints := n.Spec.Taints
	made, err := c.CoreV1().Nodes().Create(t.Context(), n, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Spec.Taints = taints // without those of the API server, which a controller removes when a kubelet is ready
	if _, err := c.CoreV1().Nodes().Update(t.Context(), made, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// kubelet plays that of every node.
func (c *Cluster) kubelet(ctx context.Context, t *testing.T) {
	pods := c.CoreV1().Pods("")
	seen := map[string]bool{}
	for ctx.Err() == nil {
		list, err := pods.List(ctx, meta.ListOptions{})
		if err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
		for _, p := range list.Items {
			c.mu.Lock()
			if !seen[p.Name] {
				c.nodes = append(c.nodes, p.Spec.NodeName)
				seen[p.Name] = true
			}
			p.Status = *c.said.DeepCopy()
			c.mu.Unlock()
			if p.DeletionTimestamp != nil {
				now := int64(0)
				err = c.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, meta.DeleteOptions{GracePeriodSeconds: &now})
			} else {
				_, err = c.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, &p, meta.UpdateOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				t.Error(err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// NoPods waits until there is no pod.
func (c *Cluster) NoPods(t *testing.T) {
	t.Helper()
	await.NoError(t, "no pod is left", func() error { // the kubelet has to see that it is to go
		left, err := c.CoreV1().Pods("").List(t.Context(), meta.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods, such as %s", len(left.Items), left.Items[0].Name)
		}
		return err
	})
}
