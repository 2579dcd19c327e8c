package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"github.com/causeway-csi/causeway/plugin/internal/probe"
)

// Sources of a view before an installation.
const (
	TheNamespace Source = "the namespace"
	Quotas       Source = "ResourceQuotas"
	DryRun       Source = "dry run of a pod"
	Kubelets     Source = "configurations of kubelets"
	Features     Source = "feature gates of the API server"
	Roots        Source = "directories of the volumes"
	Modules      Source = "modules of kernels"
	KubeletRoots Source = "root directories of kubelets"
)

// Partial reports that a source was read for some of the nodes only.
type Partial struct{ error }

// Plan is an installation that is planned.
type Plan struct {
	Namespace string
	Drivers   []string // names
	SMB       bool
	Root      string // directory of the volumes on Linux nodes
	Kubelet   string // kubeletDir of the chart
	// NodeSelector selects the nodes that will run the driver. Nil: all nodes.
	NodeSelector labels.Selector
	// Probe starts a pod on each selected Linux node, if it is not nil.
	Probe *probe.Options
	// Ask returns the facts of a node; probe.Run by default.
	Ask func(context.Context, kubernetes.Interface, string, probe.Options) (probe.Facts, error)
}

// Before is the state of a cluster before an installation.
type Before struct {
	Namespace *corev1.Namespace // nil: it does not exist
	Quotas    []corev1.ResourceQuota
	Rejected  string // the answer of the API server to the dry run, if it rejects the pod
	Features  map[string]bool
	Kubelets  map[string]KubeletConfig // by node
	Facts     map[string]probe.Facts   // by node
}

// KubeletConfig is the part of a kubelet's configuration that the driver depends on.
type KubeletConfig struct {
	FeatureGates map[string]bool `json:"featureGates"` // those that are set, not the defaults
}

// nodeOptions returns the options of the list of nodes.
func (p Plan) nodeOptions() (o metav1.ListOptions) {
	if p.NodeSelector != nil {
		o.LabelSelector = p.NodeSelector.String()
	}
	return o
}

// GatherBefore reads a cluster in which no driver needs to be installed. The view has the selected
// nodes only. A source that cannot be read is noted in the view.
func GatherBefore(ctx context.Context, c Client, p Plan) *View {
	g := &gatherer{client: c, view: &View{Now: time.Now()}}
	var none ErrNotInstalled
	found, err := g.find(ctx)
	if err != nil && !errors.As(err, &none) {
		g.note(Workloads, err)
	}
	g.view.Drivers = found
	k, v, all := c.Kube, g.view, metav1.ListOptions{}
	jobs := map[Source]func() error{
		Version: func() (err error) { v.Server, err = k.Discovery().ServerVersion(); return err },
		Groups:  g.groups,
		Nodes: func() error {
			return list(ctx, func(l *corev1.NodeList) { v.Nodes = l.Items }, k.CoreV1().Nodes().List,
				p.nodeOptions())
		},
		Quotas: func() error {
			return list(ctx, func(l *corev1.ResourceQuotaList) { v.Before.Quotas = l.Items },
				k.CoreV1().ResourceQuotas(p.Namespace).List, all)
		},
		TheNamespace: func() error {
			n, err := k.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
			if err == nil {
				v.Before.Namespace = n
			}
			if absent(err) {
				return nil
			}
			return err
		},
		Features: func() error { return g.features(ctx) },
	}
	lists := map[Source]func() error{}
	g.storageLists(ctx, lists)
	for _, s := range []Source{CSIDrivers, CSINodes, Classes} {
		jobs[s] = lists[s]
	}
	var run errgroup.Group
	run.SetLimit(8)
	for source, job := range jobs {
		run.Go(func() error { g.note(source, job()); return nil })
	}
	_ = run.Wait() // the errors are in the view
	g.note(DryRun, g.dryRun(ctx, p))
	g.kubelets(ctx)
	g.probe(ctx, p)
	return g.view
}

// maxMetrics is the largest answer of /metrics of the API server that is parsed, in bytes.
const maxMetrics = 64 << 20

var feature = regexp.MustCompile(`(?m)^kubernetes_feature_enabled\{name="([A-Za-z0-9]+)",stage="[A-Z]*"\} ([01])$`)

