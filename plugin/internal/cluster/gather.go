package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"
)

// Times and numbers of requests to pods.
const (
	AskTimeout = 15 * time.Second
	AsksAtOnce = 16
)

// maxNamespaces is the maximum number of namespaces with drivers, unless one is selected: a tenant can
// give the labels of this project to objects of its own.
const maxNamespaces = 8

// maxAnswers is the maximum number of bytes in the answers of all pods, unless a namespace is selected.
var maxAnswers int64 = 512 << 20

// gatherer fills a View.
type gatherer struct {
	answers   atomic.Int64 // bytes
	client    Client
	selection Selection
	view      *View
	mu        sync.Mutex
}

// Gather reads the cluster. A source that cannot be read is noted in the view. Errors:
// ErrNotInstalled, and those of the list of workloads, without which nothing is known.
func Gather(ctx context.Context, c Client, s Selection) (*View, error) {
	g := &gatherer{client: c, selection: s, view: &View{Now: time.Now()}}
	found, err := g.find(ctx)
	if err != nil {
		return nil, err
	}
	g.view.Drivers = found
	g.lists(ctx)
	g.askPods(ctx)
	if c.Ahead != nil {
		g.view.ServerAhead, g.view.ServerDated = c.Ahead()
	}
	return g.view, nil
}

// find finds the drivers and their pods.
func (g *gatherer) find(ctx context.Context) ([]*Driver, error) {
	options := metav1.ListOptions{LabelSelector: PartOf}
	in := g.selection.Namespace
	deployments, err := g.client.Kube.AppsV1().Deployments(in).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list Deployments: %w", err)
	}
	daemonSets, err := g.client.Kube.AppsV1().DaemonSets(in).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list DaemonSets: %w", err)
	}
	all, strange := drivers(deployments.Items, daemonSets.Items)
	if len(strange) > 0 {
		g.note(Strange, errors.New(strings.Join(strange, ", ")))
	}
	found := slices.DeleteFunc(all, func(d *Driver) bool { return !g.selection.matches(d) })
	if len(found) == 0 {
		return nil, ErrNotInstalled{g.selection}
	}
	namespaces := map[string]bool{}
	for _, d := range found {
		namespaces[d.Namespace] = true
	}
	if names := sortedKeys(namespaces); len(names) > maxNamespaces {
		return nil, fmt.Errorf("drivers of Causeway are in %d namespaces, %s and more: choose one with --namespace",
			len(names), strings.Join(names[:maxNamespaces], ", "))
	}
	for _, d := range found {
		if err := g.podsOf(ctx, d); err != nil {
			g.note(PodList, err)
		}
	}
	return found, nil
}

// ended notes the pods of a driver that were deleted after podsOf.
func (g *gatherer) ended(ctx context.Context, d *Driver) error {
	now, err := g.client.Kube.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range d.Pods() {
		p.Ended = p.DeletionTimestamp == nil && !slices.ContainsFunc(now.Items, func(n corev1.Pod) bool {
			return n.Name == p.Name && n.UID == p.UID && n.DeletionTimestamp == nil
		})
		p.Asked = p.Asked && !p.Ended
	}
	return nil
}

// podsOf reads the pods of the workloads of a driver, without those that have ended.
func (g *gatherer) podsOf(ctx context.Context, d *Driver) error {
	all, err := g.client.Kube.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, w := range d.Workloads() {
		selector, err := metav1.LabelSelectorAsSelector(w.selector)
		if err != nil {
			return err
		}
		for i := range all.Items {
			p := &all.Items[i]
			over := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded // replaced, and kept
			if !over && selector.Matches(labels.Set(p.Labels)) {
				w.Pods = append(w.Pods, &Pod{Pod: p})
			}
		}
	}
	return nil
}

// note notes that a source could not be read.
func (g *gatherer) note(s Source, err error) {
	if err == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.view.Unread(s) == nil {
		g.view.SetUnread(s, err)
	}
}

// list adapts a list call of a client.
func list[L any](ctx context.Context, into func(L), call func(context.Context, metav1.ListOptions) (L, error),
	o metav1.ListOptions) error {
	l, err := call(ctx, o)
	if err == nil {
		into(l)
	}
	return err
}

