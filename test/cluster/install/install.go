// Package install puts the driver into a test cluster, by the steps of docs/how-to/install.md: with
// Helm, or without.
package install

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// Namespace is the driver's.
const Namespace = "causeway"

// Driver makes the images from the sources of this program, loads them into the cluster's nodes,
// and has Helm install or upgrade the chart. Driver returns when all pods are ready. Pods that run
// other images under the same names are replaced.
func Driver(ctx context.Context, p provider.Provider, k kubectl.Kubectl, log io.Writer) error {
	dir, err := os.MkdirTemp("", "causeway-install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	made, err := MakeImages(ctx, log, dir, "dev")
	if err != nil {
		return err
	}
	if err := made.Load(ctx, log, p); err != nil {
		return err
	}
	h, err := NewHelm(ctx, log, k)
	if err != nil {
		return err
	}
	fmt.Fprintln(log, "install: installing charts/causeway")
	if err := MakeNamespace(ctx, k); err != nil {
		return err
	}
	_, err = h.Upgrade(ctx, chart.Directory(), made, "--install")
	return err
}

// Images are those of the driver and the sidecars, in a directory.
type Images struct {
	dir, tag string
	hash     string // of their digests
}

// products are the images, as their archives are called.
var products = []string{"driver", "csi-sidecars", "csi-sidecars-node"}

// MakeImages makes the images for this machine's kind of processor in dir, from the sources that
// this program was built from. The programs in them say the tag, too.
func MakeImages(ctx context.Context, log io.Writer, dir, tag string) (Images, error) {
	fmt.Fprintln(log, "install: making the images, with the tag", tag)
	cmd := exec.CommandContext(ctx, "go", "run", ".", "--platforms=linux/"+runtime.GOARCH, "--out="+dir,
		"--version="+tag)
	cmd.Dir = filepath.Join(chart.Sources(), "deploy", "images")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return Images{}, fmt.Errorf("make the images: %w", err)
	}
	digests, err := os.ReadFile(filepath.Join(dir, "digests.txt"))
	return Images{dir, tag, fmt.Sprintf("%.16x", sha256.Sum256(digests))}, err
}

// Released returns the images of a release for this machine's kind of processor: the archives in
// the directory of the release.
func Released(dir, version string) (Images, error) {
	for _, product := range products {
		if _, err := os.Stat(filepath.Join(dir, product+".tar")); err != nil {
			return Images{}, err
		}
	}
	digests, err := os.ReadFile(filepath.Join(dir, "image-digests.txt"))
	return Images{dir, version, fmt.Sprintf("%.16x", sha256.Sum256(digests))}, err
}

// Tag returns the tag of the images, which their programs report.
func (i Images) Tag() string { return i.tag }

// Load gives them to a cluster's nodes.
func (i Images) Load(ctx context.Context, log io.Writer, p provider.Provider) error {
	fmt.Fprintln(log, "install: loading them into the nodes")
	var tars []string
	for _, product := range products {
		tars = append(tars, filepath.Join(i.dir, product+".tar"))
	}
	return p.Load(ctx, tars...)
}

// MakeNamespace makes the driver's namespace, with the labels of Pod Security that it needs.
func MakeNamespace(ctx context.Context, k kubectl.Kubectl) error {
	_, err := k.Run(ctx, "apply", "--server-side", "-f",
		filepath.Join(chart.Sources(), "deploy", "linux", "namespace.yaml"))
	return err
}

// Helm is a Helm for a cluster, which runs in the driver's namespace.
type Helm struct {
	bin     string
	kubectl kubectl.Kubectl
}

// NewHelm builds Helm if necessary.
func NewHelm(ctx context.Context, log io.Writer, k kubectl.Kubectl) (Helm, error) {
	bin, err := chart.Programs(ctx, log)
	return Helm{bin, k}, err
}

// Run returns the output of a command. An error has the text of its standard error.
func (h Helm) Run(ctx context.Context, args ...string) (string, error) {
	return chart.HelmIn(ctx, h.bin, h.kubectl.Environment(), append([]string{"--namespace=" + Namespace}, args...)...)
}

// Upgrade upgrades the release causeway to a chart with the tests' values and these images, and
// waits until all pods are ready. An error has the states of the pods.
func (h Helm) Upgrade(ctx context.Context, to string, i Images, args ...string) (string, error) {
	args = append([]string{"upgrade", "causeway", to, "--wait", "--timeout=180s",
		"--values=" + filepath.Join(chart.Sources(), "test", "cluster", "install",
			"values.yaml"), "--set=images.tag=" + i.tag,
		// Nothing else in a pod distinguishes images of the same name.
		`--set-string=hostpath.controller.podAnnotations.images=` + i.hash +
			`,hostpath.node.podAnnotations.images=` + i.hash,
	}, args...)
	out, err := h.Run(ctx, args...)
	if err != nil {
		return out, why(ctx, h.kubectl, err)
	}
	return out, nil
}

// why adds the states of the pods to an error.
func why(ctx context.Context, k kubectl.Kubectl, err error) error {
	said, _ := k.Run(ctx, "-n", Namespace, "get", "pods,events", "-o", "wide")
	return fmt.Errorf("%w\n%s", err, said)
}

// Manifests applies deploy/linux without Helm: the CRDs, the certificates, and the manifests.
// Manifests returns when everything is ready. The images must have the tag dev.
func Manifests(ctx context.Context, k kubectl.Kubectl, i Images) error {
	crds := filepath.Join(chart.Directory(), "crds")
	if _, err := k.Run(ctx, "apply", "--server-side", "-k", crds); err != nil {
		return err
	}
	kinds, err := k.Run(ctx, "get", "-k", crds, "-o", "name")
	if err != nil {
		return err
	}
	if _, err := k.Run(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=60s"},
		strings.Fields(kinds)...)...); err != nil {
		return err
	}
	if err := MakeNamespace(ctx, k); err != nil {
		return err
	}
	if err := certificates(ctx, k, i.dir); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	if _, err := k.Run(ctx, "apply", "--server-side", "-k", Overlay()); err != nil {
		return err
	}
	for _, w := range []string{"daemonset/causeway-node", "deployment/causeway-controller"} {
		if _, err := k.Run(ctx, "-n", Namespace, "rollout", "status", w, "--timeout=180s"); err != nil {
			return why(ctx, k, err)
		}
	}
	return nil
}

// Overlay is the directory that Manifests applies.
func Overlay() string { return filepath.Join(chart.Sources(), "test", "cluster", "install", "overlay") }

// certificates makes certificates and runs the commands that the driver prints, which make their
// secrets.
func certificates(ctx context.Context, k kubectl.Kubectl, dir string) error {
	driver := filepath.Join(dir, "programs", "linux-"+runtime.GOARCH, "driver")
	out, err := exec.CommandContext(ctx, driver, "certs", "--dir="+filepath.Join(dir, "certs"),
		"--shared=causeway-nodes").Output()
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