// features reads the feature gates of the API server. Its metrics are megabytes, so that only the
// lines of one metric are parsed.
func (g *gatherer) features(ctx context.Context) error {
	data, err := g.raw(ctx, "/metrics")
	switch {
	case err != nil:
		return err
	case len(data) > maxMetrics:
		return fmt.Errorf("/metrics has more than %d bytes", maxMetrics)
	}
	all := map[string]bool{}
	for _, m := range feature.FindAllSubmatch(data, -1) {
		all[string(m[1])] = string(m[2]) == "1"
	}
	if len(all) == 0 {
		return errors.New("/metrics of the API server has no kubernetes_feature_enabled")
	}
	g.view.Before.Features = all
	return nil
}

func (g *gatherer) raw(ctx context.Context, path string) ([]byte, error) {
	if g.client.Raw == nil {
		return nil, errors.ErrUnsupported
	}
	ctx, cancel := context.WithTimeoutCause(ctx, AskTimeout, fmt.Errorf("no answer within %s", AskTimeout))
	defer cancel()
	return g.client.Raw(ctx, path)
}

// errNoNamespace is the reason why pods cannot be tried.
var errNoNamespace = errors.New("the namespace does not exist yet")

// unjudged are rejections that say nothing about the pods of the driver: the user lacks the right,
// or a webhook accepts no dry run.
var unjudged = regexp.MustCompile(`cannot create resource|does not support dry run|error looking up service account`)

// dryRun asks the API server whether it would accept a pod like that of the DaemonSet. Nothing is
// created. The DaemonSet's own pods come from another user, so a policy by user may differ.
func (g *gatherer) dryRun(ctx context.Context, p Plan) error {
	if err := g.view.Unread(TheNamespace); err != nil {
		return err
	}
	if g.view.Before.Namespace == nil {
		return errNoNamespace
	}
	yes, no, root := true, false, int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "causeway-doctor-dry-run",
			Labels: map[string]string{probe.Label: "pre"}},
		Spec: corev1.PodSpec{
			PriorityClassName: "system-node-critical", AutomountServiceAccountToken: &no,
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: &root, SeccompProfile: &corev1.SeccompProfile{
				Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "driver", Image: "ghcr.io/causeway-csi/driver:dry-run",
				SecurityContext: &corev1.SecurityContext{Privileged: &yes},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{ // no limits, as in the chart
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("40Mi")}},
				VolumeMounts: []corev1.VolumeMount{{Name: "root", MountPath: p.Root}}}},
			Volumes: []corev1.Volume{{Name: "root", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: p.Root}}}},
		},
	}
	_, err := g.client.Kube.CoreV1().Pods(p.Namespace).Create(ctx, pod, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}})
	rejected := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		err != nil && strings.Contains(err.Error(), "denied the request")
	if rejected && !unjudged.MatchString(err.Error()) {
		g.view.Before.Rejected = err.Error()
		return nil
	}
	return err
}

// eachNode runs do for nodes, some at once, and notes a source as unread: partly, if it was read
// for some nodes.
func (g *gatherer) eachNode(nodes []string, atOnce int, do func(node string) map[Source]error) {
	failed, known := map[Source][]string{}, map[Source]int{}
	var mu sync.Mutex
	var run errgroup.Group
	run.SetLimit(atOnce)
	for _, n := range nodes {
		run.Go(func() error {
			results := do(n)
			mu.Lock()
			defer mu.Unlock()
			for s, err := range results {
				if err == nil {
					known[s]++
					continue
				}
				failed[s] = append(failed[s], fmt.Sprintf("%s: %v", n, err))
			}
			return nil
		})
	}
	_ = run.Wait() // the errors are in failed
	for s, lines := range failed {
		slices.Sort(lines)
		text := lines[0]
		if more := len(lines) - 1; more > 0 {
			text += fmt.Sprintf("; and %d more nodes", more)
		}
		err := errors.New(text)
		if known[s] > 0 {
			err = Partial{err}
		}
		g.note(s, err)
	}
}

