package fake

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Fresh returns a cluster of two nodes in which the driver can be installed.
func Fresh() *Cluster {
	c := Healthy()
	Remove[*appsv1.Deployment](c, "")
	Remove[*appsv1.DaemonSet](c, "")
	Remove[*corev1.Pod](c, "")
	Remove[*storagev1.CSIDriver](c, "")
	Remove[*storagev1.StorageClass](c, "")
	c.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "privileged"}}})
	c.Raw = map[string]string{"/metrics": `kubernetes_feature_enabled{name="RecoverVolumeExpansionFailure",stage=""} 1
kubernetes_feature_enabled{name="VolumeAttributesClass",stage="BETA"} 1
`}
	for _, node := range []string{"node-1", "node-2"} {
		Get[*storagev1.CSINode](c, node).Spec.Drivers = nil
		c.Raw["/api/v1/nodes/"+node+"/proxy/configz"] = `{"kubeletconfig":{"featureGates":{"CSIVolumeHealth":true}}}`
	}
	return c
}

// raw answers for the API server.
func (c *Cluster) raw(_ context.Context, path string) ([]byte, error) {
	if body, ok := c.Raw[path]; ok {
		return []byte(body), nil
	}
	return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes/proxy"}, path, fmt.Errorf("no right"))
}

// createPod creates a pod as the API server and a kubelet do. A dry run creates nothing.
func (c *Cluster) createPod(kube *kubefake.Clientset, a clienttesting.CreateActionImpl) (bool, kruntime.Object,
	error) {
	pod := a.GetObject().(*corev1.Pod).DeepCopy()
	if len(a.GetCreateOptions().DryRun) > 0 {
		if c.Admit != nil {
			return true, pod, c.Admit(pod)
		}
		return true, pod, nil
	}
	if c.OnPod == nil {
		return false, nil, nil
	}
	pod.UID = types.UID("uid-of-" + pod.Name)
	pod.Status = c.OnPod(pod)
	return true, pod, kube.Tracker().Create(a.GetResource(), pod, pod.Namespace)
}

// RunPods makes the first container of each new pod run for real in a shell, with the directory
// host as the root directory of its node.
func (c *Cluster) RunPods(shell []string, host string) {
	c.OnPod = func(p *corev1.Pod) corev1.PodStatus {
		one := p.Spec.Containers[0]
		log := filepath.Join(host, p.Name+".log")
		script := strings.ReplaceAll(one.Command[len(one.Command)-1], "/dev/termination-log", log)
		cmd := exec.Command(shell[0], append(shell[1:len(shell):len(shell)], "-c", script)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		for _, e := range one.Env {
			value := e.Value
			switch {
			case e.ValueFrom != nil:
				value = string(p.UID)
			case e.Name == "HOST":
				value = host
			}
			cmd.Env = append(cmd.Env, e.Name+"="+value)
		}
		state := &corev1.ContainerStateTerminated{}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			state.ExitCode, state.Message = 1, fmt.Sprintf("%v: %s", err, out)
		} else if data, err := os.ReadFile(log); err != nil {
			state.ExitCode, state.Message = 1, err.Error()
		} else {
			state.Message = string(data[:min(len(data), 4096)]) // as the kubelet does
		}
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: one.Name,
			State: corev1.ContainerState{Terminated: state}}}}
	}
}

// Host makes the part of a node's root directory that the probe reads: an empty root on xfs with
// project quotas, and a kubelet that has each pod.
func Host(dir string) error {
	release, err := exec.Command("uname", "-r").Output()
	if err != nil {
		return err
	}
	modules := "lib/modules/" + strings.TrimSpace(string(release))
	for _, d := range []string{"var/lib/causeway", "var/lib/kubelet/pods", "dev", "proc/1", modules} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for file, text := range map[string]string{
		"dev/loop-control": "",
		"proc/filesystems": "nodev\tproc\n\text4\n\txfs\n",
		"proc/1/mountinfo": `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
40 22 8:17 / /var/lib/causeway rw,relatime shared:7 master:2 - xfs /dev/sdb1 rw,attr2,prjquota
41 22 8:18 / /var/lib/causeway-other ro - btrfs /dev/sdc1 ro
`,
		modules + "/modules.builtin": "kernel/drivers/block/loop.ko\n",
		modules + "/modules.dep": "kernel/fs/btrfs/btrfs.ko.zst: kernel/lib/raid6/raid6_pq.ko.zst\n" +
			"kernel/fs/smb/client/cifs.ko:\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
