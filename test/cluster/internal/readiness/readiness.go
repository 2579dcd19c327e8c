// Package readiness sees whether the nodes of a cluster can run pods.
package readiness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// patience is for how long something is waited for. An image may have to be pulled.
const patience = 3 * time.Minute

// pause is between two looks.
const pause = 200 * time.Millisecond

// tidying is for how long a pod's deletion may take when the context has ended.
const tidying = 10 * time.Second

// namespace is where pods are tried.
const namespace = meta.NamespaceDefault

// Node is a Linux node of a cluster.
type Node struct {
	Name string
	Bad  string // the reason for which it takes no pods; empty if it does
}

// Nodes returns the Linux nodes of a cluster. A node that only some pods tolerate is bad: tests do
// not tolerate taints.
func Nodes(ctx context.Context, client kubernetes.Interface) ([]Node, error) {
	list, err := client.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []Node
	for _, n := range list.Items {
		if n.Labels[core.LabelOSStable] == "linux" {
			all = append(all, Node{n.Name, bad(n)})
		}
	}
	return all, nil
}

func bad(n core.Node) string {
	if why := notReady(n); why != "" {
		return why
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != core.TaintEffectPreferNoSchedule {
			return "it has the taint " + t.ToString()
		}
	}
	if n.Spec.Unschedulable {
		return "it is cordoned"
	}
	return ""
}

// Ready returns nil if a node is ready, regardless of its taints.
func Ready(ctx context.Context, client kubernetes.Interface, node string) error {
	n, err := client.CoreV1().Nodes().Get(ctx, node, meta.GetOptions{})
	if err != nil {
		return err
	}
	if why := notReady(*n); why != "" {
		return errors.New(why)
	}
	return nil
}

func notReady(n core.Node) string {
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type != core.NodeReady:
		case c.Status == core.ConditionTrue:
			return ""
		default:
			return "it is not ready: " + c.Reason + ": " + c.Message
		}
	}
	return "its kubelet has not said that it is ready"
}

// Good returns the names of the nodes that pods can be placed on.
func Good(nodes []Node) []string {
	var names []string
	for _, n := range nodes {
		if n.Bad == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// Bad returns the reasons for which pods cannot be placed on the other nodes.
func Bad(nodes []Node) string {
	var all []string
	for _, n := range nodes {
		if n.Bad != "" {
			all = append(all, n.Name+": "+n.Bad)
		}
	}
	return strings.Join(all, "; ")
}

// Await waits until n Linux nodes can have pods, and returns their names, which may be more.
func Await(ctx context.Context, client kubernetes.Interface, n int) (names []string, err error) {
	err = await(ctx, fmt.Sprintf("%d nodes", n), func() error {
		nodes, err := Nodes(ctx, client)
		if err != nil {
			return err
		}
		if names = Good(nodes); len(names) < n {
			return fmt.Errorf("pods can be placed on %d; %s", len(names), Bad(nodes))
		}
		return nil
	})
	return names, err
}

// TryPods runs a pod of a busybox image on each of the nodes, with a command, and returns when all
// have ended as they should. It leaves none behind.
func TryPods(ctx context.Context, client kubernetes.Interface, image string, nodes []string, command ...string) error {
	pods := client.CoreV1().Pods(namespace)
	var tries []*core.Pod
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
		defer cancel()
		for _, t := range tries {
			pods.Delete(ctx, t.Name, meta.DeleteOptions{}) // an error is that it has gone with its node
		}
	}()
	for _, n := range nodes {
		var t *core.Pod
		// The namespace's service account may not be there yet.
		err := await(ctx, "a pod for "+n, func() (err error) {
			t, err = pods.Create(ctx, pod(n, image, command), meta.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		tries = append(tries, t)
	}
	for _, t := range tries {
		if err := await(ctx, "a pod on "+t.Spec.NodeName,
			func() error { return succeeded(ctx, client, t.Name) }); err != nil {
			return err
		}
	}
	return nil
}

// pod returns a pod that every cluster admits: it requests nothing, and meets the restricted pod
// security standard.
func pod(node, image string, command []string) *core.Pod {
	yes, no, nobody, none := true, false, int64(65534), int64(0)
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{GenerateName: "try-"},
		Spec: core.PodSpec{
			NodeName: node, RestartPolicy: core.RestartPolicyNever, TerminationGracePeriodSeconds: &none,
			AutomountServiceAccountToken: &no,
			SecurityContext: &core.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &nobody,
				SeccompProfile: &core.SeccompProfile{Type: core.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []core.Container{{
				Name: "try", Image: image, Command: command,
				TerminationMessagePolicy: core.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &core.SecurityContext{AllowPrivilegeEscalation: &no,
					Capabilities: &core.Capabilities{Drop: []core.Capability{"ALL"}}},
			}},
		},
	}
}

// errFailed is that there is nothing to wait for.
var errFailed = errors.New("it failed")

// succeeded returns nil if a pod has succeeded, and otherwise the reason.
func succeeded(ctx context.Context, client kubernetes.Interface, name string) error {
	p, err := client.CoreV1().Pods(namespace).Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return err
	}
	said := strings.TrimSpace(p.Status.Reason + " " + p.Status.Message)
	for _, c := range p.Status.ContainerStatuses {
		switch s := c.State; {
		case s.Waiting != nil:
			said += fmt.Sprintf(" its container waits: %s %s", s.Waiting.Reason, s.Waiting.Message)
		case s.Terminated != nil:
			said += fmt.Sprintf(" its container ended with %d: %s %s", s.Terminated.ExitCode, s.Terminated.Reason,
				s.Terminated.Message)
		}
	}
	switch p.Status.Phase {
	case core.PodSucceeded:
		return nil
	case core.PodFailed:
		return fmt.Errorf("%w: %s", errFailed, said)
	}
	return fmt.Errorf("it is %s: %s", p.Status.Phase, said)
}

// await tries until it works, has failed, or the patience is at its end.
func await(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	for {
		now := try()
		if now == nil {
			return nil
		}
		if errors.Is(now, errFailed) {
			return fmt.Errorf("%s: %w", what, now)
		}
		if err == nil || !errors.Is(now, context.DeadlineExceeded) && !errors.Is(now, context.Canceled) {
			err = now // the last state says more than the timeout
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// Write writes a line for each node with its state. Write returns an error if a node is not ready.
func Write(ctx context.Context, client kubernetes.Interface, w io.Writer) error {
	list, err := client.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range list.Items {
		state := "ready"
		if why := notReady(n); why != "" {
			state = "not ready"
			errs = append(errs, fmt.Errorf("node %s: %s", n.Name, why))
		} else if n.Spec.Unschedulable {
			state += ", cordoned"
		}
		if _, err := fmt.Fprintf(w, "node %s: %s/%s, kubelet %s, %s\n", n.Name, n.Labels[core.LabelOSStable],
			n.Labels[core.LabelArchStable], n.Status.NodeInfo.KubeletVersion, state); err != nil {
			return err
		}
	}
	if len(list.Items) == 0 {
		errs = append(errs, errors.New("the cluster has no nodes"))
	}
	return errors.Join(errs...)
}
