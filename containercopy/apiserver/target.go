package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
)

// target is the container of a copy.
type target struct {
	node      string
	container string // ID at the runtime
	pod       *v1alpha1.Pod
}

// defaultContainer is the annotation of a pod with the name of the container that kubectl uses
// (https://kubernetes.io/docs/reference/labels-annotations-taints/).
const defaultContainer = "kubectl.kubernetes.io/default-container"

// locate returns a running container of a pod, by its name or the default. Errors: those of the
// API.
func (c *Copies) locate(ctx context.Context, namespace, name, container string) (target, error) {
	pod, err := c.Core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // its text has no namespace
		return target{}, apierrors.NewNotFound(pods, namespace+"/"+name)
	}
	if err != nil {
		return target{}, err
	}
	if err := c.denied(ctx, pod); err != nil {
		return target{}, err
	}
	if isWindows(pod) {
		return target{}, statusOf(pod.Spec.NodeName, status.Errorf(codes.Unimplemented,
			"pod %s is for Windows nodes, whose containers have no copies", name))
	}
	if container == "" {
		container = pod.Annotations[defaultContainer]
	}
	if container == "" && len(pod.Spec.Containers) > 0 {
		container = pod.Spec.Containers[0].Name
	}
	if names := containers(pod); !slices.Contains(names, container) {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("container %.128q is not valid for pod %s: it has %s",
			container, name, strings.Join(names, ", ")))
	}
	var state core.ContainerState
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
		pod.Status.EphemeralContainerStatuses) {
		if s.Name != container {
			continue
		}
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.State.Running != nil {
			return target{pod.Spec.NodeName, id, &v1alpha1.Pod{Namespace: namespace, Name: name, Uid: uid(pod)}}, nil
		}
		state = s.State
	}
	return target{}, apierrors.NewConflict(pods, name,
		fmt.Errorf("container %s is not running: %s", container, describe(state)))
}

// describe describes the state of a container that is not running, with the reason of the kubelet.
func describe(s core.ContainerState) string {
	switch {
	case s.Terminated != nil:
		return fmt.Sprintf("terminated, %s, exit code %d", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return "waiting, " + s.Waiting.Reason
	}
	return "the kubelet has reported no state"
}

// isWindows reports whether a pod is for Windows nodes.
func isWindows(pod *core.Pod) bool {
	return pod.Spec.OS != nil && pod.Spec.OS.Name == core.Windows ||
		pod.Spec.NodeSelector[core.LabelOSStable] == string(core.Windows)
}

// uid returns the UID of a pod at its kubelet, which the labels of its containers have. The mirror
// of a static pod has it in an annotation
// (https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror). An
// annotation of a user gives access to no other pod, and takes none of its slots: the agent also
// compares namespace and name.
func uid(pod *core.Pod) string {
	if uid := pod.Annotations[core.MirrorPodAnnotationKey]; uid != "" {
		return uid
	}
	return string(pod.UID)
}

// containers returns the names of the containers of a pod.
func containers(pod *core.Pod) (names []string) {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// denied returns an error if the label that denies copies is on a pod or its namespace, with any
// value but false.
func (c *Copies) denied(ctx context.Context, pod *core.Pod) error {
	if c.Deny == "" {
		return nil
	}
	namespace, err := c.Core.Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, o := range []struct {
		name   string
		labels map[string]string
	}{{"pod", pod.Labels}, {"namespace", namespace.Labels}} {
		if value, ok := o.labels[c.Deny]; ok && value != "false" {
			return apierrors.NewForbidden(pods, pod.Name,
				fmt.Errorf("the %s has the label %s, which denies copies", o.name, c.Deny))
		}
	}
	return nil
}

// pods is the resource of pods, for errors.
var pods = schema.GroupResource{Resource: "pods"}
