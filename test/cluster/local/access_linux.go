package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

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

// Logs is provider.Provider's. Logs copies existing logs, also of a cluster that did not start. Of
// a guest that is off there are those of its console.
func (c *Cluster) Logs(ctx context.Context, dir string) error {
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
	return c.guestLogs(ctx, dir)
}

// guestLogs copies the logs of guests that run. An error of a guest does not end the copies of the
// others.
func (c *Cluster) guestLogs(ctx context.Context, dir string) error {
	all, err := c.Nodes()
	if errors.Is(err, fs.ErrNotExist) { // the cluster did not start
		return nil
	} else if err != nil {
		return err
	}
	var errs []error
	for _, n := range all {
		if _, err := c.init(n.Name); err != nil || !n.guest() {
			continue
		}
		if err := n.guestLogs(ctx, filepath.Join(dir, n.Name)); err != nil {
			errs = append(errs, fmt.Errorf("logs of %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// guestLogs copies the logs of a guest.
func (n Node) guestLogs(ctx context.Context, dir string) error {
	tmp, err := os.MkdirTemp("", "causeway-logs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := n.copyOut(ctx, n.cluster.node(n.Name).dir, tmp, "log", "pods-log"); err != nil {
		return err
	}
	return errors.Join(
		copyLogs(filepath.Join(tmp, "log"), filepath.Join(dir, "components"), true),
		copyLogs(filepath.Join(tmp, "pods-log"), filepath.Join(dir, "pods"), true),
	)
}

// packScript packs directories ($@) in a directory ($0). BusyBox' tar skips a file that is deleted
// before tar opens it, completes the archive, and exits with 1. The script tells this from the end
// of the connection to a guest, after which the client of the command exits with 1 too.
const packScript = `tar -C "$0" -c "$@" || test $? = 1`

// copyOut copies directories in a directory of the node into a directory of this machine. Files may
// be deleted meanwhile.
func (n Node) copyOut(ctx context.Context, from, to string, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // the node may hang
	defer cancel()
	pack, err := n.Command(ctx, append([]string{"sh", "-c", packScript, from}, names...)...)
	if err != nil {
		return err
	}
	return unpack(ctx, pack, to)
}

// unpack unpacks the archive that a command writes. Errors: the command failed, or the archive ends
// within a file.
func unpack(ctx context.Context, pack *exec.Cmd, to string) (err error) {
	unpack := exec.CommandContext(ctx, "tar", "-C", to, "-x")
	if unpack.Stdin, err = pack.StdoutPipe(); err != nil {
		return err
	}
	var packed, unpacked bytes.Buffer
	pack.Stderr, unpack.Stderr = &packed, &unpacked
	if err := unpack.Start(); err != nil {
		return err
	}
	if err := errors.Join(pack.Run(), unpack.Wait()); err != nil {
		return fmt.Errorf("%w: %s%s", err, &packed, &unpacked)
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
