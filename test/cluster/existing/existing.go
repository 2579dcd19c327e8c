// Package existing provides the cluster of a kubeconfig file, which runs independently of this
// program.
package existing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/causeway-csi/causeway/test/cluster/internal/readiness"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// Options identify the cluster. All is optional, but a kubeconfig file must be named somehow.
type Options struct {
	// Kubeconfig is a kubeconfig file, of which the current context is used. Empty means the file
	// in KUBECONFIG. The user's ~/.kube/config is not used unless it is named: tests damage objects
	// in a cluster.
	Kubeconfig string
	// Registry is where Load pushes images to, such as registry.example.com/team. The cluster must
	// be able to pull from there, and the user's docker login be good for it.
	Registry string
	// Namespaces are those that Logs looks into. Empty is all.
	Namespaces []string
	// Log receives the messages of Down, Load and Up. Nil is os.Stderr.
	Log io.Writer
}

// Cluster is a provider.Provider.
type Cluster struct {
	options Options
	rules   clientcmd.ClientConfig
	client  kubernetes.Interface
	host    string // of the API server
}

var _ provider.Provider = (*Cluster)(nil)

// New returns the cluster, without a connection to it. Errors: no kubeconfig is named, or it cannot
// be read; the name of the registry is invalid.
func New(o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = os.Stderr
	}
	o.Registry = strings.TrimSuffix(o.Registry, "/")
	if o.Registry != "" {
		if err := checkRegistry(o.Registry); err != nil {
			return nil, err
		}
	}
	if o.Kubeconfig == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		return nil, errors.New("say which cluster: --kubeconfig or KUBECONFIG names a kubeconfig file")
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules() // of KUBECONFIG, which may have several
	rules.ExplicitPath = o.Kubeconfig
	// Not by way of a deferred configuration: where the files have nothing, that takes the cluster
	// that this process is in.
	raw, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if raw.CurrentContext == "" {
		return nil, fmt.Errorf("kubeconfig: no current context in %s", strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	c := &Cluster{options: o, rules: clientcmd.NewNonInteractiveClientConfig(*raw, raw.CurrentContext, nil, rules)}
	config, err := c.rules.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c.host = config.Host
	config.QPS = -1 // without the client's own limit: the API server has a limit
	c.client, err = kubernetes.NewForConfig(config)
	return c, err
}

// checkRegistry keeps a name without a host from meaning Docker Hub, and a scheme from being taken
// for a host.
func checkRegistry(registry string) error {
	_, err := name.NewTag(registry+"/image:tag", name.StrictValidation)
	host, _, _ := strings.Cut(registry, "/")
	if err == nil && (!strings.ContainsAny(host, ".:") && host != "localhost" || strings.HasSuffix(host, ":")) {
		err = fmt.Errorf("%q is no host", host)
	}
	if err != nil {
		return fmt.Errorf("registry %q: %w: say registry.example.com/team", registry, err)
	}
	return nil
}

// Up is provider.Provider's. It starts nothing: it returns an error if the cluster differs from the
// options. More nodes are fine.
func (c *Cluster) Up(ctx context.Context, o provider.Options) error {
	switch {
	case o.Nodes < 1:
		return fmt.Errorf("%d nodes: at least 1", o.Nodes)
	case o.Windows > 0:
		return errors.New("a cluster that is there has the Windows nodes that it has: none are simulated")
	case len(o.Guests) > 0:
		return errors.New("a cluster that is there has the kernels that it has: no guests are started")
	}
	version, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server at %s: %w", c.host, err)
	}
	nodes, err := readiness.Nodes(ctx, c.client)
	if err != nil {
		return err
	}
	good := readiness.Good(nodes)
	if len(good) < o.Nodes {
		return errors.New(strings.TrimSuffix(fmt.Sprintf("%d Linux nodes can have pods, not %d: %s", len(good), o.Nodes,
			readiness.Bad(nodes)), ": "))
	}
	fmt.Fprintf(c.options.Log, "cluster at %s: Kubernetes %s; a pod of %s is tried on %s\n", c.host, version.GitVersion,
		testimages.Busybox, strings.Join(good, ", "))
	return readiness.TryPods(ctx, c.client, testimages.Busybox, good, "true")
}

// Down is provider.Provider's, and leaves the cluster as it is.
func (c *Cluster) Down(context.Context) error {
	fmt.Fprintf(c.options.Log, "cluster at %s: it runs on, as it is not this program's to end\n", c.host)
	return nil
}

// Kubeconfig is provider.Provider's. It has the current context alone, and the content of the files
// that it names.
func (c *Cluster) Kubeconfig(context.Context) ([]byte, error) {
	raw, err := c.rules.RawConfig()
	if err != nil {
		return nil, err
	}
	if err := api.MinifyConfig(&raw); err != nil {
		return nil, err
	}
	if err := api.FlattenConfig(&raw); err != nil {
		return nil, err
	}
	return clientcmd.Write(raw)
}

// Status is provider.Provider's.
func (c *Cluster) Status(ctx context.Context, w io.Writer) error {
	version, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server at %s: %w", c.host, err)
	}
	if _, err := fmt.Fprintf(w, "API server %s: Kubernetes %s\n", c.host, version.GitVersion); err != nil {
		return err
	}
	return readiness.Write(ctx, c.client, w)
}