// lists reads all objects.
func (g *gatherer) lists(ctx context.Context) {
	k, v, all := g.client.Kube, g.view, metav1.ListOptions{}
	jobs := map[Source]func() error{
		Version: func() (err error) { v.Server, err = k.Discovery().ServerVersion(); return err },
		Groups:  func() error { return g.groups() },
		Nodes: func() error {
			return list(ctx, func(l *corev1.NodeList) { v.Nodes = l.Items }, k.CoreV1().Nodes().List, all)
		},
		Volumes: func() error {
			return list(ctx, func(l *corev1.PersistentVolumeList) { v.Volumes = l.Items },
				k.CoreV1().PersistentVolumes().List, all)
		},
		Claims: func() error {
			return list(ctx, func(l *corev1.PersistentVolumeClaimList) { v.Claims = l.Items },
				k.CoreV1().PersistentVolumeClaims("").List, all)
		},
		Pending: func() error {
			return list(ctx, func(l *corev1.PodList) { v.PendingPods = l.Items }, k.CoreV1().Pods("").List,
				metav1.ListOptions{FieldSelector: "status.phase=Pending"})
		},
		Events: func() error {
			return list(ctx, func(l *corev1.EventList) { v.Events = l.Items }, k.CoreV1().Events("").List,
				metav1.ListOptions{FieldSelector: "type=Warning"})
		},
	}
	jobs[Ending] = func() (err error) { v.EndingPods, err = ending(ctx, k); return err }
	jobs[Rights] = func() error { return g.denied(ctx) }
	g.storageLists(ctx, jobs)
	var run errgroup.Group
	run.SetLimit(8)
	for source, job := range jobs {
		run.Go(func() error { g.note(source, job()); return nil })
	}
	_ = run.Wait() // the errors are in the view
	g.snapshots(ctx)
}

// endingPage is the number of pods in an answer. No field selector selects pods that end, and all
// pods of a large cluster need much memory.
const endingPage = 500

