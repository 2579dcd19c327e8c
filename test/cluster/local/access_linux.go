package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/provider"
)

var _ provider.Provider = (*Cluster)(nil)

// Load is provider.Provider's.
func (c *Cluster) Load(ctx context.Context, tars ...string) error {
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		for _, t := range tars {
			if err := n.load(ctx, t); err != nil {
				return fmt.Errorf("load %s into %s: %w", t, n.Name, err)
			}
		}
	}
	return nil
}

// load passes containerd an archive by standard input, as the node cannot see the file.
func (n Node) load(ctx context.Context, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd, err := n.Command(ctx, "ctr", "-n", "k8s.io", "images", "import", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = f
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Kubeconfig is provider.Provider's.
func (c *Cluster) Kubeconfig(context.Context) ([]byte, error) {
	data, err := os.ReadFile(c.kubeconfig())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %s is not up", c.name)
	}
	return data, err
}

// Logs is provider.Provider's. Logs copies existing logs, also of a cluster that did not start.
func (c *Cluster) Logs(_ context.Context, dir string) error {
	if _, err := os.Stat(c.dir); err != nil {
		return fmt.Errorf("cluster %s is not there: %w", c.name, err)
	}
	sources := map[string]string{"plane": c.plane()}
	nodes, err := filepath.Glob(filepath.Join(c.dir, "nodes", "*"))
	if err != nil {
		return err
	}
	for _, n := range nodes {
		name := filepath.Base(n)
		sources[filepath.Join(name, "components")] = filepath.Join(n, "log")
		sources[filepath.Join(name, "pods")] = filepath.Join(n, "pods-log")
		sources[filepath.Join(name, "init")] = n
	}
	for to, from := range sources {
		if err := copyLogs(from, filepath.Join(dir, to), !strings.HasSuffix(to, "init")); err != nil {
			return err
		}
	}
	return nil
}

// copyLogs copies the logs in from, and below it if deep. Logs grow meanwhile, and those of
// containers come and go.
func copyLogs(from, to string, deep bool) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && path != from && !deep:
			return fs.SkipDir
		case !d.Type().IsRegular() || filepath.Ext(path) != ".log":
			return nil
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := copyFile(path, at, 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// Status is provider.Provider's.
func (c *Cluster) Status(ctx context.Context, w io.Writer) error {
	s, err := readSpec(c.files)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cluster %s is not up", c.name)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range append([]string{""}, names(s)...) {
		what := name
		if what == "" {
			what = "control plane"
		}
		if i, err := c.init(name); err != nil {
			errs = append(errs, err)
			fmt.Fprintf(w, "%s: does not run\n", what)
		} else {
			fmt.Fprintf(w, "%s: process %d\n", what, i.pid)
		}
	}
	if !exists(c.up()) {
		return errors.Join(append(errs,
			errors.New("its start was not finished: up starts it anew, down removes it"))...)
	}
	if len(errs) == 0 {
		cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "kubectl"), "--kubeconfig="+c.kubeconfig(), "get", "nodes",
			"-o", "wide")
		cmd.Stdout, cmd.Stderr = w, w
		errs = append(errs, cmd.Run())
	}
	return errors.Join(errs...)
}

func names(s spec) []string {
	var all []string
	for _, n := range s.nodes() {
		all = append(all, n.Name)
	}
	return all
}
