// Package probe reads facts about nodes on which no driver runs yet: it starts a short-lived pod on
// each of them, which reads the directories of the node and changes nothing.
package probe

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
)

//go:embed facts.sh
var script string

// Label is the label of the pods.
const Label = "causeway.dev/doctor"

// Times of a pod. The deadline ends a pod that this program cannot delete any more.
const (
	deadline    = 2 * time.Minute
	requestTime = 20 * time.Second
)

// Kubelets are the root directories of kubelets that are common.
var Kubelets = []string{"/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"}

// Options are the settings of the pods.
type Options struct {
	Namespace string
	Image     string        // with sh, uname, ls and grep
	Root      string        // directory of the volumes
	Kubelets  []string      // possible root directories of the kubelet
	Poll      time.Duration // interval at which a pod is read
}

// Run starts a pod on a node, waits for its facts, and deletes the pod in any case, also if the
// context ends meanwhile.
func Run(ctx context.Context, kube kubernetes.Interface, node string, o Options) (f Facts, err error) {
	if err := ctx.Err(); err != nil {
		return f, err
	}
	pods := kube.CoreV1().Pods(o.Namespace)
	pod := o.pod(node)
	// A request that is given up may still have an effect, so neither of these ends with ctx.
	request := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
		defer cancel()
		return do(ctx)
	}
	defer func() {
		deleted := request(func(ctx context.Context) error {
			return pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(1))
		})
		if deleted != nil && !apierrors.IsNotFound(deleted) {
			err = errors.Join(err, fmt.Errorf("delete pod %s: %w", pod.Name, deleted))
		}
	}()
	err = request(func(ctx context.Context) error {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return f, fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("pod %s did not end within %s", pod.Name,
		deadline))
	defer cancel()
	for {
		pod, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return f, context.Cause(ctx)
		case err != nil:
			return f, err
		}
		if text, done, err := result(pod); err != nil || done {
			if err == nil {
				f, err = Parse(text)
			}
			return f, err
		}
		select {
		case <-ctx.Done():
			return f, context.Cause(ctx)
		case <-time.After(o.Poll):
		}
	}
}

// result returns the output of a pod that has ended, or an error if the pod cannot succeed.
func result(p *corev1.Pod) (text string, done bool, err error) {
	for _, s := range p.Status.ContainerStatuses {
		switch w, t := s.State.Waiting, s.State.Terminated; {
		case t != nil && t.ExitCode == 0:
			return t.Message, true, nil
		case t != nil:
			return "", true, fmt.Errorf("pod %s: exit code %d: %s %s", p.Name, t.ExitCode, t.Reason, t.Message)
		case w != nil && (strings.HasSuffix(w.Reason, "BackOff") || strings.HasPrefix(w.Reason, "Err") ||
			w.Reason == "InvalidImageName" || w.Reason == "CreateContainerConfigError"):
			return "", true, fmt.Errorf("pod %s: image %s: %s: %s", p.Name, s.Image, w.Reason, w.Message)
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return "", true, fmt.Errorf("pod %s: %s: %s", p.Name, p.Status.Reason, p.Status.Message)
	}
	return "", false, nil
}

// pod returns the pod for a node. Its container is root without capabilities, as the directories of
// the kubelet are for root only. It mounts the directory / of the node and not single directories,
// because container runtimes make a directory that is missing. A recursive read-only mount permits
// no propagation, so the pod holds the mounts of the node for as long as it runs: well below a
// second.
func (o Options) pod(node string) *corev1.Pod {
	no, yes, root, seconds := false, true, int64(0), int64(deadline/time.Second)
	recursive := corev1.RecursiveReadOnlyIfPossible
	// The output is the termination message, at most 4096 bytes: no right to read logs is needed.
	command := []string{"sh", "-c", "{\n" + script + "} >/dev/termination-log\n"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: "causeway-doctor-" + rand.String(10),
			Labels: map[string]string{Label: "pre"}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &seconds,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{
				Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "facts", Image: o.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
				Env: []corev1.EnvVar{{Name: "HOST", Value: "/host"}, {Name: "ROOT", Value: o.Root},
					{Name: "KUBELETS", Value: strings.Join(o.Kubelets, " ")},
					{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
						FieldPath: "metadata.uid"}}}},
				SecurityContext: &corev1.SecurityContext{RunAsUser: &root, AllowPrivilegeEscalation: &no,
					ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/host", ReadOnly: true,
					RecursiveReadOnly: &recursive}},
			}},
			Volumes: []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}},
		},
	}
}
