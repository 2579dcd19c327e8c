// Package reader reads fields of pods and nodes that the informers drop. It proves that the test of
// these reads finds them.
package reader

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Fields reads what slim drops, once directly, and then in roundabout ways.
func Fields(pod *corev1.Pod, nodes []*corev1.Node) int {
	spec := pod.Spec
	status := &pod.Status
	n := len(pod.Spec.Containers) + len(spec.InitContainers) + len(status.Conditions) +
		len(pod.Annotations) + len(pod.GetOwnerReferences())
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly || v.ConfigMap != nil {
			n++
		}
	}
	for _, node := range nodes {
		n += len(node.Spec.Taints) + len(node.Status.Images)
	}
	return n
}

// Whole hands pods on, unread.
func Whole(pod *corev1.Pod, lister listers.PodLister, f func(*corev1.Pod)) (any, metav1.ObjectMeta, error) {
	fmt.Println("pod", pod)
	f(pod)
	take(scheduling.PodPriority)
	_ = scheduling.PodPriority(pod)
	_ = generic(pod)
	if _, err := lister.List(labels.SelectorFromSet(labels.Set{"a": "b"})); err != nil {
		return nil, metav1.ObjectMeta{}, err
	}
	_, err := json.Marshal(pod)
	return pod, pod.ObjectMeta, err
}

type hidden struct{}

// New is a constructor that returns a function, which its caller alone runs.
func New() *hidden { return &hidden{} }

// Method has no caller here.
func (*hidden) Method(pod *corev1.Pod) { func() { _ = pod.Spec.HostNetwork }() }

func take(func(*corev1.Pod) int32) {}

func generic[T any](t T) any { return t }

// Any has lost the type.
func Any(obj metav1.Object) map[string]string { return obj.GetAnnotations() }

// Fine does nothing that matters.
func Fine(pod *corev1.Pod, node *corev1.Node, s *nodeaffinity.NodeSelector,
	lister listers.PodLister) (*corev1.Node, bool) {
	if all, err := lister.List(labels.Everything()); err != nil || len(all) == 0 {
		return nil, false
	}
	pod = pod.DeepCopy()
	pod.Annotations = nil
	one := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil })
	made := &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"}}
	return made, one && s.Match(node) && pod.Status.Phase == corev1.PodRunning &&
		node.GetLabels()["a"] == pod.Spec.NodeName && pod.GetName() != ""
}
