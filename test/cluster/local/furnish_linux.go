package local

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
	"github.com/causeway-csi/causeway/test/cluster/windows"
)

// furnish brings the cluster from an API server that answers to one that pods run in.
func (c *Cluster) furnish(ctx context.Context, o provider.Options, s spec) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	dns, err := dnsObjects(min(s.Nodes, 2))
	if err != nil {
		return err
	}
	if err := c.apply(ctx, s, dns); err != nil {
		return err
	}
	if err := windows.Create(ctx, client, s.Windows); err != nil {
		return err
	}
	if err := c.awaitNodes(ctx, client, s); err != nil {
		return err
	}
	return tryPods(ctx, client, s)
}

// client returns a client of the API server. Nobody is between them, whatever proxy this machine has.
func (c *Cluster) client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return nil, err
	}
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return kubernetes.NewForConfig(config)
}

// awaitNodes waits until all nodes are ready, as long as they run.
func (c *Cluster) awaitNodes(ctx context.Context, client kubernetes.Interface, s spec) error {
	for _, n := range s.nodes() {
		err := c.awaitInit(ctx, n.Name, n.Name+" to be ready", func() error { return ready(ctx, client, n.Name) })
		if err != nil {
			return err
		}
	}
	return nil
}

func dnsObjects(replicas int) ([]byte, error) {
	t, err := template.ParseFS(embedded, "files/dns.yaml")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{"Replicas": replicas, "Image": testimages.DNS, "Address": dnsAddress})
	return b.Bytes(), err
}

// apply has kubectl apply objects.
func (c *Cluster) apply(ctx context.Context, s spec, objects []byte) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "kubectl"), "--kubeconfig="+c.kubeconfig(), "apply", "-f", "-")
	cmd.Stdin = bytes.NewReader(objects)
	cmd.Env = append(os.Environ(), "NO_PROXY=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, out)
	}
	return nil
}

// ready returns nil if a node is.
func ready(ctx context.Context, client kubernetes.Interface, name string) error {
	n, err := client.CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == core.NodeReady && c.Status == core.ConditionTrue {
			return nil
		} else if c.Type == core.NodeReady {
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
	return fmt.Errorf("its kubelet hasn't said whether it is ready")
}

// tryPods runs a pod on each node, which finds the API server by its name and reaches it at its service's address: DNS,
// kube-proxy and the ways between pods and nodes work then.
func tryPods(ctx context.Context, client kubernetes.Interface, s spec) error {
	pods := client.CoreV1().Pods("kube-system")
	never := int64(0)
	for _, n := range s.nodes() {
		pod := &core.Pod{
			ObjectMeta: meta.ObjectMeta{Name: "try-" + n.Name},
			Spec: core.PodSpec{
				NodeName: n.Name, RestartPolicy: core.RestartPolicyOnFailure, TerminationGracePeriodSeconds: &never,
				Containers: []core.Container{{
					Name: "try", Image: testimages.Busybox, ImagePullPolicy: core.PullNever,
					Command: []string{"sh", "-c", "until nslookup -type=a kubernetes.default.svc.cluster.local && nc -w 2 kubernetes.default.svc.cluster.local 443 </dev/null; do sleep 0.2; done"},
				}},
			},
		}
		if _, err := pods.Create(ctx, pod, meta.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			// The namespace's service account may not be there yet.
			if err := await(ctx, "a pod", func() error { _, err := pods.Create(ctx, pod, meta.CreateOptions{}); return err }); err != nil {
				return err
			}
		}
	}
	for _, n := range s.nodes() {
		err := await(ctx, "a pod on "+n.Name, func() error { return succeeded(ctx, client, "try-"+n.Name) })
		if err != nil {
			return err
		}
		if err := pods.Delete(ctx, "try-"+n.Name, meta.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// succeeded returns nil if a pod has, and else what it says.
func succeeded(ctx context.Context, client kubernetes.Interface, name string) error {
	p, err := client.CoreV1().Pods("kube-system").Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return err
	}
	if p.Status.Phase == core.PodSucceeded {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	log, _ := client.CoreV1().Pods("kube-system").GetLogs(name, &core.PodLogOptions{TailLines: ptr(5)}).DoRaw(short)
	return fmt.Errorf("it is %s: %s %s", p.Status.Phase, p.Status.Message, strings.TrimSpace(string(log)))
}

func ptr(n int64) *int64 { return &n }