// kubelets reads the configurations of the kubelets, which takes the right to get nodes/proxy.
func (g *gatherer) kubelets(ctx context.Context) {
	if err := g.view.Unread(Nodes); err != nil {
		g.note(Kubelets, err)
		return
	}
	configs := map[string]KubeletConfig{}
	var nodes []string
	for i := range g.view.Nodes {
		nodes = append(nodes, g.view.Nodes[i].Name)
	}
	g.eachNode(nodes, AsksAtOnce, func(node string) map[Source]error {
		var answer struct {
			Config *KubeletConfig `json:"kubeletconfig"`
		}
		data, err := g.raw(ctx, "/api/v1/nodes/"+node+"/proxy/configz")
		if err == nil {
			err = json.Unmarshal(data, &answer)
		}
		if err == nil && answer.Config == nil {
			err = errors.New("configz has no kubeletconfig")
		}
		if err == nil {
			g.mu.Lock()
			configs[node] = *answer.Config
			g.mu.Unlock()
		}
		return map[Source]error{Kubelets: err}
	})
	g.view.Before.Kubelets = configs
}

// errNoProbe is the reason why the nodes themselves were not examined.
var errNoProbe = errors.New("needs --nodes, which starts a short-lived pod on each Linux node")

// errNoLinux is the reason why no pod can examine a node.
var errNoLinux = errors.New("no Linux node is selected")

// probesAtOnce is the number of pods of the probe that run at the same time.
const probesAtOnce = 20

// probe reads facts about the nodes by pods, if the plan wants that.
func (g *gatherer) probe(ctx context.Context, p Plan) {
	reason, nodes := g.view.Unread(Nodes), g.linuxNodes()
	switch {
	case p.Probe == nil:
		reason = errNoProbe
	case reason != nil:
	case g.view.Unread(TheNamespace) == nil && g.view.Before.Namespace == nil:
		reason = errNoNamespace
	case g.view.Before.Rejected != "":
		reason = errors.New("the API server rejects pods in the namespace")
	case len(nodes) == 0:
		reason = errNoLinux
	}
	if reason != nil {
		for _, s := range []Source{Roots, Modules, KubeletRoots} {
			g.note(s, reason)
		}
		return
	}
	g.view.Before.Facts = map[string]probe.Facts{}
	ask := p.Ask
	if ask == nil {
		ask = probe.Run
	}
	g.eachNode(nodes, probesAtOnce, func(node string) map[Source]error {
		if !NodeReady(g.view.Node(node)) {
			err := errors.New("the node is not ready")
			return map[Source]error{Roots: err, Modules: err, KubeletRoots: err}
		}
		f, err := ask(ctx, g.client.Kube, node, *p.Probe)
		if err != nil {
			return map[Source]error{Roots: err, Modules: err, KubeletRoots: err}
		}
		g.mu.Lock()
		g.view.Before.Facts[node] = f
		g.mu.Unlock()
		return map[Source]error{Roots: unclearRoot(f, p.Root), Modules: unclearModules(f, p.SMB),
			KubeletRoots: unclearKubelet(f)}
	})
}

// linuxNodes returns the names of the selected Linux nodes.
func (g *gatherer) linuxNodes() (all []string) {
	for i := range g.view.Nodes {
		if n := &g.view.Nodes[i]; n.Status.NodeInfo.OperatingSystem == "linux" && !Virtual(n) {
			all = append(all, n.Name)
		}
	}
	return all
}

// unclearRoot returns the reason why the facts do not tell the state of the root.
func unclearRoot(f probe.Facts, root string) error {
	switch {
	case f.Root == probe.Link:
		return fmt.Errorf("%s leads through a symbolic link", root)
	case f.Root == probe.Denied || f.Content == probe.Denied:
		return fmt.Errorf("the pod may not read %s", root)
	case f.Filesystem == "unknown":
		return errors.New("the pod may not read the mounts of the node")
	}
	return nil
}

// unclearModules returns the reason why the facts do not tell whether a module exists.
func unclearModules(f probe.Facts, smb bool) error {
	for _, m := range []string{"loop", "ext4", "xfs", "btrfs", "cifs"} {
		if f.Modules[m] == probe.Unknown && (m != "cifs" || smb) {
			return fmt.Errorf("%s is not loaded, and the pod cannot read the list of modules of kernel %s", m, f.Kernel)
		}
	}
	return nil
}

func unclearKubelet(f probe.Facts) error {
	if _, reason := f.KubeletRoot(); reason != "" {
		return errors.New("the pod did not find the directory of its own kubelet: " + reason)
	}
	return nil
}

// Virtual reports whether a node is a virtual kubelet, which runs no pod of the driver.
func Virtual(n *corev1.Node) bool { return n.Labels["type"] == "virtual-kubelet" }
