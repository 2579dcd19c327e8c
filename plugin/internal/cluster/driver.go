package cluster

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels, annotations and names that the chart gives to its objects.
const (
	PartOf        = "app.kubernetes.io/part-of=causeway"
	instanceLabel = "app.kubernetes.io/instance"
	Container     = "driver" // of the driver, in pods of nodes and of the controller
	driverPort    = "driver-http"
	sidecarsPort  = "sidecars-http"
)

// Driver is a CSI driver of an installation. A release with both kinds of storage has two.
type Driver struct {
	Name      string
	Namespace string
	Release   string // "" for plain manifests
	// Controller and Nodes are its workloads. Either may be missing.
	Controller *Workload
	Nodes      []*Workload // a DaemonSet for each operating system
}

// Workload is a Deployment or a DaemonSet of a driver.
type Workload struct {
	Kind, Namespace, Name string
	Desired, Ready        int32
	Scheduled             int32 // pods that exist; of a DaemonSet, on the right nodes
	Rejected              bool  // of a Deployment: the API server rejects new pods
	Template              corev1.PodTemplateSpec
	Pods                  []*Pod
	selector              *metav1.LabelSelector
}

// Object returns the kind and the name, for findings.
func (w *Workload) Object() string { return w.Kind + "/" + w.Name }

// Pod is a pod of a driver, with the answers of its ports.
type Pod struct {
	*corev1.Pod
	// Asked reports whether the pod runs, so that its ports were asked.
	Asked bool
	// Ended reports whether the pod was deleted while the view was gathered: its answers do not
	// count, and Asked is false.
	Ended                           bool
	DriverReady, SidecarsReady      Answer
	DriverMetrics, SidecarsMetrics  Metrics
	DriverMetricsErr, SidecarErrors error // why there are no metrics
}

// Object returns the kind and the name, for findings.
func (p *Pod) Object() string { return "Pod/" + p.Name }

// Ready reports whether the pod has the condition Ready.
func (p *Pod) Ready() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Pods returns the pods of all workloads of the driver.
func (d *Driver) Pods() []*Pod {
	var all []*Pod
	for _, w := range d.Workloads() {
		all = append(all, w.Pods...)
	}
	return all
}

// NodePods returns the pods on nodes.
func (d *Driver) NodePods() []*Pod {
	var all []*Pod
	for _, w := range d.Nodes {
		all = append(all, w.Pods...)
	}
	return all
}

// ControllerPods returns the pods of the controller.
func (d *Driver) ControllerPods() []*Pod {
	if d.Controller == nil {
		return nil
	}
	return d.Controller.Pods
}

// Workloads returns the controller, if there is one, and the DaemonSets.
func (d *Driver) Workloads() []*Workload {
	if d.Controller == nil {
		return d.Nodes
	}
	return append([]*Workload{d.Controller}, d.Nodes...)
}

// Routed reports whether the volumes are on nodes, so that the controller is a router.
func (d *Driver) Routed() bool {
	return slices.ContainsFunc(d.Nodes, func(w *Workload) bool { return w.Argument("peer-listen") != "" }) ||
		d.Controller != nil && d.Controller.Argument("peers") != ""
}

// Hostpath reports whether the driver has the backend hostpath.
func (d *Driver) Hostpath() bool {
	return slices.ContainsFunc(d.Nodes, func(w *Workload) bool { return w.Argument("root") != "" })
}

// SMB reports whether the driver has the backend smb.
func (d *Driver) SMB() bool {
	return slices.ContainsFunc(d.Workloads(), func(w *Workload) bool { return w.Argument("backend") == "smb" })
}

// Argument returns the value of a flag of the driver in the workload, or "".
func (w *Workload) Argument(name string) string { return argument(w.Template.Spec, Container, name) }

// SidecarArgument returns the value of a flag of the container next to the driver, or "".
func (w *Workload) SidecarArgument(name string) string {
	for _, c := range w.Template.Spec.Containers {
		if c.Name != Container {
			if v := argument(w.Template.Spec, c.Name, name); v != "" {
				return v
			}
		}
	}
	return ""
}

// argument returns the value of the last flag of that name, as package flag reads it.
func argument(spec corev1.PodSpec, in, name string) (value string) {
	for _, c := range spec.Containers {
		if c.Name != in {
			continue
		}
		for _, arg := range c.Args {
			if v, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), name+"="); ok {
				value = v
			}
		}
	}
	return value
}

// port returns a named port of a pod, or 0.
func port(pod *corev1.Pod, name string) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort
			}
		}
	}
	return 0
}

// validName is a name that the driver accepts. CSI spec v1.13, GetPluginInfo.
var validName = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)

// drivers returns the drivers of workloads: those whose pods have a container driver with the flag
// --driver-name. The names in the chart's values may differ, so no name of an object is fixed.
// Every tenant can make such a workload: strange lists those with an invalid driver name.
func drivers(deployments []appsv1.Deployment, daemonSets []appsv1.DaemonSet) (all []*Driver, strange []string) {
	found := map[[2]string]*Driver{}
	of := func(o metav1.Object, w *Workload) *Driver {
		name := w.Argument("driver-name")
		if name == "" {
			return nil
		}
		if !validName.MatchString(name) {
			strange = append(strange, fmt.Sprintf("%s of namespace %s: %.80q", w.Object(), w.Namespace, name))
			return nil
		}
		key := [2]string{w.Namespace, name}
		if found[key] == nil {
			found[key] = &Driver{Name: name, Namespace: w.Namespace, Release: o.GetLabels()[instanceLabel]}
		}
		return found[key]
	}
	for i := range deployments {
		d := &deployments[i]
		w := &Workload{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name, Desired: 1,
			Ready: d.Status.ReadyReplicas, Scheduled: d.Status.Replicas, Template: d.Spec.Template,
			Rejected: slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
				return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
			}),
			selector: d.Spec.Selector}
		if d.Spec.Replicas != nil {
			w.Desired = *d.Spec.Replicas
		}
		if driver := of(d, w); driver != nil {
			driver.Controller = w
		}
	}
	for i := range daemonSets {
		d := &daemonSets[i]
		w := &Workload{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name,
			Desired: d.Status.DesiredNumberScheduled, Ready: d.Status.NumberReady,
			Scheduled: d.Status.CurrentNumberScheduled, Template: d.Spec.Template, selector: d.Spec.Selector}
		if driver := of(d, w); driver != nil {
			driver.Nodes = append(driver.Nodes, w)
		}
	}
	for _, d := range found {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *Driver) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	return all, strange
}
