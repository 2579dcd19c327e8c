package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// podsThatEnd finds pods with a claim of the drivers that do not end. A pod on a node that is away
// has the finding of its node. The deletionTimestamp of a pod is the end of its grace period. A pod
// that only a finalizer keeps is not the driver's fault.
func podsThatEnd(v *cluster.View) (all []Finding) {
	volumes, now := ours(v), v.ServerNow()
	for i := range v.EndingPods {
		p := &v.EndingPods[i]
		node := v.Node(p.Spec.NodeName)
		used := volumesOf(v, p, volumes)
		if p.DeletionTimestamp == nil || now.Sub(p.DeletionTimestamp.Time) < patience || len(used.drivers) == 0 ||
			node != nil && !cluster.NodeReady(node) || keptByFinalizer(p) {
			continue
		}
		all = append(all, Finding{Severity: Error, Object: "Pod/" + p.Namespace + "/" + p.Name,
			Cause:    "a pod with a volume does not end",
			Evidence: endEvidence(p, now) + failedUnmounts(v, p.Spec.NodeName),
			Remedy: "on the node: crictl ps -a shows whether a container still runs, as the kubelet unmounts after " +
				"its end; then see the log of the driver on that node" + logOf(v, p.Spec.NodeName), Page: pagePodEnd})
	}
	return all
}

// keptByFinalizer reports whether only finalizers keep a pod. With a grace period of 0, the API
// server deletes a pod when it has no finalizers. The kubelet sets that period after it has
// unmounted the volumes; for a pod that had ended before its deletion, the API server sets it. A
// terminal phase alone shows nothing of the volumes: the kubelet reports the phase before it
// unmounts.
func keptByFinalizer(p *corev1.Pod) bool {
	terminal := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	final := p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
	return terminal && final && len(p.Finalizers) > 0 && len(running(p)) == 0
}

// running returns the names of the containers of a pod that run.
func running(p *corev1.Pod) (names []string) {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses) {
		if s.State.Running != nil {
			names = append(names, s.Name)
		}
	}
	return names
}

// endEvidence returns the node of a pod that ends, the time since its grace period, its containers
// that run, and its finalizers.
func endEvidence(p *corev1.Pod, now time.Time) string {
	text := fmt.Sprintf("on node %s, terminating for %s after its grace period", p.Spec.NodeName,
		now.Sub(p.DeletionTimestamp.Time).Round(time.Second))
	if names := running(p); len(names) > 0 {
		text += "\ncontainers that run: " + strings.Join(names, ", ")
	}
	if len(p.Finalizers) > 0 {
		text += "\nfinalizers: " + strings.Join(p.Finalizers, ", ")
	}
	return text
}

// failedUnmounts returns the calls for an unmount that the drivers of a node have rejected since
// their start: the kubelet has them in its log only.
func failedUnmounts(v *cluster.View, node string) string {
	var all []string
	for _, d := range v.Drivers {
		for _, p := range d.NodePods() {
			for _, s := range p.DriverMetrics.Samples("causeway_csi_calls_total") {
				method, code := s.Labels["method"], s.Labels["code"]
				isUnmount := method == "NodeUnpublishVolume" || method == "NodeUnstageVolume"
				if p.Spec.NodeName == node && isUnmount && code != "OK" {
					all = append(all, fmt.Sprintf("%s failed %v times with code = %s", method, s.Value, code))
				}
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return "\nsince the start of the driver: " + strings.Join(all, ", ")
}

// logOf returns the command for the logs of the drivers on a node, in brackets, or "".
func logOf(v *cluster.View, node string) string {
	var all []string
	for _, d := range v.Drivers {
		for _, p := range d.NodePods() {
			if node != "" && p.Spec.NodeName == node {
				all = append(all, "kubectl -n "+p.Namespace+" logs "+p.Name+" -c driver")
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, "; ") + ")"
}
