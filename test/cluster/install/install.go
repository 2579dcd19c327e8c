// Package install puts the driver into a test cluster, by the steps of docs/install.md.
package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// Namespace is the driver's.
const Namespace = "causeway"

// products are the images, as their archives are called.
var products = []string{"driver", "csi-sidecars", "csi-sidecars-node"}

// Driver makes the images from the sources that this program was built from, gives them to the cluster's nodes, and applies
// the manifests. It returns when everything is ready. On a cluster that has the driver, its pods are replaced.
func Driver(ctx context.Context, p provider.Provider, k kubectl.Kubectl, log io.Writer) error {
	root, err := sources()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintln(log, "install: making the images")
	if err := images(ctx, root, dir, log); err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	var tars []string
	for _, product := range products {
		tars = append(tars, filepath.Join(dir, product+".tar"))
	}
	fmt.Fprintln(log, "install: loading them into the nodes")
	if err := p.Load(ctx, tars...); err != nil {
		return err
	}
	fmt.Fprintln(log, "install: applying deploy/linux")
	return apply(ctx, k, root, dir)
}

// images makes the images for this machine's kind of processor in dir.
func images(ctx context.Context, root, dir string, log io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "run", ".", "--platforms=linux/"+runtime.GOARCH, "--out="+dir)
	cmd.Dir = filepath.Join(root, "deploy", "images")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	return cmd.Run()
}

// apply applies the CRDs, makes the certificates and applies the manifests.
func apply(ctx context.Context, k kubectl.Kubectl, root, dir string) error {
	_, gone := k.Run(ctx, "-n", Namespace, "get", "daemonset", "causeway-node")
	if _, err := k.Run(ctx, "apply", "--server-side", "-k", filepath.Join(root, "deploy", "crds")); err != nil {
		return err
	}
	kinds, err := k.Run(ctx, "get", "-k", filepath.Join(root, "deploy", "crds"), "-o", "name")
	if err != nil {
		return err
	}
	if _, err := k.Run(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, strings.Fields(kinds)...)...); err != nil {
		return err
	}
	if _, err := k.Run(ctx, "apply", "--server-side", "-f", filepath.Join(root, "deploy", "linux", "namespace.yaml")); err != nil {
		return err
	}
	if err := certificates(ctx, k, dir); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	overlay := filepath.Join(root, "test", "cluster", "install", "overlay")
	if _, err := k.Run(ctx, "apply", "--server-side", "-k", overlay); err != nil {
		return err
	}
	workloads := []string{"daemonset/causeway-node", "deployment/causeway-controller"}
	if gone == nil { // the images may be others under the same name
		if _, err := k.Run(ctx, append([]string{"-n", Namespace, "rollout", "restart"}, workloads...)...); err != nil {
			return err
		}
	}
	for _, w := range workloads {
		if _, err := k.Run(ctx, "-n", Namespace, "rollout", "status", w, "--timeout=180s"); err != nil {
			pods, _ := k.Run(ctx, "-n", Namespace, "get", "pods,events", "-o", "wide")
			return fmt.Errorf("%w\n%s", err, pods)
		}
	}
	return nil
}

// certificates makes certificates and runs the commands that the driver prints, which make their secrets.
func certificates(ctx context.Context, k kubectl.Kubectl, dir string) error {
	driver := filepath.Join(dir, "programs", "linux-"+runtime.GOARCH, "driver")
	out, err := exec.CommandContext(ctx, driver, "certs", "--dir="+filepath.Join(dir, "certs"), "--shared=causeway-nodes").Output()
	if err != nil {
		return err
	}
	var commands []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "kubectl ") {
			commands = append(commands, line)
		}
	}
	if len(commands) == 0 {
		return fmt.Errorf("no commands in:\n%s", out)
	}
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", strings.Join(commands, "\n"))
	cmd.Env = k.Environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// sources returns the directory of the sources that this was built from.
func sources() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("this was built with -trimpath: it doesn't know where its sources are")
	}
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	if _, err := os.Stat(filepath.Join(root, "deploy", "linux")); err != nil {
		return "", fmt.Errorf("the sources that this was built from aren't there any more: %w", err)
	}
	return root, nil
}
