package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

var (
	//go:embed objects.yaml
	objects string
	//go:embed bench.yaml
	benchPod string
)

// namespace is that of container copy.
const namespace = "causeway-copy"

// play is a run of the steps in a cluster.
type play struct {
	ctx     context.Context
	kubectl kubectl.Kubectl
	cluster *local.Cluster
	dir     string // of files
	plugin  string // directory of kubectl-copy
	helm    string // directory of helm
}

// all runs all steps, up to the first failure.
func (p play) all() error {
	for _, step := range []func() error{p.pods, p.files, p.streams, p.users, p.labels, p.policies, p.audits, p.limits,
		p.upgrade, p.kills, p.deletion, p.renewal, p.off} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// folder returns the path of the folder of container copy.
func folder() string { return filepath.Join(chart.Sources(), "containercopy") }

// build builds a version of the images and of the plugin, and gives the images to the nodes. env is
// added to the environment of the go command.
func (p play) build(version string, env ...string) error {
	images := p.path("images-" + version)
	if err := p.goes(env, "run", "./images", "--out="+images, "--version="+version); err != nil {
		return err
	}
	if err := p.goes(env, "build", "-trimpath", "-o", p.path("plugin-"+version+"/kubectl-copy"),
		"./cmd/kubectl-copy"); err != nil {
		return err
	}
	tars, err := filepath.Glob(filepath.Join(images, "*.tar"))
	if err != nil {
		return err
	}
	return p.cluster.Load(p.ctx, tars...)
}

// goes runs the command go in the folder of container copy, with additional environment variables.
func (p play) goes(env []string, args ...string) error {
	cmd := exec.CommandContext(p.ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder(), os.Stdout, os.Stderr
	cmd.Env = slices.Concat(os.Environ(), []string{"GOWORK=off", "CGO_ENABLED=0"}, env)
	return cmd.Run()
}

// install installs or upgrades the chart with additional arguments of Helm, and waits until
// kube-apiserver has the API.
func (p play) install(args ...string) error {
	if err := p.kubectl.Apply(p.ctx, `{apiVersion: v1, kind: Namespace, metadata: {name: `+namespace+`, labels: {`+
		`pod-security.kubernetes.io/enforce: privileged}}}`); err != nil {
		return err
	}
	if _, err := chart.HelmIn(p.ctx, p.helm, p.kubectl.Environment(), append([]string{"upgrade", "--install",
		"copy", filepath.Join(folder(), "chart"), "--namespace=" + namespace, "--wait", "--timeout=180s",
		"--set=images.tag=dev", "--set=images.pullPolicy=Never"}, args...)...); err != nil {
		said, _ := p.kubectl.Run(p.ctx, "-n", namespace, "get", "pods,events", "-o", "wide")
		return fmt.Errorf("%w\n%s", err, said)
	}
	return p.show("wait", "--for=condition=Available", "apiservice/v1alpha1.copy.causeway.dev", "--timeout=60s")
}

// show runs kubectl, and prints its output.
func (p play) show(args ...string) error {
	out, err := p.kubectl.Run(p.ctx, args...)
	fmt.Printf("$ kubectl %s\n%s", strings.Join(args, " "), out)
	return err
}

// command returns a command of kubectl copy.
func (p play) command(args ...string) *exec.Cmd {
	cmd := p.kubectl.Command(p.ctx, append([]string{"copy"}, args...)...)
	for i, v := range cmd.Env {
		if strings.HasPrefix(v, "PATH=") {
			cmd.Env[i] = "PATH=" + p.plugin + ":" + strings.TrimPrefix(v, "PATH=")
		}
	}
	return cmd
}

// copy runs kubectl copy, and returns an error unless its exit code and its words are as expected.
func (p play) copy(code int, words string, args ...string) error {
	fmt.Printf("$ kubectl copy %s\n", strings.Join(args, " "))
	cmd := p.command(args...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	return expect(cmd.Run(), cmd, &text, code, words)
}

// expect compares the end of a command.
func expect(err error, cmd *exec.Cmd, text *bytes.Buffer, code int, words string) error {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	fmt.Print(text)
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(text.String(), words) {
		return fmt.Errorf("exit code %d, want %d with %q", got, code, words)
	}
	return nil
}

// held is a copy to a container whose source has not ended.
type held struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	text  *bytes.Buffer
}

// holdCopy begins a copy from standard input, and waits until the agent has begun it.
func (p play) holdCopy(args ...string) (*held, error) {
	fmt.Printf("$ kubectl copy %s &\n", strings.Join(args, " "))
	h := &held{cmd: p.command(args...), text: new(bytes.Buffer)}
	h.cmd.Stdout, h.cmd.Stderr = h.text, h.text
	var err error
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	_, err = h.stdin.Write(entry("held", 1<<20))
	if err == nil {
		_, err = h.stdin.Write(make([]byte, 1<<19)) // half of it
	}
	time.Sleep(2 * time.Second)
	return h, err
}

// end writes the rest of the source, and awaits the end.
func (h *held) end(code int, words string) error {
	if _, err := h.stdin.Write(make([]byte, 1<<19+1024)); err == nil { // the rest, and the end of a tar archive
		h.stdin.Close()
	}
	return expect(h.cmd.Wait(), h.cmd, h.text, code, words)
}

// await awaits the end of a copy whose source does not end.
func (h *held) await(code int, words string) error {
	err := h.cmd.Wait()
	h.stdin.Close()
	return expect(err, h.cmd, h.text, code, words)
}

// kill ends the client of a copy.
func (h *held) kill() error {
	if err := h.cmd.Process.Kill(); err != nil {
		return err
	}
	h.stdin.Close()
	h.cmd.Wait() // an error is the signal
	return nil
}

// until retries a step for a minute.
func until(step func() error) error {
	var err error
	for range 60 {
		if err = step(); err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}
