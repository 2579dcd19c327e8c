// Package kind runs a Kubernetes cluster with kind (sigs.k8s.io/kind), whose nodes are containers
// of docker, nerdctl or podman.
package kind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	kind "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/constants"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	"sigs.k8s.io/kind/pkg/cluster/nodeutils"

	"github.com/causeway-csi/causeway/internal/flock"
	"github.com/causeway-csi/causeway/test/cluster/internal/readiness"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// StorageDir is a directory of each node that is on its disk, for a driver with volumes in a
// directory.
const StorageDir = "/var/lib/causeway"

// patience is for how long kind waits for the control plane, whose images are in the node's.
const patience = 5 * time.Minute

// nameGrammar keeps names good for containers and hosts: kind adds a role and a number.
var nameGrammar = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$`)

// engine has the used methods of *kind.Provider.
type engine interface {
	Create(name string, options ...kind.CreateOption) error
	Delete(name, kubeconfig string) error
	ListInternalNodes(name string) ([]nodes.Node, error)
	CollectLogs(name, dir string) error
}

// Cluster is a cluster of kind's, which may run or not. It is a provider.Provider, with a limit:
// kind itself cannot be interrupted, so the end of a context takes effect after kind's step.
type Cluster struct {
	name   string
	dir    string // marks the cluster as this package's, and has its kubeconfig
	engine engine
	log    *logger
}

var _ provider.Provider = (*Cluster)(nil)

// New returns the cluster of that name. Its kubeconfig is in the user's cache; the user's own file
// is not written. Errors: an invalid name; no engine. KIND_EXPERIMENTAL_PROVIDER selects the
// engine, as it does for kind.
func New(name string) (*Cluster, error) {
	if !nameGrammar.MatchString(name) {
		return nil, errors.New("a cluster's name is at most 32 lower-case letters, digits and hyphens, a letter " +
			"first: not " + strconv.Quote(name))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	option, err := choose(os.Getenv("KIND_EXPERIMENTAL_PROVIDER"))
	if err != nil {
		return nil, err
	}
	log := &logger{}
	return &Cluster{
		name: name, dir: filepath.Join(cache, "causeway", "kind", name), log: log, engine: kind.NewProvider(option,
			kind.ProviderWithLogger(log)),
	}, nil
}

// choose returns the requested engine, or the available engine.
func choose(asked string) (kind.ProviderOption, error) {
	switch asked {
	case "":
		found, err := kind.DetectNodeProvider()
		if errors.Is(err, kind.NoNodeProviderDetectedError) {
			return nil, errors.New("kind needs a container engine, and there is none: it looks for docker, nerdctl " +
				"(or finch) and podman in PATH, in this order")
		}
		return found, err
	case "docker":
		return kind.ProviderWithDocker(), nil
	case "podman":
		return kind.ProviderWithPodman(), nil
	case "nerdctl", "finch", "nerdctl.lima":
		return kind.ProviderWithNerdctl(asked), nil
	}
	return nil, fmt.Errorf("KIND_EXPERIMENTAL_PROVIDER is %q: kind knows docker, podman, nerdctl, finch and "+
		"nerdctl.lima", asked)
}

func (c *Cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// up is the file whose existence means that the cluster was started completely.
func (c *Cluster) up() string { return filepath.Join(c.dir, "up") }

// Up is provider.Provider's. The nodes that are asked for are workers: there is a node for the
// control plane beside them, whose taint few pods tolerate.
func (c *Cluster) Up(ctx context.Context, o provider.Options) error {
	switch {
	case o.Nodes < 1:
		return fmt.Errorf("%d nodes: at least 1", o.Nodes)
	case o.Windows > 0:
		return errors.New("no Windows nodes are simulated with kind, as nothing would play their kubelets once this " +
			"program has ended: use --provider=local")
	case len(o.Guests) > 0:
		return errors.New("kind has no nodes that are guests of QEMU: use --provider=local")
	}
	c.log.to(o.Log)
	defer c.log.to(nil)
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := c.nodes()
	if err != nil {
		return err
	}
	if len(found) > 0 {
		if up, err := c.runs(ctx, found, o); up || err != nil {
			return err
		}
	}
	if err := c.clean(); err != nil { // also if there are no nodes: a file may say that it is up
		return fmt.Errorf("remove what is left of a former cluster: %w", err)
	}
	err = c.start(ctx, o)
	if err != nil && strings.Contains(err.Error(), alreadyExist) {
		return errors.Join(err, os.RemoveAll(c.dir)) // another process made it since the check
	}
	if err != nil {
		return errors.Join(err, c.clean())
	}
	return nil
}

// alreadyExist is in kind's error where there are nodes of that name.
const alreadyExist = "already exist for a cluster"

// runs reports whether the cluster, which has nodes, runs as requested. Errors: it differs; it is
// not this package's to remove.
func (c *Cluster) runs(ctx context.Context, found []nodes.Node, o provider.Options) (bool, error) {
	if err := c.own(); err != nil {
		return false, err
	}
	if _, err := os.Stat(c.up()); err != nil {
		return false, nil // it was killed while it started
	}
	workers, err := workers(found)
	if err != nil {
		return false, err
	}
	if len(workers) != o.Nodes {
		return false, fmt.Errorf("cluster %s runs, with %d nodes, not %d: end it first (down)", c.name, len(workers),
			o.Nodes)
	}
	for _, n := range found {
		if err := n.CommandContext(ctx, "test", "-d", StorageDir).Run(); err != nil {
			return false, fmt.Errorf("node %s of cluster %s does not do what it is told (%w): start its container "+
				"again, or end the cluster (down)", n, c.name, err)
		}
	}
	return true, nil
}

// own returns nil if the cluster's nodes were started by this package, for this user.
func (c *Cluster) own() error {
	_, err := os.Stat(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kind has a cluster %s that this program has not started: use another name, or end it (kind "+
			"delete cluster --name %s)", c.name, c.name)
	}
	return err
}

// start starts the cluster, which has no nodes. The directory is made first, and the file "up"
// last.
func (c *Cluster) start(ctx context.Context, o provider.Options) error {
	began := time.Now()
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	err := c.engine.Create(c.name, kind.CreateWithV1Alpha4Config(config(o)),
		kind.CreateWithKubeconfigPath(c.kubeconfig()), kind.CreateWithWaitForReady(patience))
	if err != nil {
		return fmt.Errorf("kind: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	found, err := c.nodes()
	if err != nil {
		return err
	}
	for _, n := range found {
		if err := n.CommandContext(ctx, "mkdir", "-p", StorageDir).Run(); err != nil {
			return fmt.Errorf("make %s on %s: %w", StorageDir, n, err)
		}
	}
	if err := c.try(ctx, o.Nodes); err != nil {
		return err
	}
	if o.Log != nil {
		fmt.Fprintf(o.Log, "cluster %s: %d nodes are ready after %.1f s\n", c.name, o.Nodes,
			time.Since(began).Seconds())
	}
	return os.WriteFile(c.up(), nil, 0o600)
}

// config is the configuration for kind.
func config(o provider.Options) *v1alpha4.Cluster {
	all := []v1alpha4.Node{{Role: v1alpha4.ControlPlaneRole}}
	for range o.Nodes {
		all = append(all, v1alpha4.Node{Role: v1alpha4.WorkerRole})
	}
	return &v1alpha4.Cluster{Nodes: all}
}

// try waits until pods run on every worker. kind waits for the control plane's node alone.
func (c *Cluster) try(ctx context.Context, n int) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	names, err := readiness.Await(ctx, client, n)
	if err != nil {
		return err
	}
	return readiness.TryPods(ctx, client, testimages.Busybox, names, "true")
}

func (c *Cluster) client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // without the client's own limit: the API server has a limit
	return kubernetes.NewForConfig(config)
}

// nodes returns the cluster's nodes, running or not.
func (c *Cluster) nodes() ([]nodes.Node, error) {
	found, err := c.engine.ListInternalNodes(c.name)
	if err != nil {
		return nil, fmt.Errorf("kind: %w", err)
	}
	return found, nil
}

// workers returns those of nodes that were asked for.
func workers(all []nodes.Node) ([]nodes.Node, error) {
	var errs []error
	left := slices.DeleteFunc(slices.Clone(all), func(n nodes.Node) bool {
		role, err := n.Role()
		if err != nil {
			errs = append(errs, fmt.Errorf("role of %s: %w", n, err))
		}
		return role != constants.WorkerNodeRoleValue
	})
	return left, errors.Join(errs...)
}

// Down is provider.Provider's.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := c.nodes()
	if err != nil {
		return err
	}
	if len(found) > 0 {
		if err := c.own(); err != nil {
			return err
		}
	}
	return c.clean()
}

// clean ends the cluster if it is this package's, and removes its directory last: as long as that
// is there, clean can be repeated.
func (c *Cluster) clean() error {
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Remove(c.up()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := c.engine.Delete(c.name, c.kubeconfig()); err != nil {
		return fmt.Errorf("kind: %w", err)
	}
	return os.RemoveAll(c.dir)
}

// lock keeps other processes of this user from starting and ending clusters, until unlock is
// called.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	all := filepath.Dir(c.dir)
	if err := os.MkdirAll(all, 0o700); err != nil {
		return nil, err
	}
	return flock.Wait(ctx, all, func() { c.log.Info("waiting for another process that starts or ends a cluster") })
}

// Load is provider.Provider's. The control plane's node is included: a DaemonSet may tolerate its
// taint.
func (c *Cluster) Load(ctx context.Context, tars ...string) error {
	all, err := c.running()
	if err != nil {
		return err
	}
	for _, t := range tars {
		for _, n := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := load(n, t); err != nil {
				return fmt.Errorf("load %s on %s: %w", t, n, err)
			}
		}
	}
	return nil
}

func load(n nodes.Node, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	return nodeutils.LoadImageArchive(n, f)
}

// running returns the nodes of the cluster, which must have been started wholly.
func (c *Cluster) running() ([]nodes.Node, error) {
	if _, err := os.Stat(c.up()); err != nil {
		return nil, fmt.Errorf("cluster %s does not run: start it (up)", c.name)
	}
	found, err := c.nodes()
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("the nodes of cluster %s are gone: start it again (up)", c.name)
	}
	return found, err
}

// Kubeconfig is provider.Provider's.
func (c *Cluster) Kubeconfig(context.Context) ([]byte, error) {
	if _, err := c.running(); err != nil {
		return nil, err
	}
	return os.ReadFile(c.kubeconfig())
}

// Logs is provider.Provider's.
func (c *Cluster) Logs(_ context.Context, dir string) error {
	if _, err := c.running(); err != nil {
		return err
	}
	return c.engine.CollectLogs(c.name, dir)
}

// Status is provider.Provider's.
func (c *Cluster) Status(ctx context.Context, w io.Writer) error {
	if _, err := c.running(); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	return readiness.Write(ctx, client, w)
}
