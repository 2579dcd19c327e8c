package windows_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
	"github.com/causeway-csi/causeway/test/cluster/process"
	"github.com/causeway-csi/causeway/test/cluster/windows"
)

// grace is for how long the controller manager waits before it gives a node up.
const grace = 10 * time.Second

// cluster is an API server with a scheduler and a kwok.
type cluster struct {
	plane *controlplane.Plane
	*kubernetes.Clientset
	kwok process.Process
}

func start(t *testing.T) *cluster {
	t.Helper()
	p, err := controlplane.Start(t.Context(), controlplane.Options{
		Scheduler: true,
		Controllers: append(controlplane.StorageControllers(), "daemonset-controller",
			"node-lifecycle-controller"),
		ControllerManagerArgs: []string{"--node-monitor-grace-period=" + grace.String(), "--node-monitor-period=1s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{plane: p}
	if c.Clientset, err = kubernetes.NewForConfig(p.Config()); err != nil {
		t.Fatal(err)
	}
	c.startKwok(t)
	t.Cleanup(func() {
		if err := c.kwok.Err(); err != nil {
			t.Error(err)
		}
		c.kwok.Kill()
		if log, err := os.ReadFile(p.LogFile("kwok")); t.Failed() {
			t.Logf("kwok's log (%v):\n%s", err, log)
		}
	})
	return c
}

// startKwok starts kwok, or starts it again.
func (c *cluster) startKwok(t *testing.T) {
	t.Helper()
	t.Setenv("KWOK_WORKDIR", c.plane.Dir)
	bin, err := components.Build(t.Context(), os.Stderr, "kwok")
	if err != nil {
		t.Fatal(err)
	}
	args, err := windows.KwokArgs(c.plane.Kubeconfig(), c.plane.Dir)
	if err != nil {
		t.Fatal(err)
	}
	c.kwok, err = process.Start(process.Command{
		Name: "kwok", Argv: append([]string{filepath.Join(bin, "kwok")},
			args...), Dir: c.plane.Dir, Log: c.plane.LogFile("kwok"),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// created fails the test when an object could not be created.
func created[T any](t *testing.T) func(T, error) {
	return func(_ T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ready returns the condition of a node's readiness, and its time.
func (c *cluster) ready(ctx context.Context, node string) (string, time.Time) {
	n, err := c.CoreV1().Nodes().Get(ctx, node, meta.GetOptions{})
	if err != nil {
		return err.Error(), time.Time{}
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == core.NodeReady {
			return string(condition.Status), condition.LastTransitionTime.Time
		}
	}
	return "nothing", time.Time{}
}

func (c *cluster) awaitNode(t *testing.T, node, want string) {
	t.Helper()
	await.NoError(t, node+" is ready: "+want, func() error {
		if got, _ := c.ready(t.Context(), node); got != want {
			return errors.New(got)
		}
		return nil
	})
}

// pods returns the pods of the DaemonSet of that name, as node: state.
func (c *cluster) pods(ctx context.Context, t *testing.T, set string) map[string]string {
	t.Helper()
	list, err := c.CoreV1().Pods("default").List(ctx, meta.ListOptions{LabelSelector: "set=" + set})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range list.Items {
		state := string(p.Status.Phase)
		for _, condition := range p.Status.Conditions {
			if condition.Type == core.PodReady && condition.Status == core.ConditionTrue {
				state += ", ready"
			}
		}
		if p.DeletionTimestamp != nil {
			state += ", to go"
		}
		found[p.Spec.NodeName] = state
	}
	return found
}

// awaitPods waits until a DaemonSet has a pod that is ready on each of the nodes, and none
// elsewhere.
func (c *cluster) awaitPods(t *testing.T, set string, nodes ...string) {
	t.Helper()
	await.NoError(t, "the pods of "+set+" are ready", func() error {
		got := c.pods(t.Context(), t, set)
		other := func(n string) bool { return got[n] != "Running, ready" }
		if len(got) != len(nodes) || slices.ContainsFunc(nodes, other) {
			return fmt.Errorf("the pods are %v", got)
		}
		return nil
	})
}

// daemonSet is a DaemonSet for the nodes with that operating system, or for all.
func daemonSet(name, os string, spec core.PodSpec) *apps.DaemonSet {
	if os != "" {
		spec.NodeSelector = map[string]string{core.LabelOSStable: os}
	}
	labels := map[string]string{"set": name}
	return &apps.DaemonSet{
		ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "default"},
		Spec: apps.DaemonSetSpec{
			Selector: &meta.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// plain is a pod of a single container.
func plain() core.PodSpec {
	return core.PodSpec{Containers: []core.Container{{Name: "main", Image: "example.com/plain:1"}}}
}

// hostProcess is a pod like a driver's on Windows: a HostProcess pod, with an init container and a
// sidecar.
func hostProcess() core.PodSpec {
	yes, system, always := true, `NT AUTHORITY\SYSTEM`, core.ContainerRestartPolicyAlways
	return core.PodSpec{
		HostNetwork: true,
		OS:          &core.PodOS{Name: core.Windows},
		Tolerations: []core.Toleration{{Key: windows.Taint.Key, Value: windows.Taint.Value,
			Effect: windows.Taint.Effect}},
		SecurityContext: &core.PodSecurityContext{WindowsOptions: &core.WindowsSecurityContextOptions{HostProcess: &yes,
			RunAsUserName: &system}},
		InitContainers: []core.Container{
			{Name: "once", Image: "example.com/once:1"},
			{Name: "beside", Image: "example.com/beside:1", RestartPolicy: &always},
		},
		Containers: []core.Container{{Name: "driver", Image: "example.com/driver:1"},
			{Name: "registrar", Image: "example.com/registrar:1"}},
	}
}

func TestNodes(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	sets := c.AppsV1().DaemonSets("default")
	// They are there before the nodes: kwok plays pods that were placed before it has seen the
	// node.
	created[*apps.DaemonSet](t)(sets.Create(ctx, daemonSet("driver", "windows", hostProcess()), meta.CreateOptions{}))
	created[*apps.DaemonSet](t)(sets.Create(ctx, daemonSet("linux", "linux", plain()), meta.CreateOptions{}))
	created[*apps.DaemonSet](t)(sets.Create(ctx, daemonSet("any", "", plain()), meta.CreateOptions{}))
	for range 2 { // repeating it is fine
		if err := windows.Create(ctx, c, 3); err != nil {
			t.Fatal(err)
		}
	}

	nodes := []string{"windows-1", "windows-2", "windows-3"}
	since := map[string]time.Time{}
	for _, n := range nodes {
		c.awaitNode(t, n, "True")
		_, since[n] = c.ready(ctx, n)
	}
	c.awaitPods(t, "driver", nodes...)
	testStatus(t, c)
	testTaint(t, c)
	testNoLog(t, c)
	testScale(t, c)

	// The node that comes last has no kubelet and no kwok, so it is given up. By then the others
	// would have been too, if nothing renewed their heartbeats, and kwok would have made them ready
	// again, after the grace period at the earliest. At first kwok may make a node ready twice. The
	// API has whole seconds.
	other := &core.Node{ObjectMeta: meta.ObjectMeta{Name: "linux-1",
		Labels: map[string]string{core.LabelOSStable: "linux"}}}
	other.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}
	other.Status.Allocatable = core.ResourceList{core.ResourcePods: resource.MustParse("10")}
	created[*core.Node](t)(c.CoreV1().Nodes().Create(ctx, other, meta.CreateOptions{}))
	c.awaitNode(t, "linux-1", "Unknown")
	for _, n := range nodes {
		if got, at := c.ready(ctx, n); got != "True" || at.Sub(since[n]) >= grace-time.Second {
			t.Errorf("%s is ready: %s since %v, want True since about %v", n, got, at, since[n])
		}
	}
	for _, set := range []string{"linux", "any"} {
		if got := c.pods(ctx, t, set); !maps.Equal(got, map[string]string{"linux-1": "Pending"}) {
			t.Errorf("pods of %s: %v, want one on linux-1 that nobody plays", set, got)
		}
	}
	testRestart(t, c)
	testDelete(t, c)
}

// testStatus checks a pod's status of its containers.
func testStatus(t *testing.T, c *cluster) {
	list, err := c.CoreV1().Pods("default").List(t.Context(), meta.ListOptions{LabelSelector: "set=driver"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		once, beside := p.Status.InitContainerStatuses[0].State, p.Status.InitContainerStatuses[1].State
		if once.Terminated == nil || once.Terminated.ExitCode != 0 || beside.Running == nil {
			t.Errorf("init containers: got %+v and %+v, want the first to have ended and the other to run", once,
				beside)
		}
		for _, s := range p.Status.ContainerStatuses {
			if !s.Ready || s.State.Running == nil {
				t.Errorf("container %s: got %+v, want it to run", s.Name, s)
			}
		}
		if len(p.Status.ContainerStatuses) != 2 || p.Status.PodIP != "" {
			t.Errorf("got %d containers with the address %q, want 2 without", len(p.Status.ContainerStatuses),
				p.Status.PodIP)
		}
	}
}

// testTaint checks that the scheduler gives a pod without a Windows selector no Windows node.
func testTaint(t *testing.T, c *cluster) {
	spec := plain()
	spec.Affinity = &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{
		NodeSelectorTerms: []core.NodeSelectorTerm{{MatchFields: []core.NodeSelectorRequirement{
			{Key: meta.ObjectNameField, Operator: core.NodeSelectorOpIn, Values: []string{"windows-1"}},
		}}},
	}}}
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "careless"}, Spec: spec}
	created[*core.Pod](t)(c.CoreV1().Pods("default").Create(t.Context(), pod, meta.CreateOptions{}))
	await.NoError(t, "a pod without a toleration is refused", func() error {
		got, err := c.CoreV1().Pods("default").Get(t.Context(), "careless", meta.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range got.Status.Conditions {
			if condition.Reason == core.PodReasonUnschedulable && strings.Contains(condition.Message, "untolerated taint") {
				return nil
			}
		}
		return fmt.Errorf("its status is %s", &got.Status)
	})
}

// testNoLog checks that no client waits for a kubelet that does not exist.
func testNoLog(t *testing.T, c *cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	list, err := c.CoreV1().Pods("default").List(ctx, meta.ListOptions{LabelSelector: "set=driver"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CoreV1().Pods("default").GetLogs(list.Items[0].Name, &core.PodLogOptions{Container: "driver"}).DoRaw(ctx)
	if err == nil || ctx.Err() != nil {
		t.Errorf("log of a pod that is simulated: got %v, want an error at once", err)
	}
}

// testScale adds nodes to those that are there.
func testScale(t *testing.T, c *cluster) {
	if err := windows.Create(t.Context(), c, 4); err != nil {
		t.Fatal(err)
	}
	c.awaitPods(t, "driver", "windows-1", "windows-2", "windows-3", "windows-4")
}

// testRestart ends kwok and starts it when its nodes were given up. A pod that was deleted
// meanwhile then goes.
func testRestart(t *testing.T, c *cluster) {
	c.kwok.Kill()
	c.awaitNode(t, "windows-1", "Unknown")
	list, err := c.CoreV1().Pods("default").List(t.Context(),
		meta.ListOptions{LabelSelector: "set=driver", FieldSelector: "spec.nodeName=windows-1"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("got %v, %v, want one pod", list, err)
	}
	old := list.Items[0]
	if err := c.CoreV1().Pods("default").Delete(t.Context(), old.Name, meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := c.pods(t.Context(), t, "driver")["windows-1"]; !strings.Contains(got, "to go") {
		t.Errorf("pod without kwok: got %s, want one that waits for its kubelet", got)
	}
	c.startKwok(t)
	c.awaitNode(t, "windows-1", "True")
	await.True(t, "the pod goes", func() bool {
		_, err := c.CoreV1().Pods("default").Get(t.Context(), old.Name, meta.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	// The pods are those that were there, so they are all ready only when the controller sees that
	// the nodes are.
	await.NoError(t, "there is another, and it runs", func() error {
		if got := c.pods(t.Context(), t, "driver"); !strings.HasPrefix(got["windows-1"], "Running") {
			return fmt.Errorf("the pods are %v", got)
		}
		return nil
	})
}

// testDelete deletes the DaemonSet, and its pods go.
func testDelete(t *testing.T, c *cluster) {
	if err := c.AppsV1().DaemonSets("default").Delete(t.Context(), "driver", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, "all pods go", func() error {
		if got := c.pods(t.Context(), t, "driver"); len(got) > 0 {
			return fmt.Errorf("the pods are %v", got)
		}
		return nil
	})
}

func TestCreateLeavesARealNodeAlone(t *testing.T) {
	c := fake.NewClientset(&core.Node{ObjectMeta: meta.ObjectMeta{Name: "windows-2"}})
	if err := windows.Create(t.Context(), c, 2); err == nil || !strings.Contains(err.Error(), "windows-2") {
		t.Errorf("got %v, want an error about windows-2", err)
	}
	got, err := c.CoreV1().Nodes().Get(t.Context(), "windows-2", meta.GetOptions{})
	if err != nil || len(got.Annotations)+len(got.Spec.Taints) != 0 {
		t.Errorf("got %v, %v, want it unchanged", got, err)
	}
}

func TestCreateNone(t *testing.T) {
	c := fake.NewClientset()
	if err := windows.Create(t.Context(), c, 0); err != nil || len(c.Actions()) != 0 {
		t.Errorf("got %v after %v, want that nothing was done", err, c.Actions())
	}
}
