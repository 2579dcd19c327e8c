package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// patience is the limit for the removal of objects and volumes.
const patience = 3 * time.Minute

// guard is a cluster that runs. It knows the objects of the empty cluster.
type guard struct {
	cluster *local.Cluster
	kubectl kubectl.Kubectl
	helm    string // the directory that has it
	dir     string
	before  []string
}

// newGuard returns a guard, also with an error, for the end of the cluster.
func newGuard(ctx context.Context, c *local.Cluster) (running, error) {
	g := &guard{cluster: c}
	var err error
	if g.dir, err = os.MkdirTemp("", "causeway-scenarios-"); err != nil {
		return g, err
	}
	if g.helm, err = chart.Programs(ctx, os.Stderr); err != nil {
		return g, err
	}
	if g.kubectl, err = kubectl.New(ctx, c, g.dir); err != nil {
		return g, err
	}
	// Each namespace gets these two from controllers, a while after the start.
	if err := until(ctx, "all namespaces to be complete", func() error {
		for _, kind := range []string{"serviceaccount/default", "configmap/kube-root-ca.crt"} {
			for _, namespace := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
				if _, err := g.kubectl.Run(ctx, "-n", namespace, "get", kind); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		return g, err
	}
	for { // until a look finds the same objects as the look before
		now, err := g.objects(ctx)
		if err != nil || slices.Equal(now, g.before) {
			return g, err
		}
		g.before = now
		select {
		case <-ctx.Done():
			return g, context.Cause(ctx)
		case <-time.After(2 * time.Second):
		}
	}
}

// end ends the cluster, and verifies that nothing of it is left on the machine.
func (g *guard) end() error {
	return errors.Join(os.RemoveAll(g.dir), g.cluster.End(context.Background()))
}

// empty removes the releases of Helm, with their namespaces and CRDs, by the steps of
// docs/how-to/install.md. The error names the other objects of the cluster. A scenario removes its
// pods and volumes.
func (g *guard) empty(ctx context.Context) error {
	for _, step := range []func(context.Context) error{g.noVolumes, g.uninstall, g.noObjects, g.emptyNodes} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// noVolumes waits until there are no volumes and snapshots, which only their driver can delete.
func (g *guard) noVolumes(ctx context.Context) error {
	return until(ctx, "no volumes and snapshots", func() error {
		kinds, err := g.kubectl.Run(ctx, "api-resources", "--verbs=list", "--cached=false", "-o", "name")
		if err != nil {
			return err
		}
		volumes := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool {
			short, _, _ := strings.Cut(kind, ".")
			return !slices.Contains([]string{"persistentvolumes", "persistentvolumeclaims", "volumesnapshots",
				"volumesnapshotcontents", "volumegroupsnapshots", "volumegroupsnapshotcontents"}, short)
		})
		return nothing(g.kubectl.Run(ctx, "get", strings.Join(volumes, ","), "-A", "-o", "name"))
	})
}

// uninstall uninstalls all releases.
func (g *guard) uninstall(ctx context.Context) error {
	out, err := g.runHelm(ctx, "list", "-A", "-o", "json")
	if err != nil {
		return err
	}
	var releases []struct{ Name, Namespace string }
	if err := json.Unmarshal([]byte(out), &releases); err != nil {
		return err
	}
	for _, r := range releases {
		if _, err := g.runHelm(ctx, "uninstall", r.Name, "--namespace="+r.Namespace); err != nil {
			return err
		}
	}
	added, err := g.added(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{"Namespace", "CustomResourceDefinition"} {
		for _, object := range added {
			if name, ok := strings.CutPrefix(object, kind+" /"); ok {
				if _, err := g.kubectl.Run(ctx, "delete", kind, name, "--timeout="+patience.String()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (g *guard) runHelm(ctx context.Context, args ...string) (string, error) {
	return chart.HelmIn(ctx, g.helm, g.kubectl.Environment(), args...)
}

// noObjects waits until the cluster has only the objects that it had before.
func (g *guard) noObjects(ctx context.Context) error {
	return until(ctx, "only the objects of an empty cluster", func() error {
		added, err := g.added(ctx)
		return nothing(strings.Join(added, "\n"), err)
	})
}

// added returns the objects that the empty cluster did not have.
func (g *guard) added(ctx context.Context) ([]string, error) {
	all, err := g.objects(ctx)
	return slices.DeleteFunc(all, func(o string) bool { return slices.Contains(g.before, o) }), err
}

// objects returns all objects that no other object owns, except events, each as
// "Kind namespace/name".
func (g *guard) objects(ctx context.Context) (all []string, err error) {
	kinds, err := g.kubectl.Run(ctx, "api-resources", "--verbs=list", "--cached=false", "-o", "name")
	if err != nil {
		return nil, err
	}
	out, err := g.kubectl.Run(ctx, "get", strings.Join(strings.Fields(kinds), ","), "-A", "--ignore-not-found", "-o",
		"jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} "+
			`{.metadata.ownerReferences[*].name}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] != "Event" {
			all = append(all, f[0]+" "+f[1])
		}
	}
	if !slices.Contains(all, "Namespace /default") {
		return nil, fmt.Errorf("the list of all objects lacks the namespace default:\n%s", out)
	}
	return all, nil
}

// emptyNodes verifies that no node has a volume, its mount, its loop device or a driver's socket,
// and removes the directories that stay after an uninstallation.
func (g *guard) emptyNodes(ctx context.Context) error {
	nodes, err := g.cluster.Nodes()
	if err != nil {
		return err
	}
	const plugins = "/var/lib/kubelet/plugins"
	left := strings.Join([]string{
		`awk '$2 ~ "/kubernetes.io[~/]csi/" {print $2}' /proc/mounts`,
		"find " + plugins + " " + plugins + "_registry -type s",
		"cd " + local.StorageDir,
		"for d in volumes snapshots groups staging trash; do " +
			"if [ -d $d ]; then find $d -mindepth 1 -maxdepth 1; fi; done",
		// A node sees all loop devices of this machine.
		`losetup -ln -O BACK-MAJ:MIN,NAME,BACK-FILE | grep "^ *$(mountpoint -d .) " || true`,
	}, "\n")
	for _, n := range nodes {
		if err := until(ctx, "no part of a volume or a driver on "+n.Name, func() error {
			return nothing(n.Run(ctx, "sh", "-ec", left))
		}); err != nil {
			return err
		}
		if _, err := n.Run(ctx, "sh", "-ec", "find "+local.StorageDir+" "+plugins+
			" -mindepth 1 -maxdepth 1 ! -name kubernetes.io -exec rm -rf {} +"); err != nil {
			return err
		}
	}
	return nil
}

// report writes the state of the cluster, and its logs, into a directory.
func (g *guard) report(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for file, args := range map[string][]string{
		"objects.txt": {"get", "nodes,pods,pvc,pv", "-A", "-o", "wide"},
		"pods.yaml":   {"get", "pods", "-A", "-o", "yaml"},
		"events.txt":  {"events", "-A"},
	} {
		out, err := g.kubectl.Run(ctx, append(args, "--request-timeout=30s")...)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, file), []byte(out), 0o644))
	}
	return errors.Join(append(errs, g.cluster.Logs(ctx, dir))...)
}

// nothing returns an error with the output unless it is empty.
func nothing(out string, err error) error {
	if out = strings.TrimSpace(out); err == nil && out != "" {
		err = fmt.Errorf("there is:\n%s", out)
	}
	return err
}

// until waits until a check returns nil.
func until(ctx context.Context, state string, check func() error) error {
	for deadline := time.Now().Add(patience); ; {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not so after %v: %s: %w", patience, state, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}