// ending returns the pods with a deletionTimestamp.
func ending(ctx context.Context, k kubernetes.Interface) (all []corev1.Pod, err error) {
	for o := (metav1.ListOptions{Limit: endingPage}); ; {
		l, err := k.CoreV1().Pods("").List(ctx, o)
		if err != nil {
			return nil, err
		}
		for i := range l.Items {
			if l.Items[i].DeletionTimestamp != nil {
				all = append(all, *l.Items[i].DeepCopy()) // the copy does not keep the whole page
			}
		}
		if o.Continue = l.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// storageLists adds the lists of the groups of storage and of leases.
func (g *gatherer) storageLists(ctx context.Context, jobs map[Source]func() error) {
	s, v, all := g.client.Kube.StorageV1(), g.view, metav1.ListOptions{}
	leases := g.client.Kube.CoordinationV1().Leases
	jobs[CSINodes] = func() error {
		l, err := s.CSINodes().List(ctx, all)
		if err == nil {
			v.CSINodes = l.Items
		}
		return err
	}
	jobs[CSIDrivers] = func() error {
		l, err := s.CSIDrivers().List(ctx, all)
		if err == nil {
			v.CSIDrivers = l.Items
		}
		return err
	}
	jobs[Classes] = func() error {
		l, err := s.StorageClasses().List(ctx, all)
		if err == nil {
			v.Classes = l.Items
		}
		return err
	}
	jobs[Capacities] = func() error {
		l, err := s.CSIStorageCapacities("").List(ctx, all)
		if err == nil {
			v.Capacities = l.Items
		}
		return err
	}
	jobs[NodeLeases] = func() error {
		l, err := leases(corev1.NamespaceNodeLease).List(ctx, all)
		if err == nil {
			v.NodeLeases = l.Items
		}
		return err
	}
	jobs[Leases] = func() error {
		seen := map[string]bool{}
		for _, d := range v.Drivers {
			if seen[d.Namespace] {
				continue
			}
			seen[d.Namespace] = true
			l, err := leases(d.Namespace).List(ctx, all)
			if err != nil {
				return err
			}
			v.Leases = append(v.Leases, l.Items...)
		}
		return nil
	}
}

// groups reads the groups of the API, and their versions.
func (g *gatherer) groups() error {
	l, err := g.client.Kube.Discovery().ServerGroups()
	if err != nil {
		return err
	}
	g.view.Groups = map[string][]string{}
	for _, group := range l.Groups {
		for _, version := range group.Versions {
			g.view.Groups[group.Name] = append(g.view.Groups[group.Name], version.Version)
		}
	}
	return nil
}

// snapshots reads snapshots, their classes and contents, and the contents of groups, if the cluster
// has these kinds.
func (g *gatherer) snapshots(ctx context.Context) {
	for _, kind := range []struct {
		source   Source
		resource schema.GroupVersionResource
		into     *[]unstructured.Unstructured
	}{{Snapshots, Contents, &g.view.Snapshots}, {GroupSnaps, GroupContents, &g.view.GroupSnaps},
		{Requests, VolumeSnapshots, &g.view.VolumeSnapshots}, {Requests, SnapshotClasses, &g.view.SnapshotClasses}} {
		if err := g.view.Unread(Groups); err != nil {
			g.note(kind.source, err)
			continue
		}
		if !g.view.Serves(kind.resource.GroupVersion()) {
			continue
		}
		l, err := g.client.Dynamic.Resource(kind.resource).List(ctx, metav1.ListOptions{})
		switch {
		case absent(err):
		case err != nil:
			g.note(kind.source, err)
		default:
			*kind.into = l.Items
		}
	}
}

// askPods asks the ports of all pods that run.
func (g *gatherer) askPods(ctx context.Context) {
	var run errgroup.Group
	run.SetLimit(AsksAtOnce)
	for _, d := range g.view.Drivers {
		for _, p := range d.Pods() {
			node := g.view.Node(p.Spec.NodeName)
			if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || node != nil && !NodeReady(node) {
				continue
			}
			p.Asked = true
			run.Go(func() error { g.askPod(ctx, p); return nil })
		}
	}
	_ = run.Wait() // the errors are in the pods
	for _, d := range g.view.Drivers {
		g.note(PodList, g.ended(ctx, d))
	}
	g.note(Answers, g.unanswered())
}

// unanswered returns an error for the pods whose ports have not answered: the reasons of the first,
// and the names of others.
func (g *gatherer) unanswered() (err error) {
	var others []string
	for _, d := range g.view.Drivers {
		for _, p := range d.Pods() {
			switch e := p.unanswered(); {
			case e == nil:
			case err == nil:
				err = e
			default:
				others = append(others, p.Name)
			}
		}
	}
	if n := len(others); n > 0 {
		const shown = 10
		err = fmt.Errorf("%w; and %d other pods: %s", err, n, strings.Join(others[:min(n, shown)], ", "))
	}
	return err
}

// NodeReady reports whether a node has the condition Ready.
func NodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// askPod asks the ports of a pod whose containers run.
func (g *gatherer) askPod(ctx context.Context, p *Pod) {
	full := func(more int) bool { // a pod is not asked for an answer that would be dropped
		return g.selection.Namespace == "" && g.answers.Add(int64(more)) > maxAnswers
	}
	get := func(name, path string) Answer {
		if !full(0) {
			if a := Ask(ctx, g.client, p.Pod, name, path); !full(len(a.Body)) {
				return a
			}
		}
		return Answer{Err: fmt.Errorf("the answers of all pods have more than %d bytes: choose a namespace with "+
			"--namespace", maxAnswers)}
	}
	p.DriverReady, p.SidecarsReady = get(driverPort, "/readyz"), get(sidecarsPort, "/readyz")
	p.DriverMetrics, p.DriverMetricsErr = metrics(get(driverPort, "/metrics"))
	p.SidecarsMetrics, p.SidecarErrors = metrics(get(sidecarsPort, "/metrics"))
}

// unanswered returns an error for the ports of a pod that have not answered.
func (p *Pod) unanswered() error {
	var failed []string
	for what, err := range map[string]error{"/readyz of the driver": p.DriverReady.Err,
		"/readyz of the sidecars": p.SidecarsReady.Err,
		"/metrics of the driver":  p.DriverMetricsErr, "/metrics of the sidecars": p.SidecarErrors} {
		if err != nil && p.Asked && running(p.Pod) {
			failed = append(failed, fmt.Sprintf("%s: %v", what, err))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.Sort(failed)
	return fmt.Errorf("%s: %s", p.Name, strings.Join(failed, "; "))
}

// running reports whether all containers of a pod run, so that its ports should answer.
func running(p *corev1.Pod) bool {
	return !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil
	})
}

// Ask asks a named port of a pod.
func Ask(ctx context.Context, c Client, p *corev1.Pod, name, path string) Answer {
	number := port(p, name)
	if number == 0 {
		return Answer{Err: fmt.Errorf("the pod has no port %s", name)}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, AskTimeout, fmt.Errorf("no answer within %s", AskTimeout))
	defer cancel()
	return c.Pods.Get(ctx, p, number, path)
}
