// Package kubectl runs the kubectl of the test clusters' release.
package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// Kubectl is a kubectl for a cluster.
type Kubectl struct {
	bin    string // the directory that has it
	config string
}

// New builds kubectl if necessary, and returns it for a provider's cluster, whose kubeconfig it
// writes into dir.
func New(ctx context.Context, p provider.Provider, dir string) (Kubectl, error) {
	config, err := p.Kubeconfig(ctx)
	if err != nil {
		return Kubectl{}, err
	}
	bin, err := components.Build(ctx, os.Stderr, "kubectl")
	if err != nil {
		return Kubectl{}, err
	}
	k := Kubectl{bin: bin, config: filepath.Join(dir, "kubeconfig")}
	return k, os.WriteFile(k.config, config, 0o600)
}

// Kubeconfig returns the path of the kubeconfig.
func (k Kubectl) Kubeconfig() string { return k.config }

// Environment returns this process's environment, in which the command kubectl is this kubectl.
func (k Kubectl) Environment() []string {
	// A local cluster is reached without a proxy.
	return append(os.Environ(), "NO_PROXY="+os.Getenv("NO_PROXY")+",10.99.0.0/16", "KUBECONFIG="+k.config,
		"PATH="+k.bin+":"+os.Getenv("PATH"))
}

// Command returns a command that is not started.
func (k Kubectl) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(k.bin, "kubectl"), args...)
	cmd.Env = k.Environment()
	return cmd
}

// Run returns the standard output of a command. An error has the text of its standard error.
func (k Kubectl) Run(ctx context.Context, args ...string) (string, error) {
	return k.run(k.Command(ctx, args...))
}

// Apply applies objects, as YAML.
func (k Kubectl) Apply(ctx context.Context, objects string, args ...string) error {
	cmd := k.Command(ctx, append([]string{"apply", "-f", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(objects)
	_, err := k.run(cmd)
	return err
}

func (k Kubectl) run(cmd *exec.Cmd) (string, error) {
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(cmd.Args[1:], " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return string(out), err
}
