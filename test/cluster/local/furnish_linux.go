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
	"text/template"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/test/cluster/internal/readiness"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
	"github.com/causeway-csi/causeway/test/cluster/windows"
)

// furnish brings the cluster from an API server that answers to a cluster that runs pods.
func (c *Cluster) furnish(ctx context.Context, s spec) error {
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
	// A pod that is ended by its deadline reports its last state.
	return readiness.TryPods(ctx, client, testimages.Busybox, names(s), "timeout", "90", "sh", "-c", seesTheAPI)
}

// client returns a client of the API server, without a proxy.
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
		err := c.awaitInit(ctx, n.Name, n.Name+" to be ready",
			func() error { return readiness.Ready(ctx, client, n.Name) })
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
	err = t.Execute(&b, map[string]any{"Replicas": replicas, "Image": testimages.DNS, "Address": dnsAddress,
		"Guest": GuestType})
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

// seesTheAPI is the check of a pod on each node: it finds the API server by name and reaches it at
// its service's address. Then DNS, kube-proxy and the network between pods and nodes work.
const seesTheAPI = "until nslookup -type=a kubernetes.default.svc.cluster.local && nc -w 2 " +
	"kubernetes.default.svc.cluster.local 443 </dev/null; do sleep 0.2; done"
